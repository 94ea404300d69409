"""Archives of threads: write, plan, list and export them, and free an archived thread.

The order is the invariant: an archive is verified before its thread's histories are deleted. Every step
can be repeated after a crash, and the same journal is not archived twice.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from everlong import limits
from everlong.archive import Facts, Freed, Manifest, Progress, writer
from everlong.archive import manifest as manifests
from everlong.archive.manifest import UNREADABLE, Unreadable
from everlong.client.errors import translate_errors, translate_rpc_error
from everlong.client.follower import Follower
from everlong.client.labels import read_labels
from everlong.client.lookup import (
    ThreadSize,
    delete_runs,
    find_head,
    list_ended_runs,
    list_run_ids,
    measure_size,
)
from everlong.client.status import describe_end, open_journal, read_status
from everlong.client.time_travel import Timeline, open_archive
from everlong.client.updates import send_signal
from everlong.errors import (
    ArchiveNotFound,
    ControlRefused,
    EverlongError,
    NotAnswered,
    SetupRefused,
    StoreUnavailable,
    ThreadEnded,
    ThreadNotFound,
)
from everlong.models import (
    AGENT_WORKFLOW,
    NOTE_SIGNAL,
    STOP_SIGNAL,
    SWEEP_REASONS_MAX,
    Control,
    ControlNote,
    Status,
    ThreadStatus,
    make_printable,
    seq_after,
    thread_key,
)
from everlong.models.search_attributes import REASON, STATUS
from everlong.models.status import ENDED, ENDED_WHOLE
from everlong.models.thread_ids import show_id
from everlong.storage.pack_store import PackStore
from everlong.storage.quarantine import unwrap_store
from everlong.sweep import ArchivedThreads, Histories, record_seen
from everlong.telemetry import Spans, Telemetry
from everlong.telemetry.spans import AGENT, ARCHIVE, THREAD

T = TypeVar("T")

Then: TypeAlias = Literal["keep", "close", "free"]
"""The thread after its archive: it continues (`keep`); it ends (`close`); or it ends and its histories
are deleted, so that a sweep frees its packs (`free`)."""

# A running step may take 600 s; a person at a terminal does not wait that long.
CLOSE_SECONDS_MAX: Final = 300.0
_RESET_PAUSE_SECONDS: Final = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArchiveResult:
    """Result of archiving a thread."""

    manifest: Manifest
    then: Then
    is_new: bool
    """False if an archive of the same journal existed, and was verified again."""
    is_closed: bool
    """Whether the thread has ended."""
    left_out: int = 0
    """Entries and messages that a terminated thread had not journalled. Only its histories hold them,
    until their retention ends."""
    runs_deleted: int = 0
    seconds: float = 0.0
    passed_over: tuple[str, ...] = ()
    """Archives of the thread that cannot be read, each with the reason. They are not deleted."""


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
    """Write a thread's journal as one Parquet file, verify it, then treat the thread as `then` says.

    `keep` archives the journal as it is now. If the server has no history of the thread any more, its
    newest archive is verified and returned.
    """
    started = time.monotonic()
    spans = spans or Telemetry().spans
    span = spans.start(ARCHIVE, {THREAD: thread_id, "everlong.archive.then": then})
    with spans.use(span):
        try:
            found, run_id = await _prepare_thread(client, thread_id, then, by, reason, seconds_max)
        except ThreadNotFound:
            done = await _verify_newest(client, packs, thread_id, then)
            if done is None:
                raise
            return done
        unreadable: list[Unreadable] = []
        manifest = await _find_verified(
            client, packs, thread_id, found, on_progress, unreadable.append
        )
        is_new = manifest is None
        if manifest is None:
            manifest = await _write_archive(
                client, packs, thread_id, found, by, reason, on_progress
            )
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
            # Also if the archive is not new: its writer may have crashed before this step.
            await _record_archive(client, thread_id, manifest, by, reason)
        if then == "free":
            runs_deleted = await _free(client, packs, manifest, found, run_id, by, reason)
    return ArchiveResult(
        manifest=manifest,
        then=then,
        is_new=is_new,
        is_closed=ended,
        left_out=count_unjournalled(found) if ended else 0,
        runs_deleted=runs_deleted,
        seconds=time.monotonic() - started,
        passed_over=tuple(map(str, unreadable)),
    )


async def _prepare_thread(
    client: Client, thread_id: str, then: Then, by: str, reason: str, seconds_max: float
) -> tuple[ThreadStatus, str]:
    """End the thread if asked; return its status, and its last run if it has ended."""
    run_id = await _find_ended_run(client, thread_id)
    if not run_id and then != "keep":
        with contextlib.suppress(ThreadEnded):  # It ended by itself, or another caller ended it.
            control = Control(by=by, reason=reason, archive=True)
            await send_signal(client, thread_id, STOP_SIGNAL, control)
        run_id = await _wait_for_end(client, thread_id, seconds_max)
    return await read_status(client, thread_id), run_id


async def _find_ended_run(client: Client, thread_id: str) -> str:
    """Return the newest run of a thread if it has ended, else an empty string."""
    with translate_errors(thread_id):
        description = await client.get_workflow_handle(thread_id).describe()
    return description.run_id if describe_end(description) else ""


async def _wait_for_end(client: Client, thread_id: str, seconds_max: float) -> str:
    try:
        async with asyncio.timeout(seconds_max):
            while True:
                follower = Follower(client, thread_id)
                while not follower.has_ended:
                    await follower.next()
                if run_id := await _find_ended_run(client, thread_id):
                    return run_id
                # A reset has started another run.
                await asyncio.sleep(_RESET_PAUSE_SECONDS)
    except TimeoutError:
        raise NotAnswered(
            f"thread {thread_id!r} has not ended after {seconds_max:.0f} s; nothing is archived yet. "
            "It ends at its next safe point, if a worker runs it. Then archive it again."
        ) from None


async def _find_verified(
    client: Client,
    packs: PackStore,
    thread_id: str,
    found: ThreadStatus,
    on_progress: Progress,
    on_unreadable: Callable[[Unreadable], None],
) -> Manifest | None:
    """Return a verified archive of the same journal, or None.

    A damaged archive is kept, and the caller writes another.
    """
    journal = open_journal(client, packs, thread_id)
    thread = thread_key(client.namespace, thread_id)
    async for manifest in manifests.iter_readable(packs, thread, on_unreadable):
        if not has_same_journal(manifest, found):
            continue
        try:
            await writer.verify(packs, journal, found.head, manifest, on_progress)
        except UNREADABLE as error:
            on_unreadable(Unreadable(manifest.archive_id, error))
            continue
        return manifest
    return None


async def _write_archive(
    client: Client,
    packs: PackStore,
    thread_id: str,
    found: ThreadStatus,
    by: str,
    reason: str,
    on_progress: Progress,
) -> Manifest:
    thread = thread_key(client.namespace, thread_id)
    journal = open_journal(client, packs, thread_id)
    now_ms = _read_clock_ms()
    facts = Facts(
        archive_id=manifests.make_next_archive_id(
            await manifests.list_ids(packs.store, thread), now_ms, os.urandom(4)
        ),
        thread_id=thread_id,
        namespace=client.namespace,
        thread=thread,
        entries=seq_after(found.head) - 1,
        archived_ms=now_ms,
        by=make_printable(by, limits.CALL_NAME_CHARS_MAX),
        reason=make_printable(reason, limits.REASON_CHARS_MAX),
        status=found,
        labels=await read_labels(client, thread_id),
    )
    manifest = await writer.write(packs, journal, facts, on_progress)
    await writer.delete_orphans(packs.store, thread, now_ms)
    return manifest


async def find_archive(
    packs: PackStore,
    thread: str,
    found: ThreadStatus,
) -> Manifest | None:
    """Return the newest readable archive of the same journal, or None."""
    async for manifest in manifests.iter_readable(packs, thread, _ignore):
        if has_same_journal(manifest, found):
            return manifest
    return None


def _ignore(_: Unreadable) -> None:
    """Ignore an unreadable archive: the caller wants readable ones only."""


def has_same_journal(manifest: Manifest, found: ThreadStatus) -> bool:
    """Return whether an archive has the thread's present journal and status."""
    return (manifest.head, manifest.status) == (manifests.get_head_digest(found.head), found.status)


