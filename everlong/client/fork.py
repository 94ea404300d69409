"""Forks, reruns and revivals: new threads that begin as the past of a thread or of an archive."""

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from everlong import limits
from everlong.archive import Progress, restore, writer
from everlong.archive import manifest as manifests
from everlong.client.errors import translate_errors, translate_rpc_error
from everlong.client.fork_links import build_fork_memo
from everlong.client.labels import read_labels
from everlong.client.search_attributes import has_optional
from everlong.client.time_travel import Scene, Timeline, open_archive
from everlong.client.updates import store_message
from everlong.errors import ArchiveNotFound, EntryNotFound, ThreadExists, ThreadNotFound
from everlong.models import (
    AGENT_WORKFLOW,
    Counters,
    Entry,
    ForkNote,
    Kind,
    SnapshotRef,
    ThreadStart,
    ThreadState,
    ThreadStatus,
    Totals,
    build_note,
    make_printable,
    thread_key,
)
from everlong.models.search_attributes import FORK_OF, LABELS, build_fork_attributes
from everlong.models.thread_ids import check_new_id, derive_id, quote_id
from everlong.policy import Policy
from everlong.storage.journal import Journal
from everlong.storage.pack_store import PackStore

_RERUN_IDS_MAX: Final = 20
"""Ids that are tried for a rerun without one: two requests each."""


async def fork(
    client: Client,
    packs: PackStore,
    thread_id: str,
    seq: int,
    new_id: str,
    *,
    task_queue: str,
    agent: str | None = None,
    by: str = "",
    reason: str = "",
) -> ThreadStart:
    """Start a thread whose past is another one's up to `seq`; return what it was started with.

    A turn that was in progress there is broken off: the new thread waits for a message. It has the
    other one's labels, agent and policy, unless another agent is named, which brings its own. Its
    counters against the policy's limits start at zero. The other thread is not changed, and may have
    ended, also by a limit.
    """
    past = await _open_past(client, packs, thread_id, seq, new_id)
    past.check_head(seq)
    await check_free(client, packs, new_id)
    policy, changes = choose_policy(past.status, agent)
    origin = ForkNote(thread_id=thread_id, seq=seq, by=by, reason=reason)
    start = ThreadStart(
        agent=agent or past.status.agent,
        policy=policy,
        changes=changes,
        state=await _build_state(client, packs, past, origin, new_id),
    )
    await start_thread(
        client, new_id, task_queue, start, await read_labels(client, thread_id), origin
    )
    return start


async def rerun(
    client: Client,
    packs: PackStore,
    thread_id: str,
    seq: int,
    text: str,
    new_id: str,
    *,
    task_queue: str,
    by: str = "",
    reason: str = "",
) -> ThreadStart:
    """Start a fork from before a message, with a changed message; return what it was started with.

    The message is the one at `seq`, or the one that the entry at `seq` answers. The fork starts with the
    changed message in its inbox, so a crash leaves either no fork or one that works on it.
    """
    past = await _open_past(client, packs, thread_id, seq, new_id)
    message = await find_message(past, seq)
    await check_free(client, packs, new_id)
    changed = await store_message(client, packs, new_id, text)
    changed = dataclasses.replace(changed, by=make_printable(by, limits.CALL_NAME_CHARS_MAX))
    policy, changes = choose_policy(past.status, None)
    origin = ForkNote(thread_id=thread_id, seq=message.seq - 1, by=by, reason=reason)
    state = await _build_state(client, packs, past, origin, new_id)
    counters = dataclasses.replace(
        state.counters,
        messages=state.counters.messages + 1,
        written_bytes=state.counters.written_bytes + changed.stored_bytes,
    )
    start = ThreadStart(
        agent=past.status.agent,
        policy=policy,
        changes=changes,
        state=dataclasses.replace(
            state, counters=counters, inbox=(dataclasses.replace(changed, stored_bytes=0),)
        ),
    )
    await start_thread(
        client, new_id, task_queue, start, await read_labels(client, thread_id), origin
    )
    return start


