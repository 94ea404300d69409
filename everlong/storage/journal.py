"""A thread's journal: append-only entries in immutable segments.

An append is one PUT, and one more for each long message among its entries.
Appending to n entries leaves O(log n) segments: while the newest older segment is less than twice
as long as what is being written, its entries are written again into the new one (a binary counter).
So an append rewrites O(log n) small entries in the mean, never bodies, and a reader needs O(log n)
GETs. Segments stop growing at 8,192 entries; beyond that there is one more GET for each of these.
"""

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from everlong import limits
from everlong.errors import RefRefused, UnknownVersion
from everlong.models import Entry, Kind, Message, Ref, Segment, SegmentRef
from everlong.storage.packstore import PackStore, gathered

T = TypeVar("T")

_SEGMENT = TypeAdapter(Segment)
_MESSAGE = TypeAdapter(Message)


class Journal:
    """The journal of one thread. It holds no state: a head names all there is."""

    def __init__(self, packs: PackStore, thread: str) -> None:
        self._packs = packs
        self._thread = thread

    async def append(
        self, head: SegmentRef | None, entries: Sequence[Entry]
    ) -> tuple[SegmentRef, int]:
        """Write entries after those of `head`; return the new head and the bytes written."""
        if not entries:
            raise ValueError("an append needs at least one entry")
        merged: list[Entry] = []
        body_bytes = 0
        for entry in entries:
            short, written_bytes = await self._short(entry)
            merged.append(short)
            body_bytes += written_bytes
        before: list[SegmentRef] = []
        if head is not None:
            newest = await self._segment(head)
            before = [*newest.before, head]
            while before and _should_merge(before[-1].count, len(merged)):
                place = before.pop()
                older = newest if place == head else await self._segment(place)
                merged = [*older.entries, *merged]
        segment = Segment(before=tuple(before), entries=tuple(merged))
        ref, segment_bytes = await self._packs.write_body(
            self._thread, Kind.SEGMENT, _SEGMENT.dump_json(segment)
        )
        head = SegmentRef(ref=ref, first_seq=merged[0].seq, count=len(merged))
        return head, body_bytes + segment_bytes

    async def read(self, head: SegmentRef | None) -> list[Entry]:
        """Return all entries up to `head`, in order."""
        if head is None:
            return []
        newest = await self._segment(head)
        older = await gathered([partial(self._segment, place) for place in newest.before])
        return [entry for segment in (*older, newest) for entry in segment.entries]

    async def newest(self, head: SegmentRef) -> Entry:
        """Return the last entry, from one read."""
        return (await self._segment(head)).entries[-1]

    async def message_entry(
        self, seq: int, kind: Kind, message: Message, time_ms: int
    ) -> tuple[Entry, int]:
        """Return an entry for a message, and the bytes written for it if it needed an object."""
        body = _MESSAGE.dump_json(message)
        if len(body) <= limits.ENTRY_BODY_BYTES_MAX:
            entry = Entry(
                seq=seq, kind=kind, time_ms=time_ms, size_bytes=len(body), message=message
            )
            return entry, 0
        ref, written_bytes = await self._packs.write_body(
            self._thread, kind, body, preview=message.text
        )
        return (
            Entry(seq=seq, kind=kind, time_ms=time_ms, size_bytes=len(body), ref=ref),
            written_bytes,
        )

    async def messages(self, entries: Sequence[Entry]) -> list[Message]:
        """Return the messages of entries, in order; long ones are read from the store."""
        return await gathered([partial(self._message, entry) for entry in entries])

    async def _short(self, entry: Entry) -> tuple[Entry, int]:
        """Move a long message out of its entry: entries are written again by later appends."""
        if entry.message is None:
            return entry, 0
        return await self.message_entry(entry.seq, entry.kind, entry.message, entry.time_ms)

    async def _message(self, entry: Entry) -> Message:
        if entry.message is not None:
            return entry.message
        if entry.ref is None:
            raise ValueError(f"entry {entry.seq} has neither a message nor a ref")
        return _parse(_MESSAGE, await self._packs.read_body(self._own(entry.ref)))

    async def _segment(self, place: SegmentRef) -> Segment:
        return _parse(_SEGMENT, await self._packs.read_body(self._own(place.ref)))

    def _own(self, ref: Ref) -> Ref:
        """Refuse what is another thread's: whoever starts a thread can give it any head."""
        if ref.thread != self._thread:
            raise RefRefused(
                f"{ref.kind} {ref.digest} belongs to another thread and is not read. Find out who "
                "gave it to this one."
            )
        return ref


def _should_merge(older: int, newer: int) -> bool:
    return older < 2 * newer and older + newer <= limits.SEGMENT_ENTRIES_MAX


def _parse(adapter: TypeAdapter[T], data: bytes) -> T:
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        # Not chained, and without input: pydantic's own message quotes what it read.
        places = ", ".join(str(each["loc"]) for each in error.errors(include_input=False)[:3])
        raise UnknownVersion(
            f"a part of a journal is intact but not understood, at {places}. A newer Everlong wrote "
            "it: upgrade Everlong here."
        ) from None
