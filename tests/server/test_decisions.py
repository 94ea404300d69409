"""Decisions of people: changed arguments, several approvers, grants, and unknown outcomes."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from everlong import Agent, Always, OutcomeUnknown, Policy, current_call, tool
from everlong.activities.heartbeat import build_held_error
from everlong.activities.tool_calls import find_call
from everlong.client.thread import ThreadHandle
from everlong.embedded import TemporalServer
from everlong.errors import DecisionRefused
from everlong.models import STOP_SIGNAL, Kind
from everlong.storage import BlobStore
from everlong.storage.agent_grants import PREFIX, AgentGrants
from tests.support.scripted_agents import call
from tests.support.thread_driver import Drive, DrivenThread, call_then_answer
from tests.support.threads import open_threads

ROLL = Policy(run_events_max=50, idle_seconds=0.2)
"""A thread that waits continues as new at once."""


def open_handle(thread: DrivenThread) -> ThreadHandle:
    return ThreadHandle(thread.threads.client, thread.thread_id)


class Till:
    """Tools that pay, and what they have paid."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.keys: list[str] = []
        self.faults = 0

        @tool(needs_approval=True)
        def pay(euros: int) -> str:
            """Pay."""
            self.paid.append(euros)
            return f"paid {euros}"

        @tool(needs_approval=True, approvers=["ann", "ben", "cem"], approvals_needed=2)
        def pay_much(euros: int) -> str:
            """Pay much."""
            self.paid.append(euros)
            return f"paid {euros}"

        @tool(effects="once")
        def transfer(euros: int) -> str:
            """Transfer."""
            self.paid.append(euros)
            self.keys.append(current_call().idempotency_key)
            if self.faults:
                self.faults -= 1
                raise OutcomeUnknown
            return f"transferred {euros}"

        self.tools = [pay, pay_much, transfer]

    def agent(self, *calls: tuple[str, int]) -> Agent:
        wanted = [call(number, name, euros=euros) for number, (name, euros) in enumerate(calls)]
        return Agent(name="ops", model=call_then_answer(*wanted), tools=self.tools)


@pytest.mark.guarantee(114)
async def test_a_call_runs_with_the_arguments_that_a_person_changed(drive: Drive) -> None:
    till = Till()
    async with drive([till.agent(("pay", 500))], ROLL) as thread:
        handle = open_handle(thread)
        await thread.send()
        [approval] = await thread.pending()
        with pytest.raises(DecisionRefused, match="does not accept these arguments: euros: "):
            await handle.decide(approval.id, approve=True, by="ann", arguments={"euros": "many"})
        assert (await thread.status()).pending == 1
        await handle.decide(approval.id, approve=True, by="ann", arguments={"euros": 5})
        answer = await thread.answer()
        assert (
            answer
            == '[ann approved this call with other arguments; it ran with {"euros":5}]\npaid 5'
        )
        assert till.paid == [5]
        [decided] = await thread.data(Kind.DECIDED)
        assert (decided["by"], decided["arguments"]) == ("ann", '{"euros":5}')
        [reply, _] = await thread.entries(Kind.REPLY)
        assert '"euros": 500' in str(reply.body)  # The journal has both.


@pytest.mark.guarantee(114)
async def test_a_call_waits_for_the_approvals_that_it_needs_across_runs(drive: Drive) -> None:
    till = Till()
    async with drive([till.agent(("pay_much", 900))], ROLL) as thread:
        handle = open_handle(thread)
        await thread.send()
        [approval] = await thread.pending()
        await handle.decide(approval.id, approve=True, by="ann")
        await thread.wait_until(lambda status: status.counters.runs > 1)
        with pytest.raises(DecisionRefused, match="already; 1 more must"):
            await handle.decide(approval.id, approve=True, by="ann")
        [waiting] = await thread.pending()
        assert ([each.by for each in waiting.votes], waiting.needed) == (["ann"], 2)
        # Another person changes the arguments, so the first vote does not count any more.
        await handle.decide(approval.id, approve=True, by="ben", arguments={"euros": 9})
        [changed] = await thread.pending()
        assert (changed.id, changed.arguments) == (f"{approval.id}-r1", '{"euros":9}')
        assert await handle.arguments(changed) == '{"euros":9}'
        with pytest.raises(DecisionRefused, match="have been changed since"):
            await handle.decide(approval.id, approve=True, by="cem")
        assert till.paid == []
        await handle.decide(changed.id, approve=True, by="cem")
        assert "paid 9" in await thread.answer()
        assert till.paid == [9]
        assert [each["by"] for each in await thread.data(Kind.VOTED)] == ["ann", "ben"]
        [decided] = await thread.data(Kind.DECIDED)
        assert decided["votes"] == ["ben", "cem"]


