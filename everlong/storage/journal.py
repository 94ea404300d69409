"""A thread's journal: append-only entries in immutable segments.

An append is one PUT, whatever it holds. It merges the entries of older segments into the new one,
newest first, while the next segment has fewer than twice the entries gathered so far, up to 32 (a
binary counter). Segments that are too large to be merged again are folded, eight at a time: a fold
names them and takes their place, with one more PUT. A fold grows to 32 places, and then becomes a
place of the fold above. So the size of an append does not depend on the number of entries, and any
entry can be read with a few GETs.

A fork's journal begins with another thread's entries. It shares that thread's packs, and reads no
others.
"""

import dataclasses
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from pydantic_core import to_json

from everlong import limits
from everlong.errors import ThreadError
from everlong.models import (
    Entry,
    Kind,
    Message,
    Ref,
    Segment,
    SegmentRef,
    Totals,
    add_up,
    build_body,
    seq_after,
)
from everlong.models.journal import Body
from everlong.storage.pack_store import PackStore, gather_bounded, object_key
from everlong.storage.segments import (
    MESSAGE_KINDS,
    SegmentStore,
    check_readable,
    check_refs,
    extract_body,
    parse_compaction,
    to_message,
)

# Entries that a scan of a journal holds in memory: those of the segments that are read at once.
_SCAN_ENTRIES: Final = limits.SEGMENT_ENTRIES_MAX * limits.STORE_READS_MAX


class JournalReader(Protocol):
    """Reads of a journal, from its segments or from an archive."""

    async def read(
        self, head: SegmentRef | None, first_seq: int = 1, last_seq: int | None = None
    ) -> list[Entry]:
        """Return the entries of a range, or all, in order."""
        ...

    async def entry(self, head: SegmentRef, seq: int) -> Entry:
        """Return one entry."""
        ...

    async def last(
        self,
        head: SegmentRef | None,
        kind: Kind | Collection[Kind],
        before_seq: int | None = None,
        *,
        first_seq: int = 1,
    ) -> Entry | None:
        """Return the newest entry of a kind, or of one of several, up to a seq."""
        ...

    async def totals(self, head: SegmentRef, seq: int) -> Totals:
        """Return the totals of all entries up to one."""
        ...

    async def messages(self, entries: Sequence[Entry], *, whole: bool = False) -> list[Message]:
        """Return the messages of entries, in order."""
        ...

    async def bodies(self, entries: Sequence[Entry], *, whole: bool = False) -> list[Body]:
        """Return the stored bodies of entries, in order."""
        ...

    async def snapshot(self, head: SegmentRef, entry: Entry) -> bytes:
        """Return the snapshot that a compaction made."""
        ...


