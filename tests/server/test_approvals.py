"""Calls that wait for a person: nothing else waits for them, and each is decided once."""

import asyncio
from collections.abc import Sequence

import pytest
from temporalio.client import WorkflowUpdateFailedError

from everlong import Agent, Policy, Reply, Tool, limits, tool
from everlong.models import DECIDE_UPDATE, Decide, Kind, Message
from everlong.testing import ScriptedModel
from tests.support.scripted_agents import call, results
from tests.support.thread_driver import Drive, DrivenThread, call_then_answer


class Shop:
    """Tools of which some need approval, and how often they ran."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()

        @tool(needs_approval=True)
        def pay(euros: int) -> str:
            """Pay."""
            self.paid.append(euros)
            return f"paid {euros}"

        @tool
        async def wait() -> str:
            """Wait for the gate."""
            self.waiting.set()
            async with asyncio.timeout(90):
                await self.gate.wait()
            return "waited"

        self.pay: Tool = pay
        self.wait: Tool = wait

    def agent(self, *calls: tuple[str, dict[str, object]]) -> Agent:
        wanted = tuple(call(i, name, **arguments) for i, (name, arguments) in enumerate(calls))
        return Agent(name="ops", model=call_then_answer(*wanted), tools=[self.pay, self.wait])


def pay(euros: int) -> tuple[str, dict[str, object]]:
    return "pay", {"euros": euros}


WAIT: tuple[str, dict[str, object]] = ("wait", {})


@pytest.mark.guarantee(64)
async def test_an_approved_call_runs_once_and_the_journal_says_who_when_and_why(
    drive: Drive,
) -> None:
    shop = Shop()
    async with drive([shop.agent(pay(5))]) as thread:
        await thread.send()
        [approval] = await thread.pending()
        assert (await thread.status()).status == "approval"
        assert (approval.tool, approval.arguments) == ("pay", '{"euros": 5}')
        assert shop.paid == []
        await thread.decide(approval.id, by="alice", reason="it is due")
        assert await thread.answer() == "paid 5"
        assert shop.paid == [5]
        [asked] = await thread.entries(Kind.ASKED)
        [decided] = await thread.entries(Kind.DECIDED)
        assert asked.data is not None
        assert decided.data is not None
        assert (asked.data["id"], asked.data["tool"]) == (approval.id, "pay")
        assert asked.data["asked_ms"] == approval.asked_ms <= decided.time_ms
        assert decided.data["approve"] is True
        assert (decided.data["by"], decided.data["reason"]) == ("alice", "it is due")
        assert asked.seq < decided.seq


@pytest.mark.guarantee(64)
async def test_a_denied_call_never_runs_and_the_model_reads_who_denied_it(drive: Drive) -> None:
    shop = Shop()
    async with drive([shop.agent(pay(5))]) as thread:
        await thread.send()
        [approval] = await thread.pending()
        await thread.decide(approval.id, approve=False, by="bob", reason="too much")
        assert await thread.answer() == "error: denied by bob: too much"
        assert shop.paid == []
        assert [each["approve"] for each in await thread.data(Kind.DECIDED)] == [False]
        assert await thread.pending(0) == []


@pytest.mark.guarantee(64)
async def test_others_run_meanwhile_and_an_approved_call_starts_while_they_run(
    drive: Drive,
) -> None:
    shop = Shop()
    async with drive([shop.agent(WAIT, pay(1), pay(2))]) as thread:
        await thread.send()
        approvals = await thread.pending(2)
        await asyncio.wait_for(shop.waiting.wait(), 90)
        await thread.decide(approvals[1].id)
        await thread.wait_until(lambda status: status.counters.tool_calls == 1)
        assert shop.paid == [2]  # The first call is still running, the second undecided.
        await thread.decide(approvals[0].id)
        await thread.wait_until(lambda status: status.counters.tool_calls == 2)
        shop.gate.set()
        # Whatever order they were decided and run in, results are in call order.
        assert await thread.answer() == "waited | paid 1 | paid 2"
        assert shop.paid == [2, 1]
        assert [each["id"] for each in await thread.data(Kind.DECIDED)] == [
            approvals[1].id,
            approvals[0].id,
        ]


@pytest.mark.guarantee(65)
async def test_invalid_decisions_are_refused_by_name(drive: Drive) -> None:
    @tool(needs_approval=True, approvers=["alice", "bob"])
    def pay(euros: int) -> str:
        """Pay."""
        return f"paid {euros}"

    model = call_then_answer(call(0, "pay", euros=1), call(1, "pay", euros=2))
    async with drive([Agent(name="ops", model=model, tools=[pay])]) as thread:

        async def refused(approval_id: str, by: str) -> str:
            with pytest.raises(WorkflowUpdateFailedError) as raised:
                await thread.decide(approval_id, by=by)
            return str(raised.value.cause)

        await thread.send()
        first, second = await thread.pending(2)
        events = len((await thread.histories())[0].events)
        assert "there is no approval '9-9'" in await refused("9-9", "alice")
        assert first.id in await refused("9-9", "alice")
        assert "'carol' may not decide" in await refused(first.id, "carol")
        assert "alice or bob may" in await refused(first.id, "Alice")
        assert "`by` must be the name of the approver" in await refused(first.id, "  ")
        # A refused decision leaves nothing in the history.
        assert len((await thread.histories())[0].events) == events
        await thread.decide(first.id, by="bob")
        assert "has been decided already" in await refused(first.id, "bob")
        await thread.decide(second.id, by="alice", approve=False)
        assert await thread.answer() == "paid 1 | error: denied by alice"
        assert "has been decided already" in await refused(second.id, "alice")
        assert len(await thread.data(Kind.DECIDED)) == 2


@pytest.mark.guarantee(65)
async def test_a_stopping_thread_refuses_decisions_and_completes_its_journal(
    drive: Drive,
) -> None:
    shop = Shop()
    async with drive([shop.agent(WAIT, pay(1))]) as thread:
        await thread.send()
        [approval] = await thread.pending()
        await asyncio.wait_for(shop.waiting.wait(), 90)
        await thread.handle.signal("stop")
        await thread.wait_until(lambda found: found.stopping)
        with pytest.raises(WorkflowUpdateFailedError) as raised:
            await thread.decide(approval.id)
        assert "stopping" in str(raised.value.cause)
        shop.gate.set()
        assert (await thread.result()).status == "done"
        assert shop.paid == []
        assert await thread.tool_results() == ["waited", "error: not run, since the thread ended"]
        assert len(await thread.data(Kind.ASKED)) == 1


def with_deadline(seconds: float, *, escalate: bool = False) -> Tool:
    async def spend(euros: int) -> str:
        """Spend money."""
        return f"spent {euros}"

    if escalate:
        return tool(
            needs_approval=True,
            approvers=["alice"],
            deadline_seconds=seconds,
            on_deadline="escalate",
            escalate_to=["chief"],
        )(spend)
    return tool(needs_approval=True, deadline_seconds=seconds)(spend)


def spender(spend: Tool, *more: Tool) -> Agent:
    calls = [call(0, "spend", euros=3), *(call(i, each.name) for i, each in enumerate(more, 1))]
    return Agent(name="ops", model=call_then_answer(*calls), tools=[spend, *more])


@pytest.mark.guarantee(66)
async def test_a_deadline_denies_a_call(drive: Drive) -> None:
    async with drive([spender(with_deadline(1.5))]) as thread:
        await thread.send()
        [approval] = await thread.pending()
        assert approval.deadline_ms == approval.asked_ms + 1500
        assert await thread.answer() == "error: denied by deadline: no decision came in time"
        [decided] = await thread.entries(Kind.DECIDED)
        assert decided.data is not None
        assert decided.data["by"] == "deadline"
        assert decided.time_ms >= approval.deadline_ms


@pytest.mark.guarantee(66)
async def test_a_deadline_passes_while_another_tool_runs(drive: Drive) -> None:
    shop = Shop()
    async with drive([spender(with_deadline(1.5), shop.wait)]) as thread:
        await thread.send()
        await thread.pending()
        await asyncio.wait_for(shop.waiting.wait(), 90)
        await thread.pending(0)
        assert (await thread.status()).counters.tool_calls == 1
        shop.gate.set()
        assert (await thread.answer()).endswith("in time | waited")


@pytest.mark.guarantee(66)
async def test_a_deadline_escalates_to_other_deciders(drive: Drive) -> None:
    async with drive([spender(with_deadline(1.5, escalate=True))]) as thread:
        await thread.send()
        [approval] = await thread.pending()
        assert (approval.escalated, approval.approvers) == (False, ("alice",))
        async with asyncio.timeout(90):
            while not (approval := (await thread.pending())[0]).escalated:
                await asyncio.sleep(0.02)
        assert approval.approvers == ("chief",)
        with pytest.raises(WorkflowUpdateFailedError):
            await thread.decide(approval.id, by="alice")
        await thread.decide(approval.id, by="chief")
        assert await thread.answer() == "spent 3"
        decisions = [
            (each["by"], each.get("escalated", False)) for each in await thread.data(Kind.DECIDED)
        ]
        assert decisions == [("deadline", True), ("chief", False)]
        assert len(await thread.data(Kind.ASKED)) == 1


@pytest.mark.guarantee(66)
async def test_an_undecided_escalated_call_is_denied(drive: Drive) -> None:
    async with drive([spender(with_deadline(0.4, escalate=True))]) as thread:
        assert await thread.ask() == "error: denied by deadline: no decision came in time"
        assert len(await thread.data(Kind.DECIDED)) == 2


@pytest.mark.guarantee(66)
async def test_a_deadline_holds_while_the_thread_is_paused(drive: Drive) -> None:
    async with drive([spender(with_deadline(2.0))]) as thread:
        await thread.send()
        await thread.pending()
        await thread.handle.signal("pause")
        await thread.pending(0)
        assert (await thread.status()).status == "paused"
        await thread.handle.signal("unpause")
        assert (await thread.answer()).startswith("error: denied by deadline")


async def roll_while_waiting(thread: DrivenThread, runs: int) -> None:
    """Have a thread roll although it has nothing to do: a signal wakes it, and its run is long."""
    async with asyncio.timeout(90):
        while (await thread.status()).counters.runs < runs:
            await thread.handle.signal("pause")
            await thread.handle.signal("unpause")
            await asyncio.sleep(0.02)


@pytest.mark.guarantee(64)
async def test_approvals_cross_rolls_and_are_requested_once(drive: Drive) -> None:
    shop = Shop()
    async with drive([shop.agent(pay(1), pay(2))], Policy(run_events_max=50)) as thread:
        await thread.send()
        before = await thread.pending(2)
        await roll_while_waiting(thread, 3)
        assert await thread.pending(2) == before
        await thread.decide(before[1].id)
        await thread.wait_until(lambda status: status.counters.tool_calls == 1)
        await roll_while_waiting(thread, (await thread.status()).counters.runs + 1)
        with pytest.raises(WorkflowUpdateFailedError) as raised:
            await thread.decide(before[1].id)
        assert "decided already" in str(raised.value.cause)
        await thread.decide(before[0].id)
        assert await thread.answer() == "paid 1 | paid 2"
        assert shop.paid == [2, 1]
        assert [each["id"] for each in await thread.data(Kind.ASKED)] == [
            each.id for each in before
        ]
        assert len(await thread.data(Kind.DECIDED)) == 2


async def test_a_decision_repeated_after_a_roll_counts_once(
    drive: Drive,
) -> None:
    """A client that heard nothing, because its update met a roll, says it again."""
    shop = Shop()
    async with drive([shop.agent(pay(1), pay(2))], Policy(run_events_max=50)) as thread:
        await thread.send()
        first, second = await thread.pending(2)
        decision = Decide(id=first.id, approve=True, by="alice")
        await thread.handle.execute_update(DECIDE_UPDATE, decision, id="click-1")
        await roll_while_waiting(thread, 2)
        await thread.handle.execute_update(DECIDE_UPDATE, decision, id="click-1")
        with pytest.raises(WorkflowUpdateFailedError):
            await thread.handle.execute_update(DECIDE_UPDATE, decision, id="click-2")
        await thread.decide(second.id)
        assert await thread.answer() == "paid 1 | paid 2"
        assert shop.paid == [1, 2]
        assert len(await thread.data(Kind.DECIDED)) == 2


@pytest.mark.guarantee(64)
async def test_approvals_survive_worker_restarts(drive: Drive) -> None:
    shop = Shop()
    agent = shop.agent(pay(1))
    async with drive([agent]) as thread:
        await thread.send()
        [before] = await thread.pending()
    queue = thread.threads.task_queue
    async with drive([agent], task_queue=queue, max_cached_workflows=0) as thread:
        assert await thread.pending() == [before]
        await thread.decide(before.id)
        assert await thread.answer() == "paid 1"
        assert len(await thread.data(Kind.ASKED)) == len(await thread.data(Kind.DECIDED)) == 1
    assert shop.paid == [1]


@pytest.mark.guarantee(39)
async def test_messages_sent_during_an_approval_are_answered_after_it_in_order(
    drive: Drive,
) -> None:
    shop = Shop()

    def script(turn: Sequence[Message]) -> Reply:
        if turn[0].text != "pay":
            return Reply(text=f"heard {turn[0].text}")
        done = results(turn)
        return Reply(text=done[0]) if done else Reply(tool_calls=(call(0, "pay", euros=7),))

    agent = Agent(name="ops", model=ScriptedModel(script), tools=[shop.pay])
    async with drive([agent], Policy(run_events_max=50)) as thread:
        await thread.send("pay")
        [approval] = await thread.pending()
        assert [await thread.send(text) for text in ("one", "two")] == [2, 3]
        status = await thread.status()
        assert (status.status, status.waiting_messages) == ("approval", 2)
        await roll_while_waiting(thread, 2)
        await thread.decide(approval.id)
        assert [await thread.answer(n) for n in (1, 2, 3)] == ["paid 7", "heard one", "heard two"]


async def test_a_rule_decides_which_calls_need_approval(drive: Drive) -> None:
    def rule(euros: int) -> bool:
        if euros == 666:
            raise RuntimeError("no idea")
        return euros > 10

    @tool(needs_approval=rule)
    def pay(euros: int) -> str:
        """Pay."""
        return f"paid {euros}"

    calls = [call(i, "pay", euros=euros) for i, euros in enumerate((5, 50, 666, "many"))]
    async with drive([Agent(name="ops", model=call_then_answer(*calls), tools=[pay])]) as thread:
        await thread.send()
        approvals = await thread.pending(2)  # A rule that fails asks; bad arguments do not.
        assert [each.arguments for each in approvals] == ['{"euros": 50}', '{"euros": 666}']
        await thread.wait_until(lambda status: status.counters.tool_calls == 2)
        for approval in approvals:
            await thread.decide(approval.id)
        first, *others, refused = (await thread.answer()).split(" | ")
        assert [first, *others] == ["paid 5", "paid 50", "paid 666"]
        assert refused.startswith("error: the arguments are invalid")


async def test_the_most_denials_at_full_length_fit_the_state(drive: Drive) -> None:
    shop = Shop()
    wide = "\U0001f600"
    agent = shop.agent(*(pay(i) for i in range(limits.TOOL_CALLS_MAX)))
    async with drive([agent], Policy()) as thread:
        await thread.send()
        approvals = await thread.pending(limits.TOOL_CALLS_MAX)
        await thread.send("x" * 4000)
        await asyncio.gather(
            *(
                thread.decide(each.id, approve=False, by=wide * 64, reason=wide * 300)
                for each in approvals
            )
        )
        await thread.wait_for_answers(1)
        assert shop.paid == []
        assert len(await thread.data(Kind.DECIDED)) == limits.TOOL_CALLS_MAX
