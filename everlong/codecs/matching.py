"""What of a payload is new, and how it is laid out in a pack. Pure functions.

A new payload is compared byte by byte with one that is remembered, from both ends, at the speed of
memcmp. Only what lies between is cut into chunks by content and looked up by a keyed digest; a chunk
that the thread has is followed for as long as the bytes agree. What remains is new.

Merging is an LSM tree's idea, done while encoding: when the newest packs that a payload points to
are small beside what is written anyway, their bytes, which are at hand, are written again into the
new pack. So a payload touches O(log n) packs, and each byte is written O(log n) times.
"""

import bisect
import dataclasses
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from pyfastcdc import FastCDC

from everlong import limits
from everlong.codecs import comparing
from everlong.codecs.comparing import common_end, common_start
from everlong.storage.packs import Contents, Extent

# Digests stay in this process, so a key that ends with it keeps them apart from all others. SHA-256
# takes half the time of BLAKE2b where the processor has instructions for it, as most servers' do.
_KEYED: Final = hashlib.sha256(os.urandom(64))
_CUTTER: Final = FastCDC(
    avg_size=limits.CHUNK_BYTES_MEAN,
    min_size=limits.CHUNK_BYTES_MEAN // 4,
    max_size=limits.CHUNK_BYTES_MEAN * 4,
)
# After a difference, a piece of the base from so far on is looked for in the payload, within a window.
_PROBES: Final = (64, 256, 1024, 4096, 16_384)
_PROBE_BYTES: Final = 48
_PROBE_WINDOW_BYTES: Final = 64 * limits.KIB
# What a run takes in memory, nearly.
_RUN_COST_BYTES: Final = 130


@dataclasses.dataclass(eq=False, weakref_slot=True, slots=True)
class Known:
    """A pack of this thread that is durable."""

    name: bytes
    number: int
    stream_bytes: int
    used_at: float
    stored_at: float
    """When it was last written or read: then the store had it."""
    chunks: list[tuple[int, int, bytes]] = dataclasses.field(default_factory=list)
    """Start, length and id of the chunks that are looked up in it."""


def is_fresh(known: Known, now: float) -> bool:
    """Tell whether a pack may be pointed to again: not if a sweep may be about to delete it."""
    return (
        now - known.used_at <= limits.ENCODER_SECONDS_MAX
        and now - known.stored_at <= limits.ENCODER_PACK_SECONDS_MAX
    )


# Where a chunk lies, by its id: the pack, and the start in its stream.
LookUp: TypeAlias = Callable[[bytes], tuple[Known, int] | None]


class Run(NamedTuple):
    """A part of a payload, and where it lies; in no pack yet if it is new."""

    length: int
    pack: Known | None
    start: int


