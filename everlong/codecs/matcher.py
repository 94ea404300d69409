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
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from pyfastcdc import FastCDC

from everlong import limits

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
# Where a single payload is looked for: by a piece from its middle, its start and its end. The last two
# find it where only its beginning or its end was kept.
_PIECE_PLACES: Final = (0.5, 0.0, 1.0)
_PIECE_MARGIN_BYTES: Final = 64
# All searches for single payloads in one payload together: 0.1 s. Each holds Python's lock, so that it
# goes by parts. What is not found is still found by its chunks, if it has some KiB.
_SEARCH_BYTES_MAX: Final = 128 * limits.MIB
_SEARCH_PART_BYTES: Final = 4 * limits.MIB
# What a run, and a mark, take in memory, nearly.
_RUN_COST_BYTES: Final = 130
_MARK_COST_BYTES: Final = 130
# Marks are set at these distances from the end of a payload, by factors of 4, and after its first bytes.
_MARK_BYTES_FIRST: Final = 4 * limits.KIB
# Runs are compared in steps that double, from one that a mismatch at the start makes cheap.
_COMPARE_BYTES_MIN: Final = 256
_COMPARE_BYTES_MAX: Final = 256 * limits.KIB
# Where a checksum is noted, so that one of a longer payload can go on from there.
CRC_BYTES: Final = 256 * limits.KIB


def common_start(a: bytes, b: bytes, a_start: int, b_start: int, most: int) -> int:
    """Return how many bytes agree from two places on, up to a number."""

    def agree(done: int, step: int) -> bool:
        # Of the two, only one is copied.
        return a.startswith(b[b_start + done : b_start + done + step], a_start + done)

    return _agreeing(most, agree)


def common_end(a: bytes, b: bytes, most: int) -> int:
    """Return how many bytes agree before the two ends, up to a number."""

    def agree(done: int, step: int) -> bool:
        a_end, b_end = len(a) - done, len(b) - done
        return a.startswith(b[b_end - step : b_end], a_end - step)

    return _agreeing(most, agree)


def _agreeing(most: int, agree: Callable[[int, int], bool]) -> int:
    """Return how far two runs agree. `agree` is asked for a step beyond what is done."""
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
    """Return the CRC-32 of the data up to each multiple of a block, and of all of it at the end.

    Those that are known, of data that begins alike, are not computed again.
    """
    view = memoryview(data)
    crcs = list(known)
    for start in range(len(crcs) * CRC_BYTES, len(data), CRC_BYTES):
        crcs.append(zlib.crc32(view[start : start + CRC_BYTES], crcs[-1] if crcs else 0))
    return crcs


@dataclasses.dataclass(eq=False, weakref_slot=True, slots=True)
class KnownPack:
    """A pack of this thread that is durable."""

    name: bytes
    number: int
    stream_bytes: int
    used_at: float
    stored_at: float
    """When it was last written or read: then the store had it."""
    chunks: list[tuple[int, int, bytes]] = dataclasses.field(default_factory=list)
    """Start, length and id of the chunks that are looked up in it."""
    dictionary: "KnownPack | None" = None
    """The pack that it is compressed with: to read it, both are needed."""

    @property
    def dictionaries(self) -> int:
        """How many dictionaries have to be read before this pack."""
        count, pack = 0, self.dictionary
        while pack is not None:
            count, pack = count + 1, pack.dictionary
        return count


def is_fresh(known: KnownPack, now: float) -> bool:
    """Tell whether a pack may be pointed to again: not if a sweep may be about to delete it."""
    return (
        now - known.used_at <= limits.ENCODER_SECONDS_MAX
        and now - known.stored_at <= limits.ENCODER_PACK_SECONDS_MAX
    )


# Where a chunk lies, by its id: the pack, and the start in its stream.
LookUp: TypeAlias = Callable[[bytes], tuple[KnownPack, int] | None]


class Run(NamedTuple):
    """A part of a payload, and where it lies; in no pack yet if it is new."""

    length: int
    pack: KnownPack | None
    start: int


class ManifestBase(NamedTuple):
    """The pack of the thread whose manifest the next one may begin with."""

    pack: KnownPack
    size_bytes: int
    """The beginning of its data that lies where the newest payload has it too."""
    spent_bytes: int
    """What the manifests that begin with it have taken so far."""


