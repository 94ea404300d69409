"""Payload matcher: finds the bytes of a payload that its thread has stored already.

A payload mostly repeats an earlier one. The matcher compares it with the closest earlier payload from
both ends, at the speed of memcmp. In the stretch between, it searches for the thread's single payloads
(a list contains the results that came just before it), cuts the rest into chunks by content, and looks
each chunk up by a keyed digest. The bytes that remain are new.
"""

import bisect
import dataclasses
import hashlib
import itertools
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from pyfastcdc import FastCDC

from everlong import limits

# Digests never leave this process, so a random key per process is enough to keep them private. SHA-256
# takes half the time of BLAKE2b on processors with SHA instructions, which most servers have.
KEYED_DIGEST: Final = hashlib.sha256(os.urandom(64))
_CUTTER: Final = FastCDC(
    avg_size=limits.CHUNK_BYTES_MEAN,
    min_size=limits.CHUNK_BYTES_MEAN // 4,
    max_size=limits.CHUNK_BYTES_MEAN * 4,
)
# After a difference, the matcher takes a probe from the base at each of these distances, and searches
# for it within a window of the payload.
_PROBES: Final = (64, 256, 1024, 4096, 16_384)
_PROBE_BYTES: Final = 48
_PROBE_WINDOW_BYTES: Final = 64 * limits.KIB
# Relative places of the pieces by which a single payload is found: middle, start and end. The last two
# find it where only its beginning or its end was kept.
_PIECE_PLACES: Final = (0.5, 0.0, 1.0)
_PIECE_MARGIN_BYTES: Final = 64
# Bytes searched for single payloads, in one payload, in all: 0.1 s. A search holds the GIL, so it runs
# in parts. A payload of some KiB that the search misses is still found by its chunks.
_SEARCH_BYTES_MAX: Final = 128 * limits.MIB
_SEARCH_PART_BYTES: Final = 4 * limits.MIB
# Approximate memory of a run and of a mark.
_RUN_COST_BYTES: Final = 130
_MARK_COST_BYTES: Final = 130
# Marks are set at distances from a payload's end that grow by factors of 4, and after these first bytes.
_MARK_BYTES_FIRST: Final = 4 * limits.KIB
# Comparison steps double. The first is small, so an early mismatch is cheap.
_COMPARE_BYTES_MIN: Final = 256
_COMPARE_BYTES_MAX: Final = 256 * limits.KIB
# Distance between stored checksums: the checksum of a longer payload continues from one of them.
CRC_BYTES: Final = 256 * limits.KIB


def common_start(a: bytes, b: bytes, a_start: int, b_start: int, most: int) -> int:
    """Return how many bytes are equal from `a_start` and `b_start` on, at most `most`."""

    def agree(done: int, step: int) -> bool:
        # Only the slice of `b` is copied.
        return a.startswith(b[b_start + done : b_start + done + step], a_start + done)

    return _count_equal(most, agree)


def common_end(a: bytes, b: bytes, most: int) -> int:
    """Return how many bytes are equal before the two ends, at most `most`."""

    def agree(done: int, step: int) -> bool:
        a_end, b_end = len(a) - done, len(b) - done
        return a.startswith(b[b_end - step : b_end], a_end - step)

    return _count_equal(most, agree)


