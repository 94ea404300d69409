"""Conversation of a thread: its journal as messages, replies with their tool calls, and marks.

A page begins with a message or a reply, so that a reply and the results of its calls are on one page.
The cost of a page does not depend on the length of the journal.
"""

import contextlib
import dataclasses
import re
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

from temporalio.client import Client

from everlong import limits
from everlong.client.lookup import ThreadLookup, check_head, look_up
from everlong.client.status import read_unjournalled
from everlong.client.visibility import quote_text, read_rows
from everlong.errors import EntryNotFound, EverlongError
from everlong.format import shorten_line, summarise_note
from everlong.models import (
    Call,
    Entry,
    Kind,
    Message,
    SendMessage,
    parse_message,
    seq_after,
)
from everlong.models.state import Unjournalled
from everlong.storage.pack_store import PackStore
from everlong.storage.segments import MESSAGE_KINDS

PAGE_ENTRIES: Final = 80
"""Entries of a page: some 40 replies with one call each. A page has fewer if it would begin inside
one."""
WINDOW_ENTRIES: Final = 200
"""Most entries that an open page follows. Each takes up to 25 elements of the page."""
TEXT_CHARS_MAX: Final = 8_000
"""Longest text of a message or a reply that a page holds; the rest is read on demand."""
# All texts of a page together, the newest first. Older ones are then cut to the second length.
_PAGE_CHARS_MAX: Final = 200_000
_CUT_CHARS: Final = 600
ARGUMENTS_CHARS_MAX: Final = 32 * limits.KIB
"""Longest arguments of one call, which are read on demand."""
_ARGUMENTS_PREVIEW_CHARS: Final = 120
# Runs that began while a page's entries were written: a run has 400 events, and takes a dozen steps at
# least. Intervals of 50 starts are kept for 256 pages: 100 KB.
_RUNS_MAX: Final = 50
_INTERVALS_MAX: Final = 256
_STARTS: Final = frozenset({Kind.MESSAGE, Kind.REPLY, Kind.FAILURE, Kind.FORK})
"""Kinds that begin a group: the entries after it, up to the next of them, belong to it."""
# Begin of the id of an approval or an unknown outcome: the seq of its reply, and the number of the call.
_PLACE: Final = re.compile(r"([1-9]\d*)-([1-9]\d*)-")
_EVENTS: Final = frozenset(
    {Kind.ASKED, Kind.DECIDED, Kind.VOTED, Kind.OUTCOME_UNKNOWN, Kind.OUTCOME_RESOLVED}
)
"""Kinds of entries about one call."""
_CAUSES: Final[Mapping[str, str]] = {
    "lost": "its worker was lost while it ran",
    "timeout": "it did not end in its time",
    "unsaved": "it ended, and its result was lost",
    "unclear": "the tool did not know",
}
_ERROR: Final = "error: "

