"""SIGKILL of the worker that has a thread, another worker up: the thread goes on soon, and once."""

import statistics
from pathlib import Path

import pytest

from bench.thread_harness import open_harness
from bench.thread_kills import (
    BETWEEN_SECONDS_MAX,
    WITHIN_SECONDS_MAX,
    kill_between_steps,
    kill_within_call,
    read_messages,
)
from everlong.embedded import TemporalServer
from everlong.models import Kind
from tests.support.scale import scaled

TURNS = scaled(3, 5)


@pytest.mark.guarantee(46)
async def test_a_message_after_a_kill_between_steps_is_acted_on_at_once(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    async with open_harness(server.address, tmp_path) as harness:
        seconds = await kill_between_steps(harness, thread_id, turns=TURNS)
        await harness.start_worker()
        said = await read_messages(harness, thread_id)
    print(f"from the kill to the model call: {sorted(seconds)}")  # noqa: T201 - pytest shows it
    assert statistics.median(seconds) <= BETWEEN_SECONDS_MAX
    replies = [text for kind, text in said if kind == Kind.REPLY]
    asked = ["say 1", *(f"say {n}" for turn in range(TURNS) for n in (2, 100 + turn))]
    assert replies == [f"done: {text}" for text in asked]


@pytest.mark.guarantee(46)
async def test_a_kill_in_a_model_call_costs_seconds_and_leaves_one_reply(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    async with open_harness(server.address, tmp_path) as harness:
        seconds = await kill_within_call(harness, thread_id, turns=2)
        worker = await harness.start_worker()
        said = await read_messages(harness, thread_id)
        assert worker.returncode is None
    print(f"from the kill to the next try: {seconds}")  # noqa: T201 - pytest shows it
    assert max(seconds) <= WITHIN_SECONDS_MAX
    assert said == [
        each
        for turn in range(2)
        for each in (
            (Kind.MESSAGE, f"wait {200 + turn}"),
            (Kind.REPLY, f"done: wait {200 + turn}"),
        )
    ]
