"""A thread's conversation at a terminal: entries as the journal gets them, and live output before that.

The journal decides. Live output is printed as it comes, and completed or replaced by the entry that
follows; without a live server, entries are all that is printed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeAlias

from rich.console import Console
from rich.text import Text

from everlong.cli.output import format_approval, format_outcome
from everlong.client.progress import ThreadProgress
from everlong.client.status import open_journal
from everlong.client.thread import ThreadHandle
from everlong.client.wait import SCAN_ENTRIES
from everlong.console import sanitise
from everlong.errors import EverlongError, ThreadNotFound
from everlong.format import shorten_line, summarise_note
from everlong.live import LiveServer
from everlong.live.models import LiveEvent
from everlong.live.reader import LiveReader
from everlong.models import (
    Approval,
    Entry,
    Kind,
    Message,
    SegmentRef,
    UnknownOutcome,
    seq_after,
)
from everlong.models.thread_ids import quote_id
from everlong.storage.segments import MESSAGE_KINDS

_CUT_OFF: Final = {
    "silent": "cut off: its worker does not answer; a retry replaces it",
    "failed": "cut off: this attempt failed",
    "retried": "cut off: a retry replaces it",
    "full": "not shown further: there is too much live output",
}
_COMPARED_CHARS: Final = 200
_FIND_SECONDS_MAX: Final = 30.0
_NOTES: Final = (Kind.DECIDED, Kind.VOTED, Kind.OUTCOME_RESOLVED, Kind.LIMIT, Kind.CONTROL)

Waiting: TypeAlias = Approval | UnknownOutcome
"""A call that waits for a person."""
Decide: TypeAlias = Callable[[Waiting, str], Awaitable[None]]
"""Asks for a decision about a call, whose whole arguments are the second argument."""


class ConversationPrinter:
    """Prints entries and live output in order. `last_seq` is the last entry that was printed."""

    def __init__(self, console: Console, last_seq: int = 0) -> None:
        self.last_seq = last_seq
        self.is_held = False
        """Whether live output is left out: no one waits for it, or the terminal asks for something."""
        self._console = console
        self._step = ""
        """Id of the reply that is being printed."""
        self._text = ""
        """What was printed of it."""
        self._is_mid_line = False
        self._has_status = False
        self._known: list[str] = []
        self._ended_calls: set[str] = set()
        """Calls whose end was printed before their result was journalled."""

    def expect(self, text: str) -> None:
        """Leave out a message: the terminal shows it already, as it was typed."""
        self._known.append(text)

    def note(self, text: str) -> None:
        """Print a line about the conversation."""
        self._end_line()
        self._console.print(sanitise(text), style="dim", markup=False, soft_wrap=True)

    def show_status(self, text: str) -> None:
        """Show a text on the last line of a terminal until something else is printed."""
        if not self._console.is_terminal or self._is_mid_line or self.is_held:
            return
        line = Text(" ".join(sanitise(text).split()))
        line.truncate(max(1, self._console.width - 1), overflow="ellipsis")
        self._clear_status()
        self._console.print(line, style="dim", end="")
        self._has_status = True

    def finish(self) -> None:
        """End what is not complete: nothing follows for the moment."""
        self._end_line()
        self._step = self._text = ""

    # Live output.

    def take(self, event: LiveEvent) -> None:
        """Print a live event."""
        if self.is_held or event.name in ("open", "dropped"):
            return
        if event.data.get("kind") == "tool":
            self._take_tool(event)
        elif int(event.data["seq"]) > self.last_seq:  # Else the journal was quicker.
            self._take_reply(event)

    def _take_tool(self, event: LiveEvent) -> None:
        name = event.data["tool"]
        if event.name == "start":
            self.show_status(f"{name} runs")
        elif event.name == "progress":
            self.show_status(f"{name}: {event.data['text']}")
        elif event.name == "cut":
            self.note(f"  ← {name}: this attempt failed")
        elif event.name == "done":
            # The journal gets the result with the next reply, which is printed before that.
            self.note(f"  ← {name}: done")
            self._ended_calls.add(str(event.data["call_id"]))

    def _take_reply(self, event: LiveEvent) -> None:
        step = str(event.data["step"])
        if event.name == "start":
            if self._step != step:
                self._cut("retried")
            self._step = step
        elif step != self._step:
            return
        elif event.name == "delta":
            self._write_piece(int(event.data["offset"]), str(event.data["text"]))
        elif event.name == "cut":
            self._cut(str(event.data["reason"]))

    def _write_piece(self, offset: int, text: str) -> None:
        # The server repeats the text after a lost connection. After a gap, the entry has the rest.
        have = len(self._text)
        if offset <= have and (piece := text[have - offset :]):
            self._write(piece)
            self._text += piece

    def _cut(self, reason: str) -> None:
        if self._text:
            self.note(_CUT_OFF.get(reason, _CUT_OFF["failed"]))
        self._step = self._text = ""

    # Entries.

    def print_entry(self, entry: Entry, message: Message | None) -> None:
        """Print an entry of the journal; some kinds are left out."""
        self.last_seq = entry.seq
        if entry.kind == Kind.REPLY and message is not None:
            self._print_reply(message)
        elif entry.kind == Kind.MESSAGE and message is not None:
            self._print_message(entry, message)
        elif entry.kind == Kind.TOOL_RESULT and message is not None:
            if message.call_id not in self._ended_calls:
                self.note(f"  ← {message.tool}: {shorten_line(message.text)}")
            self._ended_calls.discard(message.call_id)
        elif entry.kind == Kind.FAILURE and message is not None:
            self._end_line()
            text = f"no answer: {message.text}"
            self._console.print(sanitise(text), style="red", markup=False, soft_wrap=True)
        elif entry.kind in _NOTES and not self._is_mid_line:
            self.note(f"  {summarise_note(entry)}")

    def _print_reply(self, message: Message) -> None:
        if self._text and not message.text.startswith(self._text):
            self._cut("retried")
        if rest := message.text[len(self._text) :]:
            self._write(rest)
        self._text = message.text
        self.finish()
        for call in message.tool_calls:
            self.note(f"  → {call.tool} {shorten_line(call.arguments)}")

    def _print_message(self, entry: Entry, message: Message) -> None:
        for known in self._known:
            # An entry may have only the beginning of a long message.
            if known[:_COMPARED_CHARS] == message.text[:_COMPARED_CHARS]:
                self._known.remove(known)
                return
        self._end_line()
        by = str((entry.data or {}).get("by") or "message")
        self._console.print(
            f"{sanitise(by)}> {sanitise(message.text)}", style="bold", markup=False, soft_wrap=True
        )

    def _write(self, text: str) -> None:
        self._clear_status()
        self._console.print(sanitise(text), end="", markup=False, soft_wrap=True)
        self._is_mid_line = not text.endswith("\n")

    def _end_line(self) -> None:
        self._clear_status()
        if self._is_mid_line:
            self._is_mid_line = False
            self._console.print()

    def _clear_status(self) -> None:
        if self._has_status:
            self._has_status = False
            self._console.file.write("\r\x1b[2K")


def describe_waiting(call: Waiting) -> str:
    """Return a line about a call that waits for a person."""
    if isinstance(call, Approval):
        return f"approval needed: {format_approval(call)}"
    return f"it is not known whether this call took effect: {format_outcome(call)}"


def name_command(thread_id: str, call: Waiting) -> str:
    """Return the command that lists such calls."""
    name = "approvals" if isinstance(call, Approval) else "outcomes"
    return f"everlong {name} {quote_id(thread_id)}"


async def find_last_seq(thread: ThreadHandle) -> int:
    """Return the last entry of a thread's journal; 0 if the thread does not exist. Needs no worker."""
    try:
        now = await thread.wait_until(lambda _: True, seconds_max=_FIND_SECONDS_MAX)
    except ThreadNotFound:
        return 0
    return seq_after(now.head) - 1


