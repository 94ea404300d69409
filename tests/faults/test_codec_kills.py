"""SIGKILL around a PUT of the codec: the workflow ends with the same result."""

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle

from everlong import EverlongPlugin
from everlong.embedded import ManagedProcess, TemporalServer
from everlong.storage.file import FileBlobStore
from tests.support.loop_workflows import ListLoop, Loop, RollingLoop, compute_expected
from tests.support.scale import scaled

ROOT = Path(__file__).parents[2]
NEVER = "0"
# The time that a workflow task of a killed worker takes to be retried.
SHORT = timedelta(seconds=2)


def start_worker(
    server: TemporalServer, queue: str, store: Path, log: Path, when: str, number: str
) -> ManagedProcess:
    command = [
        sys.executable,
        "-m",
        "tests.support.self_killing_worker",
        server.address,
        queue,
        str(store),
    ]
    return ManagedProcess(
        "worker", [*command, when, number], log=log, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )


async def run_with_kills(
    server: TemporalServer,
    tmp_path: Path,
    queue: str,
    handle: WorkflowHandle[Any, str],
    kills: list[tuple[str, str]],
) -> str:
    """Run a workflow on workers that die, one after another, and on one that does not."""
    store = tmp_path / "blobs"
    for index, (when, number) in enumerate(kills):
        with start_worker(server, queue, store, tmp_path / f"{index}.log", when, number) as dying:
            assert await asyncio.wait_for(dying.wait(), 60) == -signal.SIGKILL
    with start_worker(server, queue, store, tmp_path / "last.log", "never", NEVER):
        return await asyncio.wait_for(handle.result(), 120)


@pytest.mark.guarantee(32)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_worker_that_dies_at_a_put_loses_nothing(
    server: TemporalServer, tmp_path: Path, thread_id: str, when: str
) -> None:
    loop = Loop(steps=12, result_bytes=20_000, timeout_seconds=3)
    plugin = EverlongPlugin(store=FileBlobStore(tmp_path / "blobs"))
    client = await Client.connect(server.address, plugins=[plugin])
    handle = await client.start_workflow(
        ListLoop.run, loop, id=thread_id, task_queue=thread_id, task_timeout=SHORT
    )
    # An input and a result are written at each step: one of each kind is met.
    kills = [(when, "1"), (when, "4"), (when, "3")][: scaled(2, 3)]
    assert await run_with_kills(server, tmp_path, thread_id, handle, kills) == compute_expected(
        loop
    )


@pytest.mark.guarantee(32)
async def test_a_worker_that_dies_while_continuing_as_new_loses_nothing(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    loop = Loop(steps=8, result_bytes=20_000, timeout_seconds=3)
    plugin = EverlongPlugin(store=FileBlobStore(tmp_path / "blobs"))
    client = await Client.connect(server.address, plugins=[plugin])
    handle = await client.start_workflow(
        RollingLoop.run, args=[loop, []], id=thread_id, task_queue=thread_id, task_timeout=SHORT
    )
    # Each run takes one step and rolls: its third PUT is the state that the next one begins with.
    kills = [("before", "3"), ("after", "3"), ("before", "3")][: scaled(2, 3)]
    assert await run_with_kills(server, tmp_path, thread_id, handle, kills) == compute_expected(
        loop
    )
