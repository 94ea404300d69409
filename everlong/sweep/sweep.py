"""One sweep: list, mark, restore, quarantine, and delete copies whose quarantine period is over.

The store is listed before anything is marked, so an object that is written later is not a candidate. A
sweep needs no lock and no exclusive access: see `quarantine_moves`.

The store can be listed in shards, but no shard can be swept by itself: an object's key names the thread
that wrote it, not the threads that need it. A fork names segments of the thread that it was forked
from, a parent names results of its children, and both may be in other shards. So the objects of a shard
are candidates only after every shard is listed and every history is marked, in this order:

1. All shards are listed, at any time and in any order, but each before any mark. An object that is
   written after its shard was listed is not a candidate in this sweep.
2. All histories are marked, whatever shard their threads are in. If one cannot be read, nothing is
   deleted.
3. Objects are quarantined in the order of their keys. This step may stop anywhere: no move depends on
   another one, so a later sweep moves the rest.

An interrupted sweep continues in the next attempt, in the next activity, or on another worker:

- Interrupted while the store is listed: the same sweep continues behind the cursor of each shard. An
  object that the first attempt listed may have been rewritten or named since. Its age counts as of the
  beginning of the listing; histories are read after the listing, so a new name is seen; and an object
  that is moved wrongly is in quarantine, where a read finds it. A listing older than 48 hours is
  dropped.
- Interrupted while histories are read: the links found so far are in the index on disk, and
  periodically in the store.
- Interrupted while the index is written to the store: the previous manifest is valid until the new one
  is written.
- Interrupted while objects are moved: see `quarantine_moves`. The next attempt marks again first.

Two concurrent sweeps have an index each. Their files in the store have different names, and a sweep
that finds a file missing reads histories instead. If the retention changes between two attempts, the
new one applies from then on; nothing in the index depends on it. A thread that starts during a sweep
and shares objects with an older thread is seen like any other run: if the mark came first, the objects
that only the new thread needs are at most quarantined, and the exact mark before any deletion finds it.
"""

import dataclasses
import math
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from temporalio.converter import PayloadCodec

from everlong import limits
from everlong.errors import ConfigError
from everlong.models import (
    SWEEP_REASONS_MAX,
    SWEEP_THREADS_MAX,
    SweepOptions,
    SweepReport,
    SweptThread,
    Tally,
    thread_key,
)
from everlong.storage.cache import CachedBlobStore
from everlong.storage.pack_store import PackStore
from everlong.storage.quarantine import RestoringBlobStore, unwrap_store
from everlong.sweep.history_reader import HistorySource
from everlong.sweep.index import SweepIndex, with_progress
from everlong.sweep.links import LinkReader, check_codec
from everlong.sweep.listing import Listing, StoredListing
from everlong.sweep.mark import Marker
from everlong.sweep.quarantine_moves import QuarantineMover
from everlong.sweep.records import Records, SeenIds
from everlong.sweep.stored_index import StoredIndex
from everlong.telemetry import Telemetry
from everlong.telemetry.spans import SWEEP

Progress: TypeAlias = Callable[[str], None]
"""Called often with a short text about the current work."""
# How far the sweeper's clock may be ahead of the store's. Beyond that, the store's clock counts.
_AHEAD_MS_MAX: Final = 60_000


@dataclasses.dataclass(frozen=True)
class ArchivedThreads:
    """Threads that were archived before a sweep."""

    archived: int = 0
    failed: tuple[str, ...] = ()
    """Threads that were due and could not be archived, each with the reason."""


ArchiveHook: TypeAlias = Callable[[], Awaitable[ArchivedThreads]]


class _OutOfTime(Exception):
    """The sweep's time is over. It stops, and the next activity continues it."""


