"""Mark phase: updates the index with the histories that Temporal retains, and follows their links.

A closed run never changes, and neither does a pack: each is read once. An open run is read again when
its workflow tree has new objects, and then only the events that were added. This is nearly exact: a
name can also reach a run without a new object, in a signal from another tree. Therefore every open run
is checked before anything is deleted permanently.

A visibility listing may be incomplete. Therefore the runs and schedules in the index, and the workflows
that earlier sweeps saw, count until Temporal reports that they are gone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from temporalio.api.common.v1 import Payload

from everlong import limits
from everlong.codecs.payloads import walk_payloads
from everlong.errors import BlobMissing, StoreUnavailable
from everlong.models import SWEEP_REASONS_MAX, make_printable, thread_key
from everlong.storage.pack_store import gather_bounded
from everlong.sweep.history_reader import (
    HistorySource,
    Run,
    RunDescription,
    find_related_runs,
    is_closing,
)
from everlong.sweep.index import Link, SweepIndex, with_progress
from everlong.sweep.links import LinkReader, Unreadable

T = TypeVar("T")

_REASON_CHARS_MAX: Final = 400
# An activity may have written objects dated shortly before its start, since clocks differ.
_SKEW_MS: Final = 60_000
_SCAN_BATCH: Final = 64
_UNLISTED: Final = """
SELECT thread, workflow_id FROM owned WHERE workflow_id != '' AND thread > :after AND {}
ORDER BY thread LIMIT :count
"""
_MISSED: Final = """
SELECT run_id, workflow_id FROM runs WHERE listed < ? AND run_id > ? ORDER BY run_id LIMIT ?
"""
# Runs that are new or have closed, and open runs with new objects in their tree.
_CHANGED: Final = """
INSERT INTO due
WITH changed AS (SELECT DISTINCT root FROM runs JOIN objects USING (thread) WHERE objects.is_new)
SELECT run_id FROM runs WHERE NOT is_final
AND (last_event = 0 OR NOT is_open OR root IN (SELECT root FROM changed))
"""
_TOUCH: Final = "INSERT OR IGNORE INTO touched SELECT thread FROM runs WHERE run_id = ?"
_DUE: Final = """
SELECT run_id, workflow_id, is_open, last_event FROM due JOIN runs USING (run_id)
WHERE run_id > ? ORDER BY run_id LIMIT ?
"""
# Workflows that an earlier sweep saw and that this index does not have.
_UNKNOWN: Final = _UNLISTED.format(
    "thread NOT IN (SELECT thread FROM runs) AND thread NOT IN (SELECT thread FROM asked)"
)
# Workflows with copies that are about to be deleted. A workflow with an open run has no newer run.
_AT_STAKE: Final = _UNLISTED.format(
    "NOT EXISTS (SELECT 1 FROM runs WHERE runs.thread = owned.thread AND is_open) AND EXISTS ("
    "SELECT 1 FROM copies WHERE copies.thread = owned.thread AND quarantined_ms <= :oldest)"
)


Found: TypeAlias = tuple[Payload, bool]


class _Due(NamedTuple):
    run_id: str
    workflow_id: str
    is_open: bool
    last_event: int


class _Read(NamedTuple):
    """How far a history was read."""

    last_event: int
    """Id of the last event; 0 if the run is gone."""
    is_over: bool = False
    """Whether the last event closes the run."""


class Marker:
    """Marks reachable objects in the index."""

    def __init__(
        self,
        index: SweepIndex,
        histories: HistorySource,
        reader: LinkReader,
        on_progress: Callable[[str], None],
        checkpoint: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._index = index
        self._histories = histories
        self._reader = reader
        self._on_progress = on_progress
        self._checkpoint = checkpoint
        """Awaited between batches of runs, while nothing else uses the index."""
        self._schedules = _Schedules(index, histories, reader, on_progress, self._note)
        self._listing = 1 + (index.scalar("SELECT MAX(listed) FROM runs") or 0)
        self._related: set[tuple[str, str]] = set()
        self.incomplete: list[str] = []
        self.runs_read = 0

    async def mark(self) -> None:
        """Mark reachable objects, reading only the runs that have changed."""
        await self._list_runs()
        await self._describe_workflows(_UNKNOWN, {})
        self._index.run("DELETE FROM due")
        self._index.run(_CHANGED)
        await self._read_due()
        await self._follow_roots()

    async def mark_exactly(self, oldest_ms: int) -> None:
        """Mark reachable objects exactly, and record which trees have running activities.

        The copies that were made until `oldest_ms` are about to be deleted.
        """
        self._listing += 1
        await self._list_runs()
        await self._describe_workflows(_AT_STAKE, {"oldest": oldest_ms})
        self._index.run("DELETE FROM due")
        self._index.run("INSERT INTO due SELECT run_id FROM runs WHERE NOT is_final")
        await self._read_due(exactly=True)
        await self._follow_roots()

    async def _list_runs(self) -> None:
        async for page in self._histories.list_runs():
            self._add_runs(page)
            self._on_progress("listing runs")
        # A run that the listing lacks may still exist. It is dropped only if Temporal reports that it is
        # gone.
        batch: list[tuple[str, str]] = []
        while batch := self._index.run(
            _MISSED, self._listing, batch[-1][0] if batch else "", limits.SWEEP_BATCH
        ):
            checks = [partial(self._check_gone, *each) for each in batch]
            await self._gather(checks, "looking for runs that are not listed")

    async def _check_gone(self, run_id: str, workflow_id: str) -> None:
        if await self._histories.describe_run(workflow_id, run_id) is None:
            self._drop(run_id)

    async def _describe_workflows(self, which: str, values: dict[str, Any]) -> None:
        """Describe workflows by id: a run counts even if the listing does not have it."""
        values = {**values, "after": "", "count": limits.SWEEP_BATCH}
        while batch := self._index.run_named(which, values):
            values["after"] = batch[-1][0]
            asks = [partial(self._describe_workflow, *each) for each in batch]
            await self._gather(asks, "looking for workflows that are not listed")

    async def _describe_workflow(self, thread: str, workflow_id: str) -> None:
        found = await self._histories.describe_run(workflow_id, "")
        if found is not None and not self._has_run(found.run_id):
            self._add_runs([Run(found.run_id, workflow_id, found.root, found.is_open)])
        self._index.run("INSERT OR IGNORE INTO asked VALUES (?)", thread)

    def _has_run(self, run_id: str) -> bool:
        return self._index.scalar("SELECT 1 FROM runs WHERE run_id = ?", run_id) is not None

    def _add_runs(self, runs: Sequence[Run]) -> None:
        rows = [(each, thread_key(self._histories.namespace, each.workflow_id)) for each in runs]
        self._index.run_many(
            "INSERT INTO runs (run_id, workflow_id, root, thread, is_open, listed) "
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE "
            # A closed run that is open again: Temporal's database was restored from a backup. The run is
            # read from its beginning.
            "SET last_event = IIF(is_final AND excluded.is_open, 0, last_event), "
            "is_final = is_final AND NOT excluded.is_open, "
            "is_open = excluded.is_open, root = excluded.root, listed = excluded.listed",
            [
                (each.run_id, each.workflow_id, each.root, thread, each.is_open, self._listing)
                for each, thread in rows
            ],
        )
        self._index.run_many(
            "INSERT OR REPLACE INTO threads VALUES (?, ?, ?)",
            [(thread, each.workflow_id, each.root) for each, thread in rows],
        )

    async def _read_due(self, *, exactly: bool = False) -> None:
        """Read the runs that are due, in batches: their number is not bounded."""
        total, done, after = self._index.scalar("SELECT COUNT(*) FROM due"), 0, ""
        while rows := self._index.run(_DUE, after, limits.SWEEP_BATCH):
            after = rows[-1][0]
            await self._read_runs([_Due(*row) for row in rows], done, total, exactly=exactly)
            done += len(rows)
            if self._checkpoint is not None:
                await self._checkpoint()
        while due := self._take_unlisted_runs():
            for first in range(0, len(due), limits.SWEEP_BATCH):
                batch = due[first : first + limits.SWEEP_BATCH]
                await self._read_runs(batch, first, len(due), exactly=exactly)

    async def _read_runs(
        self, due: Sequence[_Due], done: int, total: int, *, exactly: bool
    ) -> None:
        slots = asyncio.Semaphore(limits.SWEEP_RUNS_MAX)

        async def read(run: _Due) -> None:
            nonlocal done
            async with slots:
                await self._read(run, exactly=exactly)
                done += 1
                self._on_progress(f"read {done} of {total} runs")

        await gather_bounded([partial(read, each) for each in due])

    def _take_unlisted_runs(self) -> list[_Due]:
        """Return the runs that other histories name and that no listing had."""
        new = [each for each in self._related if not self._has_run(each[1])]
        self._related.clear()
        self._add_runs([Run(run_id, workflow_id, workflow_id, True) for workflow_id, run_id in new])
        return [_Due(run_id, workflow_id, True, 0) for workflow_id, run_id in new]

    async def _read(self, run: _Due, *, exactly: bool) -> None:
        described: RunDescription | None = None
        if run.is_open:
            described = await self._histories.describe_run(run.workflow_id, run.run_id)
            if described is None:
                self._drop(run.run_id)
                return
            self._note_tree(run, described)
            if not await self._read_description(run, described):
                return
            if described.events < run.last_event:
                # History is shorter than indexed: Temporal's database was restored from a backup.
                run = run._replace(last_event=0)
            if exactly and described.is_open and described.events == run.last_event:
                return
        self.runs_read += 1
        read = await self._read_events(run)
        if read is None:
            return
        if read.last_event == 0:
            self._drop(run.run_id)
            return
        self._note_read(run, read, is_open=described is not None and described.is_open)

    def _note_read(self, run: _Due, read: _Read, *, is_open: bool) -> None:
        """Record how far a run was read. Only a closing event makes it final."""
        with self._index.transaction():
            self._index.run(
                "UPDATE runs SET last_event = ?, is_final = ?, is_open = ? WHERE run_id = ?",
                read.last_event,
                read.is_over,
                is_open and not read.is_over,
                run.run_id,
            )
            if read.is_over:
                self._index.delete_links(f"{run.run_id}/beside")
            if read.is_over or read.last_event != run.last_event:
                self._index.run(_TOUCH, run.run_id)

    async def _read_description(self, run: _Due, described: RunDescription) -> bool:
        """Replace the links of the payloads outside the history: memo, pending activities."""
        payloads = [each for message in described.holds for each in walk_payloads(message)]
        links = await self._find_links(payloads, run)
        if links is None:
            return False
        holder = f"{run.run_id}/beside"
        if links != self._index.read_links(holder):
            with self._index.transaction():
                self._index.delete_links(holder)
                self._index.add_links(holder, links)
                self._index.run(_TOUCH, run.run_id)
        return True

    async def _read_events(self, run: _Due) -> _Read | None:
        """Record the links of a run's events; return how far it was read.

        None if a payload could not be read. The caller records how far only after all links are
        recorded, so after an interruption links are at most recorded twice. A run that Temporal deletes
        during the read counts as gone, and not as read.
        """
        read, lowest, is_there = _Read(run.last_event), run.last_event + 1, False
        pages = self._histories.read_events(run.workflow_id, run.run_id, run.last_event)
        async for events in pages:
            is_there = True
            self._on_progress("reading runs")
            lowest = min((event.event_id for event in events), default=lowest)
            for event in events:
                if event.event_id > read.last_event:
                    read = _Read(event.event_id, is_closing(event))
            payloads = [each for event in events for each in walk_payloads(event)]
            links = await self._find_links(payloads, run)
            if links is None:
                return None
            with self._index.transaction():
                self._index.add_links(run.run_id, links)
            self._related.update(
                (workflow_id or run.workflow_id, run_id)
                for event in events
                for workflow_id, run_id in find_related_runs(event)
                if not self._has_run(run_id)
            )
        return read if is_there and lowest == run.last_event + 1 else _Read(0)

    async def _find_links(self, payloads: list[Found], run: _Due) -> set[Link] | None:
        try:
            links = self._reader.find_links(payloads, run.workflow_id)
            return await with_progress(links, self._on_progress, "reading runs")
        except Unreadable as error:
            self._note(f"run {run.run_id} of workflow {run.workflow_id!r}: {error}")
            return None

    def _note_tree(self, run: _Due, described: RunDescription) -> None:
        """Record a run's tree, and since when an activity has been running there."""
        self._index.run(
            "UPDATE runs SET root = ? WHERE run_id = ? AND root != ?",
            described.root,
            run.run_id,
            described.root,
        )
        if described.busy_since_ms is not None:
            self._index.run(
                "INSERT INTO held SELECT root, ? FROM runs WHERE run_id = ? "
                "ON CONFLICT DO UPDATE SET since_ms = MIN(since_ms, excluded.since_ms)",
                described.busy_since_ms - _SKEW_MS,
                run.run_id,
            )

    def _drop(self, run_id: str) -> None:
        with self._index.transaction():
            self._index.run(_TOUCH, run_id)
            self._index.run("DELETE FROM runs WHERE run_id = ?", run_id)
            self._index.delete_links(run_id)
            self._index.delete_links(f"{run_id}/beside")

    async def _follow_roots(self) -> None:
        """Follow the links of all roots through the store."""
        self._index.run("DELETE FROM roots")
        await self._schedules.read()
        self._index.run("INSERT OR IGNORE INTO roots SELECT run_id FROM runs")
        self._index.run("INSERT OR IGNORE INTO roots SELECT run_id || '/beside' FROM runs")
        await self._index.compute(self._index.reach_from_roots, self._on_progress)
        after = scanned = 0
        while batch := self._index.find_unscanned(after, _SCAN_BATCH):
            after = batch[-1][0]
            scans = [partial(self._scan, name) for _, name in batch]
            found = await self._gather(scans, f"followed {scanned} packs")
            self._index.reach(link for links in found for link in links)
            scanned += len(batch)

    async def _scan(self, name: bytes) -> set[Link]:
        """Return the links of a pack, and record them."""
        threads, wrong, by = self._index.find_places(name), "", ""
        for thread in threads:
            try:
                links = await self._reader.scan(thread, name)
            except BlobMissing:
                continue
            except StoreUnavailable as error:
                # An outage. Text that looks like a ref cannot cause it.
                self._note(f"{type(error).__name__}: {error}")
                return set()
            except Unreadable as error:
                # The object exists, so a link with its thread is a real ref, whatever its form.
                wrong, by = str(error), by or self._index.find_naming_holder(name, thread)
                continue
            self._index.add_scanned(name, links, is_decoded=False)
            return links
        if by := by or self._index.find_vouching_holder(name):
            missing = (
                f"{name.hex()} of thread {threads[-1]} is not in the store. Restore it from a backup, "
                "or delete the history that names it."
            )
            self._note(f"{by} leads to an object that cannot be read: {wrong or missing}")
        return set()

    async def _gather(self, work: Sequence[Callable[[], Awaitable[T]]], what: str) -> list[T]:
        return await with_progress(gather_bounded(work), self._on_progress, what)

    def _note(self, reason: str) -> None:
        if len(self.incomplete) < SWEEP_REASONS_MAX:
            self.incomplete.append(make_printable(reason, _REASON_CHARS_MAX))


