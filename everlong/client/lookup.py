"""Lookup: what the server and the store know of a thread, with or without a worker.

A thread without a worker cannot report where its journal ends; the newest events of its history name
the head. If the server has deleted the thread, its newest archive is read.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError
from temporalio.api.common.v1 import Payloads, WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.exceptions import TemporalError
from temporalio.service import RPCError, RPCStatusCode

from everlong.archive import Manifest, StoredArchive
from everlong.client.errors import translate_errors, translate_rpc_error
from everlong.client.status import describe_end, open_journal, read_described_status
from everlong.client.time_travel import Timeline, open_archive
from everlong.client.visibility import ThreadRow, build_row, decode_cards, quote_text
from everlong.errors import (
    ControlRefused,
    EntryNotFound,
    EverlongError,
    NoWorker,
    ThreadError,
    ThreadNotFound,
)
from everlong.models import (
    CARD_MEMO,
    SegmentRef,
    Status,
    ThreadCard,
    ThreadStatus,
    find_hold_cause,
    seq_after,
    thread_key,
)
from everlong.models.thread_ids import quote_id
from everlong.storage import BlobStore
from everlong.storage.journal import JournalReader
from everlong.storage.pack_store import PackStore, thread_prefix

# A worker with the thread in memory answers within milliseconds, and a worker that replays it within a
# second or two. A page waits no longer.
ANSWER_SECONDS_MAX: Final = 4.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreadLookup:
    """Sources of a thread's page: what the server and the store answer now, and where its journal is.

    Not a shape to show: the overview, entries, charts and previews are made from it.
    """

    thread_id: str
    row: ThreadRow
    status: ThreadStatus | None
    """None if no worker answers."""
    journal: JournalReader
    head: SegmentRef | None
    """Head of its journal; without a status, the newest head that the history names."""
    run_events: int
    run_history_bytes: int
    unavailable: str
    """Why there is no status; empty if there is one."""
    archive: Manifest | None = None
    """The archive that all of this is read from, if the server has deleted the thread."""
    passed_over: tuple[str, ...] = ()
    """Newer archives that cannot be read, and why."""
    parent_id: str = ""
    """Thread that a sub-agent's thread answers to; empty for other threads."""

    @property
    def last_seq(self) -> int:
        """Seq of the newest entry in the journal; 0 if there is none."""
        return seq_after(self.head) - 1


async def look_up(
    client: Client, packs: PackStore, thread_id: str, seconds_max: float = ANSWER_SECONDS_MAX
) -> ThreadLookup:
    """Look at a thread once. Raises `ThreadNotFound` if neither a thread nor an archive exists."""
    try:
        return await _look_up_on_server(client, packs, thread_id, seconds_max)
    except ThreadNotFound:
        archive = await open_archive(client, packs, thread_id)
        if archive is None:
            raise
        return _look_up_in_archive(archive)


async def _look_up_on_server(
    client: Client, packs: PackStore, thread_id: str, seconds_max: float
) -> ThreadLookup:
    with translate_errors(thread_id):
        description = await client.get_workflow_handle(thread_id).describe()
    info = description.raw_description.workflow_execution_info
    row = build_row(info, await _decode_card(client, description))
    status, head, unavailable = None, None, ""
    try:
        async with asyncio.timeout(seconds_max):
            status = await read_described_status(client, description)
        head = status.head
        row = dataclasses.replace(row, status=status.status, reason=status.reason)
    except (NoWorker, TimeoutError) as error:
        if isinstance(error, NoWorker) and error.held_by:
            cause = find_hold_cause(error.held_by)
            row = dataclasses.replace(row, status=Status.HELD, reason=cause)
        unavailable = str(error) or (
            f"no worker answers for thread {thread_id!r} within {seconds_max:.0f} s. Start one on task "
            f"queue {info.task_queue!r}."
        )
        head = await find_readable_head(client, description, seconds_max)
    return ThreadLookup(
        thread_id=thread_id,
        row=row,
        status=status,
        journal=open_journal(client, packs, thread_id),
        head=head,
        run_events=info.history_length,
        run_history_bytes=info.history_size_bytes,
        unavailable=unavailable,
        parent_id=info.parent_execution.workflow_id,
    )


