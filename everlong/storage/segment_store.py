"""The segments of one thread in a store: reading them checked, merging and folding them.

A journal's newest segment leads to all others by its `before`: first folds, the highest level first,
then segments with entries. A place in it may use only the beginning of what a segment holds.

What may be read is decided here. A segment in the thread's own place was written by this thread, so the
threads that it shares count. Another thread's segment cannot add to them.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from everlong import limits
from everlong.errors import BlobCorrupt, RefRefused
from everlong.models import Entry, Kind, Ref, Segment, SegmentRef, Totals, add_up, seq_after
from everlong.storage.objects import object_key
from everlong.storage.pack_store import PackStore, gathered
from everlong.storage.segments import from_plaintext, overlapping, placed, to_plaintext


class Piece(NamedTuple):
    """A segment that was read, and the threads whose packs may be read where it leads."""

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


class Merged(NamedTuple):
    """What the next segment leads to and begins with."""

    before: list[SegmentRef]
    entries: list[Entry]
    totals: Totals | None
    """Of all entries before these."""


class SegmentStore:
    """Reads and writes segments. Its only state is which threads those that it read have shared."""

    def __init__(self, packs: PackStore, thread: str) -> None:
        self._packs = packs
        self._thread = thread
        self.own = frozenset({thread})
        self.readable = self.own

    async def head(self, head: SegmentRef) -> Piece:
        """Read the newest segment, which has to be the thread's own."""
        if head.folded:
            raise RefRefused(
                f"{head.ref.kind} {head.ref.digest} is not the newest of a journal: it holds no "
                "entries. Find out who gave it to this thread."
            )
        return await self.open(head, self.own)

    async def open(self, place: SegmentRef, readable: frozenset[str]) -> Piece:
        """Read a segment that another one leads to."""
        written = await self._packs.parse_body(checked(place.ref, readable), from_plaintext)
        segment = placed(written, place)
        named = frozenset({place.ref.thread, *segment.shares})
        if place.ref.thread == self._thread:
            readable = named
            self.readable |= named
        else:
            readable &= named
        check_refs(segment.entries, readable)
        return Piece(segment, readable)

    async def write(self, segment: Segment) -> tuple[SegmentRef, int]:
        """Store a segment; return its place, once it is durable, and the bytes written."""
        plaintext, written = to_plaintext(segment)
        ref, written_bytes = await self._packs.write_body(
            self._thread, Kind.SEGMENT, plaintext, parsed=(from_plaintext, written)
        )
        if segment.entries:
            first_seq, end_seq = segment.entries[0].seq, segment.entries[-1].seq + 1
        else:
            first_seq, end_seq = segment.before[0].first_seq, seq_after(segment.before[-1])
        place = SegmentRef(
            ref=ref, first_seq=first_seq, count=end_seq - first_seq, folded=not segment.entries
        )
        return place, written_bytes

    async def entries(self, newest: Piece, first_seq: int, last_seq: int) -> list[Entry]:
        """Return the entries of a range, reading only segments that hold some of it."""
        places = _inside(newest, first_seq, last_seq)
        for _ in range(limits.FOLD_LEVELS_MAX + 1):
            folds = [each for each in places if each[0].folded]
            if not folds:
                break
            opened = iter(await gathered([partial(self.open, *each) for each in folds]))
            places = [
                below
                for each in places
                for below in (
                    _inside(next(opened), first_seq, last_seq) if each[0].folded else [each]
                )
            ]
        else:
            raise _too_deep(places[0][0])
        pieces = await gathered([partial(self.open, *each) for each in places])
        return [
            entry
            for piece in (*pieces, newest)
            for entry in piece.segment.entries
            if first_seq <= entry.seq <= last_seq
        ]

    async def find(
        self, head: SegmentRef, newest: Piece, seq: int
    ) -> tuple[SegmentRef, SegmentRef, Piece]:
        """Return the segment that holds an entry, its place, and the newest segment's place on the way.

        It costs one read for each fold on the way, however many entries there are.
        """
        if seq >= head.first_seq:
            return head, head, newest
        [top] = overlapping(newest.segment.before, seq, seq)
        place, piece = top, await self.open(top, newest.readable)
        for _ in range(limits.FOLD_LEVELS_MAX):
            if not place.folded:
                break
            [place] = overlapping(piece.segment.before, seq, seq)
            piece = await self.open(place, piece.readable)
        if place.folded:
            raise _too_deep(place)
        return top, place, piece

    async def upto(self, head: SegmentRef, newest: Piece, seq: int) -> Merged:
        """Return the places of whole segments before a seq, and the entries after them up to it."""
        before = list(newest.segment.before)
        top, place, piece = await self.find(head, newest, seq)
        if top is not head:
            before = before[: before.index(top)]
            if top.first_seq < place.first_seq:
                before.append(dataclasses.replace(top, count=place.first_seq - top.first_seq))
        entries = [entry for entry in piece.segment.entries if entry.seq <= seq]
        return Merged(before, entries, piece.totals_before())

    async def merge(
        self,
        before: Sequence[SegmentRef],
        count: int,
        readable: frozenset[str],
        totals: Totals | None,
        newest: Piece | None = None,
    ) -> Merged:
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
            return Merged(kept, [], totals)
        unread = taken if newest is None else taken[:-1]
        pieces = await gathered([partial(self.open, place, readable) for place in unread])
        if newest is not None:
            pieces.append(newest)
        entries = [entry for piece in pieces for entry in piece.segment.entries]
        return Merged(kept, entries, pieces[0].totals_before())

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
        # There is at most one fold of each level. A full one moves up, and what it had no room for
        # waits for the next append: so none writes more than one fold.
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

    async def _level(self, fold: Piece) -> int:
        """Return how many folds there are on the way to entries, with this one."""
        for level in range(1, limits.FOLD_LEVELS_MAX + 1):
            place = fold.segment.before[-1]
            if not place.folded:
                return level
            fold = await self.open(place, fold.readable)
        raise _too_deep(place)


def checked(ref: Ref, readable: frozenset[str]) -> Ref:
    """Refuse what is another thread's: whoever starts a thread can give it any head."""
    if ref.thread not in readable:
        raise RefRefused(
            f"{ref.kind} {ref.digest} belongs to another thread and is not read. Find out who gave it "
            "to this one."
        )
    return ref


def check_refs(entries: Iterable[Entry], readable: frozenset[str]) -> None:
    """Refuse entries whose bodies are another thread's."""
    for entry in entries:
        for ref in (entry.ref, entry.original):
            if ref is not None:
                checked(ref, readable)


def _inside(piece: Piece, first_seq: int, last_seq: int) -> list[tuple[SegmentRef, frozenset[str]]]:
    """Return the places of a piece that hold some of a range, and what may be read through them."""
    places = overlapping(piece.segment.before, first_seq, last_seq)
    return [(place, piece.readable) for place in places]


def _should_merge(older: int, newer: int) -> bool:
    return older < 2 * newer and older + newer <= limits.SEGMENT_ENTRIES_MAX


def _too_deep(place: SegmentRef) -> BlobCorrupt:
    return BlobCorrupt(
        f"segment {object_key(place.ref)!r} is folded more than {limits.FOLD_LEVELS_MAX} times, as no "
        "Everlong does: it is forged. Find out who wrote it."
    )
