"""Merge policy: chooses the parts of a payload that are written again into its new pack.

A payload points into earlier packs, and a reader fetches each of them. So their number is bounded, and
a merge keeps it there: the bytes of several packs, which the encoder has at hand, are written again
into the new one. A good merge buys many steps and leaves large packs alone.

A pack that holds at least `settled_bytes` of the payload (384 KiB, or a 64th of a larger payload) is
**settled**: it is counted separately. As many as fit into the payload may be settled: 8 for each 3 MiB,
and 64 in all. Each pack has a level by its size: below 8 KiB, below 40, 200, 1000 KiB, and so on by
factors of 5. When a payload would need more packs than 24 and as many as may be settled, the lowest
level with 5 packs or more is merged, with all below it. A settled pack is merged only if it is on that
level, or if it is small beside the new bytes.

Such a level exists: below the largest settled size (4 MiB, for a payload of 256 MiB) there are 5
levels, and 24 packs with at most 4 on each would be 20. A merge of 5 packs of a level makes one of a
higher level. So each merge lifts each byte by a level or more, and a byte is written at most 6 times,
the first included, however long the thread lives. Only merges that stay below 8 KiB may lift nothing;
each of those writes less than 8 KiB and makes room for 4 packs, so they add 2 KiB a payload at most.
"""

from collections.abc import Collection, Mapping, Sequence

from everlong import limits
from everlong.codecs.matching import Known, Run


def settled_bytes(size_bytes: int) -> int:
    """Return from how many bytes of a payload on a pack is never merged."""
    return max(limits.SETTLED_BYTES_MIN, size_bytes // limits.SETTLED_MAX)


def unsettled_max(size_bytes: int) -> int:
    """Return how many packs that are not settled a payload may need, its own included."""
    levels = level(size_bytes) + 1
    return min(limits.PACKS_MAX, 1 + (limits.MERGE_FACTOR - 1) * levels)


def packs_max(size_bytes: int) -> int:
    """Return how many packs a reader of a payload needs at most, its own included."""
    return unsettled_max(size_bytes) + size_bytes // settled_bytes(size_bytes)


def choose_packs(
    runs: Sequence[Run], size_bytes: int, rewritten: Collection[int] = ()
) -> set[Known]:
    """Choose the packs whose part of the payload is written again.

    The runs in `rewritten`, by index, are written in any case. So a pack keeps only its other runs, and
    one whose runs are all among them serves no other as a dictionary.
    """
    held: dict[Known, int] = {}
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
    # What is small beside the new bytes costs little, and is lifted to their level.
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
    # A pack is not read without its dictionary. It is at least as large, so it is seldom merged first.
    kept = held.keys() - merged
    while alone := {pack for pack in kept if pack.dictionary and pack.dictionary not in kept}:
        merged |= alone
        kept -= alone
    return merged


def level(size_bytes: int) -> int:
    """Return the level of a pack that holds that many bytes of a payload."""
    found, top = 0, limits.MERGE_LEVEL_BYTES
    while size_bytes >= top:
        found, top = found + 1, top * limits.MERGE_FACTOR
    return found


def _lowest_full_level(smallest_first: list[Known], held: Mapping[Known, int]) -> list[Known]:
    """Return the packs of the lowest level that has enough of them, and all below it."""
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
    """Choose runs, by their index, that are written again because there are too many of them.

    Neighbours become one run. They are taken in groups, and the half of the groups that holds the fewest
    bytes is written: a run that is long already is left alone until most others are. Where one payload
    has far too many runs, more than half are written. k groups that are kept, with what is written
    between them, make at most k * (EXTENTS_GROUP + 1) + 1 runs.
    """
    if len(runs) <= limits.EXTENTS_MAX:
        return set()
    groups = [
        range(start, min(start + limits.EXTENTS_GROUP, len(runs)))
        for start in range(0, len(runs), limits.EXTENTS_GROUP)
    ]
    groups.sort(key=lambda group: (sum(runs[each].length for each in group), group.start))
    kept = min(len(groups) // 2, (limits.EXTENTS_MAX - 1) // (limits.EXTENTS_GROUP + 1))
    chosen = groups[: len(groups) - kept]
    return {each for group in chosen for each in group}
