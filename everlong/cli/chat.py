"""`everlong chat`: a conversation with a thread at the terminal.

It is a client like any other: what it waits for goes on without it, and Ctrl-C stops the wait alone.
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal, Protocol

import typer

from everlong.cli.conversation import (
    AnswerFollower,
    ConversationPrinter,
    Waiting,
    describe_waiting,
    follow_live,
    name_command,
    read_conversation,
)
from everlong.cli.help import Commands
from everlong.cli.options import By, ThreadId, resolve_name
from everlong.cli.output import format_arguments
from everlong.client.progress import ThreadProgress
from everlong.client.thread import ThreadHandle
from everlong.config import load_settings
from everlong.connection import connect, find_live_server, open_configured_packs
from everlong.console import out
from everlong.errors import (
    ConfigError,
    EverlongError,
    NotAnswered,
    ThreadEnded,
    ThreadNotFound,
    TurnFailed,
)
from everlong.live import LiveServer
from everlong.models import Approval, Kind, UnknownOutcome, seq_after
from everlong.models.thread_ids import quote_id, show_id

commands = Commands()

_PAST_ENTRIES: Final = 12
"""Entries that are printed at the start."""
_RECALLED_ENTRIES: Final = 200
"""Entries whose messages the arrow keys bring back."""
_FIND_SECONDS_MAX: Final = 30.0
_HELP: Final = (
    "Enter sends, Alt-Enter or Ctrl-J begins a new line. Ctrl-C stops waiting, and the thread goes on; "
    "a second Ctrl-C, or Ctrl-D, leaves."
)
_OUTCOMES: Final[Mapping[str, Literal["done", "not_done", "retry"]]] = {
    "done": "done",
    "not_done": "not_done",
    "retry": "retry",
}


class Interrupted(Exception):
    """The user pressed Ctrl-C at a prompt."""


class Terminal(Protocol):
    """Prompts of the conversation. Both raise `Interrupted` at Ctrl-C."""

    async def read_message(self) -> str | None:
        """Return the next message, which may have several lines; None at the end of the input."""
        ...

    async def read_line(self, question: str) -> str | None:
        """Return the answer to a question; None at the end of the input."""
        ...


@commands.command()
def chat(
    thread_id: ThreadId,
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Start the thread with this agent, if it does not exist."
        ),
    ] = None,
    by: By = "",
) -> None:
    """Talk to a thread at the terminal, and decide on approvals there.

    Enter sends, Alt-Enter begins a new line. Ctrl-C stops waiting and not the thread; a second Ctrl-C,
    or Ctrl-D, leaves. Replies appear while they are written if there is live output (EVERLONG_LIVE_URL,
    or a running `everlong dev`), and otherwise once they are complete.

    Examples:
        everlong chat ops-7
        everlong chat ops-7 --agent ops

    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(
            "chat needs a terminal. In a script, use: everlong send "
            f"{quote_id(thread_id)} - --follow"
        )
    asyncio.run(_chat(thread_id, agent, resolve_name(by)))


async def _chat(thread_id: str, agent: str | None, by: str) -> None:
    settings = load_settings()
    packs = open_configured_packs(settings)
    client = await connect(settings)
    thread = ThreadHandle(client, thread_id, packs=packs, task_queue=settings.task_queue)
    # Imported here: other commands, and the help, do not need the package.
    from everlong.cli.terminal import PromptTerminal

    terminal = PromptTerminal()
    session = ChatSession(thread, terminal, agent=agent, by=by, live=find_live_server(settings))
    terminal.recall(await session.open())
    await session.run()


