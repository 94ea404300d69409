"""Journal pages, and the body of one entry. The cost depends on the page, not on the journal."""

import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Final, Literal, TypeAlias

from temporalio.client import Client

from everlong import limits
from everlong.client.lookup import ThreadLookup, check_head, look_up
from everlong.errors import EntryNotFound, StoreError
from everlong.format import shorten_line, summarise_message, summarise_note
from everlong.models import Entry, Kind, Message, parse_message
from everlong.storage.journal import JournalReader
from everlong.storage.pack_store import PackStore
from everlong.storage.segments import MESSAGE_KINDS

ENTRIES_MAX: Final = 200
"""Most entries of a page: seven segments of 32, and their folds."""
SLICE_CHARS_MAX: Final = 64 * limits.KIB
# Size of one part of a download.
_PART_CHARS: Final = 256 * limits.KIB

Form: TypeAlias = Literal["text", "json"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntrySummary:
    """An entry on one line."""

    seq: int
    kind: Kind
    time_ms: int
    size_bytes: int
    """Size of the whole body as JSON."""
    summary: str
    """Beginning of its text; for a body in a separate pack, the ref's preview."""
    is_stored: bool
    """Whether the body is in a separate pack, which must be fetched to show the whole body."""
    tokens: int = 0
    cost_usd: float = 0.0
    by: str = ""
    """User who decided, paused, configured, ..."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntryPage:
    """Consecutive entries of a journal."""

    thread_id: str
    entries: tuple[EntrySummary, ...]
    last_seq: int
    """Seq of the newest entry in the journal."""
    not_journalled: int
    """Entries that are not written to the journal yet."""
    unavailable: str
    """Why newer entries may be missing: no worker answers for the thread. Empty otherwise."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BodySlice:
    """A part of an entry's body."""

    seq: int
    kind: Kind
    form: Form
    text: str
    start: int
    """Offset of the first character."""
    total_chars: int
    next_start: int | None
    """Offset of the next part; None at the end."""
    calls: tuple[str, ...] = ()
    """Tools that a reply calls. The form `json` has their arguments."""


async def load_entry_page(
    client: Client,
    packs: PackStore,
    thread_id: str,
    *,
    before: int | None = None,
    after: int | None = None,
    limit: int = 50,
    found: ThreadLookup | None = None,
) -> EntryPage:
    """Return entries before or after a seq, or the newest, each summarised on one line."""
    found = found or await look_up(client, packs, thread_id)
    limit = max(1, min(limit, ENTRIES_MAX))
    if after is not None:
        first = max(1, after + 1)
        last = min(found.last_seq, first + limit - 1)
    else:
        last = min(found.last_seq, found.last_seq if before is None else before - 1)
        first = max(1, last - limit + 1)
    entries: list[Entry] = []
    if found.head is not None and first <= last:
        entries = await found.journal.read(found.head, first, last)
    messages = await _load_messages(found, [entry for entry in entries if _lacks_preview(entry)])
    return EntryPage(
        thread_id=thread_id,
        entries=tuple(summarise_entry(entry, messages.get(entry.seq)) for entry in entries),
        last_seq=found.last_seq,
        not_journalled=found.status.tail_entries if found.status else 0,
        unavailable=found.unavailable,
    )


def _lacks_preview(entry: Entry) -> bool:
    """Return whether an entry has no preview of its message: archived and revived entries have none."""
    has_preview = entry.ref is not None and entry.ref.preview != ""
    return entry.kind in MESSAGE_KINDS and entry.body is None and not has_preview


async def _load_messages(found: ThreadLookup, entries: list[Entry]) -> dict[int, Message]:
    """Return the messages of entries by seq, shortened as a model sees them."""
    try:
        messages = await found.journal.messages(entries)
    except StoreError:
        if found.archive is not None:
            raise
        return {}  # Opening the entry reports the error.
    return {entry.seq: each for entry, each in zip(entries, messages, strict=True)}


def summarise_entry(entry: Entry, message: Message | None = None) -> EntrySummary:
    """Summarise an entry on one line, from its message if given, else from its own fields."""
    data = entry.data or {}
    return EntrySummary(
        seq=entry.seq,
        kind=entry.kind,
        time_ms=entry.time_ms,
        size_bytes=entry.size_bytes if entry.original is None else entry.original.size_bytes,
        summary=shorten_line(summarise_message(message) if message else _preview_entry(entry)),
        is_stored=entry.ref is not None,
        tokens=entry.tokens,
        cost_usd=entry.cost_usd,
        by=str(data.get("by", "")),
    )


def _preview_entry(entry: Entry) -> str:
    if entry.kind not in MESSAGE_KINDS:
        return summarise_note(entry)
    if entry.body is not None:
        return summarise_message(parse_message(entry.kind, entry.body))
    return f"{entry.ref.preview}…" if entry.ref is not None and entry.ref.preview else ""


async def load_entry_body(
    client: Client,
    packs: PackStore,
    thread_id: str,
    seq: int,
    *,
    start: int = 0,
    length: int = SLICE_CHARS_MAX,
    form: Form = "text",
) -> BodySlice:
    """Return a part of an entry's body: its text, or everything stored, as JSON."""
    entry, text, calls = await _load_body(client, packs, thread_id, seq, form)
    start = max(0, min(start, len(text)))
    end = min(len(text), start + max(1, min(length, SLICE_CHARS_MAX)))
    return BodySlice(
        seq=seq,
        kind=entry.kind,
        form=form,
        text=text[start:end],
        start=start,
        total_chars=len(text),
        next_start=end if end < len(text) else None,
        calls=calls,
    )


async def open_entry_body(
    client: Client, packs: PackStore, thread_id: str, seq: int, form: Form = "text"
) -> AsyncIterator[bytes]:
    """Return the whole body of an entry in parts. A missing entry raises before the first part."""
    _, text, _ = await _load_body(client, packs, thread_id, seq, form)

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(text), _PART_CHARS):
            yield text[start : start + _PART_CHARS].encode(errors="replace")

    return parts()


async def _load_body(
    client: Client, packs: PackStore, thread_id: str, seq: int, form: Form
) -> tuple[Entry, str, tuple[str, ...]]:
    found = await look_up(client, packs, thread_id)
    entries = await found.journal.read(check_head(found, seq), seq, seq)
    if not entries:
        raise EntryNotFound(f"the journal of thread {thread_id!r} has no entry {seq}")
    return await _render_body(found.journal, entries[0], form)


async def _render_body(
    journal: JournalReader, entry: Entry, form: Form
) -> tuple[Entry, str, tuple[str, ...]]:
    if entry.kind not in MESSAGE_KINDS:
        text = summarise_note(entry) if form == "text" else json.dumps(entry.data, indent=2)
        return entry, text, ()
    [body] = await journal.bodies([entry], whole=True)
    message = parse_message(entry.kind, body)
    calls = tuple(call.tool for call in message.tool_calls)
    if form == "text":
        return entry, message.text, calls
    return entry, json.dumps(body, indent=2, ensure_ascii=False), calls