def count_unjournalled(found: ThreadStatus) -> int:
    """Return the number of entries and messages that are not in the journal."""
    return found.tail_entries + found.waiting_messages


def explain_unfreeable(thread_id: str, found: ThreadStatus) -> str:
    """Return why an ended thread's histories must not be deleted; empty if they may be."""
    counters = found.counters
    if count := count_unjournalled(found):
        what = f"before its last {count} entries and messages were journalled"
    elif found.status not in ENDED_WHOLE and counters.answered < counters.messages:
        # The tool results of an unfinished turn are in no journal.
        what = f"in the middle of a turn ({found.reason or found.status})"
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
    """Record who frees the thread and why (it may not be who archived it); then delete its runs."""
    thread_id = manifest.thread_id
    if why := explain_unfreeable(thread_id, found):
        raise ControlRefused(f"{why} It is archived as {manifest.archive_id}.")
    runs = await list_ended_runs(client, thread_id, run_id)
    record = Freed(
        archive_id=manifest.archive_id,
        thread_id=thread_id,
        namespace=manifest.namespace,
        thread=manifest.thread,
        freed_ms=_read_clock_ms(),
        by=make_printable(by, limits.CALL_NAME_CHARS_MAX),
        reason=make_printable(reason, limits.REASON_CHARS_MAX),
    )
    await manifests.write_freed(packs, record)
    # A sweep deletes nothing of a thread that it has never seen, and this deletes its last history.
    await record_seen(
        unwrap_store(packs.store), await Histories(client).fetch_namespace_id(), thread_id
    )
    await delete_runs(client, thread_id, runs)
    return len(runs)


