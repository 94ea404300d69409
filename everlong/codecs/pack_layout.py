"""Pack layout: decides what a payload's new pack holds, and which earlier packs it refers to.

The invariant is the merge policy. A reader fetches every pack that a payload refers to, so their number
is bounded. A merge keeps it within the bound: the encoder, which has the bytes in memory, writes parts
of several earlier packs again into the new one. A good merge lasts for many steps and leaves large packs
alone.

A pack that holds at least `settled_bytes` of the payload (384 KiB, or a 64th of a larger payload) is
**settled**, and is counted separately. As many packs may be settled as fit into the payload: 8 for each
3 MiB, and 64 in all. Each pack has a level by its size: below 8 KiB, below 40, 200, 1000 KiB, and so on
by factors of 5. If a payload would need more than 24 packs and those that may be settled, the lowest
level with 5 packs or more is merged, with all levels below it. A settled pack is merged only if it is on
that level, or if it is small compared with the new bytes.

Such a level exists, and no level above the one in which settled packs begin is ever merged: at least 24
of the packs are then not settled, they have 5 levels at most (settled packs begin at 4 MiB or less), and
with at most 4 on each level they would be 20. A merge of 5 packs of a level makes one pack of a higher
level. So each merge lifts each byte by a level or more. Only merges that stay below 8 KiB may lift
nothing; each of those writes less than 8 KiB and makes room for 4 packs. So a list that is appended to
writes at most 6 times its new bytes (the first write, and 5 levels) and 2 KiB for each payload, however
long the thread lives.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from everlong import limits
from everlong.codecs.matcher import KnownPack, ManifestBase, Match, RecentPayload, Run, cut_runs
from everlong.storage.packs import DIGEST_BYTES, EXTENT_BYTES, Contents, Extent

# The manifest of a growing list differs only at its end from one step to the next. So a manifest
# continues that of an earlier pack, its base, and lists the rest: one pack more at each step. Once the
# manifests that continue a base have taken as much as a full one would, a full one is written, and is
# the next base. A pack takes 42 bytes of a manifest: 32 for its name and 10 for an extent. The k-th
# manifest after a full one lists k packs, so k of them take 21 * k * (k + 1) bytes together, and a
# full one takes 42 * p. These are equal near k = sqrt(2 * p), so a step takes 84 * p / k = 42 * sqrt(2
# * p) bytes in the mean instead of 42 * p: 266 instead of 840 with 20 packs. Measured with 19: 257
# instead of 785.
_BASE_BYTES: Final = DIGEST_BYTES


class Stored(NamedTuple):
    """A durable payload."""

    name: bytes
    packs: int
    used: tuple[KnownPack, ...]
    """The packs that a reader needs, its own included."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """How to write a payload, and what to remember once its pack is durable."""

    contents: Contents
    key_id: str
    data: bytes = dataclasses.field(repr=False)
    crcs: list[int]
    base: RecentPayload | None
    runs: list[Run]
    """All of the payload. Runs without a pack are in the new one."""
    moved: list[tuple[KnownPack, int, int, int]]
    """Runs that are written again: old pack, start and length there, start in the new stream."""
    chunks: list[tuple[int, int, bytes]]
    """Start, length and id of chunks in the new pack's stream."""
    from_base: int
    """Bytes shared with the base."""
    packs: int = 1
    """Number of packs that a reader needs, the new one included."""
    manifest_base: ManifestBase | None = None
    """The base that the manifest continues; None for a full manifest."""
    dictionary: KnownPack | None = None
    """The pack used as compression dictionary."""
    found: frozenset[RecentPayload] = frozenset()
    """Single payloads that this one contains."""
    repeat_id: bytes = b""
    """Digest by which an equal payload is recognised; empty if the payload is too large."""
    same_as: Stored | None = None
    """An equal payload that is durable, so nothing needs to be written."""

    @property
    def continues_base(self) -> bool:
        """Whether this payload replaces its base: it shares more than half of it."""
        return self.base is not None and 2 * self.from_base > self.base.size_bytes

    @property
    def new_bytes(self) -> int:
        """Size of the new pack's stream."""
        return sum(map(len, self.contents.stream))