async def find_readable_head(
    client: Client, description: WorkflowExecutionDescription, seconds_max: float
) -> SegmentRef | None:
    """Return the newest head that can be read in time, or else the head at the start of the run.

    A page without the newest entries is better than none: the client may lack a key, the store a pack.
    """
    readable = (EverlongError, TemporalError, ValueError, RuntimeError, TimeoutError)
    with contextlib.suppress(*readable):
        async with asyncio.timeout(seconds_max):
            if (head := await find_head(client, description.id)) is not None:
                return head
    handle = client.get_workflow_handle(description.id, run_id=description.run_id)
    with contextlib.suppress(*readable):
        async with asyncio.timeout(seconds_max):
            async for event in handle.fetch_history_events(page_size=1):
                return await _read_event_head(client, event)
    return None


def _look_up_in_archive(archive: StoredArchive) -> ThreadLookup:
    past, manifest = Timeline.from_archive(archive), archive.manifest
    status = past.status
    row = ThreadRow(
        thread_id=past.thread_id,
        run_id="",
        agent=status.agent,
        status=Status.ARCHIVED,
        reason=status.reason,
        started_ms=manifest.first_ms or manifest.archived_ms,
        closed_ms=manifest.archived_ms,
        stored_bytes=manifest.size_bytes,
        growth_bytes_per_hour=0.0,
        pending=0,
        asked_ms=None,
        last_resume_ms=0.0,
    )
    return ThreadLookup(
        thread_id=past.thread_id,
        row=row,
        status=status,
        journal=past.journal,
        head=status.head,
        run_events=0,
        run_history_bytes=0,
        unavailable="",
        archive=manifest,
        passed_over=archive.passed_over,
    )


def check_head(found: ThreadLookup, seq: int) -> SegmentRef:
    """Return the journal's head, which has to hold that entry."""
    if found.head is not None and 1 <= seq <= found.last_seq:
        return found.head
    held = f"entries 1 to {found.last_seq}" if found.last_seq else "no entries yet"
    raise EntryNotFound(f"the journal of thread {found.thread_id!r} holds {held}, and no {seq}")


async def _decode_card(
    client: Client, description: WorkflowExecutionDescription
) -> ThreadCard | None:
    payload = description.raw_description.workflow_execution_info.memo.fields.get(CARD_MEMO)
    if payload is None:
        return None
    return (await decode_cards(client, {"": payload})).get("")


_HEAD: Final = TypeAdapter(SegmentRef)
_PAGE_EVENTS: Final = 100
# A run has 400 events, and one step of 20 tools more. A run that is longer began elsewhere.
_PAGES_MAX: Final = 20


async def find_head(client: Client, thread_id: str) -> SegmentRef | None:
    """Return the head of a thread's journal, by the newest event of its last run that names one.

    None if nothing is journalled yet. It needs no worker, so no thread resumes.
    """
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=thread_id),
        maximum_page_size=_PAGE_EVENTS,
    )
    with translate_errors(thread_id):
        for _ in range(_PAGES_MAX):
            page = await client.workflow_service.get_workflow_execution_history_reverse(request)
            for event in page.history.events:
                found = await _read_event_head(client, event)
                if found is not None:
                    return found
            if not page.next_page_token:
                return None
            request.next_page_token = page.next_page_token
    raise ThreadError(
        f"the newest {_PAGES_MAX * _PAGE_EVENTS:,} events of thread {thread_id!r} do not say where its "
        f"journal ends. Ask its worker: everlong show {quote_id(thread_id)}"
    )


