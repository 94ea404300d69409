"""The conversation at a terminal: what is printed, when, and what Ctrl-C stops."""

import asyncio
import contextlib
import dataclasses
import io
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from rich.console import Console

from everlong.cli import conversation
from everlong.cli.chat import ChatSession, Interrupted
from everlong.cli.conversation import ConversationPrinter
from everlong.client.progress import ThreadProgress
from everlong.errors import DecisionRefused, ThreadEnded, ThreadNotFound, TurnFailed
from everlong.live.models import LiveEvent
from everlong.models import (
    Approval,
    Decision,
    Entry,
    Kind,
    Message,
    Ref,
    SegmentRef,
    Status,
    ToolCall,
    UnknownOutcome,
    build_entry,
    build_note,
)

REPLY: dict[str, Any] = {"step": "a" * 16, "kind": "reply", "attempt": 1, "seq": 2}
RETRY = REPLY | {"step": "b" * 16, "attempt": 2}
TOOL: dict[str, Any] = {
    "step": "c" * 16,
    "kind": "tool",
    "attempt": 1,
    "call_id": "c1",
    "tool": "scan",
}


class Screen:
    """A terminal without colours, and what was printed on it."""

    def __init__(self, *, is_terminal: bool = True) -> None:
        self.file = io.StringIO()
        self.console = Console(
            file=self.file, force_terminal=is_terminal, no_color=True, width=60, highlight=False
        )
        self.printer = ConversationPrinter(self.console, 1)

    @property
    def text(self) -> str:
        """What a user sees: lines that were overwritten are gone."""
        found = self.file.getvalue().replace("\x1b[2m", "").replace("\x1b[0m", "")
        found = found.replace("\x1b[1m", "").replace("\x1b[31m", "")
        return "\n".join(line.split("\r\x1b[2K")[-1] for line in found.split("\n"))

    def live(self, name: Any, step: dict[str, Any], **data: Any) -> None:
        self.printer.take(LiveEvent(name, step | data))

    def reply(self, text: str, *calls: ToolCall, seq: int = 2) -> None:
        message = Message(role="assistant", text=text, tool_calls=calls)
        self.printer.print_entry(build_entry(seq, Kind.REPLY, message, 1), message)


def test_a_streamed_reply_is_completed_by_its_entry() -> None:
    screen = Screen()
    screen.live("start", REPLY)
    screen.live("delta", REPLY, offset=0, text="The log ")
    screen.live("delta", REPLY, offset=8, text="is ")
    assert screen.text == "The log is "
    screen.reply("The log is full.")
    assert screen.text == "The log is full.\n"


def test_a_half_reply_is_cut_off_and_replaced_by_the_retrys() -> None:
    screen = Screen()
    screen.live("start", REPLY)
    screen.live("delta", REPLY, offset=0, text="Let me th")
    screen.live("cut", REPLY, reason="silent")
    screen.live("start", RETRY)
    screen.live("delta", REPLY, offset=9, text="ink")  # Late.
    screen.live("delta", RETRY, offset=0, text="All is ")
    screen.reply("All is well.")
    assert screen.text == (
        "Let me th\ncut off: its worker does not answer; a retry replaces it\nAll is well.\n"
    )


def test_a_reply_that_differs_from_what_was_shown_is_printed_whole() -> None:
    screen = Screen()
    screen.live("start", REPLY)
    screen.live("delta", REPLY, offset=0, text="Let me")
    screen.reply("All is well.")
    assert screen.text == "Let me\ncut off: a retry replaces it\nAll is well.\n"


def test_a_repeated_text_is_printed_once_and_a_gap_is_left_to_the_entry() -> None:
    screen = Screen()
    screen.live("start", REPLY)
    screen.live("delta", REPLY, offset=0, text="one ")
    screen.live("open", {})  # Connected again.
    screen.live("start", REPLY)
    screen.live("delta", REPLY, offset=0, text="one two ")
    screen.live("delta", REPLY, offset=20, text="five ")
    assert screen.text == "one two "
    screen.reply("one two three four five six")
    assert screen.text == "one two three four five six\n"


def test_output_that_comes_after_its_entry_is_left_out() -> None:
    screen = Screen()
    screen.reply("whole")
    screen.live("start", REPLY)
    screen.live("delta", REPLY, offset=0, text="whole")
    assert screen.text == "whole\n"


def test_progress_of_tools_is_shown_on_one_line() -> None:
    screen = Screen()
    screen.live("start", TOOL)
    screen.live("progress", TOOL, text="1 of 200 files")
    screen.live("progress", TOOL, text="34 of 200 files " + "x" * 100)
    assert screen.text.startswith("scan: 34 of 200 files xxx")
    assert len(screen.text) < 60
    result = Message(role="tool", text="no match", call_id="c1", tool="scan")
    screen.printer.print_entry(build_entry(3, Kind.TOOL_RESULT, result, 1), result)
    assert screen.text == "  ← scan: no match\n"


