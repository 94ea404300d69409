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
from typing import Any, Final, TypeVar

from everlong import limits
from everlong.errors import BlobMissing, StoreError
from everlong.models import SweepClass, Tally, make_printable
from everlong.policy import Retention
from everlong.storage import quarantine
from everlong.storage.base import BlobStore
from everlong.storage.pack_store import gather_bounded
from everlong.sweep.candidates import Candidate, CandidateFinder, Needed
from everlong.sweep.index import SweepIndex, with_progress
from everlong.sweep.links import LinkReader
from everlong.sweep.records import Records

T = TypeVar("T")

# Store errors of one sweep. Each has already cost a few seconds of retries.
_FAULTS_MAX: Final = 16
_PUT_BACK: Final = """
INSERT OR IGNORE INTO objects (key, thread, name, size_bytes, modified_ms, is_new, listed)
VALUES (?, ?, ?, ?, ?, 1, (SELECT COALESCE(MAX(number), 1) FROM listing))
"""


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
    """Moves and deletes the objects that `candidates` finds by the marks in the index."""

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
        self.finder = CandidateFinder(index, retention)
        self._reader = reader
        self._records = records
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
        after = ""
        while batch := await self._compute(partial(self.finder.find_needed, after, now_ms)):
            after = batch[-1].copy.key
            if not self._dry_run:
                await self._records.log(
                    "restore", [(each.copy.key, each.copy.size_bytes) for each in batch]
                )
            what = f"restored {self.counts.objects['restored']} objects"
            await self._move_in_batches(batch, partial(self._restore, now_ms), what)

    async def _restore(self, now_ms: int, needed: Needed) -> None:
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

    async def _put_back(self, now_ms: int, needed: Needed) -> None:
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
        while batch := await self._compute(partial(self.finder.find_unreachable, after, now_ms)):
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

    async def _quarantine(self, now_ms: int, candidate: Candidate) -> None:
        key, kind, size_bytes = candidate.key, candidate.kind, candidate.size_bytes
        try:
            # An archive may be too large for memory, and its class is known from its key.
            data = None if kind == "archive" else await self._store.get(key)
            if data is not None:
                kind = kind or await self._reader.classify(data, candidate.thread, candidate.name)
            if not self.finder.is_old_enough(candidate, kind, now_ms):
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

    def _note_moved(self, candidate: Candidate, copy: str, since_ms: int) -> None:
        """Add the copy to the index: the exact mark may need it. The copy is newer than this sweep."""
        key, thread, name, size_bytes, *_ = candidate
        with self._index.transaction():
            self._index.run("DELETE FROM objects WHERE key = ?", key)
            self._index.touch(thread)
            values = (copy, key, thread, name, since_ms, size_bytes)
            self._index.run("INSERT OR IGNORE INTO copies VALUES (?, ?, ?, ?, ?, ?)", *values)

    async def purge(self, now_ms: int) -> None:
        """Delete copies whose period is over. The marks must be exact, and newer than the copies."""
        after = ""
        old = self.finder.find_old_copies
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

    async def _move_in_batches(
        self,
        items: Sequence[Candidate | Needed],
        work: Callable[[Any], Awaitable[None]],
        what: str,
    ) -> None:
        """Move a few items at a time, bounded by count and by the bytes that they take in memory."""
        batch: list[Candidate | Needed] = []
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
