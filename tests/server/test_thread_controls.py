"""Control of a thread: pause, unpause, configure, compact, stop and cancel."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowUpdateFailedError,
)

from everlong import Agent, Policy, Reply, limits, tool
from everlong.models import CONFIGURE_UPDATE, Configure, Control, Kind, Message
from everlong.testing import ScriptedModel
from tests.support.scripted_agents import call, calls_done, pages_answer, reading_agent
from tests.support.thread_driver import Drive, DrivenThread, call_then_answer

ECHO = Agent(name="ops", model=ScriptedModel(lambda turn: Reply(text=f"heard {turn[0].text}")))


class Gate:
    """A tool that says when it has begun, and ends when it is let."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.open = asyncio.Event()
        self.runs = 0

        @tool
        async def wait(page: int = 0) -> str:
            """Wait for the gate."""
            self.runs += 1
            self.begun.set()
            async with asyncio.timeout(90):
                await self.open.wait()
            return "waited"

        self.tool = wait

    def agent(self, calls: int = 1) -> Agent:
        def script(turn: Sequence[Message]) -> Reply:
            done = calls_done(turn)
            if done < calls:
                return Reply(tool_calls=(call(done, "wait", page=done),))
            return Reply(text=f"{done} done")

        return Agent(name="ops", model=ScriptedModel(script), tools=[self.tool])


@pytest.mark.guarantee(71)
async def test_a_paused_thread_finishes_its_step_and_starts_no_other(
    drive: Drive,
) -> None:
    gate = Gate()
    async with drive([gate.agent(3)]) as thread:
        await thread.send()
        await asyncio.wait_for(gate.begun.wait(), 90)
        await thread.handle.signal("pause", Control(by="alice", reason="let me look"))
        gate.open.set()
        status = await thread.wait_until(lambda status: status.counters.tool_calls == 1)
        assert status.status == "paused"
        assert status.pause is not None
        assert (status.pause.by, status.pause.reason) == ("alice", "let me look")
        assert status.pause.limit is None
        await thread.send("second")  # It is queued all the same.
        status = await thread.status()
        assert (status.counters.steps, status.waiting_messages, gate.runs) == (1, 1, 1)
        await thread.handle.signal("unpause", Control(by="bob"))
        assert [await thread.answer(n) for n in (1, 2)] == ["3 done", "3 done"]
        notes = [(each["action"], each["by"]) for each in await thread.data(Kind.CONTROL)]
        assert notes == [("pause", "alice"), ("unpause", "bob")]


@pytest.mark.guarantee(71)
async def test_a_call_approved_during_a_pause_waits_for_the_unpause(drive: Drive) -> None:
    ran = []

    @tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        ran.append(1)
        return "paid"

    agent = Agent(name="ops", model=call_then_answer(call(0, "pay")), tools=[pay])
    async with drive([agent]) as thread:
        await thread.send()
        [approval] = await thread.pending()
        await thread.handle.signal("pause")
        await thread.wait_for_status("paused")
        await thread.decide(approval.id)
        await asyncio.sleep(0.3)
        assert ran == []
        await thread.handle.signal("unpause")
        assert await thread.answer() == "paid"


async def test_signals_need_no_argument(drive: Drive) -> None:
    async with drive([ECHO]) as thread:
        await thread.ask("one")
        for name, expected in (("pause", "paused"), ("unpause", "waiting"), ("compact", "waiting")):
            await thread.handle.signal(name)
            await thread.wait_for_status(expected)
        assert await thread.ask("two") == "heard two"
        assert (await thread.stop()).status == "done"
        actions = [each["action"] for each in await thread.data(Kind.CONTROL)]
        assert actions == ["pause", "unpause", "compact", "stop"]


async def test_a_pause_with_an_overlong_reason_still_pauses(drive: Drive) -> None:
    async with drive([ECHO]) as thread:
        await thread.ask()
        await thread.handle.signal("pause", {"by": "x" * 1000, "reason": "y" * 100_000})
        status = await thread.wait_for_status("paused")
        assert status.state_bytes < limits.STATE_BYTES_MAX // 8