def test_what_is_journalled_with_a_reply_does_not_break_it_apart() -> None:
    screen = Screen()
    screen.live("start", TOOL)
    screen.live("done", TOOL)
    later = REPLY | {"seq": 4}
    screen.live("start", later)
    screen.live("delta", later, offset=0, text="Nothing ")
    result = Message(role="tool", text="no match", call_id="c1", tool="scan")
    screen.printer.print_entry(build_entry(2, Kind.TOOL_RESULT, result, 1), result)
    decision = Decision(id="2-1-abcd", tool="scan", asked_ms=1, approve=True, by="ana")
    screen.printer.print_entry(build_note(3, Kind.DECIDED, decision, 1), None)
    screen.reply("Nothing matches.", seq=4)
    assert screen.text == "  ← scan: done\nNothing matches.\n"


def test_a_pipe_gets_no_progress_line() -> None:
    screen = Screen(is_terminal=False)
    screen.live("start", TOOL)
    screen.live("progress", TOOL, text="1 of 2")
    assert screen.text == ""


def test_control_characters_do_not_reach_the_terminal() -> None:
    screen = Screen()
    screen.live("start", REPLY)
    screen.live("delta", REPLY, offset=0, text="\x1b]0;evil\x07[red]markup[/red]")
    screen.live("progress", TOOL | {"tool": "s\x1b[31m"}, text="\x1b[2J")
    screen.reply(
        "\x1b]0;evil\x07[red]markup[/red]", ToolCall(id="c", tool="t\x1b", arguments="\x07")
    )
    assert "\x1b]" not in screen.file.getvalue()
    assert "\x07" not in screen.file.getvalue()
    assert "[red]markup[/red]" in screen.text


def test_calls_failures_and_other_peoples_messages_have_lines() -> None:
    screen = Screen()
    screen.printer.expect("mine")
    mine, other = (Message(role="user", text=text) for text in ("mine", "hello"))
    screen.printer.print_entry(build_entry(2, Kind.MESSAGE, mine, 1), mine)
    theirs = dataclasses.replace(build_entry(3, Kind.MESSAGE, other, 1), data={"by": "ben"})
    screen.printer.print_entry(theirs, other)
    screen.reply("", ToolCall(id="c", tool="scan", arguments='{"path": "a"}'), seq=4)
    failure = Message(role="failure", text="a limit")
    screen.printer.print_entry(build_entry(5, Kind.FAILURE, failure, 1), failure)
    assert screen.text == 'ben> hello\n  → scan {"path": "a"}\nno answer: a limit\n'


# The session, with a thread and a terminal that follow a script.


