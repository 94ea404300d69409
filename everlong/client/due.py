"""Due archives: archives threads that a limit ended with the action `archive`.

A thread is due until an archive of its end exists, so a failure only delays it to the next call.
"""

import dataclasses
import logging
from collections.abc import AsyncIterator
from typing import Final

from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from everlong.archive import Manifest
from everlong.archive import manifest as manifests
from everlong.client.archives import archive
from everlong.client.errors import translate_errors, translate_rpc_error
from everlong.client.head import head_of
from everlong.errors import EverlongError, SetupRefused, ThreadNotFound
from everlong.models import AGENT_WORKFLOW, SWEEP_REASONS_MAX, make_printable, thread_key
from everlong.models.search_attributes import REASON
from everlong.models.thread_ids import show_id
from everlong.storage.pack_store import PackStore
from everlong.sweep import ArchivedThreads
from everlong.telemetry import Spans

logger = logging.getLogger(__name__)

# In one call. The caller repeats it: sweeps run at least every hour.
DUE_MAX: Final = 20
_WARNING_CHARS_MAX: Final = 600
# A failed thread costs a few calls, or one write of its archive.
_FAILED_MAX: Final = 200
# Checking a thread costs one listing of the store, a manifest, and a page of its history.
_LOOKED_AT_MAX: Final = 10_000
_ENDED: Final = (
    f"WorkflowType = '{AGENT_WORKFLOW}' AND ExecutionStatus = 'Completed' "
    "AND EverlongStatus = 'archived'"
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

    def note(found: manifests.Unreadable) -> None:
        text = f"thread {show_id(thread.id)}: an archive cannot be read and is skipped: {found}"
        logger.warning("%s", make_printable(text, _WARNING_CHARS_MAX))
        unreadable.append(text)

    head: str | None = None
    try:
        async for manifest in manifests.iter_readable(
            packs, thread_key(client.namespace, thread.id), note
        ):
            if manifest.status != "archived":
                continue
            if head is None:
                head = manifests.head_digest(await head_of(client, thread.id))
            if manifest.head == head:
                return False
        # After a reset, the ended run is still listed while the thread continues in another.
        return await _newest_run(client, thread.id) == thread.run_id
    except ThreadNotFound:  # Visibility lags: it still lists a thread that was freed.
        return False


async def _newest_run(client: Client, thread_id: str) -> str:
    with translate_errors(thread_id):
        return (await client.get_workflow_handle(thread_id).describe()).run_id


async def _list_ended(client: Client) -> AsyncIterator[WorkflowExecution]:
    try:
        async for thread in client.list_workflows(_ENDED, limit=_LOOKED_AT_MAX + 1):
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
