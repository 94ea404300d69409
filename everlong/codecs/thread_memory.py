"""Thread memory: what this process has stored of each thread, so that new packs hold only new bytes.

An agent's payload mostly repeats the one before. The memory keeps the newest payloads of each thread,
and the places of their bytes and chunks in packs; `matcher` finds what a new payload shares with them,
and `pack_layout` lays out the rest. Threads share nothing. Forgetting is safe: a process that has
forgotten a thread writes its next payload whole.
"""

import bisect
import dataclasses
import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from everlong import limits
from everlong.codecs.matcher import (
    KEYED_DIGEST,
    ChunkIndex,
    KnownPack,
    ManifestBase,
    Match,
    RecentPayload,
    Run,
    find_closest,
    is_fresh,
    running_crcs,
)
from everlong.codecs.pack_layout import Plan, Stored, lay_out
from everlong.storage.pack_store import ReadResult
from everlong.storage.packs import Contents

# Memory of a thread without payloads, as measured.
_THREAD_COST_BYTES: Final = 1400


def _seconds() -> float:
    """Return the time since the machine started, including sleep where the platform counts it."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class ThreadMemory:
    """What the process knows of one agent thread. Safe to use from any thread of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: list[RecentPayload] = []  # Most recently used last.
        self._index: dict[bytes, tuple[KnownPack, int]] = {}
        self._repeats: dict[bytes, Stored] = {}
        self._packs: WeakValueDictionary[bytes, KnownPack] = WeakValueDictionary()
        self._number = 0  # Number of the next pack.
        # All remembered payloads have this key. After a rotation nothing of an older key is used.
        self._key_id = ""
        self.was_forgotten = False
        """Whether the thread was forgotten before, and has written nothing since."""

    @property
    def cost_bytes(self) -> int:
        """Approximate memory of this thread."""
        kept = sum(recent.cost_bytes for recent in self._recent)
        entries = len(self._index) + len(self._repeats)
        return _THREAD_COST_BYTES + kept + entries * limits.ENCODER_ENTRY_COST_BYTES

    def drop_data(self) -> int:
        """Drop the bytes of payloads, and return the bytes of memory freed.

        Lists keep digests, by which their packs are found again. Of the payloads known by digest, only
        the newest stay: a task that is retried sends those again.
        """
        with self._lock:
            before = self._recent
            # A single payload may be the first of a list, so the last one is kept too.
            singles = [recent for recent in before if not recent.is_list]
            kept = [each for each in before if each.is_list or each in singles[-1:]]
            self._recent = list(kept)
            before_bytes = sum(recent.cost_bytes for recent in before)
            for known_by in list(self._repeats)[: -limits.ENCODER_REPEATS_KEPT]:
                del self._repeats[known_by]
        # Digests of a large list take a while, so they are computed without the lock, which the event
        # loop also takes.
        for recent in kept:
            recent.drop_data()
        return before_bytes - sum(recent.cost_bytes for recent in kept)

    def find(self, name: bytes, key_id: str) -> tuple[bytes, bytes] | None:
        """Return the envelope and data of a recent payload, by the name and key of its pack."""
        with self._lock:
            for recent in self._recent:
                data = recent.data
                if recent.name == name and self._key_id == key_id and data is not None:
                    return recent.envelope, data
        return None

    def plan(self, envelope: bytes, data: bytes, key_id: str, now: float) -> Plan:
        """Return how to write a payload: the pack of its new bytes, or an equal stored payload."""
        known_by = _compute_repeat_id(envelope, data)
        with self._lock:
            self._forget_stale(key_id, now)
            recents, index, number = list(self._recent), self._index, self._number
            same_as = self._find_equal(recents, envelope, data, known_by, now)
        if same_as is not None:
            nothing = Contents(envelope=envelope, size_bytes=len(data), crc=0, extents=[])
            return Plan(
                nothing, key_id, data, [], None, [], [], [], 0, repeat_id=known_by, same_as=same_as
            )
        # The rest takes longer, so it runs without the lock, which the event loop also takes.
        base, prefix, suffix = find_closest(recents, data)
        singles = [recent for recent in reversed(recents) if not recent.is_list]
        match = Match(data, base, prefix, suffix, ChunkIndex(index, number, now), singles)
        crcs = running_crcs(data, base.crcs_within(prefix) if base else ())
        return lay_out(envelope, key_id, data, crcs, base, match, known_by)

    def _find_equal(
        self,
        recents: list[RecentPayload],
        envelope: bytes,
        data: bytes,
        known_by: bytes,
        now: float,
    ) -> Stored | None:
        """Return an equal payload that is durable, and mark its packs as used now."""
        found = self._repeats.get(known_by)
        if found is not None and not all(is_fresh(pack, now) for pack in found.used):
            found = None
        for recent in recents:
            own_data = recent.data
            if own_data is None:
                continue
            # Compare the ends first: lists of equal length differ there, after a long equal prefix.
            if own_data[-64:] != data[-64:] or len(own_data) != len(data):
                continue
            if recent.envelope == envelope and own_data == data:
                found = Stored(recent.name, recent.packs, recent.used)
                recent.used_at = now
        for pack in found.used if found else ():
            pack.used_at = now
        return found

    def commit(self, plan: Plan, name: bytes, now: float) -> None:
        """Remember a payload whose pack is durable now."""
        with self._lock:
            if plan.key_id != self._key_id:
                return  # The key was rotated meanwhile.
            new = self._get_pack(name, plan.new_bytes, now)
            new.dictionary = plan.dictionary
            # An equal pack may have been written before, with other chunks indexed since.
            new.chunks = list(dict.fromkeys([*new.chunks, *plan.chunks]))
            for start, _, chunk_id in plan.chunks:
                self._index[chunk_id] = (new, start)
            for pack, group in itertools.groupby(
                sorted(plan.moved, key=lambda run: (run[0].number, run[1])), lambda run: run[0]
            ):
                if pack is not new:
                    self._move(pack, list(group), new)
            runs = [Run(run.length, run.pack or new, run.start) for run in plan.runs]
            recent = RecentPayload(
                plan.contents.envelope,
                plan.data,
                runs,
                new,
                plan.packs,
                now,
                plan.crcs,
                manifest_base=plan.manifest_base or ManifestBase(new, len(plan.data), 0),
            )
            for pack in recent.used:
                pack.used_at = now
            if plan.repeat_id:
                self._repeats.pop(plan.repeat_id, None)
                self._repeats[plan.repeat_id] = Stored(name, plan.packs, recent.used)
                while len(self._repeats) > limits.ENCODER_REPEATS_MAX:
                    del self._repeats[next(iter(self._repeats))]
            if plan.base in self._recent and plan.continues_base:
                self._recent.remove(plan.base)
                recent.is_list = True
            # A result is searched for until a list contains it. After that its chunks are indexed.
            self._recent = [each for each in self._recent if each not in plan.found]
            self._remember(recent)
            for chunk_id in list(
                itertools.islice(self._index, max(0, len(self._index) - limits.ENCODER_CHUNKS_MAX))
            ):
                del self._index[chunk_id]

    def learn(self, reading: ReadResult, now: float) -> None:
        """Remember a payload that was read, so that the next payload can refer to its packs."""
        pack = reading.pack
        with self._lock:
            if pack.key_id != self._key_id and (self._recent or self._index):
                return
            if any(recent.name == pack.name for recent in self._recent):
                return
            packs = [pack, *reading.sources]
            used = {packs[extent.source].name for extent in reading.extents} | {pack.name}
            dictionaries = {each.dictionary_name for each in packs if each.name in used}
            if not dictionaries - {None} <= used:
                return  # No encoder writes such a pack. It may be read, but never referred to.
            self._key_id = pack.key_id
            known = {
                each.name: self._get_pack(each.name, each.stream_bytes, now)
                for each in packs
                if each.name in used
            }
            for each in packs:
                if each.name in used and each.dictionary_name is not None:
                    known[each.name].dictionary = known[each.dictionary_name]
            runs = [
                Run(length, known[packs[source].name], start)
                for source, start, length in reading.extents
            ]
            self._remember(
                RecentPayload(
                    pack.envelope, reading.data, runs, known[pack.name], len(packs), now, []
                )
            )

    def _get_pack(self, name: bytes, stream_bytes: int, now: float) -> KnownPack:
        known = self._packs.get(name)
        if known is None:
            known = self._packs[name] = KnownPack(name, self._number, stream_bytes, now, now)
            self._number += 1
        known.used_at = known.stored_at = now
        return known

    def _remember(self, recent: RecentPayload) -> None:
        for each in self._recent:
            if each.name == recent.name and each.data is not None:
                return  # Two tasks encoded it at once.
            if each.name == recent.name:  # Its bytes had been dropped.
                recent.is_list |= each.is_list
                self._recent.remove(each)
                break
        self._recent.append(recent)
        for is_list, most in (
            (True, limits.ENCODER_LISTS_MAX),
            (False, limits.ENCODER_SINGLES_MAX),
        ):
            alike = [each for each in self._recent if each.is_list == is_list]
            if len(alike) > most:
                self._recent.remove(alike[0])

    def _forget_stale(self, key_id: str, now: float) -> None:
        if key_id != self._key_id:
            self._recent = []
            self._index = {}
            self._repeats = {}
            self._key_id = key_id
        self._recent = [
            recent
            for recent in self._recent
            if now - recent.used_at <= limits.ENCODER_SECONDS_MAX
            and all(is_fresh(pack, now) for pack in recent.used)
        ]

    def _move(
        self, pack: KnownPack, moved: list[tuple[KnownPack, int, int, int]], new: KnownPack
    ) -> None:
        """Index chunks of an older pack in the newer pack that also holds them."""
        starts = [start for _, start, _, _ in moved]
        for chunk_start, chunk_length, chunk_id in pack.chunks:
            number = bisect.bisect_right(starts, chunk_start) - 1
            if number < 0:
                continue
            _, start, length, moved_to = moved[number]
            if chunk_start + chunk_length <= start + length:
                place = moved_to + chunk_start - start
                new.chunks.append((place, chunk_length, chunk_id))
                self._index.pop(chunk_id, None)
                self._index[chunk_id] = (new, place)


