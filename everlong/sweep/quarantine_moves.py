"""Taking what nothing reaches: into quarantine, back from it, and for good.

Each step may be cut off anywhere, and be done by two sweeps at once. An object is deleted after its
copy was read back, and no two moves write the same copy; a copy stays for the whole quarantine, also
if the object was put back. So at any time an object lies in its place or in quarantine. Only a copy's
end is final: of what nothing reaches it follows an exact mark, and of what is reachable the object is
in its place, and whoever made the copy has long stopped.
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from everlong import limits
from everlong.errors import BlobMissing, StoreError
from everlong.models import SweepClass, Tally, printable
from everlong.policy import Retention
from everlong.storage import quarantine
from everlong.storage.base import BlobStore
from everlong.storage.pack_store import gathered
from everlong.sweep.index import SweepIndex
from everlong.sweep.link_reader import LinkReader
from everlong.sweep.progress import with_progress
from everlong.sweep.records import Records

T = TypeVar("T")

# Each has cost a few seconds of tries.
_FAULTS_MAX: Final = 16
# With a plus, a column's index is not used: all of these go by the key, from batch to batch, and would
# else sort the whole table for each.
_UNREACHED: Final = (
    "+name NOT IN (SELECT name FROM marked) AND +thread IN (SELECT thread FROM owned)"
)
# Copies of what is reachable: the newest of each object that is not in its place, and those whose time
# is over.
_NEEDED: Final = """
SELECT key, original, quarantined_ms, size_bytes, thread, name, quarantined_ms <= :oldest AS is_old
FROM copies WHERE key > :after AND +name IN (SELECT name FROM marked) AND (is_old OR (
    original NOT IN (SELECT key FROM objects)
    AND key = (SELECT MAX(each.key) FROM copies AS each WHERE each.original = copies.original)))
ORDER BY key LIMIT :count
"""
_PUT_BACK: Final = """
INSERT OR IGNORE INTO objects (key, thread, name, size_bytes, modified_ms, is_new, listed)
VALUES (?, ?, ?, ?, ?, 1, (SELECT COALESCE(MAX(number), 1) FROM listing))
"""
_CANDIDATES: Final = f"""
SELECT key, thread, name, size_bytes, modified_ms, class FROM objects
WHERE key > :after AND {_UNREACHED} AND modified_ms <= CASE class
    WHEN 'payload' THEN :payload WHEN 'journal' THEN :journal WHEN 'archive' THEN :archive
    WHEN 'unknown' THEN :unknown ELSE :first END
ORDER BY key LIMIT :count
"""  # noqa: S608 - of constants
# Copies of trees in which an activity has been under way since before they were made: it may return
# the name of what it wrote.
_OLD_COPIES: Final = f"""
SELECT key, size_bytes FROM copies WHERE key > ? AND {_UNREACHED} AND quarantined_ms <= ?
AND NOT EXISTS (
    SELECT 1 FROM held WHERE since_ms <= quarantined_ms AND root IN (
        SELECT root FROM runs WHERE runs.thread = copies.thread
        UNION SELECT root FROM threads WHERE threads.thread = copies.thread))