def _read_clock_ms() -> int:
    return time.time_ns() // 1_000_000


async def _record_archive(
    client: Client, thread_id: str, manifest: Manifest, by: str, reason: str
) -> None:
    """Record in the journal of a running thread who archived it, and why."""
    why = f"{reason} ({manifest.archive_id})" if reason else manifest.archive_id
    with contextlib.suppress(ThreadEnded):  # Then only the archive records it.
        record = ControlNote(action="archive", by=by, reason=why)
        await send_signal(client, thread_id, NOTE_SIGNAL, record)


async def _verify_newest(
    client: Client, packs: PackStore, thread_id: str, then: Then
) -> ArchiveResult | None:
    """Verify and return the newest archive of a thread that the server has no history of."""
    found = await open_archive(client, packs, thread_id)
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
    """A page of archives, newest first."""

    archives: tuple[Manifest, ...]
    freed: tuple[Freed, ...] = ()
    """Records of freed threads, with person and reason; the newest record of each thread."""
    next: str = ""
    """Value of `before` for the next page; empty on the last."""
    unreadable: tuple[str, ...] = ()
    """Archives that cannot be read, wholly or in part, each with the reason."""


ARCHIVES_PAGE: Final = 50
ARCHIVES_PAGE_MAX: Final = 500
# A read from a bucket takes 10 to 50 ms, so 500 manifests take one or two seconds.
_MANIFESTS_AT_ONCE: Final = 16


async def list_archives(
    client: Client,
    packs: PackStore,
    *,
    thread_id: str | None = None,
    before: str = "",
    count_max: int = ARCHIVES_PAGE,
) -> ArchivePage:
    """List the archives of a namespace or of one thread, reading each manifest."""
    count_max = max(1, min(count_max, ARCHIVES_PAGE_MAX))
    thread = None if thread_id is None else thread_key(client.namespace, thread_id)
    newest, more = await manifests.list_newest(packs.store, thread, before, count_max)
    found, unreadable = await _read_all(
        (each.archive_id, _read_manifest(packs, each, client.namespace)) for each in newest
    )
    records, unreadable_records = await _read_all(
        (each.archive_id, manifests.read_freed(packs, *each)) for each in newest if each.freed_id
    )
    return ArchivePage(
        archives=tuple(each for each in found if each is not None),
        freed=tuple(each for each in records if each.namespace == client.namespace),
        next=newest[-1].archive_id if more else "",
        unreadable=(*unreadable, *unreadable_records),
    )


async def _read_manifest(
    packs: PackStore, each: manifests.Listed, namespace: str
) -> Manifest | None:
    """Read a manifest; None if it belongs to another namespace, whose keys may differ."""
    manifest, data = await manifests.fetch(packs, each.thread, each.archive_id)
    if manifest.namespace != namespace:
        return None
    return await manifests.check_tag(packs, manifest, data)