CallState: TypeAlias = Literal["done", "failed", "waits", "outcome", "running", "unknown"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShownText:
    """A text, or its beginning."""

    text: str
    is_whole: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mark:
    """Something that happened between messages, on one line."""

    key: str
    seq: int
    """Seq of the entry; for other events, of the entry after them."""
    kind: str
    """Kind of the entry; or `roll`, the beginning of another run."""
    time_ms: int
    text: str
    thread_id: str = ""
    """Thread that it links to."""
    is_entry: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShownCall:
    """A tool call of a reply, with what is known of its result."""

    number: int
    """Position in the reply, from 1."""
    tool: str
    arguments: str
    """Beginning of the arguments."""
    place: str
    """The reply's seq and the number: the begin of the ids of its approval and its unknown outcome."""
    state: CallState
    """`waits` for an approval; `outcome` if it is not known whether it took effect; `unknown` if the
    page has no result and the thread does not work on it."""
    result_seq: int | None = None
    """Seq of the result; None if it is not journalled."""
    result: str = ""
    """Beginning of the result."""
    result_bytes: int = 0
    time_ms: int = 0
    """Time of the result."""
    child_id: str = ""
    """Thread of the sub-agent that answers the call."""
    events: tuple[Mark, ...] = ()
    """Requests and decisions of people."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turn:
    """A message, a reply with its calls, a failure, or a result without its reply."""

    key: str
    seq: int
    kind: Kind
    time_ms: int
    body: ShownText
    by: str = ""
    """Sender of a message."""
    number: int | None = None
    """Number of a message that is queued and not journalled."""
    tokens: int = 0
    cost_usd: float = 0.0
    calls: tuple[ShownCall, ...] = ()
    is_journalled: bool = True
    problem: str = ""
    """Why the text cannot be shown; empty if it can."""


Item: TypeAlias = Turn | Mark


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversationPage:
    """A part of a conversation, oldest first."""

    thread_id: str
    items: tuple[Item, ...]
    first_seq: int
    """Seq of the first entry; 1 more than the newest entry if there is none."""
    last_seq: int
    newest_seq: int
    """Seq of the newest entry in the journal."""
    unavailable: str
    """Why newer entries may be missing: no worker answers for the thread. Empty otherwise."""
    is_gone: bool = False
    """Whether the server has no history of the thread, so that all of this is from its archive."""
    approvals: int = 0
    """Number of pending approvals, on a page that ends with the newest entry."""
    outcomes: int = 0
    """Number of calls whose outcome is unknown, on such a page."""

    @property
    def is_newest(self) -> bool:
        """Whether the page ends with the newest entry."""
        return self.last_seq >= self.newest_seq


class RunStarts:
    """Start times of runs, as the server lists them: a roll is no entry of the journal.

    An open page asks every two seconds, and the answer changes only with the thread's run.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, int, int], tuple[int, ...]] = OrderedDict()

    async def list_between(
        self, client: Client, found: ThreadLookup, first_ms: int, last_ms: int | None
    ) -> tuple[int, ...]:
        """Return the starts of runs in an interval, oldest first; none if the server does not say."""
        row = found.row
        key = (row.thread_id, row.run_id, first_ms, last_ms or 0)
        if key not in self._known:
            try:
                query = _build_run_query(row.thread_id, first_ms, last_ms)
                page = await read_rows(client, query, size=_RUNS_MAX)
            except (EverlongError, ValueError, OverflowError, OSError):
                return ()  # The page works without these marks: the server is busy, a time is absurd.
            self._known[key] = tuple(sorted({each.started_ms for each in page.rows}))
            while len(self._known) > _INTERVALS_MAX:
                self._known.popitem(last=False)
        starts = set(self._known[key])
        # The list lags by a second or so: the newest run is known from its description.
        if row.started_ms > first_ms and (last_ms is None or row.started_ms <= last_ms):
            starts.add(row.started_ms)
        return tuple(sorted(starts))


def _build_run_query(thread_id: str, first_ms: int, last_ms: int | None) -> str:
    until = "" if last_ms is None else f" AND StartTime <= '{_format_time(last_ms)}'"
    return f"WorkflowId = {quote_text(thread_id)} AND StartTime > '{_format_time(first_ms)}'{until}"


def _format_time(ms: int) -> str:
    """Return a time as it stands in a query of visibility."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


async def load_conversation(
    client: Client,
    packs: PackStore,
    thread_id: str,
    *,
    before: int | None = None,
    after: int | None = None,
    first: int | None = None,
    runs: RunStarts | None = None,
) -> ConversationPage:
    """Return the entries before or after a seq, those from `first` to the newest, or the newest.

    With `runs`, there is a mark where a run began.
    """
    found = await look_up(client, packs, thread_id)
    held = await _load_unjournalled(client, found) if before is None else None
    head = held.head if held is not None else found.head
    newest_seq = seq_after(head) - 1
    first_seq, last_seq = choose_range(newest_seq, before, after, first)
    entries: list[Entry] = []
    if head is not None and first_seq <= last_seq:
        entries = await found.journal.read(head, first_seq, last_seq)
    if after is None:
        entries = cut_start(entries)
    elif last_seq < newest_seq:
        entries = cut_end(entries)
        held = None
    messages, problem = await _load_messages(found, entries)
    items = build_items(entries, messages, held, problem)
    if runs is not None:
        items = insert_rolls(items, await _load_rolls(client, found, entries, newest_seq, runs))
    return ConversationPage(
        thread_id=thread_id,
        items=tuple(items),
        first_seq=entries[0].seq if entries else newest_seq + 1,
        last_seq=entries[-1].seq if entries else newest_seq,
        newest_seq=newest_seq,
        unavailable=found.unavailable,
        is_gone=found.archive is not None,
        approvals=sum(call.waits is not None for call in held.calls) if held else 0,
        outcomes=sum(call.unknown is not None for call in held.calls) if held else 0,
    )


async def load_call_arguments(
    client: Client, packs: PackStore, thread_id: str, seq: int, number: int
) -> ShownText:
    """Return the arguments of a call: the reply's seq, and the call's position in it, from 1."""
    found = await look_up(client, packs, thread_id)
    entries = await found.journal.read(check_head(found, seq), seq, seq)
    if entries and entries[0].kind == Kind.REPLY:
        [message] = await found.journal.messages(entries, whole=True)
        if 1 <= number <= len(message.tool_calls):
            arguments = message.tool_calls[number - 1].arguments
            return _cut(arguments, ARGUMENTS_CHARS_MAX)
    raise EntryNotFound(f"entry {seq} of thread {thread_id!r} has no tool call {number}")


def choose_range(
    newest_seq: int, before: int | None, after: int | None, first: int | None
) -> tuple[int, int]:
    """Return the seqs of the first and the last entry to read for a page."""
    if after is not None:
        return after + 1, min(newest_seq, after + PAGE_ENTRIES)
    if first is not None:
        return max(1, first, newest_seq - WINDOW_ENTRIES + 1), newest_seq
    last_seq = newest_seq if before is None else min(newest_seq, before - 1)
    return max(1, last_seq - PAGE_ENTRIES + 1), last_seq


def cut_start(entries: Sequence[Entry]) -> list[Entry]:
    """Drop the end of a group from the start of a page: the page before has the whole group.

    A page without the start of a group stays as it is.
    """
    starts = (index for index, entry in enumerate(entries) if entry.kind in _STARTS)
    is_first = bool(entries) and entries[0].seq == 1
    return list(entries[0 if is_first else next(starts, 0) :])


def cut_end(entries: Sequence[Entry]) -> list[Entry]:
    """Drop the last group from the end of a page, since it may go on: the next page has all of it."""
    starts = [index for index, entry in enumerate(entries) if index and entry.kind in _STARTS]
    return list(entries[: starts[-1]] if starts else entries)


async def _load_unjournalled(client: Client, found: ThreadLookup) -> Unjournalled | None:
    """Return what the thread holds beyond its journal; None if it has ended or does not answer."""
    if found.status is None or found.archive is not None or not found.row.is_open:
        return None
    try:
        return await read_unjournalled(client, found.thread_id)
    except EverlongError:  # The page works without it: the journal follows.
        return None


async def _load_messages(
    found: ThreadLookup, entries: Sequence[Entry]
) -> tuple[dict[int, Message], str]:
    """Return the messages by seq, and why some are missing.

    Results are previewed from their entry where that is possible: their packs are not read.
    """
    wanted = [entry for entry in entries if _needs_message(entry)]
    try:
        return _pair(wanted, await found.journal.messages(wanted)), ""
    except EverlongError as error:
        problem = str(error)
    # One that is lost or unknown hides no other.
    messages: dict[int, Message] = {}
    for entry in wanted:
        if entry.body is not None:
            with contextlib.suppress(EverlongError):
                messages |= _pair([entry], await found.journal.messages([entry]))
    return messages, problem


def _pair(entries: Iterable[Entry], messages: Iterable[Message]) -> dict[int, Message]:
    return {entry.seq: each for entry, each in zip(entries, messages, strict=True)}


def _needs_message(entry: Entry) -> bool:
    if entry.kind == Kind.TOOL_RESULT:
        return entry.ref is None or not entry.ref.preview
    return entry.kind in MESSAGE_KINDS


def build_items(
    entries: Sequence[Entry],
    messages: Mapping[int, Message],
    held: Unjournalled | None = None,
    problem: str = "",
) -> list[Item]:
    """Return the items of journalled entries, and of what the thread holds after them.

    `messages` are those of the entries by seq, and `problem` is why some are missing.
    """
    return _Builder(held).build(entries, messages, problem)


class _Builder:
    """Builds the items of one page."""

    def __init__(self, held: Unjournalled | None) -> None:
        self._held = held
        self._chars_left = _PAGE_CHARS_MAX

    def build(
        self, entries: Sequence[Entry], messages: Mapping[int, Message], problem: str
    ) -> list[Item]:
        """Return the items of journalled entries, and of what the thread holds after them."""
        held = self._held
        after = () if held is None else held.entries
        every = [*entries, *after]
        texts = dict(messages)
        for entry in after:
            if (message := _parse_inline(entry)) is not None:
                texts[entry.seq] = message
        journalled = entries[-1].seq if entries else 0
        shown = self._cut_texts(every, texts)
        calls = _CallTable(every, texts, () if held is None else held.calls, journalled)
        items: list[Item] = []
        for entry in every:
            if calls.has_taken(entry):
                continue
            if entry.kind not in MESSAGE_KINDS:
                items.append(_build_mark(entry, is_entry=entry.seq <= journalled))
                continue
            is_missing = entry.seq not in texts
            items.append(
                Turn(
                    key=str(entry.seq),
                    seq=entry.seq,
                    kind=entry.kind,
                    time_ms=entry.time_ms,
                    body=shown.get(entry.seq)
                    or ShownText(text=_get_preview(entry), is_whole=False),
                    by=str((entry.data or {}).get("by", "")),
                    tokens=entry.tokens,
                    cost_usd=entry.cost_usd,
                    calls=calls.list_calls(entry.seq),
                    is_journalled=entry.seq <= journalled,
                    problem=problem if is_missing and entry.kind != Kind.TOOL_RESULT else "",
                )
            )
        if held is not None:
            items += self._build_queued(held)
        return items

    def _cut_texts(
        self, entries: Sequence[Entry], texts: Mapping[int, Message]
    ) -> dict[int, ShownText]:
        """Return the texts that the page holds. The newest ones have precedence."""
        found: dict[int, ShownText] = {}
        for entry in reversed(entries):
            message = texts.get(entry.seq)
            if message is None:
                continue
            if entry.kind == Kind.TOOL_RESULT:
                found[entry.seq] = ShownText(text=shorten_line(message.text), is_whole=False)
                continue
            cut = _cut(message.text, TEXT_CHARS_MAX if self._chars_left > 0 else _CUT_CHARS)
            self._chars_left -= len(cut.text)
            found[entry.seq] = dataclasses.replace(
                cut, is_whole=cut.is_whole and entry.original is None
            )
        return found

    def _build_queued(self, held: Unjournalled) -> Iterable[Turn]:
        """Yield the messages that wait for their turn."""
        seq = seq_after(held.head, held.entries)
        for index, message in enumerate(held.inbox):
            number = held.messages - len(held.inbox) + index + 1
            text = _cut(_get_queued_text(message), TEXT_CHARS_MAX)
            yield Turn(
                key=f"queued-{number}",
                seq=seq,
                kind=Kind.MESSAGE,
                time_ms=message.sent.ms if message.sent else 0,
                body=dataclasses.replace(text, is_whole=text.is_whole and message.ref is None),
                by=message.by,
                number=number,
                is_journalled=False,
            )


def _get_queued_text(message: SendMessage) -> str:
    return message.text if message.ref is None else f"{message.ref.preview} …"


class _CallTable:
    """The calls of a page's replies, and the entries that belong to them.

    Results are journalled in the order of the calls, so the first result after a reply is that of its
    first call.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        texts: Mapping[int, Message],
        open_calls: Sequence[Call],
        journalled_seq: int,
    ) -> None:
        self._calls: dict[int, list[ShownCall]] = {}
        self._taken: set[int] = set()
        self._journalled_seq = journalled_seq
        reply_seq, done = 0, 0
        for entry in entries:
            if entry.kind == Kind.REPLY:
                reply_seq, done = entry.seq, 0
                if message := texts.get(entry.seq):
                    self._calls[entry.seq] = list(_build_calls(entry.seq, message))
            elif entry.kind == Kind.TOOL_RESULT:
                self._take_result(reply_seq, done, entry, texts.get(entry.seq))
                done += 1
            elif entry.kind in _EVENTS:
                self._take_event(entry)
        for call in open_calls:
            self._apply_open_call(call)

    def has_taken(self, entry: Entry) -> bool:
        """Return whether an entry is a part of a call."""
        return entry.seq in self._taken

    def list_calls(self, seq: int) -> tuple[ShownCall, ...]:
        """Return the calls of a reply."""
        return tuple(self._calls.get(seq, ()))

    def _take_result(self, seq: int, index: int, entry: Entry, message: Message | None) -> None:
        if index >= len(self._calls.get(seq, ())):
            return
        text = message.text if message else _get_preview(entry)
        is_journalled = entry.seq <= self._journalled_seq
        self._calls[seq][index] = dataclasses.replace(
            self._calls[seq][index],
            state="failed" if text.startswith(_ERROR) else "done",
            result_seq=entry.seq if is_journalled else None,
            result=shorten_line(text),
            result_bytes=_get_size(entry),
            time_ms=entry.time_ms,
            child_id=_get_child_id(entry),
        )
        self._taken.add(entry.seq)

    def _take_event(self, entry: Entry) -> None:
        found = self._find(str((entry.data or {}).get("id", "")))
        if found is None:
            return
        seq, index = found
        call = self._calls[seq][index]
        mark = dataclasses.replace(
            _build_mark(entry, is_entry=entry.seq <= self._journalled_seq),
            text=_describe_event(entry),
        )
        self._calls[seq][index] = dataclasses.replace(call, events=(*call.events, mark))
        self._taken.add(entry.seq)

    def _apply_open_call(self, call: Call) -> None:
        """Add what the thread knows of a call of its newest reply."""
        found = self._find(call.id)
        if found is None:
            return
        seq, index = found
        shown = dataclasses.replace(self._calls[seq][index], child_id=call.child_id)
        if call.result is not None:
            entry = call.result.entry
            text = _get_preview(entry)
            shown = dataclasses.replace(
                shown,
                child_id=_get_child_id(entry),
                state="failed" if call.result.outcome != "ok" else "done",
                result=shorten_line(text),
                result_bytes=_get_size(entry),
                time_ms=entry.time_ms,
            )
        elif call.waits is not None:
            shown = dataclasses.replace(shown, state="waits")
        elif call.unknown is not None:
            shown = dataclasses.replace(shown, state="outcome")
        else:
            shown = dataclasses.replace(shown, state="running")
        self._calls[seq][index] = shown

    def _find(self, call_id: str) -> tuple[int, int] | None:
        """Return the reply and the position of a call that has such an id, if the page has it."""
        found = _PLACE.match(call_id)
        if found is None:
            return None
        seq, index = int(found[1]), int(found[2]) - 1
        return (seq, index) if index < len(self._calls.get(seq, ())) else None


