"""Threads held by a failing store that keep receiving messages and decisions."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from temporalio.client import WorkflowExecutionStatus

from everlong import Agent, Policy, Reply, Tool, limits, tool
from everlong.embedded import TemporalServer
from everlong.errors import ModelRefused
from everlong.models import Kind, Message
from everlong.storage.cache import CachedBlobStore
from everlong.testing import ScriptedModel
from tests.support.fake_stores import FlakyStore
from tests.support.scripted_agents import build_one_call_model, call
from tests.support.thread_driver import DrivenThread, call_then_answer
from tests.support.threads import Threads, open_threads

pytestmark = pytest.mark.usefixtures("short_holds")


async def take_away(store: FlakyStore, threads: Threads, folder: Path) -> None:
    """Have the store go, and no copy left of what it holds."""
    store.down = True
    cache = threads.plugin.packs.store
    assert isinstance(cache, CachedBlobStore)
    await cache.forget([path.relative_to(folder).as_posix() for path in folder.glob("v1/*/*")])


@tool(needs_approval=True)
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


@pytest.mark.full
@pytest.mark.guarantee(47)
async def test_decisions_with_long_reasons_do_not_end_a_held_thread(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    """Entries that wait for the journal may be larger than a state's bound."""
    store = FlakyStore(tmp_path)
    calls = tuple(call(number, "pay", euros=number) for number in range(limits.TOOL_CALLS_MAX))

    def script(turn: Sequence[Message]) -> Reply:
        begins = turn[-1].role == "user" and turn[-1].text == "go"
        return Reply(tool_calls=calls) if begins else Reply(text="fine")

    agent = Agent(name="ops", model=ScriptedModel(script), tools=[pay])
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.start(thread_id, Policy(run_events_max=80))
        thread = DrivenThread(threads, thread_id)
        await thread.send()
        waiting = await thread.pending(limits.TOOL_CALLS_MAX)
        store.down = True
        for _ in range(80):
            await thread.send("next")
        for each in waiting:
            await thread.decide(each.id, approve=False, by="\u00e9" * 40, reason="\U0001f600" * 300)
        runs = (await thread.status()).counters.runs
        status = await thread.wait_until(lambda found: found.counters.runs > runs)
        assert status.state_bytes > limits.STATE_BYTES_MAX
        description = await thread.handle.describe()
        assert description.status == WorkflowExecutionStatus.RUNNING
        store.down = False
        await thread.wait_until(lambda found: found.counters.answered >= 81, seconds=60)
        assert len(await thread.data(Kind.DECIDED)) == limits.TOOL_CALLS_MAX
        await thread.check()


@pytest.mark.guarantee(47)
async def test_a_held_step_does_not_begin_once_the_thread_is_paused(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    store = FlakyStore(tmp_path)
    runs = 0

    @tool(needs_approval=True)
    def restart() -> str:
        """Restart."""
        nonlocal runs
        runs += 1
        return "restarted"

    agent = Agent(name="ops", model=build_one_call_model("restart"), tools=[restart])
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.start(thread_id, Policy())
        thread = DrivenThread(threads, thread_id)
        await thread.send()
        [approval] = await thread.pending()
        await take_away(store, threads, tmp_path)
        await thread.decide(approval.id)
        await thread.wait_for_status("held")
        await thread.handle.signal("pause")
        await thread.wait_for_status("paused")
        store.down = False
        await asyncio.sleep(2)
        assert (runs, (await thread.status()).status) == (0, "paused")
        await thread.handle.signal("unpause")
        assert await thread.answer() == "restarted"
        assert runs == 1
        await thread.check()


@pytest.mark.guarantee(47)
async def test_a_held_compaction_does_not_fail_the_turn_that_needs_it(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    """The provider finds the context too large, and just then the store goes."""
    store = FlakyStore(tmp_path)

    class Picky:
        calls = 0

        async def reply(
            self, instructions: str, messages: Sequence[Message], tools: Sequence[Tool]
        ) -> Reply:
            self.calls += 1
            if self.calls == 4:
                await take_away(store, threads, tmp_path)
            if self.calls >= 4 and sum(len(message.text) for message in messages) > 20_000:
                raise ModelRefused("too large", context_too_large=True)
            return Reply(text="word " * 3000)

    agent = Agent(name="ops", model=Picky())
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.start(thread_id, Policy(run_events_max=100, compact_to_bytes=4 * limits.KIB))
        thread = DrivenThread(threads, thread_id)
        for number in range(1, 4):
            assert await thread.answer(await thread.send()) == "word " * 3000
            assert (await thread.status()).counters.answered == number
        await thread.send()
        # Held for so long that the run ends: the next one takes the step up.
        await thread.wait_until(lambda status: status.counters.runs >= 2)
        store.down = False
        status = await thread.wait_until(lambda found: found.counters.answered >= 4, seconds=60)
        assert (status.last_failure, status.counters.compactions) == ("", 1)
        await thread.check()


@pytest.mark.guarantee(47)
async def test_a_deadline_holds_while_the_journal_cannot_be_written(
    server: TemporalServer, tmp_path: Path, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread waits for the store, for long; an approval is overdue before that ends."""
    store = FlakyStore(tmp_path)

    @tool(needs_approval=True, deadline_seconds=2)
    def restart() -> str:
        """Restart."""
        return "restarted"

    agent = Agent(
        name="ops",
        model=call_then_answer(*(call(number, "restart") for number in range(20))),
        tools=[restart],
    )
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.start(thread_id, Policy())
        thread = DrivenThread(threads, thread_id)
        monkeypatch.setattr(limits, "HELD_PAUSE_SECONDS_MIN", 3600.0)
        monkeypatch.setattr(limits, "HELD_PAUSE_SECONDS_MAX", 3600.0)
        await thread.send()
        await thread.pending(20)
        store.down = True  # The requests for approval are in the journal, or about to be.
        await thread.wait_until(lambda status: status.pending == 0)
        store.down = False
        assert "no decision came in time" in await thread.answer()
        await thread.check()