async def _read_all(reads: Iterator[tuple[str, Awaitable[T]]]) -> tuple[list[T], list[str]]:
    """Await reads, a few at a time; return their values, and the unreadable ones with the reason."""
    found: list[T] = []
    unreadable: list[str] = []
    while some := list(itertools.islice(reads, _MANIFESTS_AT_ONCE)):
        read = await asyncio.gather(*(each for _, each in some), return_exceptions=True)
        for (archive_id, _), each in zip(some, read, strict=True):
            if isinstance(each, ArchiveNotFound):  # Deleted after it was listed.
                continue
            if isinstance(each, EverlongError) and not isinstance(each, StoreUnavailable):
                unreadable.append(f"{archive_id}: {each}")
            elif isinstance(each, BaseException):
                raise each
            else:
                found.append(each)
    return found, unreadable


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArchivePlan:
    """Effect that archiving a thread would have."""

    thread_id: str
    then: Then
    status: str
    entries: int
    left_out: int
    """Entries and messages that would not be in the archive, as they are not journalled. 0 if the thread
    would be ended first: it journals them then."""
    size: ThreadSize | None
    """Size of the thread; None if the server has no history of it."""
    existing: str
    """Archive of the same journal, which would be verified; empty if one would be written."""
    ends: bool
    """Whether the thread would be ended."""
    runs_deleted: int
    """Runs whose histories would be deleted."""
    refused: str
    """Why the histories would not be deleted although asked; empty otherwise."""


async def plan_archive(
    client: Client, packs: PackStore, thread_id: str, then: Then = "keep"
) -> ArchivePlan:
    """Return what `archive` would do, writing nothing."""
    past = await Timeline.open(client, packs, thread_id)
    found, is_gone = past.status, past.archive is not None
    ends = then != "keep" and not is_gone and found.status not in ENDED
    frees = then == "free" and not is_gone
    refused = explain_unfreeable(thread_id, found) if frees and not ends else ""
    return ArchivePlan(
        thread_id=thread_id,
        then=then,
        status=found.status,
        entries=seq_after(found.head) - 1,
        left_out=0 if ends or is_gone else count_unjournalled(found),
        size=None if is_gone else await measure_size(client, packs.store, thread_id),
        existing="" if ends else await _find_existing_id(client, packs, thread_id, found),
        ends=ends,
        runs_deleted=await _count_runs(client, thread_id) if frees and not refused else 0,
        refused=refused,
    )


async def _find_existing_id(
    client: Client, packs: PackStore, thread_id: str, found: ThreadStatus
) -> str:
    existing = await find_archive(packs, thread_key(client.namespace, thread_id), found)
    return "" if existing is None else existing.archive_id


async def _count_runs(client: Client, thread_id: str) -> int:
    with translate_errors(thread_id):
        description = await client.get_workflow_handle(thread_id).describe()
    return len(await list_run_ids(client, thread_id, description.run_id))


def check_export(path: Path) -> None:
    """Reject a path that an archive cannot be exported to, before any work is done."""
    writer.check_target(path)


async def export_archive(packs: PackStore, manifest: Manifest, path: Path) -> int:
    """Write an archive to disk as a plain Parquet file; return its number of rows."""
    return await writer.export(packs, manifest, path)


logger = logging.getLogger(__name__)

