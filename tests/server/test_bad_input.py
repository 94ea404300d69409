"""Bad input by models, tools and users: each has one outcome."""

import asyncio
import dataclasses
import json
import resource
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, cast

import pytest
from temporalio.common import RetryPolicy

from everlong import Agent, Policy, Reply, Tool, limits, tool
from everlong.client.updates import send
from everlong.errors import MessageRefused, ThreadEnded
from everlong.models import Kind, Message, SendMessage, ToolCall
from everlong.storage.memory import MemoryBlobStore
from everlong.testing import ScriptedModel
from tests.support.scripted_agents import call, calls_done, results
from tests.support.thread_driver import Drive, DrivenThread, call_then_answer

ECHO = Agent(name="ops", model=ScriptedModel(lambda turn: Reply(text=f"heard {turn[0].text}")))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a model call tried twice, without a pause."""
    twice = RetryPolicy(maximum_attempts=2, initial_interval=timedelta(milliseconds=10))
    monkeypatch.setattr("everlong.workflows.thread._MODEL", twice)


def build_answering_agent(script: Callable[[str], Reply]) -> Agent:
    """Replies to a message by a script, and to results with what they say."""

    def replying(turn: Sequence[Message]) -> Reply:
        done = results(turn)
        return Reply(text=" | ".join(done)) if done else script(turn[0].text)

    return Agent(name="ops", model=ScriptedModel(replying), tools=[echo])


@tool
def echo(text: str = "") -> str:
    """Say it again."""
    return text


async def is_usable(thread: DrivenThread) -> None:
    """A thread that has been through this still answers."""
    number = await thread.send("say hello")
    await thread.wait_for_answers(number)
    assert (await thread.status()).status == "waiting"


@pytest.mark.guarantee(50)
async def test_the_error_for_an_unknown_tool_lists_the_known_ones(drive: Drive) -> None:
    model = call_then_answer(call(0, "ech0", text="x"), call(1, "\U0001f600" * 64))
    async with drive([Agent(name="ops", model=model, tools=[echo])]) as thread:
        first, second = (await thread.ask()).split(" | ")
        assert first.startswith("error: there is no tool 'ech0'")
        for name in ("echo", "recall", "remember", "forget"):
            assert repr(name) in first
        assert second.startswith("error: there is no tool")
        await is_usable(thread)


@pytest.mark.guarantee(50)
async def test_invalid_arguments_are_reported_and_nothing_runs(drive: Drive) -> None:
    ran = []

    @tool
    def run(text: str) -> str:
        """Run."""
        ran.append(text)
        return text

    wrong = [
        "",
        "null",
        "[]",
        "{",
        '{"text": 5}',
        '{"text": "x", "more": 1}',
        '"text"',
        "\ud800",
        "NaN",
    ]
    calls = [ToolCall(id=f"{i}", tool="run", arguments=each) for i, each in enumerate(wrong)]
    agent = Agent(name="ops", model=call_then_answer(*calls), tools=[run])
    async with drive([agent]) as thread:
        texts = (await thread.ask()).split(" | ")
        assert len(texts) == len(wrong)
        assert all(each.startswith("error: the arguments are invalid") for each in texts)
        assert ran == []


@pytest.mark.guarantee(70)
async def test_a_model_that_keeps_sending_invalid_calls_is_stopped(drive: Drive) -> None:
    def script(turn: Sequence[Message]) -> Reply:
        done = calls_done(turn)
        return Reply(tool_calls=(call(done, "nothing", attempt=done),))

    agent = Agent(name="ops", model=ScriptedModel(script))
    async with drive([agent], Policy(refused_calls_max=4)) as thread:
        assert "in 4 steps in a row" in await thread.ask()
        assert (await thread.status()).counters.steps == 4
        assert (await thread.status()).status == "failed"


@pytest.mark.guarantee(50)
async def test_a_result_of_200_megabytes_is_an_error_in_bounded_memory(
    drive: Drive,
) -> None:
    @tool
    def read_all() -> str:
        """Read everything."""
        return "x" * 200_000_000

    agent = Agent(name="ops", model=call_then_answer(call(0, "read_all")), tools=[read_all])
    async with drive([agent]) as thread:
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answer = await thread.ask()
        assert answer.startswith("error: the result has at least 200000000 bytes")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 900_000
        [entry] = await thread.entries(Kind.TOOL_RESULT)
        assert entry.size_bytes < 1000


@pytest.mark.guarantee(49)
async def test_retries_of_a_raising_tool_are_bounded(drive: Drive) -> None:
    tried = []

    @tool(attempts_max=2)
    def broken() -> str:
        """Break."""
        tried.append(1)
        raise RuntimeError("\ud800 \x00 " + "very long " * 10_000)

    agent = Agent(name="ops", model=call_then_answer(call(0, "broken")), tools=[broken])
    async with drive([agent]) as thread:
        answer = await thread.ask()
        assert answer.startswith("error: tool 'broken' failed: RuntimeError: ")
        assert len(answer) < 300
        assert len(tried) == 2


BAD_REPLIES: dict[str, tuple[Callable[[], Reply], str]] = {
    "nothing": (lambda: Reply(text=" \n"), "reply is empty"),
    "25 calls": (
        lambda: Reply(tool_calls=tuple(call(i, "echo") for i in range(25))),
        "25 tool calls; the maximum is 20",
    ),
    "one id": (lambda: Reply(tool_calls=(call(0, "echo"), call(0, "echo"))), "the same id"),
    "no id": (
        lambda: Reply(tool_calls=(ToolCall(id="", tool="echo", arguments="{}"),)),
        "no id or name",
    ),
    "long name": (lambda: Reply(tool_calls=(call(0, "e" * 65),)), "over 64 characters"),
    "no reply": (cast("Any", lambda: None), "AttributeError"),
    "70 MB": (lambda: Reply(text="x" * 70_000_000), "bytes; the maximum is 67108864"),
}


@pytest.mark.guarantee(50)
@pytest.mark.parametrize("what", BAD_REPLIES)
async def test_an_unusable_reply_ends_the_turn_with_a_reason(
    drive: Drive, impatient: None, what: str
) -> None:
    reply, reason = BAD_REPLIES[what]
    agent = build_answering_agent(lambda text: reply() if text == "go" else Reply(text="hello"))
    async with drive([agent]) as thread:
        assert reason in await thread.ask()
        assert reason in (await thread.status()).last_failure
        await is_usable(thread)
        assert (await thread.status()).last_failure == ""


async def test_the_most_calls_allowed_all_run(drive: Drive) -> None:
    calls = [call(i, "echo", text=f"number {i}") for i in range(limits.TOOL_CALLS_MAX)]
    async with drive([Agent(name="ops", model=call_then_answer(*calls), tools=[echo])]) as thread:
        expected = [f"number {i}" for i in range(limits.TOOL_CALLS_MAX)]
        assert (await thread.ask()).split(" | ") == expected
        assert await thread.tool_results() == expected


@pytest.mark.guarantee(55)
async def test_arguments_of_a_megabyte_reach_the_tool_and_not_the_history(drive: Drive) -> None:
    sizes = []

    @tool
    def measure(text: str) -> str:
        """Measure."""
        sizes.append(len(text))
        return f"{len(text)}"

    model = call_then_answer(call(0, "measure", text="y" * 1_000_000))
    async with drive([Agent(name="ops", model=model, tools=[measure])]) as thread:
        assert await thread.ask() == "1000000"
        description = await thread.handle.describe()
        info = description.raw_description.workflow_execution_info
        assert info.history_size_bytes < 30_000


ODD = ["\x00", "a\x00b\x1b[31m\x7f\x85\u2028", "\ufeff\ufffe\U0010ffff", "x" * 3000 + "\x00"]
RESULTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: b"caf\xe9", "caf\ufffd"),
    (lambda: None, "done"),
    (lambda: 4.5, "4.5"),
    (lambda: {"a": [1, {"b": None}]}, '{"a":[1,{"b":null}]}'),
    (lambda: "\udcff", "?"),
    (lambda: float("nan"), "NaN"),
    (object, "error: tool 'odd' failed: ResultInvalid: tool 'odd' returned a value of type object"),
]


@pytest.mark.guarantee(50)
async def test_any_tool_result_reaches_model_and_journal_as_text(
    drive: Drive,
) -> None:
    def odd(kind: int) -> Any:
        """Return something odd."""
        return ODD[kind] if kind < len(ODD) else RESULTS[kind - len(ODD)][0]()

    made: Tool = tool(attempts_max=1, effects="repeatable")(odd)
    calls = [call(i, "odd", kind=i) for i in range(len(ODD) + len(RESULTS))]
    async with drive([Agent(name="ops", model=call_then_answer(*calls), tools=[made])]) as thread:
        answer = await thread.ask()
        texts = await thread.tool_results()
        assert answer == " | ".join(texts)
        assert texts[: len(ODD)] == ODD
        for text, (_, expected) in zip(texts[len(ODD) :], RESULTS, strict=True):
            assert text.startswith(expected)


async def test_an_empty_result_is_accepted(drive: Drive) -> None:
    def script(turn: Sequence[Message]) -> Reply:
        done = results(turn)
        return Reply(text=f"got {done!r}") if done else Reply(tool_calls=(call(0, "echo"),))

    agent = Agent(name="ops", model=ScriptedModel(script), tools=[echo])
    async with drive([agent]) as thread:
        assert await thread.ask() == "got ['']"


async def test_an_empty_message_is_refused(drive: Drive) -> None:
    async with drive([ECHO], Policy()) as thread:
        for text in ("", " ", "\n\t\r", "\u2003"):
            with pytest.raises(MessageRefused, match="empty"):
                await thread.send(text)
        assert (await thread.status()).counters.messages == 0
        await is_usable(thread)


@pytest.mark.guarantee(42)
async def test_a_message_of_ten_megabytes_is_excerpted_and_stored_whole(drive: Drive) -> None:
    model = ScriptedModel(lambda turn: Reply(text=f"{len(turn[0].text)} {turn[0].text[:20]}"))
    text = json.dumps([{"number": i, "text": "some words " * 5} for i in range(130_000)])
    assert len(text) > 10_000_000
    async with drive([Agent(name="ops", model=model)]) as thread:
        size, _, begin = (await thread.ask(text)).partition(" ")
        assert int(size) <= 33 * limits.KIB
        assert text.startswith(begin)
        assert (await thread.messages(whole=True))[1].text == text
        info = (await thread.handle.describe()).raw_description.workflow_execution_info
        assert info.history_size_bytes < 30_000
        status = await thread.status()
        assert status.state_bytes < 4 * limits.KIB


@pytest.mark.guarantee(41)
async def test_a_message_stored_for_another_thread_is_refused(drive: Drive) -> None:
    async with drive([ECHO]) as thread:
        await thread.ask("x" * 20_000)
        [entry] = await thread.entries(Kind.MESSAGE)
        assert entry.ref is not None
        other = thread.other(f"{thread.thread_id}-other")
        await other.ask("hello")
        with pytest.raises(Exception, match="Workflow update failed") as raised:
            await other.handle.execute_update("send", SendMessage(ref=entry.ref))
        assert "another thread" in str(raised.value.__cause__)


async def send_from_elsewhere(thread: DrivenThread) -> int:
    """Send a long message through a client that uses another store."""
    elsewhere = dataclasses.replace(thread.threads, store=MemoryBlobStore())
    return await elsewhere.send(thread.thread_id, "lost " * 2000)


async def test_a_message_in_another_store_fails_only_its_turn(
    drive: Drive,
) -> None:
    async with drive([ECHO]) as thread:
        await thread.ask("first")
        assert "is not in this store" in await thread.answer(await send_from_elsewhere(thread))
        assert (await thread.messages())[3].text == "[this message was never stored]"
        await is_usable(thread)


@pytest.mark.guarantee(72)
async def test_an_unread_message_in_another_store_leaves_the_journal_readable(
    drive: Drive,
) -> None:
    async with drive([ECHO]) as thread:
        await thread.ask("first")
        await thread.handle.signal("pause")
        await thread.wait_for_status("paused")
        await send_from_elsewhere(thread)
        await thread.stop()
        texts = [message.text for message in (await thread.messages()).values()]
        assert texts == ["first", "heard first", "[this message was never stored]"]


async def test_invalid_utf8_is_replaced(drive: Drive) -> None:
    async with drive([ECHO]) as thread:
        await thread.ask("first")
        assert await thread.ask("caf\udce9") == "heard caf?"
        await is_usable(thread)


async def test_an_ended_thread_refuses_messages(drive: Drive) -> None:
    async with drive([ECHO]) as thread:
        await thread.ask("hello")
        await thread.stop()
        for agent in ("ops", None):
            with pytest.raises(ThreadEnded, match=thread.thread_id):
                await send(
                    thread.threads.client,
                    thread.thread_id,
                    "more",
                    task_queue=thread.threads.task_queue,
                    agent=agent,
                )


@pytest.mark.guarantee(50)
async def test_malformed_updates_and_signals_are_harmless(drive: Drive) -> None:
    async with drive([ECHO]) as thread:
        await thread.ask("first")
        updates: list[tuple[str, Any]] = [
            ("send", {"txt": "typo"}),
            ("send", {"text": 5}),
            ("send", []),
            ("send", {"text": "x", "ref": {"thread": "zz"}}),
            ("decide", {"id": "1-1"}),
            ("decide", {"id": "1-1", "approve": True, "by": "x" * 65}),
            ("configure", {"changes": []}),
            ("nonsense", {}),
        ]
        for name, argument in updates:
            with pytest.raises(Exception, match="update"):
                await thread.handle.execute_update(name, argument)
        signals: list[tuple[str, Any]] = [
            ("pause", 5),
            ("pause", {"by": 5}),
            ("everlong.report", {"child_id": "missing"}),
            ("everlong.report", "nonsense"),
            ("nonsense", None),
        ]
        for name, argument in signals:
            await thread.handle.signal(name, argument)
        await asyncio.sleep(0.2)
        if (await thread.status()).pause is not None:
            await thread.handle.signal("unpause")
        await is_usable(thread)


async def test_a_message_sent_twice_under_one_id_is_one_message(drive: Drive) -> None:
    async with drive([ECHO], Policy(run_events_max=50)) as thread:
        message = SendMessage(text="once", id="order-7")
        assert await thread.handle.execute_update("send", message) == 1
        for number in range(2, 12):
            await thread.ask(f"other {number}")
        assert (await thread.status()).counters.runs >= 2
        assert await thread.handle.execute_update("send", message) == 1
        status = await thread.status()
        assert (status.counters.messages, status.waiting_messages) == (11, 0)
