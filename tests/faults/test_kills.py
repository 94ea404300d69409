"""SIGKILL at bad moments: the thread finishes with the right result."""

import asyncio
import contextlib
import dataclasses
import random
import statistics
import time
from collections.abc import AsyncIterator, Iterator
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
from everlong import Policy
from everlong.client.wait import wait_for_status
from everlong.config import Settings, load_settings, point_to_embedded
from everlong.embedded import ManagedProcess, TemporalServer, start_server, start_worker
from everlong.models import Kind, Message
from everlong.storage import open_store
from everlong.testing import workload
from everlong.worker_options import READY
from tests.support.scale import scaled
from tests.support.scripted_agents import pages_answer
from tests.support.threads import Threads, open_threads

ROOT = Path(__file__).parents[2]


@pytest.fixture
def settings(
    tmp_path: Path, server: TemporalServer, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """Settings for worker processes that import the scripted agents and poll their own queue."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TEST_GATE", str(tmp_path))
    base = load_settings({"EVERLONG_DATA_DIR": str(tmp_path), "EVERLONG_TASK_QUEUE": thread_id})
    return point_to_embedded(base, server.address)


@contextlib.contextmanager
def worker(settings: Settings, agent: str, name: str) -> Iterator[ManagedProcess]:
    with start_worker(settings, [f"tests.support.scripted_agents:{agent}"], name=name) as process:
        yield process


@contextlib.asynccontextmanager
async def open_settings_threads(settings: Settings) -> AsyncIterator[Threads]:
    store = open_store(settings.store)
    async with open_threads(settings.temporal["target_host"], store) as threads:
        yield dataclasses.replace(threads, task_queue=settings.task_queue)


async def wait_for_file(path: Path) -> None:
    deadline = time.monotonic() + 90
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not appear"
        await asyncio.sleep(0.02)


def check_pages(conversation: list[Message], pages: int) -> None:
    """Every page is there once and in order, and the answer was made from all of them."""
    texts = [message.text for message in conversation if message.role == "tool"]
    assert texts == [workload.result(i) for i in range(pages)]
    assert len(conversation) == 2 + 2 * pages
    assert conversation[-1].text == pages_answer(pages)


@pytest.mark.guarantee(45)
async def test_a_thread_survives_a_worker_kill_in_a_tool(
    settings: Settings, thread_id: str, tmp_path: Path
) -> None:
    async with open_settings_threads(settings) as threads:
        with worker(settings, "gated", "first") as first:
            await threads.send(thread_id, "read", agent="gated")
            await wait_for_file(tmp_path / "begun")
            first.kill()
        assert first.returncode == -9
        (tmp_path / "open").touch()
        with worker(settings, "gated", "second"):
            status = await threads.wait_for_answers(thread_id, 1)
            check_pages(await threads.conversation(thread_id), 12)
            assert status.counters.steps == 13


@pytest.mark.full
@pytest.mark.guarantee(45)
async def test_a_thread_survives_repeated_worker_kills(settings: Settings, thread_id: str) -> None:
    """Kills at seeded random moments: between steps, in a PUT, before a result is reported, at a roll.

    The thread rolls after every few steps, so that some kills meet it.
    """
    source = random.Random(7)
    async with open_settings_threads(settings) as threads:
        for attempt in range(scaled(2, 4)):
            with worker(settings, "steady", f"worker-{attempt}") as process:
                if attempt == 0:
                    await threads.start(thread_id, Policy(run_events_max=50), agent="steady")
                    await threads.send(thread_id, "read", agent="steady")
                await process.wait_for_output(READY, 30)
                await asyncio.sleep(source.uniform(0.2, 1.5))
                process.kill()
        with worker(settings, "steady", "last"):
            status = await threads.wait_for_answers(thread_id, 1)
            check_pages(await threads.conversation(thread_id), 40)
            assert status.counters.runs >= 8


@pytest.mark.guarantee(45)
async def test_a_thread_survives_a_server_kill(
    settings: Settings, thread_id: str, tmp_path: Path
) -> None:
    data_dir = tmp_path / "own-server"
    data_dir.mkdir()
    own = await start_server(data_dir)
    settings = point_to_embedded(settings, own.address)
    with own.process, worker(settings, "steady", "worker") as process:
        async with open_settings_threads(settings) as threads:
            await threads.send(thread_id, "read", agent="steady")
            before = await wait_for_status(
                threads.client, thread_id, lambda s: s.counters.tool_calls >= 10, seconds_max=60
            )
            own.process.kill()
            assert before.counters.tool_calls < 40
            restarted = await start_server(data_dir, port=own.port, ui_port=own.ui_port)
            with restarted.process:
                status = await threads.wait_for_answers(thread_id, 1, seconds=90)
                check_pages(await threads.conversation(thread_id), 40)
                assert status.counters.steps == 41
                assert process.returncode is None, "the worker lived through the outage"


TURNS = scaled(3, 5)


@pytest.mark.guarantee(46)
async def test_a_message_after_a_kill_between_steps_starts_a_turn_at_once(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    async with open_harness(server.address, tmp_path) as harness:
        seconds = await kill_between_steps(harness, thread_id, turns=TURNS)
        await harness.start_worker()
        messages = await read_messages(harness, thread_id)
    print(f"from the kill to the model call: {sorted(seconds)}")  # noqa: T201 - pytest shows it
    assert statistics.median(seconds) <= BETWEEN_SECONDS_MAX
    replies = [text for kind, text in messages if kind == Kind.REPLY]
    asked = ["say 1", *(f"say {n}" for turn in range(TURNS) for n in (2, 100 + turn))]
    assert replies == [f"done: {text}" for text in asked]


@pytest.mark.guarantee(46)
async def test_a_kill_in_a_model_call_costs_seconds_and_leaves_one_reply(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    async with open_harness(server.address, tmp_path) as harness:
        seconds = await kill_within_call(harness, thread_id, turns=2)
        worker = await harness.start_worker()
        messages = await read_messages(harness, thread_id)
        assert worker.returncode is None
    print(f"from the kill to the next try: {seconds}")  # noqa: T201 - pytest shows it
    assert max(seconds) <= WITHIN_SECONDS_MAX
    assert messages == [
        each
        for turn in range(2)
        for each in (
            (Kind.MESSAGE, f"wait {200 + turn}"),
            (Kind.REPLY, f"done: wait {200 + turn}"),
        )
    ]
