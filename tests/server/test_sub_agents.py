"""Agents as tools of agents: each in a thread of its own, which its parent's rolls do not touch."""

import asyncio
from collections.abc import Sequence

import pytest
from temporalio.client import WorkflowExecutionStatus

from everlong import Agent, Policy, Reply, limits, tool
from everlong.errors import ModelRefused
from everlong.models import Kind, Message, ToolCall
from everlong.testing import ScriptedModel
from tests.support.scripted_agents import call, results
from tests.support.thread_driver import Drive, DrivenThread, call_then_answer


class Gate:
    """A tool that ends when it is let."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.open = asyncio.Event()

        @tool
        async def wait() -> str:
            """Wait for the gate."""
            self.begun.set()
            async with asyncio.timeout(90):
                await self.open.wait()
            return "waited"

        self.tool = wait


def helper(name: str = "helper", model: object = None, tools: Sequence[object] = ()) -> Agent:
    echo = ScriptedModel(lambda turn: Reply(text=f"{name} heard {turn[0].text}"))
    return Agent(
        name=name,
        model=model or echo,
        description="Helps.",
        tools=tuple(tools),  # type: ignore[arg-type]
    )


def boss(*calls: ToolCall, helpers: Sequence[Agent]) -> Agent:
    return Agent(name="ops", model=call_then_answer(*calls), tools=helpers)


def call_helper(request: str = "do it") -> ToolCall:
    return call(0, "helper", request=request)


async def wait_for_children(thread: DrivenThread, count: int) -> list[DrivenThread]:
    """Wait until a thread has started so many others, and return them in that order."""
    async with asyncio.timeout(90):
        while True:
            events = [event for each in await thread.histories() for event in each.events]
            started = [
                event.child_workflow_execution_started_event_attributes.workflow_execution
                for event in events
                if event.HasField("child_workflow_execution_started_event_attributes")
            ]
            if len(started) >= count:
                return [thread.other(each.workflow_id) for each in started]
            await asyncio.sleep(0.03)


@pytest.mark.guarantee(67)
async def test_a_sub_agents_answer_is_the_result_of_the_call(drive: Drive) -> None:
    async with drive([boss(call_helper(), helpers=[helper()])]) as thread:
        assert await thread.ask() == "helper heard do it"
        [child] = await wait_for_children(thread, 1)
        assert child.thread_id.startswith(f"{thread.thread_id}/helper-")
        status = await child.result()
        assert (status.agent, status.status) == ("helper", "done")
        assert [message.text for message in (await child.messages()).values()] == [
            "do it",
            "helper heard do it",
        ]
        [result] = await thread.entries(Kind.TOOL_RESULT)
        assert result.data == {"thread_id": child.thread_id}
        await child.check()


@pytest.mark.guarantee(67)
async def test_two_sub_agents_run_in_parallel_and_answer_in_call_order(drive: Drive) -> None:
    both = asyncio.Barrier(2)

    @tool
    async def meet() -> str:
        """Meet the other."""
        async with asyncio.timeout(90):
            await both.wait()
        return "met"

    def script(turn: Sequence[Message]) -> Reply:
        done = results(turn)
        if not done:
            return Reply(tool_calls=(call(0, "meet"),), tokens=10, cost_usd=0.5)
        return Reply(text=f"{turn[0].text} {done[0]}", tokens=5, cost_usd=0.25)

    worker = helper(model=ScriptedModel(script), tools=[meet])
    calls = (call(0, "helper", request="anna"), call(1, "helper", request="ben"))
    async with drive([boss(*calls, helpers=[worker])]) as thread:
        assert await thread.ask() == "anna met | ben met"
        # Their cost counts for the thread that called them.
        counters = (await thread.status()).counters
        assert counters.tokens == 30
        assert counters.cost_usd == pytest.approx(1.5)
        assert counters.tool_calls == 2


@pytest.mark.guarantee(67)
async def test_costs_of_sub_agents_count_towards_the_parents_limit(drive: Drive) -> None:
    dear = helper(model=ScriptedModel(lambda turn: Reply(text="done", tokens=500, cost_usd=2.0)))
    async with drive([boss(call_helper(), helpers=[dear])], Policy(cost_usd_max=1.0)) as thread:
        await thread.send()
        status = await thread.wait_for_status("paused")
        assert status.pause is not None
        assert status.pause.limit is not None
        assert status.pause.limit.limit == "cost_usd_max"


@pytest.mark.guarantee(67)
async def test_a_parent_rolls_while_its_sub_agent_waits_for_a_person(drive: Drive) -> None:
    @tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    worker = helper(model=call_then_answer(call(0, "pay")), tools=[pay])
    idle = Policy(idle_seconds=1, run_events_max=50)
    async with drive([boss(call_helper(), helpers=[worker])], idle) as thread:
        await thread.send()
        [child] = await wait_for_children(thread, 1)
        [approval] = await child.pending()
        await thread.wait_until(lambda status: status.counters.runs >= 2)
        status = await thread.status()
        assert (status.status, status.pending) == ("working", 0)
        await child.decide(approval.id)
        assert await thread.answer() == "paid"
        assert len(await wait_for_children(thread, 1)) == 1
        await child.check()


async def test_a_tool_call_parallel_to_a_sub_agent_continues(drive: Drive) -> None:
    gate = Gate()
    ran = asyncio.Event()

    @tool
    def quick() -> str:
        """Be quick."""
        ran.set()
        return "quick"

    worker = helper(model=call_then_answer(call(0, "wait")), tools=[gate.tool])
    agent = Agent(
        name="ops", model=call_then_answer(call_helper(), call(1, "quick")), tools=[worker, quick]
    )
    async with drive([agent]) as thread:
        await thread.send()
        await asyncio.wait_for(ran.wait(), 90)
        await asyncio.wait_for(gate.begun.wait(), 90)
        await thread.wait_until(lambda status: status.counters.tool_calls == 1)
        gate.open.set()
        assert await thread.answer() == "waited | quick"


@pytest.mark.guarantee(67)
async def test_a_failed_sub_agent_is_an_error_for_the_model(drive: Drive) -> None:
    def script(turn: Sequence[Message]) -> Reply:
        raise ModelRefused("no such model")

    async with drive(
        [boss(call_helper(), helpers=[helper(model=ScriptedModel(script))])]
    ) as thread:
        answer = await thread.ask()
        assert answer.startswith("error: ")
        assert "no such model" in answer
        assert (await thread.status()).streaks.same_failure == 0  # An answer came after it.


@pytest.mark.guarantee(67)
async def test_a_terminated_sub_agent_is_detected(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everlong.limits.CHILD_CHECK_SECONDS", 1.0)
    gate = Gate()
    worker = helper(model=call_then_answer(call(0, "wait")), tools=[gate.tool])
    async with drive([boss(call_helper(), helpers=[worker])]) as thread:
        await thread.send()
        [child] = await wait_for_children(thread, 1)
        await asyncio.wait_for(gate.begun.wait(), 90)
        await thread.wait_until(lambda status: len(status.answers) == 0)
        await child.handle.terminate("an operator's mistake")
        gate.open.set()
        answer = await thread.answer()
        assert answer.startswith("error: ")
        assert "ended without a report" in answer


async def test_the_check_does_not_disturb_a_running_sub_agent(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everlong.limits.CHILD_CHECK_SECONDS", 0.5)
    gate = Gate()
    worker = helper(model=call_then_answer(call(0, "wait")), tools=[gate.tool])
    async with drive([boss(call_helper(), helpers=[worker])]) as thread:
        await thread.send()
        await asyncio.wait_for(gate.begun.wait(), 90)
        await asyncio.sleep(2.5)
        gate.open.set()
        assert await thread.answer() == "waited"


@pytest.mark.guarantee(67)
async def test_a_parent_that_stops_stops_its_sub_agents(drive: Drive) -> None:
    @tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    worker = helper(model=call_then_answer(call(0, "pay")), tools=[pay])
    calls = (call(0, "helper", request="a"), call(1, "helper", request="b"))
    async with drive([boss(*calls, helpers=[worker])]) as thread:
        await thread.send()
        started = await wait_for_children(thread, 2)
        for child in started:
            await child.pending()
        assert (await thread.stop()).status == "done"
        for child in started:
            assert (await child.result()).status == "done"
            await child.check()


async def test_a_sub_agent_stopped_by_an_operator_is_an_error(drive: Drive) -> None:
    @tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    worker = helper(model=call_then_answer(call(0, "pay")), tools=[pay])
    async with drive([boss(call_helper(), helpers=[worker])]) as thread:
        await thread.send()
        [child] = await wait_for_children(thread, 1)
        await child.pending()
        assert (await child.stop()).status == "done"
        assert (await thread.answer()).startswith("error: ")


@pytest.mark.guarantee(67)
async def test_the_depth_of_sub_agents_is_bounded(drive: Drive) -> None:
    depth = limits.CHILD_DEPTH_MAX + 2
    agent = helper(f"level{depth}")
    for level in range(depth - 1, 0, -1):
        model = call_then_answer(call(0, f"level{level + 1}", request="deeper"))
        agent = helper(f"level{level}", model=model, tools=[agent])
    top = boss(call(0, "level1", request="deeper"), helpers=[agent])
    async with drive([top]) as thread:
        assert (
            await thread.ask()
            == f"error: sub-agents may be nested {limits.CHILD_DEPTH_MAX} levels deep at most"
        )


async def test_a_long_request_is_accepted_and_an_overlong_one_refused(drive: Drive) -> None:
    size = ScriptedModel(lambda turn: Reply(text=f"{len(turn[0].text)} characters"))
    worker = helper(model=size)
    long = "word " * 6000
    calls = (
        call(0, "helper", request=long),
        call(1, "helper"),
        call(2, "helper", request="x" * 200_000),
        call(3, "helper", request=" "),
    )
    async with drive([boss(*calls, helpers=[worker])]) as thread:
        first, second, third, fourth = (await thread.ask()).split(" | ")
        assert first == f"{len(long)} characters"
        assert second.startswith("error: the arguments are invalid")
        # It is shown as much as a model reads at once, and can recall the rest.
        assert 20_000 < int(third.split()[0]) < 40_000
        assert fourth.endswith("characters")
        child = (await wait_for_children(thread, 2))[1]
        whole = (await child.messages(whole=True))[1].text
        assert whole in (long, "x" * 200_000, " ", "(no request)")


@pytest.mark.guarantee(73)
async def test_a_cancelled_parent_stops_its_sub_agent(drive: Drive) -> None:
    gate = Gate()
    worker = helper(model=call_then_answer(call(0, "wait")), tools=[gate.tool])
    async with drive([boss(call_helper(), helpers=[worker])]) as thread:
        await thread.send()
        [child] = await wait_for_children(thread, 1)
        await asyncio.wait_for(gate.begun.wait(), 90)
        await thread.handle.cancel()
        with pytest.raises(Exception, match="Workflow execution failed"):
            await thread.result()
        description = await thread.handle.describe()
        assert description.status == WorkflowExecutionStatus.CANCELED
        gate.open.set()
        assert (await child.result()).status == "done"
        assert [entry.kind for entry in await thread.entries(Kind.TOOL_RESULT)] == [
            Kind.TOOL_RESULT
        ]


async def test_a_thread_with_the_longest_id_has_sub_agents_too(drive: Drive) -> None:
    """Temporal takes 1,000 bytes; a sub-agent's sub-agent has a name that begins with its own."""
    below = helper("below")
    worker = helper(model=call_then_answer(call(0, "below", request="go")), tools=[below])
    async with drive([boss(call_helper(), helpers=[worker])]) as thread:
        await thread.ask()
        longest = thread.other(f"{thread.thread_id}-".ljust(990, "x"))
        assert await longest.ask() == "below heard go"
