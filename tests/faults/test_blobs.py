"""A store that fails or loses bytes holds a thread; restoring them lets it go on."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from everlong import Agent, Reply, tool
from everlong.admin import service
from everlong.embedded import TemporalServer
from everlong.models import Message
from everlong.storage.files import FileBlobStore
from everlong.testing import ScriptedModel, workload
from tests.agents import call, results
from tests.conftest import Threads, open_threads
from tests.stores import FlakyStore


def script(turn: Sequence[Message]) -> Reply:
    if results(turn):
        return Reply(text=f"read {len(results(turn)[0])}")
    return Reply(tool_calls=(call(0, "read_big"),))


@tool
def read_big() -> str:
    """Read 512 KiB."""
    return next(workload.result(i) for i in range(20) if workload.result_bytes(i) > 500_000)


AGENT = Agent(name="ops", model=ScriptedModel(script), tools=[read_big])


async def held_by(threads: Threads, thread_id: str, text: str) -> None:
    """Wait until Temporal shows that an activity of the thread waits, and for what."""
    deadline = time.monotonic() + 30
    shown = ""
    while time.monotonic() < deadline:
        shown = await service._what_holds(threads.client, thread_id)
        if text in shown:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{text!r} is not in {shown!r}")


async def test_an_outage_holds_the_thread_and_is_survived(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    store = FlakyStore(tmp_path)
    async with open_threads(server.address, store, AGENT) as threads, threads.worker():
        store.down = True
        await threads.send(thread_id, "go")
        await held_by(threads, thread_id, "held by StoreUnavailable: the store is down")
        store.down = False
        status = await threads.answered(thread_id, 1)
        assert status.last_failure == ""
        assert (await threads.conversation(thread_id))[-1].text == "read 524288"


@pytest.mark.parametrize("damage", ["missing", "corrupt"])
async def test_lost_bytes_are_named_and_restoring_them_lets_the_thread_go_on(
    server: TemporalServer, tmp_path: Path, thread_id: str, damage: str
) -> None:
    store = FileBlobStore(tmp_path)
    async with open_threads(server.address, store, AGENT) as threads, threads.worker():
        await threads.send(thread_id, "go")
        await threads.answered(thread_id, 1)
        objects = sorted(tmp_path.glob("v1/*/*"), key=lambda path: path.stat().st_size)
        largest = objects[-1]
        whole = largest.read_bytes()
        if damage == "missing":
            largest.unlink()
        else:
            largest.write_bytes(whole[:-10] + b"0123456789")
        await threads.send(thread_id, "and again")
        expected = "is not in file:///" if damage == "missing" else "is damaged"
        await held_by(threads, thread_id, expected)
        largest.write_bytes(whole)
        status = await threads.answered(thread_id, 2)
        assert status.last_failure == ""
