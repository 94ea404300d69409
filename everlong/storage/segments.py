"""The segment format: a piece of a journal as the plaintext of a pack (docs/reference/wire-format.md).

Long bodies come first, one after another, then a newline, then the segment's JSON, in which an entry
names the part of the plaintext that is its body. So a body has a fixed place in its pack, and a merge
writes only that place again.

A journal's newest segment leads to all others by its `before`: first folds, the highest level first,
then segments with entries. A place in `before` may use only the first entries of its segment. This
module also decides which threads' packs may be read. A segment in the thread's own place was written
by this thread, so the threads that it shares count. Another thread's segment cannot add to them.
"""

import copy
import dataclasses
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import to_json

from everlong import limits
from everlong.errors import BlobCorrupt, BlobMissing, RefRefused, UnknownVersion
from everlong.models import (
    CompactionNote,
    Entry,
    Kind,
    Message,
    Ref,
    Segment,
    SegmentRef,
    Slice,
    Totals,
    add_up,
    parse_message,
    seq_after,
)
from everlong.models.journal import Body
from everlong.storage.pack_store import PackStore, gather_bounded, object_key

T = TypeVar("T")

SEGMENT_VERSION: Final = 2
_VERSION_END: Final = b'"version":%d}' % SEGMENT_VERSION
MESSAGE_KINDS: Final = frozenset({Kind.MESSAGE, Kind.REPLY, Kind.TOOL_RESULT, Kind.FAILURE})


@dataclass(frozen=True, kw_only=True)
class _Versioned:
    version: int


_VERSIONED = TypeAdapter(_Versioned)
_SEGMENT = TypeAdapter(Segment)
_BODY = TypeAdapter(Body)
_COMPACTED = TypeAdapter(CompactionNote)


def serialize_segment(segment: Segment) -> tuple[bytes, Segment]:
    """Return a segment's plaintext, and the segment that `parse_segment` would return for it.

    The plaintext holds long bodies outside of the JSON. The writer need not parse it again.
    """
    bodies: list[bytes] = []
    start = 0
    entries: list[Entry] = []
    for entry in segment.entries:
        if entry.body is None:
            entries.append(entry)
            continue
        body = to_json(entry.body)
        if len(body) <= limits.ENTRY_BODY_BYTES_MAX:
            same = entry.size_bytes == len(body)
            entries.append(entry if same else dataclasses.replace(entry, size_bytes=len(body)))
            continue
        part = Slice(start=start, size_bytes=len(body))
        entries.append(
            dataclasses.replace(entry, body=None, ref=None, part=part, size_bytes=len(body))
        )
        bodies.append(body)
        start += len(body)
    written = dataclasses.replace(segment, entries=tuple(entries))
    text = _SEGMENT.dump_json(written)
    return b"".join([*bodies, b"\n", text]) if bodies else text, written


def parse_segment(data: bytes) -> Segment:
    """Parse the plaintext of a segment."""
    # The JSON has no newline: pydantic writes none.
    return _parse_segment_json(data[data.rfind(b"\n") + 1 :])


def cut_to_place(segment: Segment, place: SegmentRef) -> Segment:
    """Return the part of a segment that a place uses: its first `count` entries, each with a ref."""
    if place.folded:
        segment = dataclasses.replace(
            segment, before=tuple(_cut_places(segment.before, seq_after(place)))
        )
        sound = not segment.entries and _are_consecutive(
            segment.before, place.first_seq, seq_after(place)
        )
    else:
        entries = tuple(_add_ref(entry, place.ref) for entry in segment.entries[: place.count])
        segment = dataclasses.replace(segment, entries=entries)
        seqs = [entry.seq for entry in entries]
        sound = seqs == list(range(place.first_seq, seq_after(place))) and _are_consecutive(
            segment.before, 1, place.first_seq
        )
    if not sound or place.count < 1:
        raise BlobCorrupt(
            f"segment {object_key(place.ref)!r} does not hold the entries {place.first_seq} to "
            f"{seq_after(place) - 1} that its ref names: the ref is damaged or forged. Find out "
            "which program gave it to this thread."
        )
    return segment


def extract_body(plaintext: bytes, entry: Entry) -> Body:
    """Return the body of an entry from the plaintext of its ref's pack."""
    part = entry.part
    if part is not None:
        if part.start + part.size_bytes > len(plaintext):
            raise BlobCorrupt(
                f"entry {entry.seq} claims a body at {part.start}, {part.size_bytes} "
                f"bytes long, in a pack of {len(plaintext)}: the entry is damaged or forged. Find "
                "its writer."
            )
        plaintext = plaintext[part.start : part.start + part.size_bytes]
    return parse_json(_BODY, plaintext)


