"""Encoder memory: what a process remembers of a thread's payloads, so that it writes only what is new.

An agent's payload mostly repeats the one before. So the newest payloads are kept, and where their
bytes and chunks lie; `matching` finds what a new one has in common with them. Nothing is shared between
threads. A process that has forgotten a thread writes one payload of it whole.
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
    KnownPack,
    ManifestBase,
    Match,
    RecentPayload,
    Run,
    find_closest,
    is_fresh,
    repeat_id,
    running_crcs,
)
from everlong.codecs.pack_layout import Plan, Stored, lay_out
from everlong.storage.packs import Contents
from everlong.storage.packstore import Reading

# What a thread takes of which nothing is remembered yet, as measured.
_THREAD_COST_BYTES: Final = 1400


def _seconds() -> float:
    """Return the time since the machine started; where it can be told, while it was asleep too."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class ThreadMemory:
    """What is known of one thread. Its methods may be called from any thread of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: list[RecentPayload] = []  # The one used last stands last.
        self._index: dict[bytes, tuple[KnownPack, int]] = {}
        self._repeats: dict[bytes, Stored] = {}
        self._packs: WeakValueDictionary[bytes, KnownPack] = WeakValueDictionary()
        self._number = 0  # Of the next pack.
        # The key of all that is remembered: after a rotation, nothing of an older key is used.
        self._key_id = ""
        self.was_forgotten = False
        """Whether all of it was forgotten before, and nothing has been written since."""

    @property
    def cost_bytes(self) -> int:
        """What this takes of the process's memory, nearly."""
        kept = sum(recent.cost_bytes for recent in self._recent)
        entries = len(self._index) + len(self._repeats)
        return _THREAD_COST_BYTES + kept + entries * limits.ENCODER_ENTRY_COST_BYTES

    def drop_data(self) -> int:
        """Drop the bytes of payloads, and return how many.

        Of lists, digests are kept, by which their packs are found again. Of payloads that are known by
        their digest, the newest are kept: those of a task that may be tried again.
        """
        with self._lock:
            before = self._recent
            # One that stands alone may be the first payload of a list, so the last of them is kept too.
            singles = [recent for recent in before if not recent.is_list]
            kept = [each for each in before if each.is_list or each in singles[-1:]]
            self._recent = list(kept)
            before_bytes = sum(recent.cost_bytes for recent in before)
            for known_by in list(self._repeats)[: -limits.ENCODER_REPEATS_KEPT]:
                del self._repeats[known_by]
        # The digests of a large list take a while, and the event loop may want the lock.
        for recent in kept:
            recent.drop_data()
        return before_bytes - sum(recent.cost_bytes for recent in kept)

    def find(self, name: bytes, key_id: str) -> tuple[bytes, bytes] | None:
        """Return the envelope and data of a payload that was encoded or decoded lately."""
        with self._lock:
            for recent in self._recent:
                data = recent.data
                if recent.name == name and self._key_id == key_id and data is not None:
                    return recent.envelope, data
        return None

    def plan(self, envelope: bytes, data: bytes, key_id: str, now: float) -> Plan:
        """Find out what of a payload is new."""
        known_by = repeat_id(envelope, data)
        with self._lock:
            self._forget_stale(key_id, now)
            recents, index, number = list(self._recent), self._index, self._number
            same_as = self._same(recents, envelope, data, known_by, now)
        if same_as is not None:
            nothing = Contents(envelope=envelope, size_bytes=len(data), crc=0, extents=[])
            return Plan(
                nothing, key_id, data, [], None, [], [], [], 0, repeat_id=known_by, same_as=same_as
            )
        # The rest takes its time, and the event loop may want the lock. What others add to the index
        # meanwhile is passed over, so that equal payloads give equal packs.

        def look_up(chunk_id: bytes) -> tuple[KnownPack, int] | None:
            known = index.get(chunk_id)
            if known is None or known[0].number >= number or not is_fresh(known[0], now):
                return None
            return known

        base, prefix, suffix = find_closest(recents, data)
        singles = [recent for recent in reversed(recents) if not recent.is_list]
        matching = Match(data, base, prefix, suffix, look_up, singles)
        crcs = running_crcs(data, base.crcs_within(prefix) if base else ())
        return lay_out(envelope, key_id, data, crcs, base, matching, known_by)

    def _same(
        self,
        recents: list[RecentPayload],
        envelope: bytes,
        data: bytes,
        known_by: bytes,
        now: float,
    ) -> Stored | None:
        """Return an equal payload that is durable, and see to it that it does not grow old."""
        found = self._repeats.get(known_by)
        if found is not None and not all(is_fresh(pack, now) for pack in found.used):
            found = None
        for recent in recents:
            own_data = recent.data
            if own_data is None:
                continue
            # The ends first: of two lists of one length those differ, and all the rest is the same.
            if own_data[-64:] != data[-64:] or len(own_data) != len(data):
                continue
            if recent.envelope == envelope and own_data == data:
                found = Stored(recent.name, recent.packs, recent.used)
                recent.used_at = now
        for pack in found.used if found else ():
            pack.used_at = now
        return found

    def commit(self, plan: Plan, name: bytes, now: float) -> None:
        """Remember a payload that has become durable."""
        with self._lock:
            if plan.key_id != self._key_id:
                return  # The key was rotated meanwhile.
            new = self._known(name, plan.new_bytes, now)
            new.dictionary = plan.dictionary
            # An equal pack may have been written before, and most of it forgotten since.
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
            # A result is looked for until a list holds it. After that its chunks are known.
            self._recent = [each for each in self._recent if each not in plan.found]
            self._remember(recent)
            for chunk_id in list(
                itertools.islice(self._index, max(0, len(self._index) - limits.ENCODER_CHUNKS_MAX))
            ):
                del self._index[chunk_id]

    def learn(self, reading: Reading, now: float) -> None:
        """Remember a payload that was read: what follows it can point to where it lies."""
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
                return  # No encoder wrote that: it is read, and not pointed to.
            self._key_id = pack.key_id
            known = {
                each.name: self._known(each.name, each.stream_bytes, now)
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

    def _known(self, name: bytes, stream_bytes: int, now: float) -> KnownPack:
        known = self._packs.get(name)
        if known is None:
            known = self._packs[name] = KnownPack(name, self._number, stream_bytes, now, now)
            self._number += 1
        known.used_at = known.stored_at = now
        return known

    def _remember(self, recent: RecentPayload) -> None:
        for each in self._recent:
            if each.name == recent.name and each.data is not None:
                return  # It was encoded twice at once.
            if each.name == recent.name:  # Its bytes were dropped, and are here again.
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
        """Let chunks of an older pack be found in the newer one that has them as well."""
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


@dataclasses.dataclass
class MemoryStats:
    """What the bound on the encoder's memory has cost."""

    dropped_bytes: int = 0
    """Bytes of payloads that were dropped; digests of them were kept."""
    forgotten_threads: int = 0
    rewritten_bytes: int = 0
    """Bytes that forgotten threads wrote with their first payload after that, compressed."""


class EncoderMemory:
    """The memory of all threads, bounded in bytes.

    Beyond the bound, the bytes of the threads unused for longest are dropped, and then whole threads.
    """

    def __init__(
        self, bytes_max: int = limits.ENCODER_BYTES_MAX, clock: Callable[[], float] = _seconds
    ) -> None:
        self.stats = MemoryStats()
        self._bytes_max = bytes_max
        self._threads: OrderedDict[str, ThreadMemory] = OrderedDict()
        # Threads that may have bytes to drop, in the order of use.
        self._full: OrderedDict[str, None] = OrderedDict()
        # What each thread took when it was last looked at: to look at all takes too long.
        self._costs: dict[str, int] = {}
        self._cost_bytes = 0
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self._clock = clock

    @property
    def cost_bytes(self) -> int:
        """What this takes of the process's memory, nearly."""
        return self._cost_bytes

    def get(self, thread: str) -> ThreadMemory:
        """Return the memory of a thread, a fresh one if it has none."""
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
        """Return a payload of a thread by the name and key of its pack, if it is remembered."""
        with self._lock:
            memory = self._threads.get(thread)
        return memory.find(name, key_id) if memory else None

    def forget(self, thread: str) -> None:
        """Forget a thread: something that it points to is lost."""
        with self._lock:
            if self._threads.pop(thread, None) is not None:
                self._full.pop(thread, None)
                self._cost_bytes -= self._costs.pop(thread)

    def now(self) -> float:
        """Return the time by which packs grow old."""
        return self._clock()

    def note_growth(self, thread: str) -> None:
        """Count what a thread takes, after it has grown."""
        with self._lock:
            memory = self._threads.get(thread)
            if memory is not None:
                self._measure(thread, memory)
                self._full[thread] = None
                self._full.move_to_end(thread)

    def trim(self, thread: str) -> None:
        """Drop what was unused for longest until the rest fits, after this thread has grown."""
        self.note_growth(thread)
        while (victim := self._next_full()) is not None:
            # Outside of the lock: the digests of a large list take some milliseconds.
            dropped_bytes = victim[1].drop_data()
            with self._lock:
                self.stats.dropped_bytes += dropped_bytes
                if self._threads.get(victim[0]) is victim[1]:
                    self._measure(*victim)
        with self._lock:
            self._forget_oldest()

    @property
    def is_full(self) -> bool:
        """Whether the next `trim` has something to drop."""
        return self._cost_bytes > self._bytes_max

    def _next_full(self) -> tuple[str, ThreadMemory] | None:
        """Return the thread unused for longest that has bytes to drop, if any have to go."""
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