class Sweep:
    """A sweep of one namespace and its store.

    Args:
        histories: Reads the histories that Temporal retains.
        codec: Codec of a client with the plugin. It and any codec that it wraps must read all payloads.
        packs: The store and its keys.
        options: Retention, dry run, and who asks.
        index_dir: Directory of the index. If None, the index is temporary.
        on_progress: Called with the progress.
        archive_due: Awaited first: archives the threads that are due, so that later sweeps can free
            their packs.
        allow_short_quarantine: Accept a quarantine that is too short to be safe. For tests.
        attempt_of: Id of the sweep that this is an attempt of; the listing of an earlier attempt is
            continued. Empty if no attempt follows.
        seconds_max: Seconds after which the sweep stops and reports that it is unfinished.

    """

    def __init__(
        self,
        histories: HistorySource,
        codec: PayloadCodec | None,
        packs: PackStore,
        options: SweepOptions,
        *,
        index_dir: Path | None = None,
        on_progress: Progress = lambda _: None,
        archive_due: ArchiveHook | None = None,
        allow_short_quarantine: bool = False,
        attempt_of: str = "",
        seconds_max: float = math.inf,
    ) -> None:
        if not allow_short_quarantine and (why := options.retention.find_problem()):
            raise ConfigError(why)
        check_codec(codec)
        self._histories = histories
        self._codec = codec
        self._store = unwrap_store(packs.store)
        # Read-only: an object that is read from quarantine gets marked, and the sweep restores it with
        # the other marked copies.
        restoring = RestoringBlobStore(self._store, read_only=True)
        # A separate cache, so that a sweep does not evict objects from the worker's cache.
        cache = CachedBlobStore(
            restoring, memory_bytes_max=limits.SWEEP_CACHE_BYTES_MAX, disk_bytes_max=0
        )
        self._packs = PackStore(cache, packs.keyring, accept_unsealed=packs.accept_unsealed)
        self._options = options
        self._index_dir = index_dir
        self._progress = on_progress
        self._attempt_of = attempt_of
        self._seconds_max = seconds_max
        self._ends = math.inf
        self._archive_due = archive_due
        self._preserved = ArchivedThreads()

    def _on_progress(self, text: str) -> None:
        self._progress(text)
        if time.monotonic() > self._ends:
            raise _OutOfTime

    async def run(self) -> SweepReport:
        """Sweep once."""
        self._ends = time.monotonic() + self._seconds_max
        if self._archive_due is not None and not self._options.dry_run:
            self._preserved = await with_progress(
                self._archive_due(), self._progress, "archiving threads that are due"
            )
        namespace_id = await self._histories.fetch_namespace_id()
        # The legible encodings are part of the identity: they decide which links a read finds.
        identity = f"{self._store!r} {namespace_id} {sorted(self._options.encodings)}"
        try:
            return await self._run(SweepIndex(self._index_dir, identity), namespace_id)
        except sqlite3.DatabaseError:
            # The file is damaged, or its disk is full. It is only a cache: use a temporary one.
            return await self._run(SweepIndex(None, identity), namespace_id)

    async def _run(self, index: SweepIndex, namespace_id: str) -> SweepReport:
        own_ms = time.time_ns() // 1_000_000
        sweep_id = os.urandom(4).hex()
        records = Records(self._store, namespace_id, f"{own_ms:013d}-{sweep_id}")
        stored = StoredIndex(
            index,
            self._store,
            self._packs,
            namespace=self._histories.namespace,
            identity=f"{namespace_id} {sorted(self._options.encodings)}",
            place=records.place,
            stamp=records.stamp,
            on_progress=self._on_progress,
        )
        try:
            return await self._attempt(index, stored, records, sweep_id, own_ms)
        finally:
            index.close()

    async def _attempt(
        self, index: SweepIndex, stored: StoredIndex, records: Records, sweep_id: str, own_ms: int
    ) -> SweepReport:
        started, options = time.monotonic(), self._options
        ahead_ms = await self._measure_ahead_ms(records, own_ms)
        now_ms = own_ms - ahead_ms
        is_resumable = bool(self._attempt_of) and not options.dry_run
        listed = (
            StoredListing(self._store, self._packs, records.place, self._attempt_of)
            if is_resumable
            else None
        )
        reader = LinkReader(
            index, self._packs, self._codec, self._histories.namespace, options.encodings
        )
        checkpoint = None if options.dry_run else stored.checkpoint
        marker = Marker(index, self._histories, reader, self._on_progress, checkpoint)
        mover = QuarantineMover(
            index,
            self._store,
            reader,
            records,
            options.retention,
            sweep_id,
            dry_run=options.dry_run,
            on_progress=self._on_progress,
        )
        counts: dict[str, Tally] = {}
        try:
            await stored.load()
            self._on_progress("listing the store")
            now_ms = await Listing(index, self._store, self._on_progress, listed).run(now_ms)
            await stored.settle()
            counts = await self._mark_and_move(index, marker, mover, stored, records, now_ms)
            is_unfinished = False
        except _OutOfTime:
            self._ends, is_unfinished = math.inf, True
        if not options.dry_run:
            await stored.save()
        report = SweepReport(
            id=sweep_id,
            started_ms=now_ms,
            seconds=round(time.monotonic() - started, 3),
            dry_run=options.dry_run,
            by=options.by,
            reason=options.reason,
            clock_ahead_seconds=ahead_ms / 1000,
            runs=index.scalar("SELECT COUNT(*) FROM runs"),
            runs_read=marker.runs_read,
            packs_read=reader.packs_read,
            **counts,
            quarantined=mover.counts.get_tally("quarantined"),
            restored=mover.counts.get_tally("restored"),
            purged=mover.counts.get_tally("purged"),
            classes=mover.count_classes(),
            threads=_list_swept_threads(index),
            incomplete=(*marker.incomplete, *mover.faults)[:SWEEP_REASONS_MAX],
            archived=self._preserved.archived,
            not_archived=self._preserved.failed,
            is_unfinished=is_unfinished,
        )
        if not options.dry_run and not is_unfinished:
            await records.write_report(report)
            if listed is not None:
                await listed.delete(now_ms)
        return report

    async def _measure_ahead_ms(self, records: Records, own_ms: int) -> int:
        """Return how far this clock is ahead of the store's; 0 within the tolerance.

        If a clock is a week ahead, an object that was quarantined a moment ago seems old enough to
        delete. A dry run writes nothing, so it has no store time to compare with.
        """
        if self._options.dry_run:
            return 0
        store_ms = await records.begin(self._options.by, self._options.reason)
        ahead_ms = 0 if store_ms is None else own_ms - store_ms
        return ahead_ms if ahead_ms > _AHEAD_MS_MAX else 0

    async def _mark_and_move(
        self,
        index: SweepIndex,
        marker: Marker,
        mover: QuarantineMover,
        stored: StoredIndex,
        records: Records,
        now_ms: int,
    ) -> dict[str, Tally]:
        """Mark, then move and delete; return the counts as of the mark."""
        seen = await self._load_seen(index, records)
        await marker.mark()
        await self._note_owned(index, records, seen)
        counts = await index.compute(partial(_count_objects, index), self._on_progress)
        await mover.restore(now_ms)
        if not marker.incomplete:
            # From here on the index matches the store: after a kill, the next sweep continues from it.
            named_ms = now_ms - int(1000 * limits.SWEEP_ON_ITS_WAY_SECONDS)
            await index.compute(partial(index.finish, named_ms), self._on_progress)
            stored.is_settled = True
            if not self._options.dry_run:
                await stored.save()
            await mover.quarantine(now_ms)
        if not (marker.incomplete or mover.faults) and mover.finder.has_old_copies(now_ms):
            await marker.mark_exactly(mover.finder.get_oldest_ms(now_ms))
            await mover.restore(now_ms)
            if not (marker.incomplete or mover.faults):
                await mover.purge(now_ms)
        unreached = counts["unreached"]
        taken = mover.counts.get_tally("quarantined")
        return {
            "stored": counts["stored"],
            "reachable": counts["reachable"],
            "archives": counts["archives"],
            "foreign": counts["foreign"],
            "young": Tally(
                objects=max(0, unreached.objects - taken.objects),
                bytes=max(0, unreached.bytes - taken.bytes),
            ),
            "in_quarantine": _read_tally(index, "FROM copies"),
        }

    async def _load_seen(self, index: SweepIndex, records: Records) -> SeenIds:
        """Add the ids that earlier sweeps saw: the index may be new, and a listing may lack some."""
        seen = await records.load_seen()
        namespace = self._histories.namespace
        index.run_many(
            "INSERT OR IGNORE INTO owned VALUES (?, ?)",
            ((thread_key(namespace, each), each) for each in seen.workflow_ids),
        )
        index.run_many(
            "INSERT OR IGNORE INTO schedules VALUES (?, '', '')",
            ((each,) for each in seen.schedule_ids),
        )
        return seen

    async def _note_owned(self, index: SweepIndex, records: Records, known: SeenIds) -> None:
        """Determine which threads belong to this namespace, and record the new ones."""
        index.run(
            "INSERT OR IGNORE INTO owned SELECT thread, workflow_id FROM runs "
            "UNION SELECT thread, workflow_id FROM schedules WHERE workflow_id != ''"
        )
        if not self._options.dry_run:
            there = SeenIds(
                _read_ids(index, "SELECT workflow_id FROM owned"),
                _read_ids(index, "SELECT schedule_id FROM schedules"),
            )
            # Obsolete ids: no stored objects, and no run or schedule when Temporal was asked by id.
            away = _read_ids(
                index,
                "SELECT workflow_id FROM owned WHERE thread NOT IN (SELECT thread FROM places) "
                "AND thread NOT IN (SELECT thread FROM runs UNION SELECT thread FROM schedules)",
            )
            gone = SeenIds(away, known.schedule_ids - there.schedule_ids)
            await records.add_seen(known, there - known, gone)
        if self._options.whole_store:
            index.run("INSERT OR IGNORE INTO owned SELECT thread, '' FROM places")