ORDER BY key LIMIT ?
"""  # noqa: S608 - of constants


class _Candidate(NamedTuple):
    key: str
    thread: str
    name: bytes
    size_bytes: int
    modified_ms: int
    kind: str


class _Needed(NamedTuple):
    """A copy of something that is reachable."""

    copy: quarantine.Copy
    thread: str
    name: bytes
    is_old: bool

    @property
    def size_bytes(self) -> int:
        return self.copy.size_bytes


@dataclasses.dataclass
class MoveCounts:
    """What has been done so far."""

    objects: Counter[str] = dataclasses.field(default_factory=Counter)
    bytes: Counter[str] = dataclasses.field(default_factory=Counter)

    def add(self, what: str, size_bytes: int) -> None:
        """Count one object."""
        self.objects[what] += 1
        self.bytes[what] += size_bytes

    def tally(self, what: str) -> Tally:
        """Return how many they were, and what they took."""
        return Tally(objects=self.objects[what], bytes=self.bytes[what])


class QuarantineMover:
    """Acts on what the index says is marked."""

    def __init__(
        self,
        index: SweepIndex,
        store: BlobStore,
        reader: LinkReader,
        records: Records,
        retention: Retention,
        sweep_id: str,
        *,
        dry_run: bool,
        on_progress: Callable[[str], None],
    ) -> None:
        self._index = index
        self._store = store
        self._reader = reader
        self._records = records
        self._retention = retention
        self._sweep_id = sweep_id
        self._dry_run = dry_run
        self._on_progress = on_progress
        self.counts = MoveCounts()
        self.faults: list[str] = []
        """Objects that the store could not read or move, and why."""

    async def restore(self, now_ms: int) -> None:
        """Put back what is reachable again, and drop copies of such objects whose time is over.

        A young copy stays: whoever made it may be about to delete the object.
        """
        values: dict[str, Any] = {
            "oldest": self.oldest_ms(now_ms),
            "after": "",
            "count": limits.SWEEP_BATCH,
        }
        while rows := await self._compute(partial(self._index.run_named, _NEEDED, values)):
            batch = [_Needed(quarantine.Copy(*row[:4]), *row[4:]) for row in rows]
            values["after"] = batch[-1].copy.key
            if not self._dry_run:
                await self._records.log(
                    "restore", [(each.copy.key, each.copy.size_bytes) for each in batch]
                )
            what = f"put back {self.counts.objects['restored']} objects"
            await self._move_in_batches(batch, partial(self._restore, now_ms), what)

    async def _restore(self, now_ms: int, needed: _Needed) -> None:
        try:
            await self._put_back(now_ms, needed)
        except StoreError as error:
            self._note(needed.copy.key, error)

    def _note(self, key: str, error: StoreError) -> None:
        """Go on without an object that the store does not give. With many, it is the store."""
        self.faults.append(f"{key}: {type(error).__name__}: {printable(str(error), 200)}")
        if len(self.faults) >= _FAULTS_MAX:
            raise error

    async def _compute(self, work: Callable[[], T]) -> T:
        return await self._index.compute(work, self._on_progress)

    async def _put_back(self, now_ms: int, needed: _Needed) -> None:
        copy = needed.copy
        is_there = needed.is_old and await quarantine.is_there(self._store, copy.original)
        if self._dry_run:
            self._count_restored(copy, is_there)
            return
        if not is_there:
            if not await quarantine.restore(self._store, copy):
                return
            self.counts.add("restored", copy.size_bytes)
        self._index.run(
            _PUT_BACK, copy.original, needed.thread, needed.name, copy.size_bytes, now_ms
        )
        self._index.touch(needed.thread)
        if needed.is_old:
            await self._store.delete([copy.key])
            self._index.run("DELETE FROM copies WHERE key = ?", copy.key)

    def _count_restored(self, copy: quarantine.Copy, is_there: bool) -> None:
        """Count what would be put back, and that once: a second mark finds it in quarantine again."""
        counted = "SELECT 1 FROM restored WHERE original = ?"
        if not is_there and self._index.scalar(counted, copy.original) is None:
            self._index.run("INSERT INTO restored VALUES (?)", copy.original)
            self.counts.add("restored", copy.size_bytes)

    async def quarantine(self, now_ms: int) -> None:
        """Move what is unreachable and old enough into quarantine."""
        after = ""
        while batch := await self._compute(partial(self._candidates, after, now_ms)):
            after = batch[-1].key
            if not self._dry_run:
                objects = [(each.key, each.size_bytes) for each in batch]
                await self._records.log("quarantine", objects)
            # Manifests of archives go before their files: an archive without one is none.
            manifests = [each for each in batch if each.key.endswith(".json")]
            others = [each for each in batch if not each.key.endswith(".json")]
            what = f"quarantined {self.counts.objects['quarantined']} objects"
            for part in (manifests, others):
                await self._move_in_batches(part, partial(self._quarantine, now_ms), what)

    def _candidates(self, after: str, now_ms: int) -> list[_Candidate]:
        kept = self._retention
        both = (kept.payload_seconds, kept.journal_seconds)
        values = {
            "after": after,
            "payload": _before(now_ms, kept.payload_seconds),
            "journal": _before(now_ms, kept.journal_seconds),
            "archive": _before(now_ms, kept.archive_seconds),
            "unknown": _before(now_ms, max(both)),
            "first": _before(now_ms, min(both)),
            "count": limits.SWEEP_BATCH,
        }
        return [_Candidate(*row) for row in self._index.run_named(_CANDIDATES, values)]

    async def _quarantine(self, now_ms: int, candidate: _Candidate) -> None:
        key, kind, size_bytes = candidate.key, candidate.kind, candidate.size_bytes
        try:
            # An archive may be larger than what is kept in memory, and its class is known.
            data = None if kind == "archive" else await self._store.get(key)
            if data is not None:
                kind = kind or await self._reader.classify(data, candidate.thread, candidate.name)
            if self._written_ms(candidate) > self._limit_ms(kind, now_ms):
                self._index.run("UPDATE objects SET class = ? WHERE key = ?", kind, key)
                return
            if not self._dry_run:
                since_ms = time.time_ns() // 1_000_000
                copy = quarantine.copy_key(key, since_ms, self._sweep_id)
                if not await quarantine.quarantine(self._store, key, data, copy):
                    return
                self._note_moved(candidate, copy, max(since_ms, now_ms + 1))
        except BlobMissing:  # Another sweep has it, or the listing lags.
            return
        except StoreError as error:
            self._note(key, error)
            return
        self.counts.add("quarantined", size_bytes)
        self.counts.add(f"class {kind}", size_bytes)
        self._index.run(
            "INSERT INTO swept VALUES (?, 1, ?) ON CONFLICT DO UPDATE "
            "SET objects = objects + 1, bytes = bytes + excluded.bytes",
            candidate.thread,
            size_bytes,
        )

    def _written_ms(self, candidate: _Candidate) -> int:
        """Return when an object was written. An archive's file counts from its manifest on."""
        stem, _, end = candidate.key.rpartition(".")
        beside = None
        if end == "parquet":
            statement = "SELECT modified_ms FROM objects WHERE key = ?"
            beside = self._index.scalar(statement, f"{stem}.json")
        return max(candidate.modified_ms, beside or 0)

    def _note_moved(self, candidate: _Candidate, copy: str, since_ms: int) -> None:
        """Note a copy: an exact mark may find that it is needed. It is newer than this sweep."""
        key, thread, name, size_bytes, *_ = candidate
        with self._index.transaction():
            self._index.run("DELETE FROM objects WHERE key = ?", key)
            self._index.touch(thread)
            values = (copy, key, thread, name, since_ms, size_bytes)
            self._index.run("INSERT OR IGNORE INTO copies VALUES (?, ?, ?, ?, ?, ?)", *values)

    def _limit_ms(self, kind: str, now_ms: int) -> int:
        kept = self._retention
        by_class: dict[str, float | None] = {
            "payload": kept.payload_seconds,
            "journal": kept.journal_seconds,
            "archive": kept.archive_seconds,
        }
        longest = max(kept.payload_seconds, kept.journal_seconds)
        return _before(now_ms, by_class.get(kind, longest))

    def has_old_copies(self, now_ms: int) -> bool:
        """Tell whether there is something to delete for good, were nothing marked since."""
        return bool(self._old_copies("", now_ms, 1))

    async def purge(self, now_ms: int) -> None:
        """Delete copies whose time is over. The marks have to be exact, and newer than the copies."""
        after = ""
        old = self._old_copies
        while batch := await self._compute(partial(old, after, now_ms, limits.SWEEP_BATCH)):
            after = batch[-1][0]
            if not self._dry_run:
                await self._records.log("purge", batch)
                await self._store.delete([key for key, _ in batch])
                self._index.run_many(
                    "DELETE FROM copies WHERE key = ?", [(key,) for key, _ in batch]
                )
            for _, size_bytes in batch:
                self.counts.add("purged", size_bytes)
            self._on_progress(f"deleted {self.counts.objects['purged']} objects for good")

    def oldest_ms(self, now_ms: int) -> int:
        """Return until when copies were made whose time is over."""
        return _before(now_ms, self._retention.quarantine_seconds)

    def _old_copies(self, after: str, now_ms: int, count: int) -> list[tuple[str, int]]:
        return self._index.run(_OLD_COPIES, after, self.oldest_ms(now_ms), count)

    async def _move_in_batches(
        self,
        items: Sequence[_Candidate | _Needed],
        work: Callable[[Any], Awaitable[None]],
        what: str,
    ) -> None:
        """Do something to each, a few at a time, and together no more than fits into memory."""
        batch: list[_Candidate | _Needed] = []
        for item in items:
            size_bytes = sum(each.size_bytes for each in batch) + item.size_bytes
            is_full = len(batch) == limits.SWEEP_MOVES_MAX
            if batch and (is_full or size_bytes > limits.SWEEP_MOVE_BYTES_MAX):
                await with_progress(
                    gathered([partial(work, each) for each in batch]), self._on_progress, what
                )
                batch = []
            batch.append(item)
        await with_progress(
            gathered([partial(work, each) for each in batch]), self._on_progress, what
        )

    def classes(self) -> dict[SweepClass, Tally]:
        """Return what was quarantined, by class."""
        names: tuple[SweepClass, ...] = ("payload", "journal", "archive", "unknown")
        return {
            each: tally for each in names if (tally := self.counts.tally(f"class {each}")).objects
        }


def _before(now_ms: int, seconds: float | None) -> int:
    """Return the time before which an object has to be; long ago if it stays for ever."""
    return -1 if seconds is None else int(now_ms - 1000 * seconds)