@dataclasses.dataclass(eq=False)
class RecentPayload:
    """A payload as it was encoded or read last.

    Its bytes may be dropped to save memory, by another thread of the process at any moment. Then its
    marks are left: digests of its beginning, up to places that are dense near its end, where the next
    payload differs.
    """

    envelope: bytes = dataclasses.field(repr=False)
    data: bytes | None = dataclasses.field(repr=False)
    runs: list[Run]
    pack: KnownPack
    packs: int
    used_at: float
    crcs: list[int]
    """See `running_crcs`; empty for a payload that was only read."""
    manifest_base: ManifestBase | None = None
    is_list: bool = False
    """Whether it continues another: more of a list that grows are to come."""
    marks: list[tuple[int, bytes]] = dataclasses.field(default_factory=list, repr=False)
    ends: list[int] = dataclasses.field(init=False)
    used: tuple[KnownPack, ...] = dataclasses.field(init=False, repr=False)
    """The packs that it needs, its own included."""

    @property
    def name(self) -> bytes:
        """The name of its pack."""
        return self.pack.name

    @property
    def size_bytes(self) -> int:
        """The size of its data."""
        return self.ends[-1] if self.ends else 0

    @property
    def cost_bytes(self) -> int:
        """What this takes of the process's memory, nearly."""
        kept = len(self.envelope) + len(self.data or b"")
        return kept + _RUN_COST_BYTES * len(self.runs) + _MARK_COST_BYTES * len(self.marks)

    def __post_init__(self) -> None:
        self.ends = list(itertools.accumulate(run.length for run in self.runs))
        base = {self.manifest_base.pack} if self.manifest_base else set()
        self.used = tuple(
            {self.pack, *base, *(run.pack for run in self.runs if run.pack is not None)}
        )

    def drop_data(self) -> None:
        """Keep the marks of the data, and not the data."""
        data = self.data
        if data is not None:
            self.marks = list(_marks(data, _mark_places(len(data))))
            self.data = None

    def common_start(self, data: bytes) -> int:
        """Return how many bytes of a payload agree with this one from the start."""
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
        """Yield the runs of a part of this payload."""
        return cut_runs(self.runs, self.ends, start, length)

    def crcs_within(self, prefix: int) -> list[int]:
        """Return those checksums that hold for every payload that begins alike."""
        return self.crcs[: prefix // CRC_BYTES]

    def find(self, pack: KnownPack, start: int) -> int | None:
        """Return the offset in this payload of a place in a pack."""
        for run, end in zip(self.runs, self.ends, strict=True):
            if run.pack is pack and run.start <= start < run.start + run.length:
                return end - run.length + (start - run.start)
        return None


def cut_runs(runs: Sequence[Run], ends: Sequence[int], start: int, length: int) -> Iterator[Run]:
    """Yield the runs of a part of a payload; `ends` are where its runs end."""
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
    """Return where marks are set, in ascending order."""
    places = {size_bytes - 4**power for power in range(16)} | {size_bytes, _MARK_BYTES_FIRST}
    return sorted(place for place in places if 0 < place <= size_bytes)


def _marks(data: bytes, places: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Yield each place with a digest of the data up to it."""
    digest = _KEYED.copy()
    digest.update(b"mark")
    view, done = memoryview(data), 0
    for place in places:
        digest.update(view[done:place])
        done = place
        yield place, digest.copy().digest()


def find_closest(
    recents: list[RecentPayload], data: bytes
) -> tuple[RecentPayload | None, int, int]:
    """Return the remembered payload that agrees most, and how far from the start and the end."""
    best: tuple[RecentPayload | None, int, int] = (None, 0, 0)
    # Those with bytes first: once one agrees nearly to its end, no digests need to be made.
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
    """A stretch of a payload that a single payload has too."""

    start: int
    length: int
    single: RecentPayload
    offset: int


class Match:
    """Goes through a payload from start to end, and takes from its base and from known packs.

    Afterwards `runs` is all of it, `ids` are the chunks of what is new (offset, length, id),
    `from_base` is how much it has of its base, `prefix` how much of that from the start, and `found`
    are the single payloads that it holds.
    """

    def __init__(
        self,
        data: bytes,
        base: RecentPayload | None,
        prefix: int,
        suffix: int,
        look_up: LookUp,
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
        self._look_up = look_up
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
        """Take what comes next from the base."""
        if self._base is not None and length:
            self.runs += self._base.cut(base_start, length)
            self.from_base += length
            self._place += length
            self._base_place = base_start + length

    def _find_singles(self, singles: Sequence[RecentPayload]) -> list[_Hit]:
        """Find where single payloads lie in the stretch that is not the base's, in order."""
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
        """Look for one piece of a single payload; if it is there, add what agrees around it."""
        other = single.data
        if other is None or len(other) < limits.MATCH_BYTES_MIN:
            return
        span = len(other) - _PROBE_BYTES - 2 * _PIECE_MARGIN_BYTES
        if span < 0:
            return  # Too short for a piece and its margins.
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
        """Return where a piece lies in the stretch that is not the base's, or -1."""
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
        """After a difference, look for where the base goes on: most changes are small."""
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
        """Note the chunks of a stretch that is new."""
        for chunk in _CUTTER.cut_buf(memoryview(self._data)[start:end]):
            if chunk.length >= limits.MATCH_BYTES_MIN:
                self.ids.append((start + chunk.offset, chunk.length, _chunk_id(chunk.data)))

    def _take_chunks(self, end: int) -> None:
        """Take chunks until one is known, and that as far as it leads."""
        place = self._place
        for chunk in _CUTTER.cut_buf(memoryview(self._data)[place:end]):
            start, length = place + chunk.offset, chunk.length
            chunk_id = _chunk_id(chunk.data)
            known = self._look_up(chunk_id)
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