async def find_message(past: Timeline, seq: int) -> Entry:
    """Return the entry of the message at `seq`, or of the newest one before it."""
    entry = await past.journal.last(past.check_head(seq), Kind.MESSAGE, before_seq=seq)
    if entry is None:
        raise EntryNotFound(
            f"the journal of thread {past.thread_id!r} has no message up to entry {seq}. Fork the "
            "thread instead, and send the fork a message."
        )
    return entry


async def choose_rerun_id(client: Client, packs: PackStore, thread_id: str, seq: int) -> str:
    """Return an id for a rerun that no thread has: `ops-7-rerun-12`, or with a number after it."""
    for number in range(1, _RERUN_IDS_MAX + 1):
        new_id = derive_id(thread_id, f"-rerun-{seq}" + (f"-{number}" if number > 1 else ""))
        try:
            await check_free(client, packs, new_id)
        except ThreadExists:
            continue
        return new_id
    raise ThreadExists(
        f"there are {_RERUN_IDS_MAX} reruns of entry {seq} of thread {thread_id!r} already; nothing was "
        "started. Choose an id yourself."
    )


async def _open_past(
    client: Client, packs: PackStore, thread_id: str, seq: int, new_id: str
) -> Timeline:
    """Open the journal of a thread that has packs to share."""
    past = await Timeline.open(client, packs, thread_id)
    if past.archive is not None:
        raise ThreadNotFound(
            f"thread {thread_id!r} is only in its archives, and a fork shares packs with a thread that "
            "has some. Go on from the archive with: everlong revive "
            f"{quote_id(thread_id)} {quote_id(new_id)} --at {seq}"
        )
    return past