@pytest.mark.guarantee(71)
async def test_an_invalid_configure_is_refused_and_changes_nothing(drive: Drive) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "empty"),
        ({"steps": 5}, "no steps"),
        ({"steps_max": "many"}, "steps_max"),
        ({"steps_max": 0}, "steps_max"),
        ({"run_events_max": 49}, "run_events_max"),
        ({"on_limit": "explode"}, "on_limit"),
        ({"context_bytes_max": None}, "context_bytes_max"),
        ({"idle_seconds": -1}, "idle_seconds"),
        ({"idle_seconds": 1e15}, "idle_seconds"),
        ({"compact_to_bytes": limits.MIB}, "compact_to_bytes"),
        ({"actions": {f"limit_{i}_max": "stop" for i in range(5000)}}, ""),
        ({"steps_max": 10**4000, "tokens_max": 10**4000}, ""),
    ]
    async with drive([ECHO], Policy(steps_max=77)) as thread:
        for changes, reason in wrong:
            with pytest.raises(WorkflowUpdateFailedError) as raised:
                await thread.handle.execute_update(CONFIGURE_UPDATE, {"changes": changes})
            assert reason in str(raised.value.cause)
            assert len(str(raised.value.cause)) < 5000
        assert (await thread.status()).policy == Policy(steps_max=77)
        assert await thread.ask("still there?") == "heard still there?"


@pytest.mark.guarantee(71)
async def test_a_configure_changes_a_working_thread(drive: Drive) -> None:
    gate = Gate()
    async with drive([gate.agent(12)]) as thread:
        await thread.send()
        await asyncio.wait_for(gate.begun.wait(), 90)
        await thread.configure(run_events_max=50, by="alice", reason="shorter runs")
        gate.open.set()
        assert await thread.answer() == "12 done"
        status = await thread.status()
        assert status.policy.run_events_max == 50
        assert status.counters.runs >= 3  # It holds for the runs that follow.
        [note] = await thread.data(Kind.CONTROL)
        assert note["changes"] == {"run_events_max": 50}
        assert (note["action"], note["by"], note["reason"]) == (
            "configure",
            "alice",
            "shorter runs",
        )


@pytest.mark.guarantee(71)
async def test_configure_before_the_first_message_keeps_the_agents_own_policy(
    drive: Drive,
) -> None:
    own = Policy(turn_steps_max=7, steps_max=70)
    agent = reading_agent(2, policy=own)
    async with drive([agent]) as thread:
        await thread.threads.start(thread.thread_id)
        await thread.configure(steps_max=71)
        assert await thread.ask() == pages_answer(2)
        assert (await thread.status()).policy == Policy(turn_steps_max=7, steps_max=71)


async def test_a_change_that_the_agents_policy_forbids_is_harmless(
    drive: Drive,
) -> None:
    """Until a worker has reported that policy, a change is checked against the defaults."""
    own = Policy(compact_at_bytes=32 * limits.KIB, compact_to_bytes=8 * limits.KIB)
    async with drive([reading_agent(2, policy=own)]) as thread:
        await thread.threads.start(thread.thread_id)
        await thread.configure(compact_to_bytes=40 * limits.KIB, steps_max=71)
        assert await thread.ask() == pages_answer(2)
        policy = (await thread.status()).policy
        assert policy.compact_to_bytes < policy.compact_at_bytes


async def configure_twice(thread: DrivenThread, steps_max: int) -> None:
    """Configure a thread, and again while it is busy with the first change."""
    async with asyncio.timeout(90):
        while True:
            try:
                await thread.configure(steps_max=steps_max)
            except WorkflowUpdateFailedError as error:
                if "try again later" not in str(error.cause):
                    raise
                await asyncio.sleep(0.05)
            else:
                return


async def test_a_waiting_thread_accepts_any_number_of_configures(drive: Drive) -> None:
    async with drive([reading_agent(2)], Policy(idle_seconds=1)) as thread:
        await thread.ask()
        await thread.wait_until(lambda status: status.counters.runs == 2)
        for steps_max in range(1000, 1030):
            await configure_twice(thread, steps_max)
        assert (await thread.status()).policy.steps_max == 1029
        await thread.ask()
        changes = [each["changes"]["steps_max"] for each in await thread.data(Kind.CONTROL)]
        assert changes == list(range(1000, 1030))


@pytest.mark.guarantee(71)
async def test_a_configure_repeated_after_a_roll_counts_once(drive: Drive) -> None:
    """A caller repeats an update that met a roll. It must not undo a change made in between."""
    async with drive([reading_agent(2)], Policy(idle_seconds=1)) as thread:
        await thread.ask()
        await thread.wait_until(lambda status: status.counters.runs == 2)
        first = Configure(changes={"steps_max": 50})
        await thread.handle.execute_update(CONFIGURE_UPDATE, first, id="the-first")
        await thread.configure(steps_max=70)
        runs = (await thread.status()).counters.runs
        await thread.ask()
        await thread.wait_until(lambda status: status.counters.runs > runs)
        await thread.handle.execute_update(CONFIGURE_UPDATE, first, id="the-first")
        assert (await thread.status()).policy.steps_max == 70
        changes = [each["changes"] for each in await thread.data(Kind.CONTROL)]
        assert changes == [{"steps_max": 50}, {"steps_max": 70}]