async def _read_event_head(client: Client, event: HistoryEvent) -> SegmentRef | None:
    """Return the head that an event has: a step's or an append's result, the end, or the beginning."""
    if event.HasField("activity_task_completed_event_attributes"):
        return _parse_head(
            await _decode_value(client, event.activity_task_completed_event_attributes.result)
        )
    if event.HasField("workflow_execution_completed_event_attributes"):
        payloads = event.workflow_execution_completed_event_attributes.result
        return _parse_head(await _decode_value(client, payloads))
    if event.HasField("workflow_execution_started_event_attributes"):
        payloads = event.workflow_execution_started_event_attributes.input
        return _parse_head((await _decode_value(client, payloads)).get("state"))
    return None


async def _decode_value(client: Client, payloads: Payloads) -> dict[str, Any]:
    values = await client.data_converter.decode(payloads.payloads[:1])
    return values[0] if values and isinstance(values[0], dict) else {}


def _parse_head(value: object) -> SegmentRef | None:
    head = value.get("head") if isinstance(value, dict) else None
    if head is None:
        return None
    try:
        return _HEAD.validate_python(head)
    except ValidationError:
        return None


RUNS_MAX: Final = 50
"""Runs of one page. Each takes two sequential requests: a quarter of a second for all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run."""

    run_id: str
    status: str
    """`running`, `continued_as_new`, or how the thread ended."""
    started_ms: int
    closed_ms: int | None
    events: int
    history_bytes: int
    ui_url: str
    """Address of its history in the Temporal UI; empty if the UI's address is not set."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunPage:
    """Some runs of a thread, newest first."""

    thread_id: str
    runs: tuple[RunRow, ...]
    next_run_id: str
    """The run before these; empty if there is none, or if its retention is over."""


async def list_runs(
    client: Client,
    thread_id: str,
    *,
    from_run_id: str = "",
    limit: int = 20,
    temporal_ui: str = "",
) -> RunPage:
    """Return the newest runs of a thread, or those from one on backwards."""
    found: list[RunRow] = []
    run_id: str | None = from_run_id or None
    for _ in range(max(1, min(limit, RUNS_MAX))):
        try:
            row = await _read_run(client, thread_id, run_id, temporal_ui)
            run_id = await find_previous_run(client, thread_id, row.run_id)
        except RPCError as error:
            if found and error.status == RPCStatusCode.NOT_FOUND:
                run_id = ""  # Its retention is over.
                break
            raise translate_rpc_error(error, thread_id) from error
        found.append(row)
        if not run_id:
            break
    return RunPage(thread_id=thread_id, runs=tuple(found), next_run_id=run_id or "")


async def _read_run(client: Client, thread_id: str, run_id: str | None, temporal_ui: str) -> RunRow:
    description = await client.get_workflow_handle(thread_id, run_id=run_id).describe()
    info = description.raw_description.workflow_execution_info
    closed = description.close_time
    return RunRow(
        run_id=description.run_id,
        status=description.status.name.lower() if description.status else "running",
        started_ms=int(description.start_time.timestamp() * 1000),
        closed_ms=None if closed is None else int(closed.timestamp() * 1000),
        events=info.history_length,
        history_bytes=info.history_size_bytes,
        ui_url=build_ui_url(temporal_ui, client.namespace, thread_id, description.run_id),
    )


def build_ui_url(base: str, namespace: str, thread_id: str, run_id: str = "") -> str:
    """Return where the Temporal UI shows a thread, or one of its runs."""
    if not base:
        return ""
    workflow = quote(thread_id, safe="")
    place = f"{base.rstrip('/')}/namespaces/{quote(namespace, safe='')}/workflows/{workflow}"
    return f"{place}/{quote(run_id, safe='')}/history" if run_id else place


async def find_previous_run(client: Client, thread_id: str, run_id: str) -> str:
    """Return the id of the run that a run continues, or an empty string."""
    handle = client.get_workflow_handle(thread_id, run_id=run_id)
    async for event in handle.fetch_history_events(page_size=1):
        return event.workflow_execution_started_event_attributes.continued_execution_run_id
    return ""


# 100 bytes of memory each: 10 MB. A thread that rolls every hour has this many in 11 years.
_RUN_IDS_MAX: Final = 100_000


async def list_ended_runs(client: Client, thread_id: str, run_id: str) -> list[str]:
    """Return all runs of a thread, newest first. Refused unless it ended with the given run."""
    with translate_errors(thread_id):
        description = await client.get_workflow_handle(thread_id).describe()
    if not describe_end(description):
        raise ControlRefused(f"thread {thread_id!r} has not ended; its histories are not deleted")
    if description.run_id != run_id:
        raise ControlRefused(
            f"thread {thread_id!r} has gone on since it was archived; its histories are not deleted. "
            "Archive it again."
        )
    return await list_run_ids(client, thread_id, run_id)


async def delete_runs(client: Client, thread_id: str, runs: Sequence[str]) -> None:
    """Delete the histories of runs, given newest first.

    The newest is deleted last: while it exists, a repeated call finds the others. The server deletes
    asynchronously, so histories stay readable for some seconds.
    """
    for run_id in reversed(runs):
        await _delete_run(client, thread_id, run_id)


async def list_run_ids(client: Client, thread_id: str, newest: str) -> list[str]:
    """Return the ids of all runs, newest first: the chain of continued runs, and branches of resets."""
    runs = {newest: None}
    run_id = newest
    while len(runs) < _RUN_IDS_MAX:
        try:
            run_id = await find_previous_run(client, thread_id, run_id)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise translate_rpc_error(error, thread_id) from error
            break  # Its retention has ended, or it is deleted already.
        if not run_id:
            break
        runs[run_id] = None
    query = f"WorkflowId = {quote_text(thread_id)}"
    with translate_errors(thread_id):
        async for each in client.list_workflows(query, limit=_RUN_IDS_MAX):
            if each.status != WorkflowExecutionStatus.RUNNING:
                runs.setdefault(each.run_id)
    return list(runs)


async def _delete_run(client: Client, thread_id: str, run_id: str) -> None:
    # Always by run id: without one, the server would delete a thread that was started since.
    run = WorkflowExecution(workflow_id=thread_id, run_id=run_id)
    request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=run)
    try:
        await client.workflow_service.delete_workflow_execution(request)
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise translate_rpc_error(error, thread_id) from error


# Two server calls for each run: a second or two for all of them.
_SIZED_RUNS_MAX: Final = 100


@dataclasses.dataclass(frozen=True)
class ThreadSize:
    """Size of a thread."""

    runs: int
    events: int
    history_bytes: int
    """Sum over the runs that the server still has, at most the newest 100."""
    blobs: int
    blob_bytes: int
    is_partial: bool = False
    """Whether there are more runs, so that `runs`, `events` and `history_bytes` are lower bounds."""


async def measure_size(client: Client, store: BlobStore, thread_id: str) -> ThreadSize:
    """Measure a thread: the histories of its newest runs, and its objects."""
    runs = events = history_bytes = 0
    run_id: str | None = None  # The newest run.
    while run_id != "" and runs < _SIZED_RUNS_MAX:
        try:
            description = await client.get_workflow_handle(thread_id, run_id=run_id).describe()
            run_id = await find_previous_run(client, thread_id, description.run_id)
        except RPCError as error:
            if runs and error.status == RPCStatusCode.NOT_FOUND:
                run_id = ""  # Its retention has ended.
                break
            raise translate_rpc_error(error, thread_id) from error
        info = description.raw_description.workflow_execution_info
        runs += 1
        events += info.history_length
        history_bytes += info.history_size_bytes
    prefix = thread_prefix(thread_key(client.namespace, thread_id))
    blobs = blob_bytes = 0
    async for blob in store.list(prefix):
        blobs += 1
        blob_bytes += blob.size_bytes
    return ThreadSize(runs, events, history_bytes, blobs, blob_bytes, is_partial=run_id != "")