class Journal:
    """The journal of one thread. A head identifies all of its entries."""

    def __init__(self, packs: PackStore, thread: str) -> None:
        self._packs = packs
        self._thread = thread
        self._segments = SegmentStore(packs, thread)

    async def append(
        self, head: SegmentRef | None, entries: Sequence[Entry]
    ) -> tuple[SegmentRef, int]:
        """Write entries after those of `head`; return the new head and the bytes written."""
        if head is None:
            _check_sequence(entries, 1)
            check_refs(entries, self._segments.own)
            return await self._segments.write(Segment(before=(), entries=tuple(entries)))
        piece = await self._segments.read_head(head)
        newest, readable = piece
        _check_sequence(entries, seq_after(head))
        check_refs(entries, readable)
        merged = await self._segments.merge(
            [*newest.before, head], len(entries), readable, piece.totals(), piece
        )
        before, fold_bytes = await self._segments.fold(
            merged.before, entries[-1].seq + 1, readable, newest.shares
        )
        head, segment_bytes = await self._segments.write(
            Segment(
                before=tuple(before),
                entries=(*merged.entries, *entries),
                shares=newest.shares,
                totals=merged.totals if before else None,
            )
        )
        return head, fold_bytes + segment_bytes

    async def fork(self, head: SegmentRef, seq: int, entry: Entry) -> tuple[SegmentRef, int]:
        """Begin this journal as another thread's up to `seq`, and `entry` after that.

        The caller must have checked that the other thread may be read. Long bodies are not copied.
        """
        if not 1 <= seq < seq_after(head):
            raise ValueError(f"there is no entry {seq}, only 1 to {seq_after(head) - 1}")
        _check_sequence([entry], seq + 1)
        other = SegmentStore(self._packs, head.ref.thread)
        newest = await other.read_head(head)
        shares = _collect_shares([head.ref.thread, *newest.segment.shares], self._thread)
        readable = self._segments.own.union(shares)
        check_refs([entry], readable)
        before, entries, totals = await other.cut_after(head, newest, seq)
        merged = await self._segments.merge(before, len(entries) + 1, readable, totals)
        return await self._segments.write(
            Segment(
                before=tuple(merged.before),
                entries=(*merged.entries, *entries, entry),
                shares=shares,
                totals=merged.totals if merged.before else None,
            )
        )

    async def read(
        self, head: SegmentRef | None, first_seq: int = 1, last_seq: int | None = None
    ) -> list[Entry]:
        """Return the entries of a range, or all up to `head`, in order."""
        if head is None:
            return []
        newest = await self._segments.read_head(head)
        end_seq = seq_after(head) if last_seq is None else last_seq + 1
        return await self._segments.read_entries(newest, first_seq, end_seq - 1)

    def segments(self, head: SegmentRef) -> AsyncIterator[tuple[SegmentRef, Segment]]:
        """Yield the segments that hold the entries up to `head`, oldest first, with their places."""
        return self._segments.walk(head)

    async def newest(self, head: SegmentRef) -> Entry:
        """Return the last entry, from one read."""
        return (await self._segments.read_head(head)).segment.entries[-1]

    async def entry(self, head: SegmentRef, seq: int) -> Entry:
        """Return one entry."""
        found = await self.read(head, seq, seq)
        if not found:
            raise ValueError(f"there is no entry {seq}, only 1 to {seq_after(head) - 1}")
        return found[0]

    async def last(
        self,
        head: SegmentRef | None,
        kind: Kind | Collection[Kind],
        before_seq: int | None = None,
        *,
        first_seq: int = 1,
    ) -> Entry | None:
        """Return the newest entry of a kind, or of one of several, at `before_seq` or before it.

        It searches the newest segment first, which needs no further read, and then backwards in steps
        that double, up to the number of segments that are read at once.
        """
        if head is None:
            return None
        kinds = {kind} if isinstance(kind, Kind) else kind
        newest = await self._segments.read_head(head)
        last_seq = seq_after(head) - 1
        if before_seq is not None:
            last_seq = min(before_seq, last_seq)
        step = limits.SEGMENT_ENTRIES_MAX
        while last_seq >= first_seq:
            start_seq = head.first_seq if last_seq >= head.first_seq else last_seq - step + 1
            from_seq = max(first_seq, start_seq)
            for entry in reversed(await self._segments.read_entries(newest, from_seq, last_seq)):
                if entry.kind in kinds:
                    return entry
            if last_seq < head.first_seq:
                step = min(2 * step, _SCAN_ENTRIES)
            last_seq = from_seq - 1
        return None

    async def totals(self, head: SegmentRef, seq: int) -> Totals:
        """Return the totals of all entries up to one.

        A segment holds the totals of the entries before it, so this reads only the path to one segment.
        If an older Everlong appended without totals, all entries are read, a bounded number at a time.
        """
        newest = await self._segments.read_head(head)
        _, _, piece = await self._segments.find(head, newest, seq)
        found = piece.totals(seq)
        if found is not None:
            return found
        found = Totals()
        for first_seq in range(1, seq + 1, _SCAN_ENTRIES):
            last_seq = min(seq, first_seq + _SCAN_ENTRIES - 1)
            found = add_up(await self._segments.read_entries(newest, first_seq, last_seq), found)
        return found

    async def write_body_entry(
        self,
        kind: Kind,
        message: Message,
        time_ms: int,
        *,
        seq: int = 1,
        preview: str | None = None,
        inline_bytes_max: int = limits.ENTRY_BODY_BYTES_MAX,
        excerpt: Ref | None = None,
    ) -> tuple[Entry, int]:
        """Return an entry for a message, and the bytes written if its body needs a pack of its own.

        `excerpt` is a body that holds the beginning and the end of this one.
        """
        body = build_body(message)
        data = to_json(body)
        entry = Entry(seq=seq, kind=kind, time_ms=time_ms, size_bytes=len(data), body=body)
        if len(data) <= inline_bytes_max:
            return entry, 0
        ref, written_bytes = await self._packs.write_body(
            self._thread,
            kind,
            data,
            preview=message.text if preview is None else preview,
            excerpt=excerpt,
        )
        return dataclasses.replace(entry, body=None, ref=ref), written_bytes

    async def messages(self, entries: Sequence[Entry], *, whole: bool = False) -> list[Message]:
        """Return the messages of entries, in order; long bodies are read from the store.

        A message that is too long for a model is returned shortened, unless `whole` is set.
        """
        for entry in entries:
            if entry.kind not in MESSAGE_KINDS:
                raise ValueError(f"entry {entry.seq}, a {entry.kind}, is no message")
        bodies = await self.bodies(entries, whole=whole)
        return [to_message(entry, body) for entry, body in zip(entries, bodies, strict=True)]

    async def bodies(self, entries: Sequence[Entry], *, whole: bool = False) -> list[Body]:
        """Return the stored bodies of entries, in order. Each pack is read once."""
        check_refs(entries, self._segments.readable)
        found: dict[int, Body] = {}
        packs: dict[str, tuple[Ref, list[int]]] = {}
        if whole:
            entries = [_point_to_original(entry) for entry in entries]
        for index, entry in enumerate(entries):
            if entry.body is not None:
                found[index] = entry.body
            elif entry.ref is not None:
                packs.setdefault(object_key(entry.ref), (entry.ref, []))[1].append(index)
            else:
                raise ValueError(f"entry {entry.seq}, a {entry.kind}, has no body")

        async def read(ref: Ref, indexes: list[int]) -> None:
            plaintext = await self._packs.read_body(ref)
            found.update({index: extract_body(plaintext, entries[index]) for index in indexes})

        await gather_bounded([partial(read, *each) for each in packs.values()])
        return [found[index] for index in range(len(entries))]

    async def snapshot(self, head: SegmentRef, entry: Entry) -> bytes:
        """Return the snapshot of a compaction. A fork's first snapshots belong to the other thread."""
        ref = parse_compaction(entry).snapshot.ref
        return await self._packs.read_body(await self.check_ref(head, ref))

    async def check_ref(self, head: SegmentRef | None, ref: Ref) -> Ref:
        """Return a ref, such as a snapshot's, if the journal of `head` may read it; refuse others."""
        if head is not None and ref.thread not in self._segments.readable:
            await self._segments.read_head(head)
        return check_readable(ref, self._segments.readable)


def _check_sequence(entries: Sequence[Entry], first_seq: int) -> None:
    if not entries:
        raise ValueError("an append needs at least one entry")
    for seq, entry in enumerate(entries, first_seq):
        if entry.seq != seq:
            raise ValueError(f"entry {entry.seq} does not follow entry {seq - 1}")
        if entry.part is not None and entry.ref is None:
            raise ValueError(f"entry {seq} names a part of a pack, and no pack")


def _point_to_original(entry: Entry) -> Entry:
    """Return an entry that refers to its unshortened message."""
    if entry.original is None:
        return entry
    return dataclasses.replace(entry, body=None, ref=entry.original, part=None, original=None)


def _collect_shares(threads: Iterable[str], own: str) -> tuple[str, ...]:
    shares = tuple(dict.fromkeys(each for each in threads if each != own))
    if len(shares) > limits.SHARES_MAX:
        raise ThreadError(
            f"this would be a fork of a fork, {len(shares)} deep, and {limits.SHARES_MAX} is the most. "
            "Fork an earlier thread, or start a new one and send it the facts that it needs."
        )
    return shares
