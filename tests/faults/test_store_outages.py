"""Store outages: a failing store or lost bytes hold a thread until they are restored."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from everlong import Agent, Policy, Reply, limits, tool
from everlong.client.status import read_held_reason
from everlong.client.thread import ThreadHandle
from everlong.client.wait import wait_for_status
from everlong.embedded import TemporalServer
from everlong.errors import NotAnswered, StoreUnavailable
from everlong.models import Entry, Kind, Message, SegmentRef, ThreadStatus
from everlong.storage import BlobStore
from everlong.storage.cache import CachedBlobStore
from everlong.storage.file import FileBlobStore
from everlong.storage.journal import Journal
from everlong.testing import ScriptedModel, workload
from tests.support.fake_stores import FlakyStore
from tests.support.scripted_agents import build_one_call_model, call, reading_agent, results
from tests.support.threads import Threads, open_threads


def script(turn: Sequence[Message]) -> Reply:
    if results(turn):
        return Reply(text=f"read {len(results(turn)[0])}")
    return Reply(tool_calls=(call(0, "read_big"),))


@tool
def read_big() -> str:
    """Read as much as a model is shown whole."""
    return workload.passage(1, 30_000)


AGENT = Agent(name="ops", model=ScriptedModel(script), tools=[read_big])


async def waits_for(threads: Threads, thread_id: str) -> str:
    description = await threads.client.get_workflow_handle(thread_id).describe()
    return await read_held_reason(threads.client, description.raw_description.pending_activities)


async def wait_until_held(threads: Threads, thread_id: str, reason: str) -> None:
    """Wait until the thread says that it is held, and by what."""
    held = await wait_for_status(
        threads.client,
        thread_id,
        lambda status: status.status == "held" and reason in status.held_by,
        seconds_max=90,
    )
    assert held.last_failure == ""


@pytest.mark.guarantee(48)
@pytest.mark.parametrize("inline_bytes_max", [limits.INLINE_BYTES_MAX, 0])
async def test_an_outage_after_a_tool_ran_does_not_run_the_tool_again(
    server: TemporalServer, tmp_path: Path, thread_id: str, inline_bytes_max: int
) -> None:
    store = FlakyStore(tmp_path)
    runs = 0

    @tool
    def pay() -> str:
        """Pay, and find the store down right after."""
        nonlocal runs
        runs += 1
        store.down = True
        return "paid " * 1000

    agent = Agent(name="ops", model=build_one_call_model("pay"), tools=[pay])
    async with (
        open_threads(server.address, store, agent, inline_bytes_max=inline_bytes_max) as threads,
        threads.worker(),
    ):
        await threads.send(thread_id, "go")
        # Not by a query: with nothing inline, its answer needs the store as well.
        while "StoreUnavailable: the store is down" not in await waits_for(threads, thread_id):
            await asyncio.sleep(0.1)
        store.down = False
        await threads.wait_for_answers(thread_id, 1)
        assert runs == 1


async def lose(
    store_dir: Path, threads: Threads, thread_id: str, damage: str
) -> Callable[[], None]:
    """Damage the thread's largest object, of which no copy is left; return how to restore it."""
    await threads.send(thread_id, "go")
    await threads.wait_for_answers(thread_id, 1)
    objects = sorted(store_dir.glob("v1/*/*"), key=lambda path: path.stat().st_size)
    largest = objects[-1]
    whole = largest.read_bytes()
    if damage == "missing":
        largest.unlink()
    else:
        largest.write_bytes(whole[:-10] + b"0123456789")
    cache = threads.plugin.packs.store
    assert isinstance(cache, CachedBlobStore)
    await cache.forget([largest.relative_to(store_dir).as_posix()])

    def restore() -> None:
        largest.write_bytes(whole)

    return restore


@pytest.mark.guarantee(47)
@pytest.mark.usefixtures("short_holds")
@pytest.mark.parametrize("damage", ["missing", "corrupt"])
async def test_lost_bytes_are_named_and_restoring_them_lets_the_thread_go_on(
    server: TemporalServer, tmp_path: Path, thread_id: str, damage: str
) -> None:
    store = FileBlobStore(tmp_path)
    async with open_threads(server.address, store, AGENT) as threads, threads.worker():
        restore = await lose(tmp_path, threads, thread_id, damage)
        await threads.send(thread_id, "and again")
        reason = "is not in file://" if damage == "missing" else "is damaged"
        await wait_until_held(threads, thread_id, reason)
        # Held, not failed: it has not used up its attempts, and frees the worker in between.
        await asyncio.sleep(2)
        restore()
        status = await threads.wait_for_answers(thread_id, 2)
        assert (status.last_failure, status.held_by) == ("", "")


