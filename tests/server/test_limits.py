"""Limits of the policy on a real server: their action, their report, and how a thread continues."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from everlong import Agent, Policy, Reply, limits, tool
from everlong.client.updates import send
from everlong.errors import ModelRefused, ThreadEnded
from everlong.models import Kind, Message, ThreadStatus
from everlong.testing import ScriptedModel
from tests.support.scripted_agents import call, calls_done, reading_agent
from tests.support.thread_driver import Drive, DrivenThread


def costly(pages: int = 6) -> Agent:
    """Reads pages, each for 100 tokens and 10 cents."""
    reader = reading_agent(pages)

    def script(turn: Sequence[Message]) -> Reply:
        done = calls_done(turn)
        if done < pages:
            wanted = (call(done, "read_page", page=done),)
            return Reply(tool_calls=wanted, tokens=100, input_tokens=90, cost_usd=0.1)
        return Reply(text="read", tokens=100, cost_usd=0.1)

    return Agent(name="ops", model=ScriptedModel(script), tools=reader.tools)


def noisy(pages: int, size_bytes: int) -> Agent:
    """Reads pages of noise, which does not compress much."""

    @tool
    def read_page(page: int) -> str:
        """Read."""
        return random.Random(page).randbytes(size_bytes // 2).hex()

    def script(turn: Sequence[Message]) -> Reply:
        done = calls_done(turn)
        if done < pages:
            return Reply(tool_calls=(call(done, "read_page", page=done),))
        return Reply(text="read")

    return Agent(name="ops", model=ScriptedModel(script), tools=[read_page])


def build_failing_agent(pages: int = 40) -> Agent:
    @tool(attempts_max=1)
    def fetch(url: str) -> str:
        """Fetch."""
        raise OSError(f"no route to {url}, port {random.randrange(65536)}")

    def script(turn: Sequence[Message]) -> Reply:
        done = calls_done(turn)
        return (
            Reply(tool_calls=(call(done, "fetch", url="http://x"),))
            if done < pages
            else Reply(text="gave up")
        )

    return Agent(name="ops", model=ScriptedModel(script), tools=[fetch])


def build_repeating_agent(*urls: str) -> Agent:
    """Calls the same tool with one URL after another, over and over, and never answers."""

    @tool
    def fetch(url: str) -> str:
        """Fetch."""
        return f"{url} says hello"

    def script(turn: Sequence[Message]) -> Reply:
        done = calls_done(turn)
        return Reply(tool_calls=(call(done, "fetch", url=urls[done % len(urls)]),))

    return Agent(name="ops", model=ScriptedModel(script), tools=[fetch])


OFF = {"no_progress_steps_max": 100, "turn_steps_max": 10}
CASES: list[Any] = [
    ("steps_max", 3, costly(), {"steps_max": 100}, 3),
    ("tokens_max", 250, costly(), {"tokens_max": 10_000}, 300),
    ("cost_usd_max", 0.25, costly(), {"cost_usd_max": None}, 0.3),
    ("step_bytes_max", 2048, noisy(3, 20_000), {"step_bytes_max": None}, None),
    ("thread_bytes_max", limits.MIB, noisy(4, 1_200_000), {"thread_bytes_max": None}, None),
    ("same_failure_max", 3, build_failing_agent(6), {"same_failure_max": 100}, 3),
    ("no_progress_steps_max", 4, build_repeating_agent("a"), OFF, 4),
    ("no_progress_steps_max", 4, build_repeating_agent("a", "b", "c"), OFF, 4),
]


@pytest.mark.guarantee(68)
@pytest.mark.parametrize(
    ("limit", "bound", "agent", "raised", "value"), CASES, ids=[case[0] for case in CASES]
)
async def test_a_thread_pauses_at_a_limit_and_continues_once_it_is_raised(
    drive: Drive, limit: str, bound: float, agent: Agent, raised: dict[str, Any], value: float
) -> None:
    async with drive([agent], Policy(**{limit: bound})) as thread:  # type: ignore[arg-type]
        await thread.send()
        status = await thread.wait_for_status("paused")
        hit = describe_limit(status)
        assert (hit.limit, hit.bound, hit.action) == (limit, bound, "pause")
        assert hit.value >= bound
        if value is not None:
            assert hit.value == pytest.approx(value)
        assert limit in status.pause.reason if status.pause else False
        steps = status.counters.steps
        shown = await thread.attributes()
        assert (shown["EverlongStatus"], shown["EverlongReason"]) == ("paused", limit)
        await thread.send("still taken")
        assert (await thread.status()).counters.steps == steps
        await thread.configure(**raised)
        await thread.handle.signal("unpause")
        await thread.wait_for_answers(2)
        [entry, *_] = await thread.entries(Kind.LIMIT)
        assert entry.data is not None
        assert (entry.data["limit"], entry.data["action"]) == (limit, "pause")
        async with asyncio.timeout(60):  # It is published in a task after the answer's.
            while (await thread.attributes())["EverlongStatus"] not in ("waiting", "failed"):
                await asyncio.sleep(0.05)


def describe_limit(status: ThreadStatus) -> Any:
    hit = status.ended or (status.pause and status.pause.limit)
    assert hit is not None
    return hit


@pytest.mark.guarantee(69)
async def test_consecutive_failed_turns_pause_and_an_answer_resets_the_count(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(turn: Sequence[Message]) -> Reply:
        if turn[0].text == "fail":
            raise ModelRefused("not today")
        return Reply(text="fine")

    agent = Agent(name="ops", model=ScriptedModel(script))
    async with drive([agent], Policy(failed_turns_max=2)) as thread:
        for text in ("fail", "fine", "fail", "fine", "fail", "fail"):
            await thread.ask(text)
        await thread.send("fine")
        status = await thread.wait_for_status("paused")
        assert (describe_limit(status).limit, status.counters.answered) == ("failed_turns_max", 6)
        await thread.handle.signal("unpause")  # It resets the count of failed turns.
        assert await thread.answer(7) == "fine"


async def test_a_context_that_cannot_be_shortened_pauses_the_thread(drive: Drive) -> None:
    """Compaction does not shorten a step under way: here, calls with long arguments."""

    @tool
    def keep(text: str) -> str:
        """Keep a text."""
        return "kept"

    def script(turn: Sequence[Message]) -> Reply:
        done = calls_done(turn)
        return Reply(tool_calls=(call(done, "keep", text=f"{done}" * 40_000),))

    agent = Agent(name="ops", model=ScriptedModel(script), tools=[keep])
    policy = Policy(context_bytes_max=16 * limits.KIB, compact_to_bytes=4 * limits.KIB)
    async with drive([agent], policy) as thread:
        await thread.send()
        status = await thread.wait_for_status("paused")
        assert describe_limit(status).limit == "context_bytes_max"
        assert status.counters.steps == 2


@pytest.mark.guarantee(68)
async def test_compaction_shortens_a_context_before_its_limit_is_reached(
    drive: Drive,
) -> None:
    policy = Policy(context_bytes_max=16 * limits.KIB, compact_to_bytes=4 * limits.KIB)
    async with drive([reading_agent(12)], policy) as thread:
        assert await thread.ask() == "12 pages"
        assert (await thread.status()).counters.compactions >= 1


@pytest.mark.guarantee(68)
async def test_a_lowered_context_bound_compacts_first(
    drive: Drive,
) -> None:
    async with drive([reading_agent(8)], Policy()) as thread:
        await thread.ask()
        status = await thread.status()
        assert status.counters.compactions == 0
        await thread.configure(
            compact_to_bytes=2 * limits.KIB,
            compact_at_bytes=4 * limits.KIB,
            context_bytes_max=status.context_bytes - 100,
        )
        assert await thread.answer(await thread.send()) == "8 pages"
        status = await thread.status()
        assert (status.pause, status.counters.compactions > 0) == (None, True)


@pytest.mark.guarantee(68)
@pytest.mark.parametrize("action", ["stop", "archive"])
async def test_a_limit_can_end_a_thread_with_a_visible_reason(drive: Drive, action: Any) -> None:
    async with drive([costly()], Policy(steps_max=3, on_limit=action)) as thread:
        await thread.send("first")
        await thread.send("never read")
        ended = {"stop": "done", "archive": "archived"}[action]
        result = await thread.result()
        assert (result.status, describe_limit(result).limit) == (ended, "steps_max")
        assert "steps_max" in result.last_failure
        shown = await thread.attributes()
        assert (shown["EverlongStatus"], shown["EverlongReason"]) == (ended, "steps_max")
        [data] = await thread.data(Kind.LIMIT)
        assert (data["limit"], data["value"], data["action"]) == ("steps_max", 3, action)
        texts = [message.text for message in (await thread.messages()).values()]
        assert any("ended by steps_max: 3 of 3" in text for text in texts)
        assert texts[-1] == "never read"
        await check_refusal(thread)


async def check_refusal(thread: DrivenThread) -> None:
    """A thread that has ended takes nothing more, and its id is not used again."""
    for agent in (None, "ops"):
        with pytest.raises(ThreadEnded, match=thread.thread_id):
            await send(
                thread.threads.client,
                thread.thread_id,
                "hello?",
                task_queue=thread.threads.task_queue,
                agent=agent,
            )


@pytest.mark.guarantee(68)
async def test_each_limit_may_have_an_action_of_its_own(drive: Drive) -> None:
    policy = Policy(steps_max=100, tokens_max=250, actions={"tokens_max": "stop"})
    async with drive([costly()], policy) as thread:
        await thread.send()
        result = await thread.result()
        assert (describe_limit(result).limit, describe_limit(result).action) == (
            "tokens_max",
            "stop",
        )
        # The reply that reached it asked for a tool, which was not run any more.
        assert (result.counters.steps, result.counters.tool_calls) == (3, 2)


@pytest.mark.guarantee(70)
async def test_a_turn_ends_at_its_bound_and_the_thread_continues(drive: Drive) -> None:
    async with drive([costly(20)], Policy(turn_steps_max=4)) as thread:
        for number in (1, 2):
            assert await thread.ask() == "the turn reached 4 model calls"
            assert (await thread.status()).counters.steps == 4 * number
        assert (await thread.status()).pause is None


@pytest.mark.guarantee(68)
async def test_a_cost_limit_stops_a_runaway_thread(drive: Drive) -> None:
    policy = Policy(cost_usd_max=1.0, on_limit="stop", run_events_max=50)
    async with drive([costly(10_000)], policy) as thread:
        await thread.send()
        result = await thread.result()
        assert describe_limit(result).limit == "cost_usd_max"
        assert 1.0 <= result.counters.cost_usd < 1.15
        assert result.counters.runs > 1


@pytest.mark.guarantee(69)
async def test_a_success_in_between_ends_a_failure_loop(drive: Drive) -> None:
    """The same call fails, succeeds, fails: that is no loop."""
    tries: list[int] = []

    @tool(attempts_max=1)
    def fetch() -> str:
        """Fetch."""
        tries.append(1)
        if len(tries) % 3:
            raise OSError("flaky")
        return f"page {len(tries)}"

    def script(turn: Sequence[Message]) -> Reply:
        done = calls_done(turn)
        return Reply(tool_calls=(call(done, "fetch"),)) if done < 9 else Reply(text="read")

    agent = Agent(name="ops", model=ScriptedModel(script), tools=[fetch])
    async with drive([agent], Policy(same_failure_max=3)) as thread:
        assert await thread.ask() == "read"
        assert (await thread.status()).pause is None