@pytest.mark.guarantee(52)
async def test_signals_without_effect_do_not_grow_a_run_without_bound(drive: Drive) -> None:
    async with drive([ECHO], Policy(run_events_max=50)) as thread:
        await thread.ask()
        await thread.handle.signal("pause")
        await thread.wait_for_status("paused")
        async with asyncio.timeout(90):
            for _ in range(40):
                await thread.handle.signal("pause")
                await thread.status()  # One at a time, so that each has a task of its own.
        status = await thread.status()
        assert (status.status, status.pause is not None) == ("paused", True)
        longest = max(len(history.events) for history in await thread.histories())
        assert status.counters.runs >= 3
        assert longest < 80


@pytest.mark.guarantee(56)
async def test_a_burst_of_pauses_and_unpauses_stays_within_the_bound(drive: Drive) -> None:
    wide = "\U0001f600"
    control = Control(by=wide * 64, reason=wide * 300)
    async with drive([reading_agent(5)]) as thread:
        await thread.send()
        await asyncio.gather(
            *(
                thread.handle.signal(name, control)
                for _ in range(100)
                for name in ("pause", "unpause")
            )
        )
        await thread.handle.signal("unpause")
        assert await thread.answer() == pages_answer(5)
        assert 1 <= len(await thread.data(Kind.CONTROL)) <= 201


async def test_repeated_unpauses_below_a_reached_limit_are_harmless(
    drive: Drive,
) -> None:
    async with drive([reading_agent(5)], Policy(steps_max=3)) as thread:
        await thread.send()
        await thread.wait_for_status("paused")
        await asyncio.gather(*(thread.handle.signal("unpause") for _ in range(150)))
        status = await thread.wait_for_status("paused")
        assert status.counters.steps == 3
        assert status.state_bytes < limits.STATE_BYTES_MAX // 2
        await thread.configure(steps_max=100)
        await thread.handle.signal("unpause")
        assert await thread.answer() == pages_answer(5)


async def test_a_compact_signal_compacts_the_context(drive: Drive) -> None:
    async with drive([reading_agent(3)], Policy(compact_to_bytes=4 * limits.KIB)) as thread:
        await thread.ask()
        before = (await thread.status()).context_bytes
        await thread.handle.signal("compact", Control(by="alice", reason="it rambles"))
        status = await thread.wait_until(lambda status: status.counters.compactions == 1)
        assert status.snapshot is not None
        assert status.context_bytes < before
        assert await thread.ask() == pages_answer(3)
        [compacted] = await thread.data(Kind.COMPACTION)
        assert (compacted["reason"], compacted["after_bytes"]) == ("asked", status.context_bytes)
        [note] = await thread.data(Kind.CONTROL)
        assert (note["action"], note["by"]) == ("compact", "alice")


async def test_a_compact_of_an_empty_thread_is_harmless(drive: Drive) -> None:
    async with drive([ECHO], Policy()) as thread:
        await thread.handle.signal("compact")
        await thread.handle.signal("compact")
        assert await thread.ask("hi") == "heard hi"


async def wait_until_paused(thread: DrivenThread) -> None:
    await thread.send("second")
    await thread.handle.signal("pause")
    await thread.wait_for_status("paused")


async def waiting_for_approval(thread: DrivenThread) -> None:
    await thread.pending()


@pytest.mark.guarantee(72)
@pytest.mark.parametrize("where", [wait_until_paused, waiting_for_approval])
@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_a_thread_ends_from_any_wait_with_a_complete_journal(
    drive: Drive, where: Any, how: str
) -> None:
    @tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    agent = Agent(name="ops", model=call_then_answer(call(0, "pay")), tools=[pay])
    async with drive([agent]) as thread:
        await thread.send("first")
        await thread.pending()
        await where(thread)
        if how == "stop":
            assert (await thread.stop()).status == "done"
        else:
            await thread.handle.cancel()
            with pytest.raises(WorkflowFailureError):
                await thread.result()
            description = await thread.handle.describe()
            assert description.status == WorkflowExecutionStatus.CANCELED
        status = await thread.status()
        assert (status.status, status.waiting_messages, status.tail_entries) == ("done", 0, 0)
        kinds = [entry.kind for entry in await thread.entries()]
        assert kinds[:3] == [Kind.MESSAGE, Kind.REPLY, Kind.ASKED]
        assert (kinds.count(Kind.MESSAGE), Kind.CONTROL in kinds) == (
            2 if where is wait_until_paused else 1,
            how == "stop" or where is wait_until_paused,
        )