def _read_ids(index: SweepIndex, statement: str) -> frozenset[str]:
    return frozenset(each for (each,) in index.run(statement))


def _count_objects(index: SweepIndex) -> dict[str, Tally]:
    marked, owned = "(SELECT name FROM marked)", "(SELECT thread FROM owned)"
    taken = "class != 'archive'"
    return {
        "stored": _read_tally(index, "FROM objects"),
        "reachable": _read_tally(index, f"FROM objects WHERE name IN {marked}"),
        "archives": _read_tally(index, "FROM objects WHERE class = 'archive'"),
        "foreign": _read_tally(
            index,
            f"FROM objects WHERE name NOT IN {marked} AND thread NOT IN {owned} AND {taken}",
        ),
        "unreached": _read_tally(
            index, f"FROM objects WHERE name NOT IN {marked} AND thread IN {owned} AND {taken}"
        ),
    }


def _read_tally(index: SweepIndex, source: str) -> Tally:
    [(objects, size_bytes)] = index.run(f"SELECT COUNT(*), TOTAL(size_bytes) {source}")
    return Tally(objects=objects, bytes=int(size_bytes))


def _list_swept_threads(index: SweepIndex) -> tuple[SweptThread, ...]:
    rows = index.run(
        "SELECT swept.thread, COALESCE(workflow_id, ''), objects, bytes FROM swept "
        "LEFT JOIN owned USING (thread) ORDER BY bytes DESC LIMIT ?",
        SWEEP_THREADS_MAX,
    )
    return tuple(
        SweptThread(
            thread=thread,
            workflow_id=workflow_id,
            quarantined=Tally(objects=objects, bytes=size_bytes),
        )
        for thread, workflow_id, objects, size_bytes in rows
    )