@contextlib.asynccontextmanager
async def follow_live(
    server: LiveServer | None, thread: ThreadHandle, printer: ConversationPrinter
) -> AsyncIterator[None]:
    """Print live output while the body runs, if there is a server for it. Open it before sending."""
    if server is None:
        yield
        return
    async with LiveReader(server, thread.id, printer.take, printer.note):
        yield


async def read_conversation(
    thread: ThreadHandle, head: SegmentRef | None, first_seq: int
) -> AsyncIterator[tuple[Entry, Message | None]]:
    """Yield entries with their messages, up to a head."""
    journal = open_journal(thread.client, thread.packs, thread.id)
    last_seq = seq_after(head) - 1
    for begin in range(first_seq, last_seq + 1, SCAN_ENTRIES):
        entries = await journal.read(head, begin, min(last_seq, begin + SCAN_ENTRIES - 1))
        for entry in entries:
            # One at a time: a message may have 64 MiB.
            whole = entry.kind in (Kind.REPLY, Kind.FAILURE)
            found = [entry] if entry.kind in MESSAGE_KINDS else []
            messages = await journal.messages(found, whole=whole)
            yield entry, messages[0] if messages else None


class AnswerFollower:
    """Waits for the answer to a message, and prints the conversation meanwhile."""

    def __init__(
        self,
        thread: ThreadHandle,
        printer: ConversationPrinter,
        decide: Decide | None = None,
    ) -> None:
        self._thread = thread
        self._printer = printer
        self._decide = decide
        self._news = asyncio.Event()
        self._progress: ThreadProgress | None = None
        self._asked: set[str] = set()
        """Approvals that the user was asked about."""
        self.is_sending = False
        """Whether the user has decided, and the decision is on its way. It may be applied by now."""

    async def wait(self, number: int, seconds_max: float | None = None) -> str:
        """Return the answer to a message. Raises what `ThreadHandle.wait` raises."""
        self._printer.is_held = False
        printing = asyncio.ensure_future(self._print_news())
        try:
            return await self._thread.wait(
                number,
                seconds_max=seconds_max,
                on_progress=self._take_progress,
                on_wait=lambda text: self._printer.note(f"waits: {text}"),
            )
        finally:
            printing.cancel()
            await asyncio.gather(printing, return_exceptions=True)
            # What the wait has seen last, unless the store is away.
            with contextlib.suppress(EverlongError):
                await self._print_entries()
            self._printer.finish()
            self._printer.is_held = True

    def _take_progress(self, progress: ThreadProgress) -> None:
        self._progress = progress
        self._news.set()

    async def _print_news(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            # The wait raises an error that lasts; the next news tries again after one that does not.
            with contextlib.suppress(EverlongError):
                await self._print_entries()
                await self._ask_for_decisions()

    async def _print_entries(self) -> None:
        if self._progress is None:
            return
        first_seq = self._printer.last_seq + 1
        async for entry, message in read_conversation(self._thread, self._progress.head, first_seq):
            self._printer.print_entry(entry, message)

    async def _ask_for_decisions(self) -> None:
        if self._progress is None or not self._progress.pending:
            return
        for call in await self._list_waiting():
            if call.id in self._asked:
                continue
            self._asked.add(call.id)
            if self._decide is None:
                self._printer.note(f"waits: {describe_waiting(call)}")
                self._printer.note(f"decide with: {name_command(self._thread.id, call)}")
            else:
                await self._ask(call, self._decide)

    async def _list_waiting(self) -> list[Waiting]:
        return [*await self._thread.approvals(), *await self._thread.outcomes()]

    async def _ask(self, call: Waiting, decide: Decide) -> None:
        """Ask for a decision until there is one, here or elsewhere."""
        arguments = await self._thread.arguments(call)
        self._printer.finish()
        self._printer.is_held = True
        asking = asyncio.ensure_future(decide(call, arguments))
        try:
            while True:
                news = asyncio.ensure_future(self._news.wait())
                await asyncio.wait((asking, news), return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if asking.done():
                    asking.result()
                    return
                self._news.clear()
                is_waiting = call.id in [each.id for each in await self._list_waiting()]
                if self.is_sending:
                    await asking  # Without this, the user's own decision could look like another's.
                    return
                if not is_waiting:
                    break
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            self._printer.is_held = False
            self._news.set()  # What came meanwhile.
        self._printer.note(f"{call.tool}: decided elsewhere")