@dataclasses.dataclass(eq=False)
class Recent:
    """A payload as it was encoded last."""

    envelope: bytes = dataclasses.field(repr=False)
    data: bytes = dataclasses.field(repr=False)
    runs: list[Run]
    pack: Known
    packs: int
    used_at: float
    crcs: list[int]
    """See `running_crcs`; empty for a payload that was only read."""
    continued: bool = False
    """Whether it continues another: of a list that grows, more are to come."""
    ends: list[int] = dataclasses.field(init=False)

    @property
    def name(self) -> bytes:
        """The name of its pack."""
        return self.pack.name

    @property
    def used(self) -> tuple[Known, ...]:
        """The packs that it needs, its own included."""
        return tuple({self.pack, *(run.pack for run in self.runs if run.pack is not None)})

    @property
    def cost_bytes(self) -> int:
        """What this takes of the process's memory, nearly."""
        return len(self.data) + len(self.envelope) + _RUN_COST_BYTES * len(self.runs)

    def __post_init__(self) -> None:
        self.ends = list(itertools.accumulate(run.length for run in self.runs))

    def cut(self, start: int, length: int) -> Iterator[Run]:
        """Yield the runs of a part of this payload."""
        number = bisect.bisect_right(self.ends, start)
        while length > 0:
            run = self.runs[number]
            inside = start - (self.ends[number] - run.length)
            piece = min(length, run.length - inside)
            yield Run(piece, run.pack, run.start + inside)
            start += piece
            length -= piece
            number += 1

    def crcs_within(self, prefix: int) -> list[int]:
        """Return those checksums that hold for every payload that begins alike."""
        return self.crcs[: prefix // comparing.CRC_BYTES]

    def find(self, pack: Known, start: int) -> int | None:
        """Return the offset in this payload of a place in a pack."""
        for run, end in zip(self.runs, self.ends, strict=True):
            if run.pack is pack and run.start <= start < run.start + run.length:
                return end - run.length + (start - run.start)
        return None


class Stored(NamedTuple):
    """A payload that is durable."""

    name: bytes
    packs: int
    used: tuple[Known, ...]
    """The packs that it needs, its own included."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a payload is to be written, and what to remember once that is durable."""

    contents: Contents
    key_id: str
    data: bytes = dataclasses.field(repr=False)
    crcs: list[int]
    base: Recent | None
    runs: list[Run]
    """Those without a pack lie in the new one."""
    moved: list[tuple[Known, int, int, int]]
    """Pack, start and length of runs that are written again, and where they will lie."""
    chunks: list[tuple[int, int, bytes]]
    """Of the new pack's stream: start, length, id."""
    from_base: int
    """How many bytes it has in common with its base."""
    repeat_id: bytes = b""
    """By what it is known again; empty if it is too large for that."""
    same_as: Stored | None = None
    """A payload that is equal and durable: nothing needs to be written."""

    @property
    def packs(self) -> int:
        """How many packs a reader will need."""
        return 1 + len(self.contents.sources)

    @property
    def continues_base(self) -> bool:
        """Whether this payload takes its base's place: it has most of it."""
        return self.base is not None and 2 * self.from_base > len(self.base.data)


def closest(recents: list[Recent], data: bytes) -> tuple[Recent | None, int, int]:
    """Return the remembered payload that agrees most, and how far from the start and the end."""
    best: tuple[Recent | None, int, int] = (None, 0, 0)
    for recent in recents:
        prefix = common_start(data, recent.data, 0, 0, min(len(data), len(recent.data)))
        rest = min(len(data), len(recent.data)) - prefix
        suffix = common_end(data, recent.data, rest)
        found = (
            recent,
            prefix if prefix >= limits.MATCH_BYTES_MIN else 0,
            suffix if suffix >= limits.MATCH_BYTES_MIN else 0,
        )
        if best[0] is None or found[1] + found[2] > best[1] + best[2]:
            best = found
    return best


class Matching:
    """Goes through a payload from start to end, and takes from its base and from known packs.

    Afterwards `runs` is all of it, `ids` are the chunks of what is new (offset, length, id), and
    `from_base` is how much it has of its base.
    """

    def __init__(
        self, data: bytes, base: Recent | None, prefix: int, suffix: int, look_up: LookUp
    ) -> None:
        self.runs: list[Run] = []
        self.ids: list[tuple[int, int, bytes]] = []
        self.from_base = 0
        self._data = data
        self._base = base
        self._look_up = look_up
        self._place = self._base_place = 0
        self._end = len(data) - suffix
        self._take(0, prefix)
        while self._place < self._end:
            if not self._find_again():
                self._take_chunks()
        if base is not None:
            self._take(len(base.data) - suffix, suffix)

    def _take(self, base_start: int, length: int) -> None:
        """Take what comes next from the base."""
        if self._base is not None and length:
            self.runs += self._base.cut(base_start, length)
            self.from_base += length
            self._place += length
            self._base_place = base_start + length

    def _take_new(self, end: int) -> None:
        if end > self._place:
            self.runs.append(Run(end - self._place, None, self._place))
            self._place = end

    def _find_again(self) -> bool:
        """After a difference, look for where the base goes on: most changes are small."""
        if self._base is None:
            return False
        data, base = self._data, self._base.data
        for ahead in _PROBES:
            probe = base[self._base_place + ahead : self._base_place + ahead + _PROBE_BYTES]
            if len(probe) < _PROBE_BYTES:
                return False
            window_end = min(self._end, self._place + ahead + _PROBE_WINDOW_BYTES)
            start = data.find(probe, self._place, window_end)
            if start < 0:
                continue
            base_start = self._base_place + ahead
            most = min(self._end - start, len(base) - base_start)
            length = common_start(data, base, start, base_start, most)
            if length >= limits.MATCH_BYTES_MIN:
                back = common_end(
                    data[self._place : start], base[base_start - ahead : base_start], ahead
                )
                self._note_chunks(self._place, start - back)
                self._take_new(start - back)
                self._take(base_start - back, length + back)
                return True
        return False

    def _note_chunks(self, start: int, end: int) -> None:
        """Note the chunks of a stretch that is new."""
        for chunk in _CUTTER.cut_buf(memoryview(self._data)[start:end]):
            if chunk.length >= limits.MATCH_BYTES_MIN:
                self.ids.append((start + chunk.offset, chunk.length, _chunk_id(chunk.data)))

    def _take_chunks(self) -> None:
        """Take chunks until one is known, and that as far as it leads."""
        place = self._place
        for chunk in _CUTTER.cut_buf(memoryview(self._data)[place : self._end]):
            start, length = place + chunk.offset, chunk.length
            chunk_id = _chunk_id(chunk.data)
            known = self._look_up(chunk_id)
            if known is not None:
                self._take_new(start)
                self._take_known(length, *known)
                return
            if length >= limits.MATCH_BYTES_MIN:
                self.ids.append((start, length, chunk_id))
        self._take_new(self._end)

    def _take_known(self, length: int, pack: Known, pack_start: int) -> None:
        offset = self._base.find(pack, pack_start) if self._base else None
        if self._base is not None and offset is not None:
            most = min(self._end - self._place, len(self._base.data) - offset)
            common = common_start(self._data, self._base.data, self._place, offset, most)
            if common > length:
                self._take(offset, common)
                return
        self.runs.append(Run(length, pack, pack_start))
        self._place += length


def _merged_packs(runs: list[Run]) -> set[Known]:
    """Choose the packs whose part of this payload is written again."""
    held: dict[Known, int] = {}
    growing = 0
    for run in runs:
        if run.pack is None:
            growing += run.length
        else:
            held[run.pack] = held.get(run.pack, 0) + run.length
    if len(runs) > limits.EXTENTS_MAX:
        return set(held)
    merged = {pack for pack, used in held.items() if used < limits.SPARSE_RATIO * pack.stream_bytes}
    growing += sum(held[pack] for pack in merged)
    newest_first = sorted(held.keys() - merged, key=lambda pack: -pack.number)
    for index, pack in enumerate(newest_first):
        too_many = len(newest_first) - index > limits.PACKS_MAX - 1
        if held[pack] > limits.MERGE_RATIO * growing and not too_many:
            break
        merged.add(pack)
        growing += held[pack]
    return merged


def lay_out(
    envelope: bytes,
    key_id: str,
    data: bytes,
    crcs: list[int],
    base: Recent | None,
    matching: Matching,
    repeat_id: bytes,
) -> Plan:
    """Lay out the new pack: its stream, and the extents of the payload."""
    runs = matching.runs
    merged = _merged_packs(runs)
    view = memoryview(data)
    stream: list[memoryview] = []
    stream_bytes = offset = 0
    placed: list[Run] = []
    moved: list[tuple[Known, int, int, int]] = []
    shift: list[tuple[int, int]] = []  # Offset in the data, and in the stream, of what is new.
    # Oldest first, so that whoever reads the pack knows their order too.
    pointed = {run.pack for run in runs if run.pack is not None} - merged
    sources = {pack: n for n, pack in enumerate(sorted(pointed, key=lambda p: p.number), 1)}
    extents: list[Extent] = []
    for length, pack, start in runs:
        if pack is None or pack in merged:
            if pack is None:
                shift.append((offset, stream_bytes))
            else:
                moved.append((pack, start, length, stream_bytes))
            stream.append(view[offset : offset + length])
            pack, start = None, stream_bytes
            stream_bytes += length
        source = 0 if pack is None else sources[pack]
        last = extents[-1] if extents else None
        if last and last.source == source and last.start + last.length == start:
            extents[-1] = Extent(source, last.start, last.length + length)
            placed[-1] = Run(placed[-1].length + length, pack, placed[-1].start)
        else:
            extents.append(Extent(source, start, length))
            placed.append(Run(length, pack, start))
        offset += length
    offsets = [at for at, _ in shift]
    chunks = []
    for start, length, chunk_id in matching.ids:
        data_start, stream_start = shift[bisect.bisect_right(offsets, start) - 1]
        chunks.append((stream_start + start - data_start, length, chunk_id))
    contents = Contents(
        envelope=envelope,
        size_bytes=len(data),
        crc=crcs[-1] if crcs else 0,
        extents=extents,
        sources=[pack.name for pack in sources],
        stream=_joined(stream),
    )
    return Plan(
        contents, key_id, data, crcs, base, placed, moved, chunks, matching.from_base, repeat_id
    )


def _joined(stream: list[memoryview]) -> list[memoryview]:
    return stream if len(stream) < 2 else [memoryview(b"".join(stream))]


def repeat_id(envelope: bytes, data: bytes) -> bytes:
    """Return by what an equal payload is known; nothing for a large one, which takes too long."""
    if len(data) > limits.ENCODER_REPEAT_BYTES_MAX:
        return b""
    digest = _KEYED.copy()
    digest.update(b"repeat" + len(envelope).to_bytes(8))
    digest.update(envelope)
    digest.update(data)
    return digest.digest()


def _chunk_id(data: memoryview) -> bytes:
    digest = _KEYED.copy()
    digest.update(data)
    return digest.digest()
