"""One sweep: list, mark, restore, quarantine, and delete what has been there long enough.

The store is listed before anything is marked, so what is written later is no candidate. A sweep needs
no lock and no exclusive access: see `quarantine_moves`.

Why the store can be listed in shards, and why no shard is swept by itself: an object's key says in
whose place it lies, and not who needs it. A fork names segments of the thread that it was forked from,
a parent names results of its children, and both may lie in other shards. So a shard's objects are
candidates only after every shard is listed and every history is marked, in this order:

1. All shards are listed. When they are listed, and in which order, does not matter: each before any
   mark. An object that is written after its shard was listed is no candidate in this sweep.
2. All histories are marked, whatever shard their threads are in. If one cannot be read, nothing is
   deleted.
3. Objects are quarantined in the order of their keys. That may end anywhere: the rest goes another
   time, since no object's turn depends on another one's.

A sweep that is cut off goes on as follows, in the next attempt, in the next activity, or by another
worker:

- While the store is listed: behind the cursor of each shard, if it is the same sweep. An object that
  was listed by the first attempt may have been written again since, or named. Its age counts as of the
  beginning of the listing; histories are read after it, so that a new name is seen; and what is taken
  wrongly lies in quarantine, where a read finds it. A listing that is older than 48 hours is dropped.
- While histories are read: what was read is in the index on disk, and now and then in the store.
- While the index is written to the store: the manifest of before counts until the new one is there.
- While objects are moved: see `quarantine_moves`. Marks are made again first.

Two sweeps at once have an index each. Their files in the store have names of their own, and a sweep
that misses a file reads histories instead. A changed retention between two attempts is used from then
on; nothing in the index depends on it. A thread that starts meanwhile and shares objects with an older
one is seen like any other run: if the mark was before, the objects that only it needs are at most
quarantined, and the exact mark before any deletion has it.
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
from everlong.storage.quarantine import RestoringBlobStore, bare
from everlong.sweep.history_reader import HistorySource
from everlong.sweep.index import SweepIndex
from everlong.sweep.link_reader import LinkReader, check_codec
from everlong.sweep.listing import Listing, StoredListing
from everlong.sweep.mark import Marker
from everlong.sweep.progress import with_progress
from everlong.sweep.quarantine_moves import QuarantineMover
from everlong.sweep.records import Records, SeenIds
from everlong.sweep.stored_index import StoredIndex
from everlong.telemetry import Telemetry
from everlong.telemetry.spans import SWEEP

Progress: TypeAlias = Callable[[str], None]
"""Told what a sweep is doing, often."""
# By how much a sweeper's clock may be ahead of the store's; beyond it the store's counts.
_AHEAD_MS_MAX: Final = 60_000


@dataclasses.dataclass(frozen=True)
class ArchivedThreads:
    """What was archived before a sweep."""

    archived: int = 0
    failed: tuple[str, ...] = ()
    """Threads that are due and could not be archived, and why."""


ArchiveHook: TypeAlias = Callable[[], Awaitable[ArchivedThreads]]


class _OutOfTime(Exception):
    """The sweep stops where it is; another one goes on."""


class Sweep:
    """A sweep of one namespace and its store.

    Args:
        histories: What Temporal keeps.
        codec: Of a client with the plugin: it, and whatever it wraps, has to read all payloads.
        packs: The store, and the keys.
        options: What to take.
        index_dir: Where to remember what was read; nowhere if None.
        on_progress: Told of the progress.
        archive_due: Awaited first: archives what is due, so that its packs may go later.
        allow_short_quarantine: Accept a quarantine that is too short. For tests.
        attempt_of: Id of the sweep that this is an attempt of. It goes on with the listing of an earlier
            attempt. Empty if no attempt follows.
        seconds_max: After this long it stops and reports that it is unfinished.

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
        self._store = bare(packs.store)
        # What it reads from quarantine is marked, and put back with the rest of that.
        restoring = RestoringBlobStore(self._store, read_only=True)
        # A cache of its own: a worker's has better things to keep.
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
                self._archive_due(), self._progress, "archiving what is due"
            )
        namespace_id = await self._histories.namespace_id()
        # What is legible decides what was found in what was read.
        identity = f"{self._store!r} {namespace_id} {sorted(self._options.encodings)}"
        try:
            return await self._run(SweepIndex(self._index_dir, identity), namespace_id)
        except sqlite3.DatabaseError:
            # The file is damaged, or its disk is full. It is only a cache: this once, do without.
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
        ahead_ms = await self._ahead_ms(records, own_ms)
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
            quarantined=mover.counts.tally("quarantined"),
            restored=mover.counts.tally("restored"),
            purged=mover.counts.tally("purged"),
            classes=mover.classes(),
            threads=_threads(index),
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

    async def _ahead_ms(self, records: Records, own_ms: int) -> int:
        """Return by how much this clock is ahead of the store's, if that is much.

        To whom it is a week later than it is, what was quarantined a moment ago has been there long
        enough. A dry run writes nothing, so it has nothing to compare with.
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
        """Mark and take; return what there was when it was marked."""
        seen = await self._know(index, records)
        await marker.mark()
        await self._note_owned(index, records, seen)
        counts = await index.compute(partial(_counts, index), self._on_progress)
        await mover.restore(now_ms)
        if not marker.incomplete:
            # From here on the index knows what is in the store, and whoever is killed after this goes
            # on from there.
            named_ms = now_ms - int(1000 * limits.SWEEP_ON_ITS_WAY_SECONDS)
            await index.compute(partial(index.finish, named_ms), self._on_progress)
            stored.is_settled = True
            if not self._options.dry_run:
                await stored.save()
            await mover.quarantine(now_ms)
        if not (marker.incomplete or mover.faults) and mover.has_old_copies(now_ms):
            await marker.mark_exactly(mover.oldest_ms(now_ms))
            await mover.restore(now_ms)
            if not (marker.incomplete or mover.faults):
                await mover.purge(now_ms)
        unreached = counts["unreached"]
        taken = mover.counts.tally("quarantined")
        return {
            "stored": counts["stored"],
            "reachable": counts["reachable"],
            "archives": counts["archives"],
            "foreign": counts["foreign"],
            "young": Tally(
                objects=max(0, unreached.objects - taken.objects),
                bytes=max(0, unreached.bytes - taken.bytes),
            ),
            "in_quarantine": _tally(index, "FROM copies"),
        }

    async def _know(self, index: SweepIndex, records: Records) -> SeenIds:
        """Tell the index what earlier sweeps have seen: it may be new, and a listing may lack it."""
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
        """Find out which threads are this namespace's, and note those that are new."""
        index.run(
            "INSERT OR IGNORE INTO owned SELECT thread, workflow_id FROM runs "
            "UNION SELECT thread, workflow_id FROM schedules WHERE workflow_id != ''"
        )
        if not self._options.dry_run:
            there = SeenIds(
                _ids(index, "SELECT workflow_id FROM owned"),
                _ids(index, "SELECT schedule_id FROM schedules"),
            )
            # Nothing of theirs is stored, and Temporal was asked for them.
            away = _ids(
                index,
                "SELECT workflow_id FROM owned WHERE thread NOT IN (SELECT thread FROM places) "
                "AND thread NOT IN (SELECT thread FROM runs UNION SELECT thread FROM schedules)",
            )
            gone = SeenIds(away, known.schedule_ids - there.schedule_ids)
            await records.add_seen(known, there - known, gone)
        if self._options.whole_store:
            index.run("INSERT OR IGNORE INTO owned SELECT thread, '' FROM places")


def _ids(index: SweepIndex, statement: str) -> frozenset[str]:
    return frozenset(each for (each,) in index.run(statement))


def _counts(index: SweepIndex) -> dict[str, Tally]:
    marked, owned = "(SELECT name FROM marked)", "(SELECT thread FROM owned)"
    taken = "class != 'archive'"
    return {
        "stored": _tally(index, "FROM objects"),
        "reachable": _tally(index, f"FROM objects WHERE name IN {marked}"),
        "archives": _tally(index, "FROM objects WHERE class = 'archive'"),
        "foreign": _tally(
            index,
            f"FROM objects WHERE name NOT IN {marked} AND thread NOT IN {owned} AND {taken}",
        ),
        "unreached": _tally(
            index, f"FROM objects WHERE name NOT IN {marked} AND thread IN {owned} AND {taken}"
        ),
    }


def _tally(index: SweepIndex, source: str) -> Tally:
    [(objects, size_bytes)] = index.run(f"SELECT COUNT(*), TOTAL(size_bytes) {source}")
    return Tally(objects=objects, bytes=int(size_bytes))


def _threads(index: SweepIndex) -> tuple[SweptThread, ...]:
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
    """Run a sweep, and tell how it went."""
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