@pytest.mark.guarantee(47)
@pytest.mark.usefixtures("short_holds")
async def test_a_thread_waits_out_an_outage_at_its_start(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    store = FlakyStore(tmp_path)
    async with open_threads(server.address, store, AGENT) as threads, threads.worker():
        await threads.send(thread_id, "go")
        await threads.wait_for_answers(thread_id, 1)
        store.down = True
        await threads.send(thread_id, "and again")
        await wait_until_held(threads, thread_id, "the store is down")
        store.down = False
        await threads.wait_for_answers(thread_id, 2)


@pytest.mark.guarantee(47)
@pytest.mark.usefixtures("short_holds")
async def test_a_held_thread_rolls_and_stays_held(
    server: TemporalServer, tmp_path: Path, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HELD_PAUSE_SECONDS_MAX", 0.3)
    store = FileBlobStore(tmp_path)
    async with open_threads(server.address, store, AGENT) as threads, threads.worker():
        await threads.start(thread_id, Policy(run_events_max=50))
        restore = await lose(tmp_path, threads, thread_id, "missing")
        await threads.send(thread_id, "and again")
        rolled = await wait_for_status(
            threads.client, thread_id, lambda status: status.counters.runs >= 3, seconds_max=60
        )
        assert rolled.counters.answered == 1
        restore()
        await threads.wait_for_answers(thread_id, 2)
        texts = [message.text for message in await threads.conversation(thread_id)]
        assert (texts.count("and again"), texts.count("read 30000")) == (1, 2)


@pytest.mark.guarantee(47)
@pytest.mark.usefixtures("short_holds")
async def test_held_tools_run_once_after_a_roll(
    server: TemporalServer, tmp_path: Path, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store goes down between a reply and its tools; one of three tools gets through."""
    monkeypatch.setattr(limits, "HELD_PAUSE_SECONDS_MAX", 0.3)
    store = FileBlobStore(tmp_path)
    runs: list[int] = []

    @tool
    def note(page: int) -> str:
        """Take note."""
        runs.append(page)
        return f"noted {page}"

    def script(turn: Sequence[Message]) -> Reply:
        if results(turn):
            return Reply(text=", ".join(results(turn)))
        return Reply(tool_calls=tuple(call(i, "note", page=i) for i in range(3)))

    real = Journal.last
    begun = 0
    down = True

    async def last(journal: Journal, head: SegmentRef, kind: Kind) -> Entry | None:
        nonlocal begun
        begun += 1
        if begun > 1 and down:
            raise StoreUnavailable("the store is down for a test")
        return await real(journal, head, kind)

    monkeypatch.setattr(Journal, "last", last)
    agent = Agent(name="ops", model=ScriptedModel(script), tools=[note])
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.start(thread_id, Policy(run_events_max=50))
        await threads.send(thread_id, "go")
        await wait_for_status(
            threads.client, thread_id, lambda status: status.counters.runs >= 2, seconds_max=60
        )
        down = False
        await threads.wait_for_answers(thread_id, 1)
        assert sorted(runs) == [0, 1, 2]
        conversation = await threads.conversation(thread_id)
        assert [m.text for m in conversation if m.role == "tool"] == [
            "noted 0",
            "noted 1",
            "noted 2",
        ]


@pytest.mark.guarantee(72)
@pytest.mark.usefixtures("short_holds")
async def test_a_held_thread_can_be_stopped(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    store = FileBlobStore(tmp_path)
    async with open_threads(server.address, store, AGENT) as threads, threads.worker():
        restore = await lose(tmp_path, threads, thread_id, "missing")
        await threads.send(thread_id, "and again")
        await wait_until_held(threads, thread_id, "BlobMissing")
        handle = threads.client.get_workflow_handle(thread_id, result_type=ThreadStatus)
        await ThreadHandle(threads.client, thread_id).stop()
        result: ThreadStatus = await asyncio.wait_for(handle.result(), 90)
        assert result.status == "done"
        restore()
        assert (await threads.conversation(thread_id))[-1].text == "and again"


@pytest.mark.guarantee(47)
@pytest.mark.usefixtures("short_holds")
async def test_a_thread_waits_for_a_worker_that_has_its_agent(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, reading_agent(1)) as threads:
        async with threads.worker():
            await threads.send(thread_id, "hi", agent="late")
            with pytest.raises(
                NotAnswered,
                match="held last by: AgentNotFound: a worker runs no agent 'late', only",
            ):
                await threads.wait_for_answers(thread_id, 1, seconds=1.5)
        late = reading_agent(1, name="late")
        async with open_threads(server.address, store, late) as others:
            others.task_queue = threads.task_queue
            async with others.worker():
                await others.wait_for_answers(thread_id, 1)


@pytest.mark.guarantee(47)
@pytest.mark.usefixtures("short_holds")
async def test_held_threads_leave_activity_slots_to_others(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    store = FileBlobStore(tmp_path)
    agents = (AGENT, reading_agent(1, name="other"))
    async with (
        open_threads(server.address, store, *agents) as threads,
        threads.worker(max_concurrent_activities=1),
    ):
        restore = await lose(tmp_path, threads, thread_id, "missing")
        await threads.send(thread_id, "and again")
        await wait_until_held(threads, thread_id, "BlobMissing")
        await threads.send(f"{thread_id}-other", "go", agent="other")
        await threads.wait_for_answers(f"{thread_id}-other", 1)
        restore()