class FakeTerminal:
    """Gives its answers in order; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.questions: list[str] = []

    async def read_message(self) -> str | None:
        return await self.read_line("> ")

    async def read_line(self, question: str) -> str | None:
        self.questions.append(question)
        answer = self.answers.pop(0)
        if callable(answer):
            answer = await answer()
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return] # a text or None


APPROVAL = Approval(
    id="2-1-abcd", tool="restart", arguments='{"service": "api"}', asked_ms=1, approvers=()
)


UNKNOWN = UnknownOutcome(
    id="2-1-abcd-1",
    tool="pay",
    arguments='{"to": "ben"}',
    cause="lost",
    idempotency_key="k",
    asked_ms=1,
)


class FakeThread:
    """A thread whose journal and waits the test sets."""

    id = "ops-7"
    client = packs = None

    def __init__(self) -> None:
        self.entries: list[tuple[Entry, Message | None]] = []
        self.sent: list[str] = []
        self.decided: list[tuple[bool, str, str]] = []
        self.waiting: list[Approval] = []
        self.unknown: list[UnknownOutcome] = []
        self.resolved: list[tuple[str, str, str]] = []
        self.exists = True
        self.answers_late = False
        self.ended = ""
        self.answer: Callable[[], Any] = self._answer
        self.report: Callable[[ThreadProgress], None] = lambda _: None

    def add(self, kind: Kind, role: str, text: str) -> None:
        message = Message(role=role, text=text)
        self.entries.append((build_entry(len(self.entries) + 1, kind, message, 1), message))

    def progress(self) -> ThreadProgress:
        ref = Ref(thread="0" * 32, digest="0" * 64, size_bytes=1, kind=Kind.SEGMENT)
        head = SegmentRef(ref=ref, first_seq=1, count=len(self.entries))
        return ThreadProgress(
            status=Status.WAITING,
            runs=1,
            steps=0,
            tool_calls=0,
            answers=(),
            head=head if self.entries else None,
            messages=len(self.sent),
            answered=len(self.sent),
            pending=len(self.waiting) + len(self.unknown),
            ended=self.ended,
        )

    async def wait_until(self, done: Any, *, seconds_max: float) -> ThreadProgress:
        if not self.exists:
            raise ThreadNotFound("there is no thread 'ops-7'")
        return self.progress()

    async def send(self, text: str, **_: Any) -> int:
        self.sent.append(text)
        self.add(Kind.MESSAGE, "user", text)
        return len(self.sent)

    async def wait(self, number: int, *, on_progress: Any, **_: Any) -> str:
        self.report = on_progress
        on_progress(self.progress())
        text = await self.answer()
        on_progress(self.progress())
        return str(text)

    async def _answer(self) -> str:
        self.add(Kind.REPLY, "assistant", f"you said {self.sent[-1]}")
        return f"you said {self.sent[-1]}"

    async def approvals(self) -> list[Approval]:
        return list(self.waiting)

    async def outcomes(self) -> list[UnknownOutcome]:
        return list(self.unknown)

    async def resolve_outcome(self, outcome_id: str, *, outcome: str, by: str, result: str) -> None:
        self.resolved.append((outcome, by, result))
        self.unknown.clear()

    async def arguments(self, call: Approval | UnknownOutcome) -> str:
        return call.arguments

    async def decide(self, approval_id: str, *, approve: bool, by: str, reason: str) -> None:
        if not self.waiting:
            raise DecisionRefused("it is decided")
        self.decided.append((approve, by, reason))
        self.waiting.clear()
        if self.answers_late:  # The decision is applied, and its request has not returned.
            self.report(self.progress())
            await asyncio.sleep(0.05)


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> FakeThread:
    made = FakeThread()

    async def read(
        _: Any, head: SegmentRef | None, first_seq: int
    ) -> AsyncIterator[tuple[Entry, Message | None]]:
        for each in made.entries[first_seq - 1 : head.count if head else 0]:
            yield each

    monkeypatch.setattr(conversation, "read_conversation", read)
    monkeypatch.setattr("everlong.cli.chat.read_conversation", read)
    return made


async def talk(thread: FakeThread, terminal: FakeTerminal, agent: str | None = None) -> str:
    """Run a session to its end; return what was printed."""
    screen = Screen()
    screen.printer.last_seq = 0
    session = ChatSession(
        thread,  # type: ignore[arg-type] # a fake
        terminal,
        agent=agent,
        by="ana",
        printer=screen.printer,
    )
    async with asyncio.timeout(10):
        await session.open()
        await session.run()
    return screen.text


async def until(done: Callable[[], object]) -> None:
    while not done():
        await asyncio.sleep(0)


async def test_a_message_is_answered(thread: FakeThread) -> None:
    text = await talk(thread, FakeTerminal("hello", "  ", "again", None))
    assert thread.sent == ["hello", "again"]
    assert "you said hello\nyou said again\n" in text
    assert "> hello" not in text  # The terminal shows what the user types.


async def test_earlier_entries_are_shown_and_recalled(thread: FakeThread) -> None:
    for number in range(20):
        await thread.send(f"question {number}")
    screen = Screen()
    session = ChatSession(
        thread,  # type: ignore[arg-type] # a fake
        FakeTerminal(),
        agent=None,
        by="ana",
        printer=screen.printer,
    )
    assert await session.open() == [f"question {number}" for number in range(20)]
    assert "message> question 8\n" in screen.text
    assert "question 7\n" not in screen.text


async def test_ctrl_c_stops_the_wait_and_not_the_chat(thread: FakeThread) -> None:
    stopped = asyncio.Event()

    async def hang() -> str:
        signal_self()
        await asyncio.Event().wait()
        raise AssertionError

    def signal_self() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    async def then_leave() -> None:
        stopped.set()

    thread.answer = hang
    text = await talk(thread, FakeTerminal("hello", then_leave))
    assert stopped.is_set()
    assert "no longer waiting; the thread goes on" in text


async def test_ctrl_c_at_the_prompt_leaves(thread: FakeThread) -> None:
    await talk(thread, FakeTerminal(Interrupted()))
    assert thread.sent == []


@pytest.mark.parametrize(
    ("answers", "decided"),
    [
        (["a"], [(True, "ana", "")]),
        (["what", "Yes"], [(True, "ana", "")]),
        (["d", "not now"], [(False, "ana", "not now")]),
        (["deny", None], [(False, "ana", "")]),
        ([""], []),
        ([None], []),
    ],
)
async def test_an_approval_is_decided_in_place(
    thread: FakeThread, answers: Sequence[str], decided: list[Any]
) -> None:
    terminal = FakeTerminal("restart it", *answers, None)

    async def wait_for_decision() -> str:
        thread.waiting.append(APPROVAL)
        thread.report(thread.progress())
        await until(lambda: len(terminal.questions) > len(answers))
        await asyncio.sleep(0.01)
        thread.waiting.clear()
        thread.add(Kind.REPLY, "assistant", "it is up")
        return "it is up"

    thread.answer = wait_for_decision
    text = await talk(thread, terminal)
    assert thread.decided == decided
    assert 'restart {"service": "api"}' in text
    assert ("decide later" in text) == (not decided)
    assert text.rstrip().endswith("it is up")


@pytest.mark.parametrize(
    ("answers", "resolved"),
    [
        (["d", "transfer 17"], [("done", "ana", "transfer 17")]),
        (["what", "n"], [("not_done", "ana", "")]),
        (["retry"], [("retry", "ana", "")]),
        ([""], []),
    ],
)
async def test_an_unknown_outcome_is_resolved_in_place(
    thread: FakeThread, answers: Sequence[str], resolved: list[Any]
) -> None:
    terminal = FakeTerminal("pay", *answers, None)

    async def wait_for_resolution() -> str:
        thread.unknown.append(UNKNOWN)
        thread.report(thread.progress())
        await until(lambda: len(terminal.questions) > len(answers))
        await asyncio.sleep(0.01)
        thread.unknown.clear()
        thread.add(Kind.REPLY, "assistant", "it is paid")
        return "it is paid"

    thread.answer = wait_for_resolution
    text = await talk(thread, terminal)
    assert thread.resolved == resolved
    assert 'not known whether this call took effect: 2-1-abcd-1  pay {"to": "ben"}' in text
    assert ("decide later with: everlong outcomes ops-7" in text) == (not resolved)


async def test_a_decision_of_ones_own_is_not_one_elsewhere(thread: FakeThread) -> None:
    async def wait_for_decision() -> str:
        thread.waiting.append(APPROVAL)
        thread.report(thread.progress())
        while not thread.decided:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        thread.add(Kind.REPLY, "assistant", "it is up")
        return "it is up"

    thread.answer, thread.answers_late = wait_for_decision, True
    text = await talk(thread, FakeTerminal("restart it", "a", None))
    assert [each[0] for each in thread.decided] == [True]
    assert "elsewhere" not in text


async def test_a_decision_elsewhere_ends_the_question(thread: FakeThread) -> None:
    asked = asyncio.Event()

    async def ask_for_ever() -> None:
        asked.set()
        await asyncio.Event().wait()

    async def decided_elsewhere() -> str:
        thread.waiting.append(APPROVAL)
        thread.report(thread.progress())
        await asked.wait()
        thread.waiting.clear()
        thread.report(thread.progress())
        await asyncio.sleep(0.05)
        thread.add(Kind.REPLY, "assistant", "it is up")
        return "it is up"

    thread.answer = decided_elsewhere
    text = await talk(thread, FakeTerminal("restart it", ask_for_ever, None))
    assert "restart: decided elsewhere" in text
    assert thread.decided == []


async def test_ctrl_c_at_an_approval_stops_the_wait(thread: FakeThread) -> None:
    async def hang() -> str:
        thread.waiting.append(APPROVAL)
        thread.report(thread.progress())
        await asyncio.Event().wait()
        raise AssertionError

    thread.answer = hang
    text = await talk(thread, FakeTerminal("restart it", Interrupted(), None))
    assert "no longer waiting" in text
    assert thread.waiting == [APPROVAL]


async def test_a_failed_turn_is_told_once_and_the_chat_goes_on(thread: FakeThread) -> None:
    async def fail() -> str:
        thread.add(Kind.FAILURE, "failure", "the model refused")
        thread.report(thread.progress())
        raise TurnFailed("the turn of message 1 ended without an answer: the model refused")

    thread.answer = fail
    text = await talk(thread, FakeTerminal("hello", None))
    assert text.count("the model refused") == 1


async def test_a_thread_that_does_not_exist_needs_an_agent(thread: FakeThread) -> None:
    thread.exists = False
    with pytest.raises(ThreadNotFound, match="everlong chat ops-7 --agent NAME"):
        await talk(thread, FakeTerminal(None))
    text = await talk(thread, FakeTerminal("hello", None), agent="ops")
    assert "new thread ops-7, agent ops" in text
    assert "you said hello" in text


async def test_a_thread_that_has_ended_takes_no_messages(thread: FakeThread) -> None:
    thread.ended = "completed"
    with pytest.raises(ThreadEnded, match="everlong fork ops-7 ops-7-2"):
        await talk(thread, FakeTerminal(None))


async def test_no_task_is_left(thread: FakeThread) -> None:
    await talk(thread, FakeTerminal("hello", None))
    with contextlib.suppress(asyncio.TimeoutError):
        async with asyncio.timeout(1):
            await until(lambda: len(asyncio.all_tasks()) == 1)
    assert len(asyncio.all_tasks()) == 1
