"""Archives of threads: written, read back, listed; what follows comes after that, never before.

Any of it can be done again after a crash. An archive of the same journal is not written twice.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from everlong import limits
from everlong.archive import Facts, Freed, Manifest, Progress, freed, writer
from everlong.archive import manifest as manifests
from everlong.archive.manifest import UNREADABLE, Unreadable
from everlong.client.control import note, stop
from everlong.client.errors import translated, translated_rpc
from everlong.client.follower import Follower
from everlong.client.runs import previous_run
from everlong.client.size import ThreadSize, measure_size
from everlong.client.status import ended_as, journal_of, status
from everlong.client.time_travel import Past, archive_of
from everlong.client.visibility import quoted
from everlong.errors import (
    ArchiveNotFound,
    ControlRefused,
    EverlongError,
    NotAnswered,
    StoreUnavailable,
    ThreadEnded,
    ThreadNotFound,
)
from everlong.models import ThreadStatus, printable, seq_after, thread_key
from everlong.storage.pack_store import PackStore
from everlong.storage.quarantine import bare
from everlong.sweep import Histories, record_seen
from everlong.telemetry import Spans, Telemetry
from everlong.telemetry.spans import AGENT, ARCHIVE, THREAD

T = TypeVar("T")

Then: TypeAlias = Literal["keep", "close", "free"]
"""What becomes of the thread: it goes on; it ends; it ends, and its histories are deleted, so that a
sweep frees its packs."""

# A step that is under way may take 600 s; nobody at a terminal waits for longer than some of it.
CLOSE_SECONDS_MAX: Final = 300.0
_RESET_PAUSE_SECONDS: Final = 0.1
# A thread that ends in one of these ways has journalled all that it had.
_ENDED_WHOLE: Final = frozenset({"stopped", "archived", "canceled"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArchiveResult:
    """What came of archiving a thread."""

    manifest: Manifest
    then: Then
    is_new: bool
    """False if there was an archive of the same journal already, which was read back again."""
    is_closed: bool
    """Whether the thread has ended."""
    left_out: int = 0
    """Entries and messages that a thread had not journalled when it was terminated: they are in its
    histories alone, as long as these last."""
    runs_deleted: int = 0
    seconds: float = 0.0
    passed_over: tuple[str, ...] = ()
    """Archives of the thread that cannot be read, and why. They are left where they are."""


async def archive(
    client: Client,
    packs: PackStore,
    thread_id: str,
    *,
    then: Then = "keep",
    by: str = "",
    reason: str = "",
    on_progress: Progress = writer.ignore_progress,
    seconds_max: float = CLOSE_SECONDS_MAX,
    spans: Spans | None = None,
) -> ArchiveResult:
    """Write a thread's journal as one Parquet file, read it back, and do with the thread as asked.

    `keep` archives what the journal holds now. Of a thread that the server has no history of any more,
    the newest archive is returned as it is.
    """
    started = time.monotonic()
    spans = spans or Telemetry().spans
    span = spans.start(ARCHIVE, {THREAD: thread_id, "everlong.archive.then": then})
    with spans.use(span):
        try:
            found, run_id = await _settled(client, thread_id, then, by, reason, seconds_max)
        except ThreadNotFound:
            done = await _gone(client, packs, thread_id, then)
            if done is None:
                raise
            return done
        unreadable: list[Unreadable] = []
        manifest = await _existing(client, packs, thread_id, found, on_progress, unreadable.append)
        is_new = manifest is None
        if manifest is None:
            manifest = await _written(client, packs, thread_id, found, by, reason, on_progress)
        span.set_attributes(
            {
                AGENT: manifest.agent,
                "everlong.archive.entries": manifest.entries,
                "everlong.archive.bytes": manifest.size_bytes,
            }
        )
        ended = bool(run_id)
        runs_deleted = 0
        if not ended:
            # Also if the archive is not new: whoever wrote it may have been killed before this.
            await _noted(client, thread_id, manifest, by, reason)
        if then == "free":
            runs_deleted = await _free(client, packs, manifest, found, run_id, by, reason)
    return ArchiveResult(
        manifest=manifest,
        then=then,
        is_new=is_new,
        is_closed=ended,
        left_out=not_journalled(found) if ended else 0,
        runs_deleted=runs_deleted,
        seconds=time.monotonic() - started,
        passed_over=tuple(map(str, unreadable)),
    )


async def _settled(
    client: Client, thread_id: str, then: Then, by: str, reason: str, seconds_max: float
) -> tuple[ThreadStatus, str]:
    """Return how the thread is once it is as the archive needs it, and the run that it ended with."""
    run_id = await _ended_run(client, thread_id)
    if not run_id and then != "keep":
        with contextlib.suppress(ThreadEnded):  # By itself, or somebody else was faster.
            await stop(client, thread_id, by, reason, archive=True)
        run_id = await _wait_for_end(client, thread_id, seconds_max)
    return await status(client, thread_id), run_id


async def _ended_run(client: Client, thread_id: str) -> str:
    """Return the newest run of a thread that has ended; nothing if it has not."""
    with translated(thread_id):
        description = await client.get_workflow_handle(thread_id).describe()
    return description.run_id if ended_as(description) else ""


async def _wait_for_end(client: Client, thread_id: str, seconds_max: float) -> str:
    try:
        async with asyncio.timeout(seconds_max):
            while True:
                follower = Follower(client, thread_id)
                while not follower.has_ended:
                    await follower.next()
                if run_id := await _ended_run(client, thread_id):
                    return run_id
                # A reset has begun another run meanwhile.
                await asyncio.sleep(_RESET_PAUSE_SECONDS)
    except TimeoutError:
        raise NotAnswered(
            f"thread {thread_id!r} has not ended after {seconds_max:.0f} s; nothing is archived yet. "
            "It ends at its next safe point, if a worker runs it. Then archive it again."
        ) from None


async def _existing(
    client: Client,
    packs: PackStore,
    thread_id: str,
    found: ThreadStatus,
    on_progress: Progress,
    on_unreadable: Callable[[Unreadable], None],
) -> Manifest | None:
    """Return an archive of the same journal, read back; None if there is none.

    One that is damaged is left where it is, and another one is written.
    """
    journal = journal_of(client, packs, thread_id)
    thread = thread_key(client.namespace, thread_id)
    async for manifest in manifests.iter_readable(packs, thread, on_unreadable):
        if not is_of(manifest, found):
            continue
        try:
            await writer.verify(packs, journal, found.head, manifest, on_progress)
        except UNREADABLE as error:
            on_unreadable(Unreadable(manifest.archive_id, error))
            continue
        return manifest
    return None


async def _written(
    client: Client,
    packs: PackStore,
    thread_id: str,
    found: ThreadStatus,
    by: str,
    reason: str,
    on_progress: Progress,
) -> Manifest:
    thread = thread_key(client.namespace, thread_id)
    journal = journal_of(client, packs, thread_id)
    now_ms = _now_ms()
    facts = Facts(
        archive_id=manifests.next_archive_id(
            await manifests.list_ids(packs.store, thread), now_ms, os.urandom(4)
        ),
        thread_id=thread_id,
        namespace=client.namespace,
        thread=thread,
        entries=seq_after(found.head) - 1,
        archived_ms=now_ms,
        by=printable(by, limits.CALL_NAME_CHARS_MAX),
        reason=printable(reason, limits.REASON_CHARS_MAX),
        status=found,
    )
    manifest = await writer.write(packs, journal, facts, on_progress)
    await writer.delete_orphans(packs.store, thread, now_ms)
    return manifest


async def find_archive(
    packs: PackStore,
    thread: str,
    found: ThreadStatus,
) -> Manifest | None:
    """Return the newest archive of the same journal that can be read, if there is one."""
    async for manifest in manifests.iter_readable(packs, thread, _ignore):
        if is_of(manifest, found):
            return manifest
    return None


def _ignore(_: Unreadable) -> None:
    """Do nothing: the caller asks only for what can be read."""


def is_of(manifest: Manifest, found: ThreadStatus) -> bool:
    """Tell whether an archive is of the journal as it is, and of a thread in the same state."""
    return (manifest.head, manifest.status) == (manifests.head_digest(found.head), found.status)


def not_journalled(found: ThreadStatus) -> int:
    """Return how many entries and messages of a thread are not in its journal."""
    return found.tail_entries + found.waiting_messages


def why_not_freed(thread_id: str, found: ThreadStatus) -> str:
    """Return why the histories of a thread that has ended are not deleted; nothing if they may be."""
    counters = found.counters
    if count := not_journalled(found):
        what = f"before its last {count} entries and messages were journalled"
    elif found.status not in _ENDED_WHOLE and counters.answered < counters.messages:
        # What tools had returned in it is in no journal.
        what = f"in the middle of a turn ({found.status})"
    else:
        return ""
    return (
        f"thread {thread_id!r} was ended {what}, so its histories are not deleted: only they hold "
        "what is missing. Temporal deletes them when their retention is over."
    )


async def _free(
    client: Client,
    packs: PackStore,
    manifest: Manifest,
    found: ThreadStatus,
    run_id: str,
    by: str,
    reason: str,
) -> int:
    """Say who frees a thread and why, as the archive may be somebody else's; then delete its runs."""
    thread_id = manifest.thread_id
    if why := why_not_freed(thread_id, found):
        raise ControlRefused(f"{why} It is archived as {manifest.archive_id}.")
    runs = await ended_runs(client, thread_id, run_id)
    record = Freed(
        archive_id=manifest.archive_id,
        thread_id=thread_id,
        namespace=manifest.namespace,
        thread=manifest.thread,
        freed_ms=_now_ms(),
        by=printable(by, limits.CALL_NAME_CHARS_MAX),
        reason=printable(reason, limits.REASON_CHARS_MAX),
    )
    await freed.write(packs, record)
    # A sweep takes from no thread that it has not seen, and here its last history goes.
    await record_seen(bare(packs.store), await Histories(client).namespace_id(), thread_id)
    await delete_runs(client, thread_id, runs)
    return len(runs)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _noted(client: Client, thread_id: str, manifest: Manifest, by: str, reason: str) -> None:
    """Have the journal of a thread that goes on say who archived it, and why."""
    why = f"{reason} ({manifest.archive_id})" if reason else manifest.archive_id
    with contextlib.suppress(ThreadEnded):  # Then the archive alone says who and why.
        await note(client, thread_id, "archive", by, why)