async def run_with_telemetry(sweep: Sweep, telemetry: Telemetry, run_id: str = "") -> SweepReport:
    """Run a sweep in a span, and record its metrics."""
    span = telemetry.spans.start(SWEEP, {}, run_id=run_id)
    with telemetry.spans.use(span):
        report = await sweep.run()
        outcome = "incomplete" if report.incomplete else "complete"
        if report.is_unfinished:
            outcome = "unfinished"
        span.set_attributes(
            {
                "everlong.sweep.outcome": outcome,
                "everlong.sweep.dry_run": report.dry_run,
                "everlong.sweep.runs": report.runs,
                "everlong.sweep.runs_read": report.runs_read,
                "everlong.sweep.packs_read": report.packs_read,
                "everlong.sweep.quarantined_bytes": report.quarantined.bytes,
                "everlong.sweep.restored_bytes": report.restored.bytes,
                "everlong.sweep.purged_bytes": report.purged.bytes,
            }
        )
    if not report.dry_run:
        meters = telemetry.meters
        meters.record("everlong.sweep.duration", report.seconds, {"outcome": outcome})
        meters.add("everlong.sweep.moved", report.quarantined.bytes, {"outcome": "quarantined"})
        meters.add("everlong.sweep.moved", report.restored.bytes, {"outcome": "restored"})
        meters.add("everlong.sweep.moved", report.purged.bytes, {"outcome": "purged"})
    return report