def parse_compaction(entry: Entry) -> CompactionNote:
    """Parse the data of a compaction entry."""
    if entry.data is not None and "snapshot" not in entry.data:
        raise BlobMissing(
            f"the snapshot of entry {entry.seq} was gone before this thread was revived from its "
            "archive; look at a later entry."
        )
    try:
        return _COMPACTED.validate_python(entry.data)
    except ValidationError:
        raise UnknownVersion(
            f"entry {entry.seq}, a {entry.kind}, is intact but cannot be parsed. A newer Everlong wrote "
            "it: upgrade Everlong here."
        ) from None


def to_message(entry: Entry, body: Body) -> Message:
    """Return the message of an entry with this body."""
    try:
        return parse_message(entry.kind, body)
    except (KeyError, TypeError, ValueError):
        # Not chained: these errors quote the body.
        raise UnknownVersion(
            f"the body of entry {entry.seq}, a {entry.kind}, is intact but cannot be parsed. A newer "
            "Everlong wrote it: upgrade Everlong here."
        ) from None


def select_overlapping(
    places: Iterable[SegmentRef], first_seq: int, last_seq: int
) -> Iterable[SegmentRef]:
    """Return the places that hold entries of a range."""
    return (each for each in places if each.first_seq <= last_seq and seq_after(each) > first_seq)


def parse_json(adapter: TypeAdapter[T], data: bytes) -> T:
    """Parse a part of a journal from JSON."""
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        # Not chained, and without input: pydantic's message quotes the content.
        found = error.errors(include_input=False, include_url=False, include_context=False)
        places = ", ".join(str(each["loc"]) for each in found[:3])
        raise UnknownVersion(
            f"a part of a journal is intact but cannot be parsed, at {places}. A newer Everlong wrote "
            "it: upgrade Everlong here."
        ) from None


def _parse_segment_json(text: bytes) -> Segment:
    if len(text) > limits.SEGMENT_JSON_BYTES_MAX:
        raise BlobCorrupt(
            f"a segment has {len(text)} bytes of entries, and {limits.SEGMENT_JSON_BYTES_MAX} is the "
            "limit: it is damaged or forged. Find out which program gave it to this thread."
        )
    # Everlong writes the version as the last field, so most segments are parsed only once. The closing
    # brace is that of the outermost object, so the suffix cannot belong to an inner one.
    is_ours = text.endswith(_VERSION_END)
    version = SEGMENT_VERSION if is_ours else parse_json(_VERSIONED, text).version
    if version != SEGMENT_VERSION:
        raise UnknownVersion(
            f"segment version {version} is not one that this Everlong reads ({SEGMENT_VERSION}). "
            "Upgrade Everlong on this worker or client."
        )
    return parse_json(_SEGMENT, text)


def _add_ref(entry: Entry, ref: Ref) -> Entry:
    """Return an entry with the ref of the pack that holds its body."""
    if entry.part is None or entry.ref is not None:
        return entry
    # Not `dataclasses.replace`, which validates all fields again.
    alone = copy.copy(entry)
    object.__setattr__(alone, "ref", ref)
    return alone


def _cut_places(places: Sequence[SegmentRef], end_seq: int) -> Iterable[SegmentRef]:
    """Yield the places before a seq; the last place is cut there."""
    for place in places:
        if seq_after(place) <= end_seq:
            yield place
        elif place.first_seq < end_seq:
            yield dataclasses.replace(place, count=end_seq - place.first_seq)


def _are_consecutive(places: Sequence[SegmentRef], first_seq: int, end_seq: int) -> bool:
    """Return whether places hold the entries from one seq to before another, without gaps."""
    for place in places:
        if place.first_seq != first_seq or place.count < 1:
            return False
        first_seq = seq_after(place)
    return first_seq == end_seq


class LoadedSegment(NamedTuple):
    """A segment that was read, and the threads whose packs may be read through it."""

    segment: Segment
    readable: frozenset[str]

    def totals_before(self) -> Totals | None:
        """Return the totals of all entries before those of this segment; None if it has none."""
        return self.segment.totals if self.segment.before else Totals()

    def totals(self, last_seq: int | None = None) -> Totals | None:
        """Return the totals of all entries up to one of this segment, or to its last."""
        before = self.totals_before()
        if before is None:
            return None
        entries = self.segment.entries
        if last_seq is not None:
            entries = tuple(entry for entry in entries if entry.seq <= last_seq)
        return add_up(entries, before)


class Merge(NamedTuple):
    """The places before the next segment, and the older entries that it holds."""

    before: list[SegmentRef]
    entries: list[Entry]
    totals: Totals | None
    """Totals of all entries before these."""