class _Placement(NamedTuple):
    """A place for each byte of a payload."""

    runs: list[Run]
    stream: list[memoryview]
    moved: list[tuple[KnownPack, int, int, int]]
    shift: list[tuple[int, int]]
    """Offsets of the new bytes: in the data, and in the stream."""


def lay_out(
    envelope: bytes,
    key_id: str,
    data: bytes,
    crcs: list[int],
    base: RecentPayload | None,
    match: Match,
    repeat_id: bytes,
) -> Plan:
    """Return the plan of a payload: the new pack's stream, and the payload's extents."""
    rewritten = choose_runs(match.runs)
    merged = choose_packs(match.runs, len(data), rewritten)
    placement = _place(data, match.runs, merged, rewritten)
    manifest_base = None
    if base is not None and base.manifest_base is not None:
        untouched = _untouched_bytes(match.runs, merged, rewritten)
        shared = min(base.manifest_base.size_bytes, match.prefix, untouched)
        manifest_base = _next_base(base.manifest_base, shared, placement.runs, len(data))
    base_bytes = manifest_base.size_bytes if manifest_base else 0
    dictionary = _choose_dictionary(placement)
    ends = list(itertools.accumulate(run.length for run in placement.runs))
    listed = list(cut_runs(placement.runs, ends, base_bytes, len(data) - base_bytes))
    pointed = {run.pack for run in listed if run.pack is not None}
    if dictionary is not None:
        pointed.add(dictionary.pack)
    sources = sorted(pointed, key=lambda pack: pack.number)
    if manifest_base is not None:
        first = manifest_base.pack
        sources = [first, *(pack for pack in sources if pack is not first)]
    numbers = {pack: number for number, pack in enumerate(sources, 1)}
    contents = Contents(
        envelope=envelope,
        size_bytes=len(data),
        crc=crcs[-1] if crcs else 0,
        extents=[
            Extent(0 if run.pack is None else numbers[run.pack], run.start, run.length)
            for run in listed
        ],
        sources=[pack.name for pack in sources],
        base_bytes=base_bytes,
        stream=_join(placement.stream),
        dictionary=dictionary
        and Extent(numbers[dictionary.pack], dictionary.start, dictionary.length),
        dictionary_data=(
            data[dictionary.offset : dictionary.offset + dictionary.length] if dictionary else b""
        ),
    )
    needed = {run.pack for run in placement.runs if run.pack is not None}
    return Plan(
        contents=contents,
        key_id=key_id,
        data=data,
        crcs=crcs,
        base=base,
        runs=placement.runs,
        moved=placement.moved,
        chunks=_chunks(match, placement.shift),
        from_base=match.from_base,
        packs=1 + len(needed),
        manifest_base=manifest_base,
        dictionary=dictionary.pack if dictionary else None,
        found=frozenset(match.found),
        repeat_id=repeat_id,
    )


class _Dictionary(NamedTuple):
    pack: KnownPack
    start: int
    length: int
    offset: int
    """Start in the payload."""


def _choose_dictionary(placement: _Placement) -> _Dictionary | None:
    """Choose the run that serves a small pack as dictionary: the longest; of equally long ones the last.

    An agent's text repeats itself, and zstd finds few repeats in a few KiB alone. The run's pack must be
    on the new pack's level or a higher one, so that a merge of a level takes both.
    """
    stream_bytes = sum(map(len, placement.stream))
    if not 0 < stream_bytes <= limits.DICTIONARY_USE_BYTES_MAX:
        return None
    held: dict[KnownPack, int] = {}
    for run in placement.runs:
        if run.pack is not None:
            held[run.pack] = held.get(run.pack, 0) + run.length
    least = level(stream_bytes)
    best: _Dictionary | None = None
    end = sum(run.length for run in placement.runs)
    for run in reversed(placement.runs):
        length = min(run.length, limits.DICTIONARY_BYTES_MAX)
        if (
            run.pack is not None
            and length > (best.length if best else limits.DICTIONARY_BYTES_MIN)
            and run.pack.dictionaries < limits.DICTIONARIES_MAX
            and level(held[run.pack]) >= least
        ):
            best = _Dictionary(run.pack, run.start + run.length - length, length, end - length)
        end -= run.length
    return best


