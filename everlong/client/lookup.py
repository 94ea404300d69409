"""Lookup of a thread, with or without a worker: its status, or else its newest run, or else an archive.

A thread without a worker cannot report its journal's head. Its newest run was started with one, so the
journal can be read up to there. If the server has deleted the thread, its newest archive is read.
"""

import asyncio
import contextlib
import dataclasses
from typing import Final

from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.exceptions import TemporalError

from everlong.archive import Manifest, StoredArchive
from everlong.client.errors import translate_errors
from everlong.client.status import journal_of, observe
from everlong.client.time_travel import Past, archive_of
from everlong.client.visibility import ThreadRow, cards_of, row_of
from everlong.errors import EntryNotFound, EverlongError, NoWorker, ThreadNotFound
from everlong.models import CARD_MEMO, SegmentRef, ThreadCard, ThreadStart, ThreadStatus, seq_after
from everlong.storage.journal import JournalReader
from everlong.storage.pack_store import PackStore

# A worker with the thread in memory answers within milliseconds, and a worker that replays it within a
# second or two. A page waits no longer.
ANSWER_SECONDS_MAX: Final = 4.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreadLookup:
    """A thread as far as it can be known now."""

    thread_id: str
    row: ThreadRow
    status: ThreadStatus | None
    """None if no worker answers."""
    journal: JournalReader
    head: SegmentRef | None
    """Where its journal ends; without a status, where it ended when the newest run began."""
    run_events: int
    run_history_bytes: int
    unavailable: str
    """Why there is no status; empty if there is one."""
    archive: Manifest | None = None
    """The archive that all of this is read from, if the server has deleted the thread."""
    passed_over: tuple[str, ...] = ()
    """Newer archives that cannot be read, and why."""

    @property
    def last_seq(self) -> int:
        """Seq of the newest entry in the journal; 0 if there is none."""
        return seq_after(self.head) - 1


async def look_up(
    client: Client, packs: PackStore, thread_id: str, seconds_max: float = ANSWER_SECONDS_MAX
) -> ThreadLookup:
    """Look at a thread once. Raises `ThreadNotFound` if neither a thread nor an archive exists."""
    try:
        return await _alive(client, packs, thread_id, seconds_max)
    except ThreadNotFound:
        archive = await archive_of(client, packs, thread_id)
        if archive is None:
            raise
        return _archived(archive)


async def _alive(
    client: Client, packs: PackStore, thread_id: str, seconds_max: float
) -> ThreadLookup:
    with translate_errors(thread_id):
        description = await client.get_workflow_handle(thread_id).describe()
    info = description.raw_description.workflow_execution_info
    status, head, unavailable = None, None, ""
    try:
        async with asyncio.timeout(seconds_max):
            status = (await observe(client, thread_id)).status
        head = status.head
    except (NoWorker, TimeoutError) as error:
        unavailable = str(error) or (
            f"no worker answers for thread {thread_id!r} within {seconds_max:.0f} s. Start one on task "
            f"queue {info.task_queue!r}."
        )
        head = await _head_at_start(client, description)
    return ThreadLookup(
        thread_id=thread_id,
        row=row_of(info, await _card(client, description)),
        status=status,
        journal=journal_of(client, packs, thread_id),
        head=head,
        run_events=info.history_length,
        run_history_bytes=info.history_size_bytes,
        unavailable=unavailable,
    )


def _archived(archive: StoredArchive) -> ThreadLookup:
    past, manifest = Past.archived(archive), archive.manifest
    status = past.status
    row = ThreadRow(
        thread_id=past.thread_id,
        run_id="",
        agent=status.agent,
        status="archived",
        reason="" if status.ended is None else status.ended.limit,
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


async def _card(client: Client, description: WorkflowExecutionDescription) -> ThreadCard | None:
    payload = description.raw_description.workflow_execution_info.memo.fields.get(CARD_MEMO)
    if payload is None:
        return None
    return (await cards_of(client, {"": payload})).get("")


async def _head_at_start(
    client: Client, description: WorkflowExecutionDescription
) -> SegmentRef | None:
    handle = client.get_workflow_handle(description.id, run_id=description.run_id)
    with contextlib.suppress(EverlongError, TemporalError, ValueError, RuntimeError):
        async for event in handle.fetch_history_events(page_size=1):
            payloads = event.workflow_execution_started_event_attributes.input.payloads
            [start] = await client.data_converter.decode(payloads, [ThreadStart])
            return start.state.head if isinstance(start, ThreadStart) else None
    return None