def _compute_repeat_id(envelope: bytes, data: bytes) -> bytes:
    """Return the digest by which an equal payload is recognised; empty if the data is too large."""
    if len(data) > limits.ENCODER_REPEAT_BYTES_MAX:
        return b""
    digest = KEYED_DIGEST.copy()
    digest.update(b"repeat" + len(envelope).to_bytes(8))
    digest.update(envelope)
    digest.update(data)
    return digest.digest()


@dataclasses.dataclass
class MemoryStats:
    """Costs of the bound on the encoder's memory."""

    dropped_bytes: int = 0
    """Bytes of payloads dropped; their digests were kept."""
    forgotten_threads: int = 0
    rewritten_bytes: int = 0
    """Compressed bytes that forgotten threads wrote with their first payload afterwards."""


class ThreadMemories:
    """The memories of all threads (`encoder_bytes_max`), bounded in bytes.

    Above the bound, the least recently used threads lose their bytes first, then whole threads go.
    """

    def __init__(
        self, bytes_max: int = limits.ENCODER_BYTES_MAX, clock: Callable[[], float] = _seconds
    ) -> None:
        self.stats = MemoryStats()
        self._bytes_max = bytes_max
        self._threads: OrderedDict[str, ThreadMemory] = OrderedDict()
        # Threads that may have bytes to drop, least recently used first.
        self._full: OrderedDict[str, None] = OrderedDict()
        # Cost of each thread when last measured. Measuring all of them each time takes too long.
        self._costs: dict[str, int] = {}
        self._cost_bytes = 0
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self._clock = clock

    @property
    def cost_bytes(self) -> int:
        """Approximate memory of all threads."""
        return self._cost_bytes

    def get(self, thread: str) -> ThreadMemory:
        """Return the memory of a thread; a new one if the thread is unknown."""
        with self._lock:
            memory = self._threads.get(thread)
            if memory is None:
                memory = self._threads[thread] = ThreadMemory()
                memory.was_forgotten = thread in self._forgotten
                self._forgotten.pop(thread, None)
                self._measure(thread, memory)
            self._threads.move_to_end(thread)
            return memory

    def find(self, thread: str, name: bytes, key_id: str) -> tuple[bytes, bytes] | None:
        """Return a remembered payload of a thread, by the name and key of its pack."""
        with self._lock:
            memory = self._threads.get(thread)
        return memory.find(name, key_id) if memory else None

    def forget(self, thread: str) -> None:
        """Forget a thread, because a pack that it refers to is lost."""
        with self._lock:
            if self._threads.pop(thread, None) is not None:
                self._full.pop(thread, None)
                self._cost_bytes -= self._costs.pop(thread)

    def now(self) -> float:
        """Return the clock by which packs age."""
        return self._clock()

    def note_growth(self, thread: str) -> None:
        """Measure a thread that has grown."""
        with self._lock:
            memory = self._threads.get(thread)
            if memory is not None:
                self._measure(thread, memory)
                self._full[thread] = None
                self._full.move_to_end(thread)

    def trim(self, thread: str) -> None:
        """Measure a thread that has grown, then drop the least recently used until the rest fits."""
        self.note_growth(thread)
        while (victim := self._next_full()) is not None:
            # Outside the lock: the digests of a large list take some milliseconds.
            dropped_bytes = victim[1].drop_data()
            with self._lock:
                self.stats.dropped_bytes += dropped_bytes
                if self._threads.get(victim[0]) is victim[1]:
                    self._measure(*victim)
        with self._lock:
            self._forget_oldest()

    @property
    def is_full(self) -> bool:
        """Whether the memory is over its bound, so that `trim` has something to drop."""
        return self._cost_bytes > self._bytes_max

    def _next_full(self) -> tuple[str, ThreadMemory] | None:
        """Return the least recently used thread that has bytes to drop, if any must go."""
        with self._lock:
            while self.is_full and self._full:
                thread, _ = self._full.popitem(last=False)
                if thread in self._threads:
                    return thread, self._threads[thread]
        return None

    def _forget_oldest(self) -> None:
        while self.is_full and len(self._threads) > 1:
            thread, _ = self._threads.popitem(last=False)
            self._full.pop(thread, None)
            self._cost_bytes -= self._costs.pop(thread)
            self.stats.forgotten_threads += 1
            self._forgotten[thread] = None
            if len(self._forgotten) > limits.ENCODER_FORGOTTEN_MAX:
                self._forgotten.popitem(last=False)

    def _measure(self, thread: str, memory: ThreadMemory) -> None:
        cost_bytes = memory.cost_bytes
        self._cost_bytes += cost_bytes - self._costs.get(thread, 0)
        self._costs[thread] = cost_bytes