def _place(
    data: bytes, runs: Sequence[Run], merged: set[KnownPack], rewritten: set[int]
) -> _Placement:
    """Place each byte in an earlier pack or in the new pack's stream."""
    view = memoryview(data)
    found = _Placement([], [], [], [])
    stream_bytes = offset = 0
    for index, (length, pack, start) in enumerate(runs):
        if pack is None or pack in merged or index in rewritten:
            if pack is None:
                found.shift.append((offset, stream_bytes))
            else:
                found.moved.append((pack, start, length, stream_bytes))
            found.stream.append(view[offset : offset + length])
            pack, start = None, stream_bytes
            stream_bytes += length
        last = found.runs[-1] if found.runs else None
        if last and last.pack is pack and last.start + last.length == start:
            found.runs[-1] = Run(last.length + length, pack, last.start)
        else:
            found.runs.append(Run(length, pack, start))
        offset += length
    return found


def _untouched_bytes(runs: Sequence[Run], merged: set[KnownPack], rewritten: set[int]) -> int:
    """Return how many leading bytes stay in their present packs."""
    size_bytes = 0
    for index, run in enumerate(runs):
        if run.pack is None or run.pack in merged or index in rewritten:
            break
        size_bytes += run.length
    return size_bytes


def _next_base(
    manifest_base: ManifestBase, shared_bytes: int, runs: list[Run], size_bytes: int
) -> ManifestBase | None:
    """Return the base that the next manifest continues, or None if a full manifest is due."""
    # A reader fetches the whole base, so the payload must refer to it anyway.
    if not shared_bytes or all(run.pack is not manifest_base.pack for run in runs):
        return None
    ends = list(itertools.accumulate(run.length for run in runs))
    listed = list(cut_runs(runs, ends, shared_bytes, size_bytes - shared_bytes))
    full_bytes = _manifest_bytes(runs)
    spent_bytes = manifest_base.spent_bytes + _BASE_BYTES + _manifest_bytes(listed)
    return (
        ManifestBase(manifest_base.pack, shared_bytes, spent_bytes)
        if spent_bytes < full_bytes
        else None
    )


def _manifest_bytes(runs: Sequence[Run]) -> int:
    packs = {run.pack for run in runs if run.pack is not None}
    return DIGEST_BYTES * len(packs) + EXTENT_BYTES * len(runs)


def _chunks(match: Match, shift: list[tuple[int, int]]) -> list[tuple[int, int, bytes]]:
    """Return the chunks of the new bytes with their places in the new pack's stream."""
    offsets = [at for at, _ in shift]
    chunks = []
    for start, length, chunk_id in match.ids:
        data_start, stream_start = shift[bisect.bisect_right(offsets, start) - 1]
        chunks.append((stream_start + start - data_start, length, chunk_id))
    return chunks


def _join(stream: list[memoryview]) -> list[memoryview]:
    return stream if len(stream) < 2 else [memoryview(b"".join(stream))]