class ChatSession:
    """A conversation: reads messages, sends them, and prints what follows."""

    def __init__(
        self,
        thread: ThreadHandle,
        terminal: Terminal,
        *,
        agent: str | None,
        by: str,
        live: LiveServer | None = None,
        printer: ConversationPrinter | None = None,
    ) -> None:
        self._thread = thread
        self._terminal = terminal
        self._agent = agent
        self._by = by
        self._live = live
        self._printer = printer or ConversationPrinter(out)
        self._following: asyncio.Task[str] | None = None
        self._follower: AnswerFollower | None = None
        self._unanswered = 0
        """Number of a message that waits for its answer already."""

    async def open(self) -> Sequence[str]:
        """Print the end of the conversation so far; return earlier messages, oldest first.

        Raises `ThreadNotFound` and `ThreadEnded` if the thread cannot answer.
        """
        progress = await self._find_progress()
        if progress is None:
            self._printer.note(f"new thread {show_id(self._thread.id)}, agent {self._agent}")
            self._printer.note(_HELP)
            return ()
        messages = await self._print_past(progress)
        if progress.ended:
            raise ThreadEnded(
                f"thread {self._thread.id!r} has ended and takes no messages. Fork it: everlong fork "
                f"{quote_id(self._thread.id)} {quote_id(f'{self._thread.id}-2')}"
            )
        self._printer.note(_HELP)
        if progress.messages > progress.answered:
            self._unanswered = progress.messages
        return messages

    async def run(self) -> None:
        """Talk until the user leaves, or the thread ends."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._stop_waiting)
        self._printer.is_held = True  # Until an answer is waited for.
        try:
            async with follow_live(self._live, self._thread, self._printer):
                await self._talk()
        except (ThreadEnded, NotAnswered) as error:
            self._printer.note(str(error))
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    async def _talk(self) -> None:
        if self._unanswered:
            await self._follow(self._unanswered)
        while (text := await self._read_message()) is not None:
            if text.strip():
                await self._send(text)

    async def _find_progress(self) -> ThreadProgress | None:
        try:
            return await self._thread.wait_until(lambda _: True, seconds_max=_FIND_SECONDS_MAX)
        except ThreadNotFound:
            if self._agent is not None:
                return None
            named = quote_id(self._thread.id)
            raise ThreadNotFound(
                f"there is no thread {self._thread.id!r} in this namespace. Start it with: "
                f"everlong chat {named} --agent NAME"
            ) from None

    async def _print_past(self, progress: ThreadProgress) -> Sequence[str]:
        last_seq = seq_after(progress.head) - 1
        found: list[str] = []
        first_seq = max(1, last_seq - _RECALLED_ENTRIES + 1)
        async for entry, message in read_conversation(self._thread, progress.head, first_seq):
            if entry.seq > last_seq - _PAST_ENTRIES:
                self._printer.print_entry(entry, message)
            if entry.kind == Kind.MESSAGE and message is not None:
                found.append(message.text)
        self._printer.last_seq = last_seq
        return found

    async def _read_message(self) -> str | None:
        try:
            return await self._terminal.read_message()
        except Interrupted:
            return None

    async def _send(self, text: str) -> None:
        try:
            number = await self._thread.send(
                text, agent=self._agent, by=self._by, on_wait=self._printer.note
            )
        except ThreadEnded:
            raise
        except EverlongError as error:
            self._printer.note(f"error: {error}")
            return
        self._printer.expect(text)
        await self._follow(number)

    async def _follow(self, number: int) -> None:
        follower = self._follower = AnswerFollower(self._thread, self._printer, self._decide)
        self._printer.is_held = False
        self._printer.show_status("waiting for the answer; Ctrl-C stops waiting, not the thread")
        self._following = asyncio.ensure_future(follower.wait(number))
        try:
            await self._following
        except asyncio.CancelledError:
            self._printer.note(
                "no longer waiting; the thread goes on. Enter a message, or leave with Ctrl-D"
            )
        except TurnFailed:
            return  # The entry that says why was printed.
        except (ThreadEnded, NotAnswered):
            raise
        except EverlongError as error:
            self._printer.note(f"error: {error}")
        finally:
            self._following = None

    def _stop_waiting(self) -> None:
        if self._following is not None:
            self._following.cancel()

    async def _decide(self, call: Waiting, arguments: str) -> None:
        """Ask for a decision about a call, and make it."""
        self._printer.note(describe_waiting(call))
        if arguments != call.arguments:
            self._printer.note(format_arguments(arguments))
        later = name_command(self._thread.id, call)
        try:
            if isinstance(call, Approval):
                is_decided = await self._decide_approval(call)
            else:
                is_decided = await self._resolve_outcome(call)
            if not is_decided:
                self._printer.note(f"decide later with: {later}")
        except Interrupted:
            self._stop_waiting()
        except EverlongError as error:
            self._printer.note(f"error: {error}")
            self._printer.note(f"decide with: {later}")

    async def _decide_approval(self, approval: Approval) -> bool:
        words = {"a": "approve", "y": "approve", "yes": "approve", "d": "deny", "n": "deny"}
        chosen = await self._choose("Approve (a), deny (d), or later (Enter)? ", words)
        if not chosen:
            return False
        approves = chosen == "approve"
        reason = "" if approves else await self._terminal.read_line("Reason, or Enter: ") or ""
        with self._sending():
            await self._thread.decide(approval.id, approve=approves, by=self._by, reason=reason)
        return True

    async def _resolve_outcome(self, unknown: UnknownOutcome) -> bool:
        words = {"d": "done", "n": "not_done", "r": "retry"}
        question = "Did it happen: done (d), not done (n), run it again (r), or later (Enter)? "
        chosen = await self._choose(question, words)
        result = ""
        if chosen == "done":
            result = await self._terminal.read_line("Its result for the model, or Enter: ") or ""
        if not chosen:
            return False
        with self._sending():
            await self._thread.resolve_outcome(
                unknown.id, outcome=_OUTCOMES[chosen], by=self._by, result=result
            )
        return True

    @contextlib.contextmanager
    def _sending(self) -> Iterator[None]:
        """Tell the follower that a decision of this user is on its way."""
        follower = self._follower
        if follower is not None:
            follower.is_sending = True
        try:
            yield
        finally:
            if follower is not None:
                follower.is_sending = False

    async def _choose(self, question: str, words: Mapping[str, str]) -> str:
        """Ask until the answer is one of some words, or the beginning of one; empty for later."""
        while True:
            answer = (await self._terminal.read_line(question) or "").strip().lower()
            if not answer:
                return ""
            if answer in words.values():
                return answer
            if answer in words:
                return words[answer]
