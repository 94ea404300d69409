"""Quarantine moves: quarantines unreachable objects, restores needed ones, and deletes old copies.

Invariant: at any time an object is in its place or in quarantine. Any step may be interrupted anywhere,
and two sweeps may do it at once: an object is deleted only after its copy was read back, no two moves
write the same copy, and a copy stays for the whole quarantine period, also if the object was restored.

Only the deletion of a copy is final. A copy of an unreachable object is deleted after an exact mark. A
copy of a reachable object is deleted when the object is in its place, and when the sweep that made the
copy has long stopped.
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from everlong import limits
from everlong.errors import BlobMissing, StoreError
from everlong.models import SweepClass, Tally, make_printable
from everlong.policy import Retention
from everlong.storage import quarantine
from everlong.storage.base import BlobStore
from everlong.storage.pack_store import gather_bounded
from everlong.sweep.index import SweepIndex, with_progress
from everlong.sweep.links import LinkReader
from everlong.sweep.records import Records

T = TypeVar("T")

# Store errors of one sweep. Each has already cost a few seconds of retries.
_FAULTS_MAX: Final = 16
# A plus keeps SQLite from using the column's index: these statements go by key, batch after batch, and
# would otherwise sort the whole table for each batch.
_UNREACHED: Final = (
    "+name NOT IN (SELECT name FROM marked) AND +thread IN (SELECT thread FROM owned)"
)
# Copies of reachable objects: the newest copy of each object that is not in its place, and copies whose
# quarantine period is over.
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
# Without copies of trees in which an activity has been running since before the copy was made: the
# activity may still return the name of an object that it wrote.
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
    """A copy of a reachable object."""

    copy: quarantine.Copy
    thread: str
    name: bytes
    is_old: bool

    @property
    def size_bytes(self) -> int:
        return self.copy.size_bytes


@dataclasses.dataclass
class MoveCounts:
    """Objects and bytes that were moved so far, by action and by class."""

    objects: Counter[str] = dataclasses.field(default_factory=Counter)
    bytes: Counter[str] = dataclasses.field(default_factory=Counter)

    def add(self, what: str, size_bytes: int) -> None:
        """Count one object."""
        self.objects[what] += 1
        self.bytes[what] += size_bytes

    def get_tally(self, what: str) -> Tally:
        """Return the objects and bytes of an action or class."""
        return Tally(objects=self.objects[what], bytes=self.bytes[what])


class QuarantineMover:
    """Moves and deletes objects according to the marks in the index."""

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
        """Objects that the store could not read or move, each with the reason."""

    async def restore(self, now_ms: int) -> None:
        """Restore objects that are reachable again, and delete their copies whose period is over.

        A young copy stays: the sweep that made it may be about to delete the object.
        """
        values: dict[str, Any] = {
            "oldest": self.get_oldest_ms(now_ms),
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
            what = f"restored {self.counts.objects['restored']} objects"
            await self._move_in_batches(batch, partial(self._restore, now_ms), what)

    async def _restore(self, now_ms: int, needed: _Needed) -> None:
        try:
            await self._put_back(now_ms, needed)
        except StoreError as error:
            self._note(needed.copy.key, error)

    def _note(self, key: str, error: StoreError) -> None:
        """Skip an object that the store fails to read or move. Many errors are an outage, and raise."""
        self.faults.append(f"{key}: {type(error).__name__}: {make_printable(str(error), 200)}")
        if len(self.faults) >= _FAULTS_MAX:
            raise error

    async def _compute(self, work: Callable[[], T]) -> T:
        return await self._index.compute(work, self._on_progress)

    async def _put_back(self, now_ms: int, needed: _Needed) -> None:
        copy = needed.copy
        is_there = needed.is_old and await quarantine.exists(self._store, copy.original)
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
        """Count an object of a dry run once: the second mark finds it in quarantine again."""
        counted = "SELECT 1 FROM restored WHERE original = ?"
        if not is_there and self._index.scalar(counted, copy.original) is None:
            self._index.run("INSERT INTO restored VALUES (?)", copy.original)
            self.counts.add("restored", copy.size_bytes)

    async def quarantine(self, now_ms: int) -> None:
        """Move objects that are unreachable and old enough into quarantine."""
        after = ""
        while batch := await self._compute(partial(self._find_candidates, after, now_ms)):
            after = batch[-1].key
            if not self._dry_run:
                objects = [(each.key, each.size_bytes) for each in batch]
                await self._records.log("quarantine", objects)
            # Manifests of archives before their files: an archive exists only with its manifest.
            manifests = [each for each in batch if each.key.endswith(".json")]
            others = [each for each in batch if not each.key.endswith(".json")]
            what = f"quarantined {self.counts.objects['quarantined']} objects"
            for part in (manifests, others):
                await self._move_in_batches(part, partial(self._quarantine, now_ms), what)

    def _find_candidates(self, after: str, now_ms: int) -> list[_Candidate]:
        kept = self._retention
        both = (kept.payload_seconds, kept.journal_seconds)
        values = {
            "after": after,
            "payload": _compute_limit_ms(now_ms, kept.payload_seconds),
            "journal": _compute_limit_ms(now_ms, kept.journal_seconds),
            "archive": _compute_limit_ms(now_ms, kept.archive_seconds),
            "unknown": _compute_limit_ms(now_ms, max(both)),
            "first": _compute_limit_ms(now_ms, min(both)),
            "count": limits.SWEEP_BATCH,
        }
        return [_Candidate(*row) for row in self._index.run_named(_CANDIDATES, values)]

    async def _quarantine(self, now_ms: int, candidate: _Candidate) -> None:
        key, kind, size_bytes = candidate.key, candidate.kind, candidate.size_bytes
        try:
            # An archive may be too large for memory, and its class is known from its key.
            data = None if kind == "archive" else await self._store.get(key)
            if data is not None:
                kind = kind or await self._reader.classify(data, candidate.thread, candidate.name)
            if self._find_written_ms(candidate) > self._find_limit_ms(kind, now_ms):
                self._index.run("UPDATE objects SET class = ? WHERE key = ?", kind, key)
                return
            if not self._dry_run:
                since_ms = time.time_ns() // 1_000_000
                copy = quarantine.build_copy_key(key, since_ms, self._sweep_id)
                if not await quarantine.quarantine(self._store, key, data, copy):
                    return
                self._note_moved(candidate, copy, max(since_ms, now_ms + 1))
        except BlobMissing:  # Another sweep has moved it, or the listing lags.
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

    def _find_written_ms(self, candidate: _Candidate) -> int:
        """Return when an object was written. The age of an archive's file counts from its manifest."""
        stem, _, end = candidate.key.rpartition(".")
        manifest_ms = None
        if end == "parquet":
            statement = "SELECT modified_ms FROM objects WHERE key = ?"
            manifest_ms = self._index.scalar(statement, f"{stem}.json")
        return max(candidate.modified_ms, manifest_ms or 0)

    def _note_moved(self, candidate: _Candidate, copy: str, since_ms: int) -> None:
        """Add the copy to the index: the exact mark may need it. The copy is newer than this sweep."""
        key, thread, name, size_bytes, *_ = candidate
        with self._index.transaction():
            self._index.run("DELETE FROM objects WHERE key = ?", key)
            self._index.touch(thread)
            values = (copy, key, thread, name, since_ms, size_bytes)
            self._index.run("INSERT OR IGNORE INTO copies VALUES (?, ?, ?, ?, ?, ?)", *values)

    def _find_limit_ms(self, kind: str, now_ms: int) -> int:
        kept = self._retention
        by_class: dict[str, float | None] = {
            "payload": kept.payload_seconds,
            "journal": kept.journal_seconds,
            "archive": kept.archive_seconds,
        }
        longest = max(kept.payload_seconds, kept.journal_seconds)
        return _compute_limit_ms(now_ms, by_class.get(kind, longest))

    def has_old_copies(self, now_ms: int) -> bool:
        """Return whether there is a copy to delete permanently, by the current marks."""
        return bool(self._find_old_copies("", now_ms, 1))

    async def purge(self, now_ms: int) -> None:
        """Delete copies whose period is over. The marks must be exact, and newer than the copies."""
        after = ""
        old = self._find_old_copies
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
            self._on_progress(f"permanently deleted {self.counts.objects['purged']} objects")

    def get_oldest_ms(self, now_ms: int) -> int:
        """Return the newest quarantine time of copies whose period is over."""
        return _compute_limit_ms(now_ms, self._retention.quarantine_seconds)

    def _find_old_copies(self, after: str, now_ms: int, count: int) -> list[tuple[str, int]]:
        return self._index.run(_OLD_COPIES, after, self.get_oldest_ms(now_ms), count)

    async def _move_in_batches(
        self,
        items: Sequence[_Candidate | _Needed],
        work: Callable[[Any], Awaitable[None]],
        what: str,
    ) -> None:
        """Move a few items at a time, bounded by count and by the bytes that they take in memory."""
        batch: list[_Candidate | _Needed] = []
        for item in items:
            size_bytes = sum(each.size_bytes for each in batch) + item.size_bytes
            is_full = len(batch) == limits.SWEEP_MOVES_MAX
            if batch and (is_full or size_bytes > limits.SWEEP_MOVE_BYTES_MAX):
                await with_progress(
                    gather_bounded([partial(work, each) for each in batch]), self._on_progress, what
                )
                batch = []
            batch.append(item)
        await with_progress(
            gather_bounded([partial(work, each) for each in batch]), self._on_progress, what
        )

    def count_classes(self) -> dict[SweepClass, Tally]:
        """Return the quarantined objects and bytes by class."""
        names: tuple[SweepClass, ...] = ("payload", "journal", "archive", "unknown")
        return {
            each: tally
            for each in names
            if (tally := self.counts.get_tally(f"class {each}")).objects
        }


def _compute_limit_ms(now_ms: int, seconds: float | None) -> int:
    """Return the newest time of an object that is old enough; -1 if objects are kept forever."""
    return -1 if seconds is None else int(now_ms - 1000 * seconds)