async def _build_state(
    client: Client, packs: PackStore, past: Timeline, origin: ForkNote, new_id: str
) -> ThreadState:
    """Return the state that a fork starts with. All that it names is durable when this returns."""
    new_key = thread_key(client.namespace, new_id)
    journal = Journal(packs, new_key)
    entry = build_note(origin.seq + 1, Kind.FORK, origin, time.time_ns() // 1_000_000)
    if not origin.seq:  # A rerun of the first message: nothing comes before it.
        new_head, head_bytes = await journal.append(None, [entry])
        counters = Counters(written_bytes=head_bytes)
        return ThreadState(head=new_head, counters=counters, since_ms=entry.time_ms)
    head = past.check_head(origin.seq)
    scene, totals = await past.load_scene(origin.seq), await past.load_totals(origin.seq)
    new_head, head_bytes = await journal.fork(head, origin.seq, entry)
    snapshot, snapshot_bytes = await _copy_snapshot(packs, new_key, scene)
    return ThreadState(
        head=new_head,
        snapshot=snapshot,
        context_bytes=scene.context_bytes,
        counters=make_counters(totals, head_bytes + snapshot_bytes),
        since_ms=entry.time_ms,
    )


def make_counters(totals: Totals, written_bytes: int) -> Counters:
    """Return counters of what the new thread does itself. Only its messages are numbered on."""
    return Counters(
        messages=totals.messages,
        # Open messages of the parent are not answered here: the next answer is to the next message.
        answered=totals.messages,
        written_bytes=written_bytes,
    )


def choose_policy(status: ThreadStatus, agent: str | None) -> tuple[Policy | None, dict[str, Any]]:
    """Return the policy to begin with, or what is to be changed in the agent's own.

    Before a thread's first step its policy is only known to a worker that has its agent.
    """
    if agent not in (None, status.agent):
        return None, {}
    if status.policy_from != "default":
        return status.policy, {}
    return None, status.policy.differences()


async def _copy_snapshot(
    packs: PackStore, thread: str, scene: Scene
) -> tuple[SnapshotRef | None, int]:
    """Put a copy of a snapshot into a thread's own place: activities read no other's."""
    if scene.snapshot is None:
        return None, 0
    ref, written_bytes = await packs.write_body(thread, Kind.SNAPSHOT, scene.snapshot_data)
    copy = SnapshotRef(
        ref=ref, upto_seq=scene.snapshot.upto_seq, context_bytes=scene.snapshot.context_bytes
    )
    return copy, written_bytes


async def check_free(client: Client, packs: PackStore, new_id: str) -> None:
    """Refuse an id that is taken or that no new thread may have, before anything is stored under it.

    One that only archives know counts too: they would be taken for the new thread's.
    """
    check_new_id(new_id)
    try:
        await client.get_workflow_handle(new_id).describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND or error.message.startswith("Namespace"):
            raise translate_rpc_error(error, new_id) from error
    else:
        raise _make_taken_error(new_id)
    if await manifests.list_ids(packs.store, thread_key(client.namespace, new_id)):
        raise ThreadExists(
            f"there are archives of a thread {new_id!r}, which the server has forgotten; nothing was "
            "started. Choose another id."
        )


async def start_thread(
    client: Client,
    new_id: str,
    task_queue: str,
    start: ThreadStart,
    labels: Sequence[str],
    origin: ForkNote,
) -> None:
    """Start a fork under an id that no thread has had.

    Labels and the link to the origin are dropped if the namespace cannot store them.
    """
    fork_of = thread_key(client.namespace, origin.thread_id)
    attributes = build_fork_attributes(
        labels if labels and await has_optional(client, LABELS.name) else (),
        fork_of if await has_optional(client, FORK_OF.name) else "",
    )
    with translate_errors(new_id):
        try:
            await client.start_workflow(
                AGENT_WORKFLOW,
                start,
                id=new_id,
                task_queue=task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                search_attributes=attributes,
                memo=build_fork_memo(origin),
            )
        except WorkflowAlreadyStartedError as error:
            raise _make_taken_error(new_id) from error


def _make_taken_error(new_id: str) -> ThreadExists:
    return ThreadExists(
        f"there is a thread {new_id!r} already, or was one; nothing was started. Choose another id."
    )


logger = logging.getLogger(__name__)


async def revive(
    client: Client,
    packs: PackStore,
    thread_id: str,
    new_id: str,
    *,
    task_queue: str,
    archive_id: str | None = None,
    seq: int | None = None,
    agent: str | None = None,
    by: str = "",
    reason: str = "",
    on_progress: Progress = writer.ignore_progress,
    on_warning: Callable[[str], None] = logger.warning,
) -> ThreadStart:
    """Start a thread from an archive, or from its entries up to `seq`; return the start arguments.

    The newest readable archive is used unless `archive_id` names one; `on_warning` reports newer
    archives that cannot be read. As with a fork, the new thread waits for a message, and its use of the
    policy's limits starts at 0. It has the labels that the archive has.
    """
    check_new_id(new_id)
    archive = await open_archive(client, packs, thread_id, archive_id)
    if archive is None:
        raise ArchiveNotFound(
            f"thread {thread_id!r} has no archive. Write one with: everlong archive "
            f"{quote_id(thread_id)}"
        )
    for each in archive.passed_over:
        on_warning(
            f"a newer archive cannot be read, so {archive.manifest.archive_id} is revived, which has "
            f"{archive.manifest.entries:,} entries. {each}"
        )
    last_seq = archive.manifest.entries if seq is None else seq
    Timeline.from_archive(archive).check_head(last_seq)
    await check_free(client, packs, new_id)
    # Verify the whole file once: later steps read only the parts that they need.
    archive = await writer.verify(packs, None, None, archive.manifest)
    past = Timeline.from_archive(archive)
    scene, totals = await past.load_scene(last_seq), await past.load_totals(last_seq)
    forked = ForkNote(thread_id=thread_id, seq=last_seq, by=by, reason=reason)
    entry = build_note(last_seq + 1, Kind.FORK, forked, time.time_ns() // 1_000_000)
    new_key = thread_key(client.namespace, new_id)
    # Everything that the new thread's state names is durable before the thread starts.
    revived = await restore.restore_journal(packs, new_key, archive, entry, on_progress)
    policy, changes = choose_policy(past.status, agent)
    start = ThreadStart(
        agent=agent or past.status.agent,
        policy=policy,
        changes=changes,
        state=ThreadState(
            head=revived.head,
            snapshot=revived.snapshot,
            context_bytes=scene.context_bytes,
            counters=make_counters(totals, revived.written_bytes),
            since_ms=entry.time_ms,
        ),
    )
    await start_thread(client, new_id, task_queue, start, archive.facts.labels, forked)
    return start