def find_place(call_id: str) -> str:
    """Return the place of a call from the id of its approval or its unknown outcome."""
    found = _PLACE.match(call_id)
    return f"{found[1]}-{found[2]}" if found else ""


def _build_calls(seq: int, message: Message) -> Iterable[ShownCall]:
    for number, call in enumerate(message.tool_calls, 1):
        yield ShownCall(
            number=number,
            place=f"{seq}-{number}",
            tool=call.tool,
            arguments=shorten_line(call.arguments[: 2 * _ARGUMENTS_PREVIEW_CHARS])[
                :_ARGUMENTS_PREVIEW_CHARS
            ],
            state="unknown",
        )


def _build_mark(entry: Entry, *, is_entry: bool) -> Mark:
    data = entry.data or {}
    return Mark(
        key=str(entry.seq),
        seq=entry.seq,
        kind=entry.kind,
        time_ms=entry.time_ms,
        text=_describe_note(entry),
        thread_id=str(data.get("thread_id", "")),
        is_entry=is_entry,
    )


def _describe_note(entry: Entry) -> str:
    try:
        return shorten_line(summarise_note(entry))
    except (KeyError, TypeError, ValueError):  # A newer Everlong wrote it.
        return "of a kind that this Everlong does not know"


def _describe_event(entry: Entry) -> str:
    """Return what people decided about a call. The call is shown with it."""
    data = entry.data or {}
    by = f" by {data['by']}" if data.get("by") else ""
    reason = f": {data['reason']}" if data.get("reason") else ""
    changed = f" with changed arguments {data['arguments']}" if data.get("edit") else ""
    match entry.kind:
        case Kind.ASKED:
            return "approval asked for"
        case Kind.VOTED:
            return f"approved{by}{changed}, {data.get('votes')} of {data.get('needed')}{reason}"
        case Kind.OUTCOME_UNKNOWN:
            return f"outcome unknown: {describe_cause(str(data.get('cause', '')))}"
    if data.get("escalated"):
        return "escalated: no decision came in time"
    if entry.kind == Kind.OUTCOME_RESOLVED:
        return f"resolved as {str(data.get('outcome', '')).replace('_', ' ')}{by}{reason}"
    if data.get("grant"):
        return f"allowed by a grant of {data.get('by', '')}"
    return f"{'approved' if data.get('approve') else 'denied'}{by}{changed}{reason}"


