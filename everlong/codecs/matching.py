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
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from pyfastcdc import FastCDC

from everlong import limits
from everlong.storage.packs import Contents, Extent

# Digests stay in this process, so a key that ends with it keeps them apart from all others.
_CHUNK_KEY: Final = os.urandom(32)
_CHUNK_ID_BYTES: Final = 24
_CUTTER: Final = FastCDC(
    avg_size=limits.CHUNK_BYTES_MEAN,
    min_size=limits.CHUNK_BYTES_MEAN // 4,
    max_size=limits.CHUNK_BYTES_MEAN * 4,
)
# Runs are compared in steps that double, from one that a mismatch at the start makes cheap.
_COMPARE_BYTES_MIN: Final = 256
_COMPARE_BYTES_MAX: Final = 256 * limits.KIB
# Where a checksum is noted, so that one of a longer payload can go on from there.
_CRC_BYTES: Final = 256 * limits.KIB


@dataclasses.dataclass(eq=False, weakref_slot=True, slots=True)
class Known:
    """A pack of this thread that is durable."""

    name: bytes
    number: int
    stream_bytes: int
    used_at: float
    chunks: list[tuple[int, int, bytes]] = dataclasses.field(default_factory=list)
    """Start, length and id of the chunks that are looked up in it."""


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
    name: bytes
    packs: int
    used_at: float
    crcs: list[int]
    """See `running_crcs`; empty for a payload that was only read."""
    continued: bool = False
    """Whether it continues another: of a list that grows, more are to come."""
    ends: list[int] = dataclasses.field(init=False)

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
        return self.crcs[: prefix // _CRC_BYTES]

    def find(self, pack: Known, start: int) -> int | None:
        """Return the offset in this payload of a place in a pack."""
        for run, end in zip(self.runs, self.ends, strict=True):
            if run.pack is pack and run.start <= start < run.start + run.length:
                return end - run.length + (start - run.start)
        return None


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
    same_as: Recent | None = None
    """A payload that is equal and durable: nothing needs to be written."""

    @property
    def packs(self) -> int:
        """How many packs a reader will need."""
        return 1 + len(self.contents.sources)

    @property
    def continues_base(self) -> bool:
        """Whether this payload takes its base's place: it has most of it."""
        shared = sum(run.length for run in self.runs if run.pack is not None)
        rewritten = sum(length for _, _, length, _ in self.moved)
        return self.base is not None and 2 * (shared + rewritten) > len(self.base.data)


def closest(recents: list[Recent], data: bytes) -> tuple[Recent | None, int, int]:
    """Return the remembered payload that agrees most, and how far from the start and the end."""
    best: tuple[Recent | None, int, int] = (None, 0, 0)
    for recent in recents:
        prefix = _common(data, recent.data, 0, 0, min(len(data), len(recent.data)))
        rest = min(len(data), len(recent.data)) - prefix
        suffix = _common_end(data, recent.data, rest)
        found = (
            recent,
            prefix if prefix >= limits.MATCH_BYTES_MIN else 0,
            suffix if suffix >= limits.MATCH_BYTES_MIN else 0,
        )
        if best[0] is None or found[1] + found[2] > best[1] + best[2]:
            best = found
    return best


def matched(
    data: bytes, base: Recent | None, prefix: int, suffix: int, look_up: LookUp
) -> tuple[list[Run], list[tuple[int, int, bytes]]]:
    """Return all of a payload as runs, and the chunks of the new ones (offset, length, id)."""
    runs: list[Run] = []
    ids: list[tuple[int, int, bytes]] = []
    if base and prefix:
        runs += base.cut(0, prefix)
    place, end = prefix, len(data) - suffix
    while place < end:
        place = _match_between(data, place, end, base, look_up, runs, ids)
    if base and suffix:
        runs += base.cut(len(base.data) - suffix, suffix)
    return runs, ids


def _match_between(
    data: bytes,
    place: int,
    end: int,
    base: Recent | None,
    look_up: LookUp,
    runs: list[Run],
    ids: list[tuple[int, int, bytes]],
) -> int:
    """Take chunks until one is known, and that as far as it leads. Return where to go on."""
    new_from = place
    for chunk in _CUTTER.cut_buf(memoryview(data)[place:end]):
        start, length = place + chunk.offset, chunk.length
        chunk_id = _chunk_id(chunk.data)
        known = look_up(chunk_id)
        if known is None:
            if length >= limits.MATCH_BYTES_MIN:
                ids.append((start, length, chunk_id))
            continue
        if start > new_from:
            runs.append(Run(start - new_from, None, new_from))
        pack, pack_start = known
        offset = base.find(pack, pack_start) if base else None
        if base is not None and offset is not None:
            most = min(end - start, len(base.data) - offset)
            common = _common(data, base.data, start, offset, most)
            if common > length:
                runs += base.cut(offset, common)
                return start + common
        runs.append(Run(length, pack, pack_start))
        return start + length
    runs.append(Run(end - new_from, None, new_from))
    return end


def _merged_packs(runs: list[Run]) -> set[Known]:
    """Choose the packs whose part of this payload is written again."""
    held: dict[Known, int] = {}
    growing = 0
    for run in runs:
        if run.pack is None:
            growing += run.length
        else:
            held[run.pack] = held.get(run.pack, 0) + run.length
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
    runs: list[Run],
    ids: list[tuple[int, int, bytes]],
) -> Plan:
    """Lay out the new pack: its stream, and the extents of the payload."""
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
    for start, length, chunk_id in ids:
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
    return Plan(contents, key_id, data, crcs, base, placed, moved, chunks)


def _joined(stream: list[memoryview]) -> list[memoryview]:
    return stream if len(stream) < 2 else [memoryview(b"".join(stream))]


def running_crcs(data: bytes, known: Sequence[int]) -> list[int]:
    """Return the CRC-32 of the data up to each multiple of a block, and of all of it at the end.

    Those that are known, of data that begins alike, are not computed again.
    """
    view = memoryview(data)
    crcs = list(known)
    for start in range(len(crcs) * _CRC_BYTES, len(data), _CRC_BYTES):
        crcs.append(zlib.crc32(view[start : start + _CRC_BYTES], crcs[-1] if crcs else 0))
    return crcs


def _chunk_id(data: memoryview) -> bytes:
    return hashlib.blake2b(data, key=_CHUNK_KEY, digest_size=_CHUNK_ID_BYTES).digest()


def _common(a: bytes, b: bytes, a_start: int, b_start: int, most: int) -> int:
    """Return how many bytes agree from two places on, up to a number."""
    done, step = 0, _COMPARE_BYTES_MIN
    while done < most:
        step = min(step, most - done)
        # Of the two, only one is copied.
        if a.startswith(b[b_start + done : b_start + done + step], a_start + done):
            done += step
            step = min(2 * step, _COMPARE_BYTES_MAX)
        elif step == 1:
            break
        else:
            most = done + step
            step = max(1, step // 2)
    return done


def _common_end(a: bytes, b: bytes, most: int) -> int:
    """Return how many bytes agree before the two ends, up to a number."""
    done, step = 0, _COMPARE_BYTES_MIN
    while done < most:
        step = min(step, most - done)
        a_end, b_end = len(a) - done, len(b) - done
        if a.startswith(b[b_end - step : b_end], a_end - step):
            done += step
            step = min(2 * step, _COMPARE_BYTES_MAX)
        elif step == 1:
            break
        else:
            most = done + step
            step = max(1, step // 2)
    return done