async def _gone(
    client: Client, packs: PackStore, thread_id: str, then: Then
) -> ArchiveResult | None:
    """Return the archive of a thread that the server has forgotten, read back, if it has one."""
    found = await archive_of(client, packs, thread_id)
    if found is None:
        return None
    await writer.verify(packs, None, None, found.manifest)
    return ArchiveResult(
        manifest=found.manifest,
        then=then,
        is_new=False,
        is_closed=True,
        passed_over=found.passed_over,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArchivePage:
    """Some archives of a store, the newest first."""

    archives: tuple[Manifest, ...]
    freed: tuple[Freed, ...] = ()
    """Who freed threads of which these are left, and why: of each, who did it last."""
    next: str = ""
    """Give this as `before` for the older ones; empty if there are none."""
    unreadable: tuple[str, ...] = ()
    """Archives of which something cannot be read, and why."""


ARCHIVES_PAGE: Final = 50
ARCHIVES_PAGE_MAX: Final = 500
# One takes 10 to 50 ms of a bucket, so 500 take a second or two.
_MANIFESTS_AT_ONCE: Final = 16


async def list_archives(
    client: Client,
    packs: PackStore,
    *,
    thread_id: str | None = None,
    before: str = "",
    count_max: int = ARCHIVES_PAGE,
) -> ArchivePage:
    """List the archives of a namespace, or of a thread. Of each, its manifest is read."""
    count_max = max(1, min(count_max, ARCHIVES_PAGE_MAX))
    thread = None if thread_id is None else thread_key(client.namespace, thread_id)
    newest, more = await manifests.list_newest(packs.store, thread, before, count_max)
    found, unreadable = await _each(
        (each.archive_id, _listed(packs, each, client.namespace)) for each in newest
    )
    told, untold = await _each(
        (each.archive_id, freed.read(packs, *each)) for each in newest if each.freed_id
    )
    return ArchivePage(
        archives=tuple(each for each in found if each is not None),
        freed=tuple(each for each in told if each.namespace == client.namespace),
        next=newest[-1].archive_id if more else "",
        unreadable=(*unreadable, *untold),
    )


async def _listed(packs: PackStore, each: manifests.Listed, namespace: str) -> Manifest | None:
    """Read a manifest; None if it is another namespace's, whose keys may be others."""
    manifest, data = await manifests.fetch(packs, each.thread, each.archive_id)
    if manifest.namespace != namespace:
        return None
    return await manifests.check_tag(packs, manifest, data)


async def _each(reads: Iterator[tuple[str, Awaitable[T]]]) -> tuple[list[T], list[str]]:
    """Await what is read of archives, a few at a time; return it, and what cannot be read and why."""
    found: list[T] = []
    unreadable: list[str] = []
    while some := list(itertools.islice(reads, _MANIFESTS_AT_ONCE)):
        read = await asyncio.gather(*(each for _, each in some), return_exceptions=True)
        for (archive_id, _), each in zip(some, read, strict=True):
            if isinstance(each, ArchiveNotFound):  # It was deleted since it was listed.
                continue
            if isinstance(each, EverlongError) and not isinstance(each, StoreUnavailable):
                unreadable.append(f"{archive_id}: {each}")
            elif isinstance(each, BaseException):
                raise each
            else:
                found.append(each)
    return found, unreadable


_ENDED = frozenset({"stopped", "archived", "terminated", "failed", "canceled", "timed_out"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArchivePlan:
    """What archiving a thread would do."""

    thread_id: str
    then: Then
    status: str
    entries: int
    left_out: int
    """Entries and messages that are not journalled, and would not be in the archive. A thread that is
    asked to end journals them first."""
    size: ThreadSize | None
    """What the thread takes up; None if the server does not know it any more."""
    existing: str
    """An archive of the same journal, which would be read back; empty if one would be written."""
    ends: bool
    """Whether the thread would be ended."""
    runs_deleted: int
    """Runs whose histories would be deleted."""
    refused: str
    """Why they would not be, though that is asked for; empty if they would."""


async def plan_archive(
    client: Client, packs: PackStore, thread_id: str, then: Then = "keep"
) -> ArchivePlan:
    """Return what `archive` would do. Nothing is written."""
    past = await Past.open(client, packs, thread_id)
    found, is_gone = past.status, past.archive is not None
    ends = then != "keep" and not is_gone and found.status not in _ENDED
    frees = then == "free" and not is_gone
    refused = why_not_freed(thread_id, found) if frees and not ends else ""
    return ArchivePlan(
        thread_id=thread_id,
        then=then,
        status=found.status,
        entries=seq_after(found.head) - 1,
        left_out=0 if ends or is_gone else not_journalled(found),
        size=None if is_gone else await measure_size(client, packs.store, thread_id),
        existing="" if ends else await _existing_id(client, packs, thread_id, found),
        ends=ends,
        runs_deleted=await _count_runs(client, thread_id) if frees and not refused else 0,
        refused=refused,
    )


async def _existing_id(
    client: Client, packs: PackStore, thread_id: str, found: ThreadStatus
) -> str:
    existing = await find_archive(packs, thread_key(client.namespace, thread_id), found)
    return "" if existing is None else existing.archive_id


async def _count_runs(client: Client, thread_id: str) -> int:
    with translated(thread_id):
        description = await client.get_workflow_handle(thread_id).describe()
    return len(await runs_of(client, thread_id, description.run_id))


def check_export(path: Path) -> None:
    """Refuse a path that an archive cannot be exported to, before anything is done."""
    writer.check_target(path)


async def export_archive(packs: PackStore, manifest: Manifest, path: Path) -> int:
    """Write an archive to disk as a plain Parquet file, for any tool; return its rows."""
    return await writer.export(packs, manifest, path)


# A run id takes 100 bytes in memory: 10 MB. A thread that rolls each hour has so many in 11 years.
_RUNS_MAX: Final = 100_000


async def ended_runs(client: Client, thread_id: str, run_id: str) -> list[str]:
    """Return all runs of a thread, the newest first. It has to have ended with the one that is given."""
    with translated(thread_id):
        description = await client.get_workflow_handle(thread_id).describe()
    if not ended_as(description):
        raise ControlRefused(f"thread {thread_id!r} has not ended; its histories are not deleted")
    if description.run_id != run_id:
        raise ControlRefused(
            f"thread {thread_id!r} has gone on since it was archived; its histories are not deleted. "
            "Archive it again."
        )
    return await runs_of(client, thread_id, run_id)


async def delete_runs(client: Client, thread_id: str, runs: Sequence[str]) -> None:
    """Delete the histories of runs, given with the newest first.

    The newest goes last: as long as it is there, whoever does this again finds the others. The server
    takes some seconds to do it; until then, all of it can be read as before.
    """
    for run_id in reversed(runs):
        await _delete(client, thread_id, run_id)


async def runs_of(client: Client, thread_id: str, newest: str) -> list[str]:
    """Return the ids of all runs, the newest first: those it continues, and branches of resets."""
    runs = {newest: None}
    run_id = newest
    while len(runs) < _RUNS_MAX:
        try:
            run_id = await previous_run(client, thread_id, run_id)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise translated_rpc(error, thread_id) from error
            break  # Its retention is over, or it was deleted before.
        if not run_id:
            break
        runs[run_id] = None
    query = f"WorkflowId = {quoted(thread_id)}"
    with translated(thread_id):
        async for each in client.list_workflows(query, limit=_RUNS_MAX):
            if each.status != WorkflowExecutionStatus.RUNNING:
                runs.setdefault(each.run_id)
    return list(runs)


async def _delete(client: Client, thread_id: str, run_id: str) -> None:
    # Always a run by its id: without one, a thread that has come into being since would be meant.
    run = WorkflowExecution(workflow_id=thread_id, run_id=run_id)
    request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=run)
    try:
        await client.workflow_service.delete_workflow_execution(request)
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise translated_rpc(error, thread_id) from error