class SegmentStore:
    """Reads and writes a thread's segments. Its only state is the set of threads that may be read."""

    def __init__(self, packs: PackStore, thread: str) -> None:
        self._packs = packs
        self._thread = thread
        self.own = frozenset({thread})
        self.readable = self.own

    async def read_head(self, head: SegmentRef) -> LoadedSegment:
        """Read the newest segment, which must be the thread's own."""
        if head.folded:
            raise RefRefused(
                f"{head.ref.kind} {head.ref.digest} is not the newest of a journal: it holds no "
                "entries. Find out which program gave it to this thread."
            )
        return await self.open(head, self.own)

    async def open(self, place: SegmentRef, readable: frozenset[str]) -> LoadedSegment:
        """Read a segment that another segment names."""
        written = await self._packs.parse_body(check_readable(place.ref, readable), parse_segment)
        segment = cut_to_place(written, place)
        named = frozenset({place.ref.thread, *segment.shares})
        if place.ref.thread == self._thread:
            readable = named
            self.readable |= named
        else:
            readable &= named
        check_refs(segment.entries, readable)
        return LoadedSegment(segment, readable)

    async def write(self, segment: Segment) -> tuple[SegmentRef, int]:
        """Store a segment; return its place, when it is durable, and the bytes written."""
        plaintext, written = serialize_segment(segment)
        ref, written_bytes = await self._packs.write_body(
            self._thread, Kind.SEGMENT, plaintext, parsed=(parse_segment, written)
        )
        if segment.entries:
            first_seq, end_seq = segment.entries[0].seq, segment.entries[-1].seq + 1
        else:
            first_seq, end_seq = segment.before[0].first_seq, seq_after(segment.before[-1])
        place = SegmentRef(
            ref=ref, first_seq=first_seq, count=end_seq - first_seq, folded=not segment.entries
        )
        return place, written_bytes

    async def read_entries(
        self, newest: LoadedSegment, first_seq: int, last_seq: int
    ) -> list[Entry]:
        """Return the entries of a range, and read only the segments that hold some of it."""
        places = _select_places(newest, first_seq, last_seq)
        for _ in range(limits.FOLD_LEVELS_MAX + 1):
            folds = [each for each in places if each[0].folded]
            if not folds:
                break
            opened = iter(await gather_bounded([partial(self.open, *each) for each in folds]))
            places = [
                below
                for each in places
                for below in (
                    _select_places(next(opened), first_seq, last_seq) if each[0].folded else [each]
                )
            ]
        else:
            raise _build_depth_error(places[0][0])
        pieces = await gather_bounded([partial(self.open, *each) for each in places])
        return [
            entry
            for piece in (*pieces, newest)
            for entry in piece.segment.entries
            if first_seq <= entry.seq <= last_seq
        ]

    async def walk(self, head: SegmentRef) -> AsyncIterator[tuple[SegmentRef, Segment]]:
        """Yield all segments of a journal with their places, in the order of their entries.

        A fold follows the segments that it names. At most `STORE_READS_MAX` segments of each level are
        in memory, however long the journal is.
        """
        newest = await self.read_head(head)
        async for each in self._walk_below(newest, 0):
            yield each
        yield head, newest.segment

    async def _walk_below(
        self, piece: LoadedSegment, depth: int
    ) -> AsyncIterator[tuple[SegmentRef, Segment]]:
        before = piece.segment.before
        for start in range(0, len(before), limits.STORE_READS_MAX):
            places = before[start : start + limits.STORE_READS_MAX]
            if depth > limits.FOLD_LEVELS_MAX:
                raise _build_depth_error(places[0])
            opened = await gather_bounded(
                [partial(self.open, place, piece.readable) for place in places]
            )
            for place, below in zip(places, opened, strict=True):
                if place.folded:
                    async for each in self._walk_below(below, depth + 1):
                        yield each
                yield place, below.segment

    async def find(
        self, head: SegmentRef, newest: LoadedSegment, seq: int
    ) -> tuple[SegmentRef, SegmentRef, LoadedSegment]:
        """Return the segment that holds an entry, its place, and the newest segment's place on the way.

        It takes one read for each fold on the way, however many entries there are.
        """
        if seq >= head.first_seq:
            return head, head, newest
        [top] = select_overlapping(newest.segment.before, seq, seq)
        place, piece = top, await self.open(top, newest.readable)
        for _ in range(limits.FOLD_LEVELS_MAX):
            if not place.folded:
                break
            [place] = select_overlapping(piece.segment.before, seq, seq)
            piece = await self.open(place, piece.readable)
        if place.folded:
            raise _build_depth_error(place)
        return top, place, piece

    async def cut_after(self, head: SegmentRef, newest: LoadedSegment, seq: int) -> Merge:
        """Return the places of whole segments before a seq, and the entries after them up to it."""
        before = list(newest.segment.before)
        top, place, piece = await self.find(head, newest, seq)
        if top is not head:
            before = before[: before.index(top)]
            if top.first_seq < place.first_seq:
                before.append(dataclasses.replace(top, count=place.first_seq - top.first_seq))
        entries = [entry for entry in piece.segment.entries if entry.seq <= seq]
        return Merge(before, entries, piece.totals_before())

    async def merge(
        self,
        before: Sequence[SegmentRef],
        count: int,
        readable: frozenset[str],
        totals: Totals | None,
        newest: LoadedSegment | None = None,
    ) -> Merge:
        """Return the places that stay, and the entries of those that are written again.

        They are written with `count` new entries, newest first, while the next segment has fewer than
        twice the entries gathered so far.

        Args:
            before: Places of older segments, oldest first.
            count: Number of new entries.
            readable: Threads whose packs may be read.
            totals: Totals of the entries of `before`.
            newest: The last of `before`, if it has been read already.

        """
        kept = list(before)
        taken: list[SegmentRef] = []
        while kept and not kept[-1].folded and _should_merge(kept[-1].count, count):
            count += kept[-1].count
            taken.insert(0, kept.pop())
        if not taken:
            return Merge(kept, [], totals)
        unread = taken if newest is None else taken[:-1]
        pieces = await gather_bounded([partial(self.open, place, readable) for place in unread])
        if newest is not None:
            pieces.append(newest)
        entries = [entry for piece in pieces for entry in piece.segment.entries]
        return Merge(kept, entries, pieces[0].totals_before())

    async def fold(
        self,
        before: list[SegmentRef],
        next_seq: int,
        readable: frozenset[str],
        shares: tuple[str, ...],
    ) -> tuple[list[SegmentRef], int]:
        """Fold the oldest segments, if enough are final; return the places and the bytes written."""
        start = sum(place.folded for place in before)
        stop = start + limits.FOLD_SEGMENTS
        # A segment is merged only together with all after it: these are too many by now.
        if (
            len(before) < stop
            or next_seq - before[stop - 1].first_seq <= limits.SEGMENT_ENTRIES_MAX
        ):
            return before, 0
        places = before[start:stop]
        # There is at most one fold of each level. A full fold moves up a level, and the places that did
        # not fit wait for the next append. So each append writes at most one fold.
        for level in range(1, limits.FOLD_LEVELS_MAX + 1):
            above = await self.open(before[start - 1], readable) if start else None
            if above is None or await self._level(above) > level:
                break
            start -= 1
            if len(above.segment.before) + len(places) <= limits.FOLD_PLACES_MAX:
                places = [*above.segment.before, *places]
                break
            places, stop = [before[start]], start + 1
        segment = Segment(before=tuple(places), entries=(), shares=shares)
        place, written_bytes = await self.write(segment)
        return [*before[:start], place, *before[stop:]], written_bytes

    async def _level(self, fold: LoadedSegment) -> int:
        """Return the number of folds on the way to entries, including this one."""
        for level in range(1, limits.FOLD_LEVELS_MAX + 1):
            place = fold.segment.before[-1]
            if not place.folded:
                return level
            fold = await self.open(place, fold.readable)
        raise _build_depth_error(place)