def describe_cause(cause: str) -> str:
    """Return why it is not known whether a call took effect."""
    return _CAUSES.get(cause, cause)


def _parse_inline(entry: Entry) -> Message | None:
    """Return the message of an entry that holds it; None if it holds none, or none that is known."""
    if entry.body is None or entry.kind not in MESSAGE_KINDS:
        return None
    try:
        return parse_message(entry.kind, entry.body)
    except (KeyError, TypeError, ValueError):
        return None


def _get_preview(entry: Entry) -> str:
    if (message := _parse_inline(entry)) is not None:
        return message.text
    return f"{entry.ref.preview}…" if entry.ref is not None and entry.ref.preview else ""


def _get_child_id(entry: Entry) -> str:
    """Return the thread of the sub-agent that a result is from; empty for other results."""
    return str((entry.data or {}).get("thread_id", ""))


def _get_size(entry: Entry) -> int:
    return entry.size_bytes if entry.original is None else entry.original.size_bytes


def _cut(text: str, chars_max: int) -> ShownText:
    if len(text) <= chars_max:
        return ShownText(text=text)
    return ShownText(text=f"{text[:chars_max]} …", is_whole=False)


async def _load_rolls(
    client: Client, found: ThreadLookup, entries: Sequence[Entry], last_seq: int, runs: RunStarts
) -> list[int]:
    """Return the times at which runs after the first began while these entries were written."""
    rolls = found.status.counters.runs - 1 if found.status else _RUNS_MAX
    if found.archive is not None or rolls < 1 or not entries:
        return []
    last_ms = entries[-1].time_ms if entries[-1].seq < last_seq else None
    starts = list(await runs.list_between(client, found, entries[0].time_ms, last_ms))
    forked_ms = max((each.time_ms for each in entries if each.kind == Kind.FORK), default=None)
    if forked_ms is None:
        return starts
    # A fork's first run begins after the entries that it has from the other thread.
    return [start for start in starts if start > forked_ms][1:]


def insert_rolls(items: Sequence[Item], starts: Sequence[int]) -> list[Item]:
    """Return the items with a mark where a run began."""
    found: list[Item] = []
    left = deque(starts)
    for item in items:
        while left and item.time_ms and left[0] < item.time_ms:
            found.append(_build_roll(left.popleft(), item.seq))
        found.append(item)
    end_seq = items[-1].seq + 1 if items else 1
    return [*found, *(_build_roll(start, end_seq) for start in left)]


def _build_roll(time_ms: int, seq: int) -> Mark:
    return Mark(
        key=f"roll-{time_ms}",
        seq=seq,
        kind="roll",
        time_ms=time_ms,
        text="by continue-as-new",
        is_entry=False,
    )
