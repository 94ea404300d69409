"""Compaction in the loop: the context stays small, the work goes on, the journal keeps it all."""

from collections.abc import Sequence

import pytest

from everlong import Agent, Policy, Reply, limits
from everlong.errors import ModelRefused
from everlong.models import Kind, Message
from everlong.testing import ScriptedModel, workload
from tests.support.scripted_agents import call, calls_done, pages_answer, read_page, reading_agent
from tests.support.thread_driver import Drive

SMALL = Policy(compact_at_bytes=16 * limits.KIB, compact_to_bytes=4 * limits.KIB)


class WatchedModel:
    """A model that reads pages and notes how large each context was."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.sizes: list[int] = []
        self.summaries: list[str] = []

    def script(self, context: Sequence[Message]) -> Reply:
        self.sizes.append(sum(len(message.text) for message in context))
        self.summaries += [message.text for message in context if message.role == "summary"]
        page = calls_done(context)
        if page < self.pages:
            return Reply(tool_calls=(call(page, "read_page", page=page),))
        return Reply(text=pages_answer(self.pages))

    def agent(self) -> Agent:
        model = ScriptedModel(self.script, whole=True)
        return Agent(name="ops", model=model, tools=[read_page])


@pytest.mark.guarantee(59)
async def test_a_compacting_agent_continues_with_a_small_context(drive: Drive) -> None:
    watched = WatchedModel(30)
    async with drive([watched.agent()], SMALL) as thread:
        assert await thread.ask("read all pages") == pages_answer(30)
        status = await thread.stop()  # This journals the notes since the last step.
        assert status.counters.compactions >= 3
        # One step adds to that: the model is shown at most 32 KiB of a page.
        assert max(watched.sizes) <= 16 * limits.KIB + 33 * limits.KIB
        assert watched.sizes[-1] < 20 * limits.KIB
        assert status.compaction_lag_bytes == 0
        assert watched.summaries
        # The journal has every page as it was, whatever the model was shown of it.
        assert await thread.tool_results() == [workload.result(page) for page in range(30)]
        compacted = await thread.data(Kind.COMPACTION)
        assert len(compacted) == status.counters.compactions
        assert {each["reason"] for each in compacted} == {"policy"}
        assert all(each["after_bytes"] <= 4 * limits.KIB for each in compacted)
        assert all(each["after_bytes"] < each["before_bytes"] for each in compacted)
        upto = [each["snapshot"]["upto_seq"] for each in compacted]
        assert upto == sorted(upto)


@pytest.mark.guarantee(59)
async def test_compaction_continues_across_rolls_and_cold_workers(drive: Drive) -> None:
    policy = SMALL.with_changes({"run_events_max": 50})
    async with drive([reading_agent(14)], policy, max_cached_workflows=0) as thread:
        assert await thread.ask() == pages_answer(14)
        status = await thread.status()
        assert status.counters.compactions >= 2
        assert status.counters.runs >= 3
        assert await thread.tool_results() == [workload.result(page) for page in range(14)]


async def test_token_counts_of_the_provider_trigger_a_compaction(drive: Drive) -> None:
    def script(turn: Sequence[Message]) -> Reply:
        page = calls_done(turn)
        if page < 6:
            wanted = (call(page, "read_page", page=page),)
            return Reply(tool_calls=wanted, input_tokens=2000 * (page + 1), tokens=9000)
        return Reply(text="read")

    agent = Agent(name="ops", model=ScriptedModel(script), tools=[read_page])
    policy = Policy(compact_at_tokens=5000, compact_to_bytes=4 * limits.KIB)
    async with drive([agent], policy) as thread:
        assert await thread.ask() == "read"
        assert (await thread.status()).counters.compactions >= 1


def build_summary_model(sums: list[str], fails: bool) -> Agent:
    class Model:
        async def reply(
            self, instructions: str, messages: Sequence[Message], tools: Sequence[object]
        ) -> Reply:
            if not tools:  # A summary is asked for without tools.
                sums.append(messages[-1].text)
                if fails:
                    raise ModelRefused("no summaries today")
                return Reply(text="SUMMARY: the pages were dull")
            page = calls_done(messages)
            shown = [m.text for m in messages if m.role == "summary"]
            if page < 14:
                return Reply(tool_calls=(call(page, "read_page", page=page),))
            return Reply(text="; ".join(shown))

    return Agent(name="ops", model=Model(), tools=[read_page])


@pytest.mark.guarantee(59)
@pytest.mark.parametrize("fails", [False, True])
async def test_a_failed_model_summary_falls_back_to_the_built_in_one(
    drive: Drive, fails: bool
) -> None:
    sums: list[str] = []
    policy = SMALL.with_changes({"summary": True})
    async with drive([build_summary_model(sums, fails)], policy) as thread:
        answer = await thread.ask("read, and tell me")
        assert sums
        assert all(len(each) < 400_000 for each in sums)
        assert ("SUMMARY: the pages were dull" in answer) == (not fails)
        assert "compacted" in answer
        compacted = await thread.data(Kind.COMPACTION)
        assert [each.get("summarised", False) for each in compacted] == [not fails] * len(compacted)
        assert compacted


async def test_an_overlong_summary_stays_within_the_budget(drive: Drive) -> None:
    class Wordy:
        async def reply(
            self, instructions: str, messages: Sequence[Message], tools: Sequence[object]
        ) -> Reply:
            if not tools:
                return Reply(text="blah \ud800 \x00 " * 100_000)
            page = calls_done(messages)
            if page < 14:
                return Reply(tool_calls=(call(page, "read_page", page=page),))
            return Reply(text="read")

    agent = Agent(name="ops", model=Wordy(), tools=[read_page])
    async with drive([agent], SMALL.with_changes({"summary": True})) as thread:
        assert await thread.ask() == "read"
        compacted = await thread.data(Kind.COMPACTION)
        assert compacted
        assert all(each["after_bytes"] <= 4 * limits.KIB for each in compacted)


def build_refusing_model(times: int, calls: list[int]) -> Agent:
    """Reads pages; the provider says so many times that the context is too large for it."""

    def script(turn: Sequence[Message]) -> Reply:
        page = calls_done(turn)
        if page == 6 and len(calls) < times:
            calls.append(sum(len(message.text) for message in turn))
            raise ModelRefused("400: maximum context length", context_too_large=True)
        if page < 8:
            return Reply(tool_calls=(call(page, "read_page", page=page),))
        return Reply(text=pages_answer(8))

    return Agent(name="ops", model=ScriptedModel(script, whole=True), tools=[read_page])


@pytest.mark.guarantee(59)
async def test_a_refused_context_is_compacted_and_retried(
    drive: Drive,
) -> None:
    calls: list[int] = []
    policy = Policy(compact_to_bytes=4 * limits.KIB)
    async with drive([build_refusing_model(1, calls)], policy) as thread:
        assert await thread.ask() == pages_answer(8)
        assert len(calls) == 1
        [compacted] = await thread.data(Kind.COMPACTION)
        assert compacted["reason"] == "provider"
        assert (await thread.status()).last_failure == ""


@pytest.mark.guarantee(59)
async def test_a_context_refused_at_any_size_ends_the_turn(drive: Drive) -> None:
    calls: list[int] = []
    policy = Policy(compact_to_bytes=4 * limits.KIB)
    async with drive([build_refusing_model(1000, calls)], policy) as thread:
        assert "maximum context length" in await thread.ask()
        assert 2 <= len(calls) <= 5
        assert (await thread.status()).status == "failed"


@pytest.mark.guarantee(59)
async def test_an_answer_too_long_for_the_next_turn_is_compacted(drive: Drive) -> None:
    def script(context: Sequence[Message]) -> Reply:
        if sum(len(message.text) for message in context) > 20_000:
            raise ModelRefused("400: maximum context length", context_too_large=True)
        return Reply(text="answer " * 3000 if context[-1].text == "talk" else "short")

    agent = Agent(name="ops", model=ScriptedModel(script, whole=True))
    async with drive([agent], Policy(compact_to_bytes=4 * limits.KIB)) as thread:
        assert (await thread.ask("talk")).startswith("answer")
        assert await thread.answer(await thread.send("and now?")) == "short"
        assert (await thread.status()).counters.compactions == 1


async def test_a_thread_without_tool_calls_is_compacted_too(drive: Drive) -> None:
    def script(context: Sequence[Message]) -> Reply:
        spoken = [message for message in context if message.role == "user"]
        return Reply(text=f"I read {len(context)}, last {spoken[-1].text[:9]}. " + "ok " * 700)

    agent = Agent(name="ops", model=ScriptedModel(script, whole=True))
    async with drive([agent], SMALL) as thread:
        for number in range(12):
            answer = await thread.ask(f"message{number:02} " + "word " * 200)
            assert f"last message{number:02}"[:13] in answer
        status = await thread.status()
        assert status.counters.compactions >= 1
        assert status.context_bytes < 20 * limits.KIB