def check_readable(ref: Ref, readable: frozenset[str]) -> Ref:
    """Refuse a ref to an unrelated thread: a client can start a thread with any head."""
    if ref.thread not in readable:
        raise RefRefused(
            f"{ref.kind} {ref.digest} belongs to another thread and is not read. Find out which program "
            "gave it to this one."
        )
    return ref


def check_refs(entries: Iterable[Entry], readable: frozenset[str]) -> None:
    """Refuse entries whose bodies belong to an unrelated thread."""
    for entry in entries:
        for ref in (entry.ref, entry.original):
            if ref is not None:
                check_readable(ref, readable)


def _select_places(
    piece: LoadedSegment, first_seq: int, last_seq: int
) -> list[tuple[SegmentRef, frozenset[str]]]:
    """Return the places that hold some of a range, and the threads that may be read through them."""
    places = select_overlapping(piece.segment.before, first_seq, last_seq)
    return [(place, piece.readable) for place in places]


def _should_merge(older: int, newer: int) -> bool:
    return older < 2 * newer and older + newer <= limits.SEGMENT_ENTRIES_MAX


def _build_depth_error(place: SegmentRef) -> BlobCorrupt:
    return BlobCorrupt(
        f"segment {object_key(place.ref)!r} is folded more than {limits.FOLD_LEVELS_MAX} times, as no "
        "Everlong does: it is forged. Find its writer."
    )
