"""Revival of archives: starts a new thread, with packs of its own, from an archived one."""

import logging
import time
from collections.abc import Callable

from temporalio.client import Client

from everlong.archive import Progress, restore, writer
from everlong.client.fork import check_free, fresh_counters, policy_for, start_thread
from everlong.client.time_travel import Past, archive_of
from everlong.errors import ArchiveNotFound
from everlong.models import Forked, Kind, ThreadStart, ThreadState, build_note, thread_key
from everlong.models.thread_ids import check_new_id, quote_id
from everlong.storage.pack_store import PackStore

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
    policy's limits starts at 0.
    """
    check_new_id(new_id)
    archive = await archive_of(client, packs, thread_id, archive_id)
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
    Past.archived(archive).head_with(last_seq)
    await check_free(client, packs, new_id)
    # Verify the whole file once: later steps read only the parts that they need.
    archive = await writer.verify(packs, None, None, archive.manifest)
    past = Past.archived(archive)
    scene, totals = await past.scene(last_seq), await past.totals(last_seq)
    forked = Forked(thread_id=thread_id, seq=last_seq, by=by, reason=reason)
    entry = build_note(last_seq + 1, Kind.FORK, forked, time.time_ns() // 1_000_000)
    new_key = thread_key(client.namespace, new_id)
    # Everything that the new thread's state names is durable before the thread starts.
    revived = await restore.restore_journal(packs, new_key, archive, entry, on_progress)
    policy, changes = policy_for(past.status, agent)
    start = ThreadStart(
        agent=agent or past.status.agent,
        policy=policy,
        changes=changes,
        state=ThreadState(
            head=revived.head,
            snapshot=revived.snapshot,
            context_bytes=scene.context_bytes,
            counters=fresh_counters(totals, revived.written_bytes),
            since_ms=entry.time_ms,
        ),
    )
    await start_thread(client, new_id, task_queue, start)
    return start