class _Schedules:
    """Reads payloads of schedules. A schedule that was listed once counts until Temporal drops it."""

    def __init__(
        self,
        index: SweepIndex,
        histories: HistorySource,
        reader: LinkReader,
        on_progress: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        self._index = index
        self._histories = histories
        self._reader = reader
        self._on_progress = on_progress
        self._note = note

    async def read(self) -> None:
        """Record the links of each schedule, and make it a root."""
        async for page in self._histories.list_schedules():
            self._index.run_many(
                "INSERT OR IGNORE INTO schedules VALUES (?, '', '')", [(each,) for each in page]
            )
        for (schedule_id,) in self._index.run("SELECT schedule_id FROM schedules"):
            work = self._read(schedule_id)
            await with_progress(work, self._on_progress, "reading schedules")

    async def _read(self, schedule_id: str) -> None:
        holder = f"schedule/{schedule_id}"
        described = await self._histories.describe_schedule(schedule_id)
        if described is None:
            with self._index.transaction():
                self._index.run("DELETE FROM schedules WHERE schedule_id = ?", schedule_id)
                self._index.delete_links(holder)
            return
        # Payloads are stored under the workflow id in the schedule, though no run has exactly that id.
        workflow_id = described.schedule.action.start_workflow.workflow_id
        try:
            links = await self._reader.find_links(walk_payloads(described), workflow_id)
        except Unreadable as error:
            self._note(f"schedule {schedule_id!r}: {error}")
            return
        with self._index.transaction():
            self._index.delete_links(holder)
            self._index.add_links(holder, links)
            self._index.run("INSERT OR IGNORE INTO roots VALUES (?)", holder)
            self._index.run(
                "UPDATE schedules SET workflow_id = ?, thread = ? WHERE schedule_id = ?",
                workflow_id,
                thread_key(self._histories.namespace, workflow_id) if workflow_id else "",
                schedule_id,
            )
