"""A thread that waits: it becomes short, stays as it is, and goes on from a handful of events."""

import asyncio
from collections.abc import Sequence

import pytest

from everlong import Agent, Policy, Reply, limits, tool
from everlong.models import Kind, Message
from everlong.testing import ScriptedModel
from tests.support.scripted_agents import call, calls_done, pages_answer, reading_agent, results
from tests.support.thread_driver import Drive, DrivenThread, call_then_answer

IDLE = Policy(idle_seconds=1, compact_to_bytes=4 * limits.KIB)
REPLAYED_EVENTS_MAX = 15


async def wait_until_idle(thread: DrivenThread, runs: int = 2) -> None:
    """Wait until a thread has begun a new run, and has nothing to do in it."""
    await thread.wait_until(lambda status: status.counters.runs >= runs)


async def events(thread: DrivenThread) -> int:
    return len((await thread.histories())[0].events)


@tool(needs_approval=True)
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


def payer(pages: int = 5) -> Agent:
    """Reads some pages, so that its run is long, and then wants to pay."""
    reader = reading_agent(pages)

    def script(turn: Sequence[Message]) -> Reply:
        done = calls_done(turn)
        if done < pages:
            return Reply(tool_calls=(call(done, "read_page", page=done),))
        if done == pages:
            return Reply(tool_calls=(call(done, "pay", euros=9),))
        return Reply(text=results(turn)[-1])

    return Agent(name="ops", model=ScriptedModel(script), tools=[*reader.tools, pay])


@pytest.mark.guarantee(54)
async def test_a_thread_approved_later_resumes_from_a_few_events(
    drive: Drive,
) -> None:
    async with drive([payer()], IDLE, max_cached_workflows=0) as thread:
        await thread.send()
        [approval] = await thread.pending()
        await wait_until_idle(thread)
        before = await thread.status()
        assert before.counters.compactions == 1
        assert await events(thread) <= REPLAYED_EVENTS_MAX
        assert await thread.pending() == [approval]
        await thread.decide(approval.id)
        assert await thread.answer() == "paid 9"
        status = await thread.status()
        assert status.counters.steps == before.counters.steps + 1
        assert (status.counters.messages, status.counters.tool_calls) == (1, 6)
        [compacted] = await thread.data(Kind.COMPACTION)
        assert compacted["reason"] == "idle"
        assert len(await thread.data(Kind.ASKED)) == len(await thread.data(Kind.DECIDED)) == 1


@pytest.mark.guarantee(54)
async def test_a_thread_messaged_later_resumes_from_a_few_events(
    drive: Drive,
) -> None:
    async with drive([reading_agent(4)], IDLE) as thread:
        await thread.ask()
        await wait_until_idle(thread)
        assert await events(thread) <= REPLAYED_EVENTS_MAX
        assert await thread.ask() == pages_answer(4)
        await wait_until_idle(thread, 3)
        assert await events(thread) <= REPLAYED_EVENTS_MAX


@pytest.mark.guarantee(54)
async def test_an_idle_thread_rolls_once(drive: Drive) -> None:
    async with drive([reading_agent(4)], IDLE) as thread:
        await thread.ask()
        await wait_until_idle(thread)
        await asyncio.sleep(2.5)
        status = await thread.status()
        assert (status.counters.runs, status.counters.compactions) == (2, 1)
        assert await events(thread) <= REPLAYED_EVENTS_MAX


async def test_a_thread_without_a_message_waits(drive: Drive) -> None:
    async with drive([reading_agent(1)], IDLE) as thread:
        await asyncio.sleep(2.5)
        assert (await thread.status()).counters.runs == 1
        assert await events(thread) <= REPLAYED_EVENTS_MAX
        assert await thread.ask() == pages_answer(1)


@pytest.mark.guarantee(61)
async def test_facts_expire_in_an_idle_thread_without_endless_rolls(
    drive: Drive,
) -> None:
    day = 86_400.0

    def script(context: Sequence[Message]) -> Reply:
        if context[-1].text == "learn":
            facts = [
                call(i, "remember", key=f"k{i}", text=f"fact {i}", ttl_days=seconds / day)
                for i, seconds in enumerate((2.0, 3.0, 4.0))
            ]
            return Reply(tool_calls=tuple(facts))
        if context[-1].role == "tool":
            return Reply(text="learnt")
        return Reply(text="; ".join(m.text for m in context if m.role == "summary"))

    agent = Agent(name="ops", model=ScriptedModel(script, whole=True))
    async with drive([agent], IDLE) as thread:
        assert await thread.ask("learn") == "learnt"
        await wait_until_idle(thread)
        assert len(await thread.data(Kind.MEMORY)) == 3
        await asyncio.sleep(4.5)
        status = await thread.status()
        assert 2 <= status.counters.runs <= 6
        settled = status.counters.runs
        await asyncio.sleep(1.5)
        assert (await thread.status()).counters.runs == settled
        assert await events(thread) <= REPLAYED_EVENTS_MAX
        assert "fact" not in await thread.ask("and now?")


@pytest.mark.guarantee(54)
async def test_an_idle_thread_keeps_a_deadline(drive: Drive) -> None:
    spend = tool(needs_approval=True, deadline_seconds=3.0)(pay.function)
    agent = Agent(name="ops", model=call_then_answer(call(0, "pay", euros=1)), tools=[spend])
    async with drive([agent], IDLE) as thread:
        await thread.send()
        [approval] = await thread.pending()
        await wait_until_idle(thread)
        assert await thread.pending() == [approval]
        assert await events(thread) <= REPLAYED_EVENTS_MAX
        assert (await thread.answer()).startswith("error: denied by deadline")
        [decided] = await thread.entries(Kind.DECIDED)
        assert approval.deadline_ms is not None
        assert approval.deadline_ms <= decided.time_ms <= approval.deadline_ms + 8000


@pytest.mark.guarantee(54)
async def test_a_paused_thread_with_unread_messages_becomes_idle_too(drive: Drive) -> None:
    async with drive([reading_agent(4)], IDLE) as thread:
        await thread.send()
        await thread.wait_until(lambda status: status.counters.tool_calls >= 1)
        await thread.handle.signal("pause")
        await thread.wait_for_status("paused")
        await thread.send("and again")
        await wait_until_idle(thread)
        status = await thread.status()
        assert (status.status, status.waiting_messages) == ("paused", 1)
        runs = status.counters.runs
        await asyncio.sleep(2)
        assert (await thread.status()).counters.runs == runs
        assert await events(thread) <= REPLAYED_EVENTS_MAX
        await thread.handle.signal("unpause")
        assert [await thread.answer(n) for n in (1, 2)] == [pages_answer(4)] * 2


async def test_a_configured_idle_time_applies_to_a_waiting_thread(drive: Drive) -> None:
    async with drive([reading_agent(4)], Policy(idle_seconds=3600)) as thread:
        await thread.ask()
        await thread.configure(idle_seconds=0.5)
        await wait_until_idle(thread)
        assert await events(thread) <= REPLAYED_EVENTS_MAX


@pytest.mark.guarantee(54)
async def test_a_thread_that_idled_within_a_turn_idles_again_after_it(
    drive: Drive,
) -> None:
    async with drive([reading_agent(8)], IDLE) as thread:
        await thread.send()
        await thread.wait_until(lambda status: status.counters.tool_calls >= 1)
        await thread.handle.signal("pause")
        await wait_until_idle(thread)
        await thread.handle.signal("unpause")
        assert await thread.answer() == pages_answer(8)
        await wait_until_idle(thread, (await thread.status()).counters.runs + 1)
        assert await events(thread) <= REPLAYED_EVENTS_MAX