def _count_equal(most: int, agree: Callable[[int, int], bool]) -> int:
    """Return how many bytes are equal. `agree(done, step)` compares the next `step` bytes."""
    done, step = 0, _COMPARE_BYTES_MIN
    while done < most:
        step = min(step, most - done)
        if agree(done, step):
            done += step
            step = min(2 * step, _COMPARE_BYTES_MAX)
        elif step == 1:
            break
        else:
            most = done + step
            step = max(1, step // 2)
    return done


def running_crcs(data: bytes, known: Sequence[int]) -> list[int]:
    """Return the CRC-32 of the data up to each multiple of `CRC_BYTES`, and of all data last.

    `known` holds the leading checksums, taken from a payload with the same beginning.
    """
    view = memoryview(data)
    crcs = list(known)
    for start in range(len(crcs) * CRC_BYTES, len(data), CRC_BYTES):
        crcs.append(zlib.crc32(view[start : start + CRC_BYTES], crcs[-1] if crcs else 0))
    return crcs


@dataclasses.dataclass(eq=False, weakref_slot=True, slots=True)
class KnownPack:
    """A durable pack of the thread."""

    name: bytes
    number: int
    stream_bytes: int
    used_at: float
    stored_at: float
    """Time of the last write or read, when the store certainly had the pack."""
    chunks: list[tuple[int, int, bytes]] = dataclasses.field(default_factory=list)
    """Start, length and id of the chunks indexed in this pack."""
    dictionary: "KnownPack | None" = None
    """The pack used as compression dictionary. A reader needs both."""

    @property
    def dictionaries(self) -> int:
        """Number of dictionaries that a reader needs before this pack."""
        count, pack = 0, self.dictionary
        while pack is not None:
            count, pack = count + 1, pack.dictionary
        return count


def is_fresh(known: KnownPack, now: float) -> bool:
    """Return whether a new manifest may refer to a pack. A sweep may be about to delete an old one."""
    return (
        now - known.used_at <= limits.ENCODER_SECONDS_MAX
        and now - known.stored_at <= limits.ENCODER_PACK_SECONDS_MAX
    )


class ChunkIndex(NamedTuple):
    """The thread's chunks by id, as one encode sees them: pack, and start in its stream."""

    chunks: Mapping[bytes, tuple[KnownPack, int]]
    number: int
    """Packs with this number or a higher one were added during the encode. They are ignored, so that
    equal payloads give equal packs."""
    now: float

    def find(self, chunk_id: bytes) -> tuple[KnownPack, int] | None:
        """Return the place of a chunk, unless its pack is too new or too old."""
        known = self.chunks.get(chunk_id)
        if known is None or known[0].number >= self.number or not is_fresh(known[0], self.now):
            return None
        return known


class Run(NamedTuple):
    """A part of a payload and its place in a pack. `pack` is None for new bytes."""

    length: int
    pack: KnownPack | None
    start: int


class ManifestBase(NamedTuple):
    """A pack whose manifest the thread's next manifest may continue."""

    pack: KnownPack
    size_bytes: int
    """Size of the prefix of its data that the newest payload has at the same places."""
    spent_bytes: int
    """Size of all manifests so far that continue this one."""


@dataclasses.dataclass(eq=False)
class RecentPayload:
    """A payload that the process encoded or read recently.

    Any thread of the process may drop its bytes at any moment to save memory, so callers read `data`
    once into a local. The marks remain: digests of prefixes whose ends are dense near the payload's
    end, where the next payload differs.
    """

    envelope: bytes = dataclasses.field(repr=False)
    data: bytes | None = dataclasses.field(repr=False)
    runs: list[Run]
    pack: KnownPack
    packs: int
    used_at: float
    crcs: list[int]
    """Checksums of `running_crcs`; empty for a payload that was only read."""
    manifest_base: ManifestBase | None = None
    is_list: bool = False
    """Whether it continues another payload, as a growing list does. Others are called single."""
    marks: list[tuple[int, bytes]] = dataclasses.field(default_factory=list, repr=False)
    ends: list[int] = dataclasses.field(init=False)
    used: tuple[KnownPack, ...] = dataclasses.field(init=False, repr=False)
    """The packs that a reader needs, its own included."""

    @property
    def name(self) -> bytes:
        """Name of its pack."""
        return self.pack.name

    @property
    def size_bytes(self) -> int:
        """Size of its data."""
        return self.ends[-1] if self.ends else 0

    @property
    def cost_bytes(self) -> int:
        """Approximate memory of this payload."""
        kept = len(self.envelope) + len(self.data or b"")
        return kept + _RUN_COST_BYTES * len(self.runs) + _MARK_COST_BYTES * len(self.marks)

    def __post_init__(self) -> None:
        self.ends = list(itertools.accumulate(run.length for run in self.runs))
        base = {self.manifest_base.pack} if self.manifest_base else set()
        self.used = tuple(
            {self.pack, *base, *(run.pack for run in self.runs if run.pack is not None)}
        )

    def drop_data(self) -> None:
        """Replace the data with its marks."""
        data = self.data
        if data is not None:
            self.marks = list(_marks(data, _mark_places(len(data))))
            self.data = None

    def common_start(self, data: bytes) -> int:
        """Return the length of the prefix that `data` shares with this payload."""
        own_data = self.data
        if own_data is not None:
            return common_start(data, own_data, 0, 0, min(len(data), len(own_data)))
        agreed = 0
        places = [place for place, _ in self.marks if place <= len(data)]
        for (place, digest), (_, own) in zip(_marks(data, places), self.marks, strict=False):
            if digest != own:
                break
            agreed = place
        return agreed

    def cut(self, start: int, length: int) -> Iterator[Run]:
        """Yield the runs of a slice of this payload."""
        return cut_runs(self.runs, self.ends, start, length)

    def crcs_within(self, prefix: int) -> list[int]:
        """Return the checksums that hold for any payload with the same `prefix` bytes."""
        return self.crcs[: prefix // CRC_BYTES]

    def find(self, pack: KnownPack, start: int) -> int | None:
        """Return the offset in this payload of a place in a pack, if it is part of the payload."""
        for run, end in zip(self.runs, self.ends, strict=True):
            if run.pack is pack and run.start <= start < run.start + run.length:
                return end - run.length + (start - run.start)
        return None


def cut_runs(runs: Sequence[Run], ends: Sequence[int], start: int, length: int) -> Iterator[Run]:
    """Yield the runs of a slice of a payload. `ends` holds the end offset of each run."""
    number = bisect.bisect_right(ends, start)
    while length > 0:
        run = runs[number]
        inside = start - (ends[number] - run.length)
        piece = min(length, run.length - inside)
        yield Run(piece, run.pack, run.start + inside)
        start += piece
        length -= piece
        number += 1


def _mark_places(size_bytes: int) -> list[int]:
    """Return the offsets of the marks, in ascending order."""
    places = {size_bytes - 4**power for power in range(16)} | {size_bytes, _MARK_BYTES_FIRST}
    return sorted(place for place in places if 0 < place <= size_bytes)


def _marks(data: bytes, places: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Yield each offset with a digest of the data before it."""
    digest = KEYED_DIGEST.copy()
    digest.update(b"mark")
    view, done = memoryview(data), 0
    for place in places:
        digest.update(view[done:place])
        done = place
        yield place, digest.copy().digest()


def find_closest(
    recents: list[RecentPayload], data: bytes
) -> tuple[RecentPayload | None, int, int]:
    """Return the recent payload that shares most bytes, and the common prefix and suffix lengths."""
    best: tuple[RecentPayload | None, int, int] = (None, 0, 0)
    # Payloads with bytes come first: once one shares more than half, no digests are computed.
    for recent in sorted(recents, key=lambda each: each.data is None):
        if recent.data is None and 2 * best[1] > len(data):
            break
        most = min(len(data), recent.size_bytes)
        prefix = recent.common_start(data)
        own_data = recent.data
        suffix = 0 if own_data is None else common_end(data, own_data, most - prefix)
        found = (
            recent,
            prefix if prefix >= limits.MATCH_BYTES_MIN else 0,
            suffix if suffix >= limits.MATCH_BYTES_MIN else 0,
        )
        if best[0] is None or found[1] + found[2] > best[1] + best[2]:
            best = found
    return best


class _Hit(NamedTuple):
    """A stretch of a payload that also stands in a single payload."""

    start: int
    length: int
    single: RecentPayload
    offset: int


class Match:
    """Matches a payload, from start to end, with its base and with the thread's chunks.

    The constructor does the work. Then `runs` covers the whole payload, `ids` lists the chunks of the
    new bytes (offset, length, id), `from_base` is the number of bytes shared with the base, `prefix`
    the part of those at the start, and `found` the single payloads that this one contains.
    """

    def __init__(
        self,
        data: bytes,
        base: RecentPayload | None,
        prefix: int,
        suffix: int,
        index: ChunkIndex,
        singles: Sequence[RecentPayload] = (),
    ) -> None:
        self.runs: list[Run] = []
        self.ids: list[tuple[int, int, bytes]] = []
        self.from_base = 0
        self.prefix = prefix if base is not None else 0
        self.found: set[RecentPayload] = set()
        self._data = data
        self._base = base
        self._base_data = (base.data if base is not None else None) or b""
        self._index = index
        self._place = self._base_place = 0
        self._end = len(data) - suffix
        self._take(0, prefix)
        hits = self._find_singles(singles)
        while self._place < self._end:
            hits = [hit for hit in hits if hit.start + hit.length > self._place]
            if hits and hits[0].start <= self._place:
                self._take_hit(hits[0])
            elif not self._find_again(hits[0].start if hits else self._end):
                self._take_chunks(hits[0].start if hits else self._end)
        if base is not None:
            self._take(base.size_bytes - suffix, suffix)

    def _take(self, base_start: int, length: int) -> None:
        """Take the next bytes from the base."""
        if self._base is not None and length:
            self.runs += self._base.cut(base_start, length)
            self.from_base += length
            self._place += length
            self._base_place = base_start + length

    def _find_singles(self, singles: Sequence[RecentPayload]) -> list[_Hit]:
        """Return where single payloads occur between the base's prefix and suffix, without overlaps."""
        hits: list[_Hit] = []
        if self._end - self._place < limits.MATCH_BYTES_MIN:
            return hits
        most = max(1, _SEARCH_BYTES_MAX // (self._end - self._place))
        others = (single for single in singles if single is not self._base)
        for single, part in itertools.islice(itertools.product(others, _PIECE_PLACES), most):
            self._find_piece(single, part, hits)
        hits.sort(key=lambda hit: (hit.start, -hit.length))
        apart: list[_Hit] = []
        for hit in hits:
            if not apart or hit.start >= apart[-1].start + apart[-1].length:
                apart.append(hit)
        return apart

    def _find_piece(self, single: RecentPayload, part: float, hits: list[_Hit]) -> None:
        """Search for one piece of a single payload, and add the equal bytes around it as a hit."""
        other = single.data
        if other is None or len(other) < limits.MATCH_BYTES_MIN:
            return
        span = len(other) - _PROBE_BYTES - 2 * _PIECE_MARGIN_BYTES
        if span < 0:
            return  # Too short for a piece with its margins.
        at = _PIECE_MARGIN_BYTES + int(part * span)
        if any(hit.single is single and 0 <= at - hit.offset < hit.length for hit in hits):
            return
        found = self._search(other[at : at + _PROBE_BYTES])
        if found < 0:
            return
        most = min(self._end - found, len(other) - at)
        length = common_start(self._data, other, found, at, most)
        before = min(found - self._place, at)
        back = common_end(self._data[found - before : found], other[at - before : at], before)
        if length + back >= limits.MATCH_BYTES_MIN:
            hits.append(_Hit(found - back, length + back, single, at - back))

    def _search(self, piece: bytes) -> int:
        """Return the offset of a piece between the base's prefix and suffix, or -1."""
        for start in range(self._place, self._end, _SEARCH_PART_BYTES):
            end = min(self._end, start + _SEARCH_PART_BYTES + len(piece) - 1)
            if (found := self._data.find(piece, start, end)) >= 0:
                return found
        return -1

    def _take_hit(self, hit: _Hit) -> None:
        skipped = self._place - hit.start
        length = min(hit.start + hit.length, self._end) - self._place
        self.runs += hit.single.cut(hit.offset + skipped, length)
        self.found.add(hit.single)
        self._place += length

    def _take_new(self, end: int) -> None:
        if end > self._place:
            self.runs.append(Run(end - self._place, None, self._place))
            self._place = end

    def _find_again(self, end: int) -> bool:
        """Find where the base continues after a difference. Most differences are short."""
        data, base = self._data, self._base_data
        for ahead in _PROBES:
            probe = base[self._base_place + ahead : self._base_place + ahead + _PROBE_BYTES]
            if len(probe) < _PROBE_BYTES:
                return False
            window_end = min(end, self._place + ahead + _PROBE_WINDOW_BYTES)
            start = data.find(probe, self._place, window_end)
            if start < 0:
                continue
            base_start = self._base_place + ahead
            most = min(self._end - start, len(base) - base_start)
            length = common_start(data, base, start, base_start, most)
            if length >= limits.MATCH_BYTES_MIN:
                back = common_end(
                    data[self._place : start],
                    base[base_start - ahead : base_start],
                    min(ahead, start - self._place),
                )
                self._note_chunks(self._place, start - back)
                self._take_new(start - back)
                self._take(base_start - back, length + back)
                return True
        return False

    def _note_chunks(self, start: int, end: int) -> None:
        """Record the chunks of a stretch of new bytes."""
        for chunk in _CUTTER.cut_buf(memoryview(self._data)[start:end]):
            if chunk.length >= limits.MATCH_BYTES_MIN:
                self.ids.append((start + chunk.offset, chunk.length, _chunk_id(chunk.data)))

    def _take_chunks(self, end: int) -> None:
        """Take chunks up to the first that is known, and that one with the equal bytes after it."""
        place = self._place
        for chunk in _CUTTER.cut_buf(memoryview(self._data)[place:end]):
            start, length = place + chunk.offset, chunk.length
            chunk_id = _chunk_id(chunk.data)
            known = self._index.find(chunk_id)
            if known is not None:
                self._take_new(start)
                self._take_known(length, *known)
                return
            if length >= limits.MATCH_BYTES_MIN:
                self.ids.append((start, length, chunk_id))
        self._take_new(end)

    def _take_known(self, length: int, pack: KnownPack, pack_start: int) -> None:
        offset = self._base.find(pack, pack_start) if self._base and self._base_data else None
        if offset is not None:
            most = min(self._end - self._place, len(self._base_data) - offset)
            common = common_start(self._data, self._base_data, self._place, offset, most)
            if common > length:
                self._take(offset, common)
                return
        self.runs.append(Run(length, pack, pack_start))
        self._place += length


def _chunk_id(data: memoryview) -> bytes:
    digest = KEYED_DIGEST.copy()
    digest.update(data)
    return digest.digest()