@pytest.mark.guarantee(115)
async def test_a_grant_of_a_thread_allows_later_calls_until_it_is_revoked(drive: Drive) -> None:
    till = Till()
    async with drive([till.agent(("pay", 5))], ROLL) as thread:
        handle = open_handle(thread)
        await thread.send()
        [approval] = await thread.pending()
        always = Always(match="arguments", seconds=3600)
        await handle.decide(approval.id, approve=True, by="ann", always=always)
        await thread.answer()
        await thread.wait_until(lambda status: status.counters.runs > 1)
        [grant] = await handle.grants()
        assert (grant.tool, grant.by, grant.arguments) == ("pay", "ann", '{"euros": 5}')
        assert await thread.ask() == "paid 5"
        used = (await thread.data(Kind.DECIDED))[-1]
        assert (used["grant"], used["by"]) == (grant.id, "ann")
        await handle.revoke_grant(grant.id, by="ben")
        assert await handle.grants() == []
        await thread.send()
        [approval] = await thread.pending()
        await thread.decide(approval.id, approve=False)
        await thread.answer(3)
        actions = [each["action"] for each in await thread.data(Kind.CONTROL)]
        assert actions == ["grant", "revoke_grant"]


@pytest.mark.guarantee(115)
async def test_a_held_call_asks_a_person_once_its_grant_is_revoked(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    till, down = Till(), False

    async def find(*arguments: Any) -> Any:
        if down:
            raise build_held_error("StoreUnavailable: away")
        return await find_call(*arguments)

    monkeypatch.setattr("everlong.activities.agent.find_call", find)
    async with drive([till.agent(("pay", 5))]) as thread:
        handle = open_handle(thread)
        await thread.send()
        [approval] = await thread.pending()
        await handle.decide(approval.id, approve=True, by="ann", always=Always(match="tool"))
        await thread.answer()
        [grant] = await handle.grants()
        down = True
        await thread.send()
        await thread.wait_until(lambda status: bool(status.held_by))
        await handle.revoke_grant(grant.id, by="ben")
        down = False
        # Asked at once, and not after the pause of 10 s.
        [asked] = await thread.pending()
        assert till.paid == [5]
        await thread.decide(asked.id, approve=False)
        await thread.answer(2)
        assert till.paid == [5]


@pytest.mark.guarantee(115)
async def test_a_grant_that_is_stored_while_the_thread_ends_is_journalled(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    till, add, may_store = Till(), AgentGrants.add, asyncio.Event()

    async def wait_and_add(*arguments: Any) -> str:
        await may_store.wait()
        return await add(*arguments)

    monkeypatch.setattr(AgentGrants, "add", wait_and_add)
    async with drive([till.agent(("pay", 77))]) as thread:
        await thread.send()
        [approval] = await thread.pending()
        always = Always(match="arguments", scope="agent")
        decide = asyncio.create_task(
            open_handle(thread).decide(approval.id, approve=True, by="ann", always=always)
        )
        await thread.answer()
        await thread.handle.signal(STOP_SIGNAL)
        await thread.wait_until(lambda status: status.stopping and not status.tail_entries)
        may_store.set()
        await decide
        await thread.result()
        actions = [each["action"] for each in await thread.data(Kind.CONTROL)]
        assert actions == ["stop", "grant"]
        [grant] = await open_handle(thread).grants()
        await open_handle(thread).revoke_grant(grant.id, by="ann")


@pytest.mark.guarantee(115)
async def test_a_grant_of_an_agent_reaches_its_other_threads_until_it_is_revoked(
    drive: Drive,
) -> None:
    till = Till()
    async with drive([till.agent(("pay", 5))]) as thread:
        handle = open_handle(thread)
        await thread.send()
        [approval] = await thread.pending()
        await handle.decide(
            approval.id, approve=True, by="ann", always=Always(match="tool", scope="agent")
        )
        assert await thread.answer() == "paid 5"
        other = thread.other(f"{thread.thread_id}-other")
        assert await other.ask() == "paid 5"
        [grant] = await open_handle(other).grants()
        assert (grant.agent, grant.thread_id) == ("ops", thread.thread_id)
        stored = [info.key async for info in thread.threads.store.list(PREFIX)]
        assert [key for key in stored if grant.id in key]
        await open_handle(other).revoke_grant(grant.id, by="ben")
        await other.send()
        [waiting] = await other.pending()
        await other.decide(waiting.id, approve=False)
        await other.answer(2)
        await other.check()


@pytest.mark.guarantee(116)
@pytest.mark.parametrize("outcome", ["done", "not_done", "retry"])
async def test_a_person_says_what_became_of_a_call(drive: Drive, outcome: str) -> None:
    till = Till()
    till.faults = 1
    async with drive([till.agent(("transfer", 7))], ROLL) as thread:
        handle = open_handle(thread)
        await thread.send()
        status = await thread.wait_until(lambda found: found.outcomes == 1)
        assert (status.status, status.reason, status.pending) == ("approval", "outcome", 1)
        await thread.wait_until(lambda found: found.counters.runs > 1)
        [unknown] = await handle.outcomes()
        assert (unknown.tool, unknown.cause) == ("transfer", "unclear")
        assert unknown.idempotency_key == till.keys[0]
        assert await handle.arguments(unknown) == '{"euros": 7}'
        assert await handle.approvals() == []
        await handle.resolve_outcome(
            unknown.id,
            outcome=outcome,  # type: ignore[arg-type]
            by="ann",
            result="transfer 17" if outcome == "done" else "",
        )
        answer = await thread.answer()
        expected = {
            "done": "transfer 17 [reported by ann: the tool did not know]",
            "not_done": "error: it had no effect, ann found: the tool did not know",
            "retry": "transferred 7",
        }
        assert answer == expected[outcome]
        assert till.keys == till.keys[:1] * (2 if outcome == "retry" else 1)
        with pytest.raises(DecisionRefused, match="resolved already"):
            await handle.resolve_outcome(unknown.id, outcome="retry", by="ben")
        [asked] = await thread.data(Kind.OUTCOME_UNKNOWN)
        [resolved] = await thread.data(Kind.OUTCOME_RESOLVED)
        assert asked["id"] == resolved["id"] == unknown.id
        assert (resolved["outcome"], resolved["by"]) == (outcome, "ann")


@pytest.mark.guarantee(116)
async def test_a_call_that_times_out_has_an_unknown_outcome_and_an_error_has_not(
    drive: Drive,
) -> None:
    @tool(attempts_max=1, timeout_seconds=0.2)
    async def hang() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return ""

    @tool(attempts_max=1)
    def fail() -> str:
        """Fail."""
        raise ValueError("no such account")

    model = call_then_answer(call(0, "hang"), call(1, "fail"))
    async with drive([Agent(name="ops", model=model, tools=[hang, fail])]) as thread:
        handle = open_handle(thread)
        await thread.send()
        await thread.wait_until(lambda found: found.outcomes == 1)
        [unknown] = await handle.outcomes()
        assert (unknown.tool, unknown.cause) == ("hang", "timeout")
        await handle.resolve_outcome(unknown.id, outcome="done", by="ann")
        answer = await thread.answer()
        assert answer == (
            "done [reported by ann: it did not end in its time] | "
            "error: tool 'fail' failed: ValueError: no such account"
        )


@pytest.mark.guarantee(116)
async def test_a_worker_that_shuts_down_leaves_the_outcome_of_its_call_unknown(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    begun = asyncio.Event()

    @tool(effects="once")
    async def transfer() -> str:
        """Transfer."""
        begun.set()
        await asyncio.sleep(60)
        return "late"

    agent = Agent(name="ops", model=call_then_answer(call(0, "transfer")), tools=[transfer])
    async with open_threads(server.address, store, agent) as threads:
        async with threads.worker(graceful_shutdown_timeout=timedelta(0)):
            await threads.send(thread_id, "go")
            await asyncio.wait_for(begun.wait(), 90)
        async with threads.worker():
            handle = ThreadHandle(threads.client, thread_id)
            await handle.wait_until(lambda progress: progress.pending == 1, seconds_max=90)
            [unknown] = await handle.outcomes()
            assert unknown.cause == "lost"