# In one call. The caller repeats it: sweeps run at least every hour.
DUE_MAX: Final = 20
_WARNING_CHARS_MAX: Final = 600
# A failed thread costs a few calls, or one write of its archive.
_FAILED_MAX: Final = 200
# Checking a thread costs one listing of the store, a manifest, and a page of its history.
_LOOKED_AT_MAX: Final = 10_000
_DUE_QUERY: Final = (
    f"WorkflowType = '{AGENT_WORKFLOW}' AND ExecutionStatus = 'Completed' "
    f"AND {STATUS.name} = 'archived'"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DueArchives:
    """Result of archiving due threads."""

    archived: tuple[Manifest, ...]
    failed: tuple[str, ...] = ()
    """Threads that could not be checked or archived, each with the reason. They stay due."""
    unreadable: tuple[str, ...] = ()
    """Archives that could not be read and were skipped, each with its thread and the reason."""
    is_complete: bool = True
    """Whether nothing else is due. False also if there were more threads than one call checks."""


async def archive_due(
    client: Client, packs: PackStore, *, count_max: int = DUE_MAX, spans: Spans | None = None
) -> DueArchives:
    """Archive at most `count_max` threads that ended as `archived` and have no archive."""
    done: list[Manifest] = []
    failed: list[str] = []
    unreadable: list[str] = []
    looked_at = 0
    is_complete = True
    async for thread in _list_ended(client):
        looked_at += 1
        # Failed threads are listed again next time, so they must not use up the whole call.
        if looked_at > _LOOKED_AT_MAX or len(failed) == _FAILED_MAX:
            is_complete = False
            break
        try:
            is_due = await _is_due(client, packs, thread, unreadable)
            if is_due and len(done) == count_max:
                is_complete = False
                break
            if is_due:
                done.append(await _archive_thread(client, packs, thread, spans))
        except EverlongError as error:
            failed.append(f"{show_id(thread.id)}: {error}")
        except ModuleNotFoundError:  # Without pyarrow, no thread can be archived.
            raise
        except Exception as error:  # noqa: BLE001 - one thread's error must not stop the others.
            failed.append(f"{show_id(thread.id)}: {type(error).__name__}")
    return DueArchives(
        archived=tuple(done),
        failed=tuple(failed),
        unreadable=tuple(unreadable),
        is_complete=is_complete,
    )


async def _archive_thread(
    client: Client, packs: PackStore, thread: WorkflowExecution, spans: Spans | None
) -> Manifest:
    limit = thread.typed_search_attributes.get(REASON, "")
    reason = f"limit {limit}" if limit else ""
    # `keep`: a thread that was reset a moment ago continues, and must not be ended again.
    found = await archive(
        client, packs, thread.id, then="keep", by="policy", reason=reason, spans=spans
    )
    return found.manifest


async def _is_due(
    client: Client, packs: PackStore, thread: WorkflowExecution, unreadable: list[str]
) -> bool:
    """Return whether a thread has no archive of its end; an archive of an earlier end does not count.

    Any readable archive of the same journal counts, not only the newest: otherwise an unreadable newest
    one would make every sweep archive the thread again.
    """

    def report_unreadable(found: manifests.Unreadable) -> None:
        text = f"thread {show_id(thread.id)}: an archive cannot be read and is skipped: {found}"
        logger.warning("%s", make_printable(text, _WARNING_CHARS_MAX))
        unreadable.append(text)

    head: str | None = None
    try:
        async for manifest in manifests.iter_readable(
            packs, thread_key(client.namespace, thread.id), report_unreadable
        ):
            if manifest.status != Status.ARCHIVED:
                continue
            if head is None:
                head = manifests.get_head_digest(await find_head(client, thread.id))
            if manifest.head == head:
                return False
        # After a reset, the ended run is still listed while the thread continues in another.
        return await _read_newest_run(client, thread.id) == thread.run_id
    except ThreadNotFound:  # Visibility lags: it still lists a thread that was freed.
        return False


async def _read_newest_run(client: Client, thread_id: str) -> str:
    with translate_errors(thread_id):
        return (await client.get_workflow_handle(thread_id).describe()).run_id


async def _list_ended(client: Client) -> AsyncIterator[WorkflowExecution]:
    try:
        async for thread in client.list_workflows(_DUE_QUERY, limit=_LOOKED_AT_MAX + 1):
            yield thread
    except RPCError as error:
        if error.status == RPCStatusCode.INVALID_ARGUMENT:
            raise SetupRefused(
                "the server does not have our search attributes, so threads that are due cannot be "
                "found. Add them with: everlong setup"
            ) from error
        raise translate_rpc_error(error, "") from error


# In one sweep. The next archives the rest, long before Temporal deletes the histories.
_ARCHIVES_MAX: Final = 1000
_REASON_CHARS_MAX: Final = 400


async def archive_before_sweep(
    client: Client, packs: PackStore, spans: Spans | None = None
) -> ArchivedThreads:
    """Archive due threads before a sweep. Failures are reported, and those threads stay due."""
    try:
        found = await archive_due(client, packs, count_max=_ARCHIVES_MAX, spans=spans)
    except EverlongError as error:
        return ArchivedThreads(failed=(make_printable(str(error), _REASON_CHARS_MAX),))
    more = () if found.is_complete else ("more threads are due: the next sweep archives them",)
    reasons = [
        make_printable(each, _REASON_CHARS_MAX)
        for each in (*more, *found.failed, *found.unreadable)[:SWEEP_REASONS_MAX]
    ]
    return ArchivedThreads(len(found.archived), tuple(reasons))