def settled_bytes(size_bytes: int) -> int:
    """Return how many bytes of a payload a settled pack holds at least."""
    return max(limits.SETTLED_BYTES_MIN, size_bytes // limits.SETTLED_MAX)


def unsettled_max(size_bytes: int) -> int:
    """Return how many unsettled packs a payload may need, its own included."""
    levels = level(size_bytes) + 1
    return min(limits.PACKS_MAX, 1 + (limits.MERGE_FACTOR - 1) * levels)


def packs_max(size_bytes: int) -> int:
    """Return how many packs a reader of a payload needs at most, its own included."""
    return unsettled_max(size_bytes) + size_bytes // settled_bytes(size_bytes)


def choose_packs(
    runs: Sequence[Run], size_bytes: int, rewritten: Collection[int] = ()
) -> set[KnownPack]:
    """Choose the packs whose part of the payload is written again.

    The runs in `rewritten`, by index, are written in any case. So a pack counts with its other runs
    only, and a pack without other runs cannot be a dictionary.
    """
    held: dict[KnownPack, int] = {}
    growing = 0
    for index, run in enumerate(runs):
        if run.pack is None or index in rewritten:
            growing += run.length
        else:
            held[run.pack] = held.get(run.pack, 0) + run.length
    merged = {pack for pack, used in held.items() if used < limits.SPARSE_RATIO * pack.stream_bytes}
    growing += sum(held[pack] for pack in merged)
    # By number where sizes are equal, so that equal payloads give equal packs.
    smallest_first = sorted(held.keys() - merged, key=lambda pack: (held[pack], pack.number))
    # Packs that are small compared with the new bytes cost little, and are lifted to their level.
    room = int(limits.ABSORB_RATIO * growing)
    for pack in smallest_first:
        room -= held[pack]
        if room < 0 or held[pack] * limits.MERGE_FACTOR > growing:
            break
        merged.add(pack)
    left = [pack for pack in smallest_first if pack not in merged]
    while len(left) > packs_max(size_bytes) - 1:
        chosen = _lowest_full_level(left, held)
        merged.update(chosen)
        left = left[len(chosen) :]
    # A pack cannot be read without its dictionary, so it is merged too if its dictionary is. This is
    # rare: the dictionary's pack is on the same level or a higher one.
    kept = held.keys() - merged
    while alone := {pack for pack in kept if pack.dictionary and pack.dictionary not in kept}:
        merged |= alone
        kept -= alone
    return merged


def level(size_bytes: int) -> int:
    """Return the level of a pack that holds `size_bytes` of a payload."""
    found, top = 0, limits.MERGE_LEVEL_BYTES
    while size_bytes >= top:
        found, top = found + 1, top * limits.MERGE_FACTOR
    return found


def _lowest_full_level(
    smallest_first: list[KnownPack], held: Mapping[KnownPack, int]
) -> list[KnownPack]:
    """Return the packs up to the lowest level that holds `MERGE_FACTOR` of them or more."""
    top = limits.MERGE_LEVEL_BYTES
    start = end = 0
    while end < len(smallest_first):
        while end < len(smallest_first) and held[smallest_first[end]] < top:
            end += 1
        if end - start >= limits.MERGE_FACTOR:
            return smallest_first[:end]
        start = end
        top *= limits.MERGE_FACTOR
    return smallest_first


def choose_runs(runs: Sequence[Run]) -> set[int]:
    """Choose runs, by index, to write again because the payload has too many.

    Adjacent runs that are written again become one. Runs are taken in groups, and the half of the groups
    with the fewest bytes is written: long runs stay until most others are long too. If a payload has far
    too many runs, more than half of the groups are written. k groups that stay, with the runs written
    between them, make at most k * (EXTENTS_GROUP + 1) + 1 runs.
    """
    if len(runs) <= limits.EXTENTS_MAX:
        return set()
    groups = [
        range(start, min(start + limits.EXTENTS_GROUP, len(runs)))
        for start in range(0, len(runs), limits.EXTENTS_GROUP)
    ]
    groups.sort(key=lambda group: (sum(runs[each].length for each in group), group.start))
    # Between two groups that stay there is at most one written run.
    kept = min(len(groups) // 2, (limits.EXTENTS_MAX - 1) // (limits.EXTENTS_GROUP + 1))
    return {each for group in groups[: len(groups) - kept] for each in group}
