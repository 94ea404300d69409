"""One thread as a whole: how it is, what it takes up by class, its limits, what waits for a person.

Nothing here grows with its journal: what is stored is counted by the thread itself, and only `size`
looks at the objects.
"""

import contextlib
import dataclasses
import time

from temporalio.client import Client

from everlong.admin.service.gauges import Gauge, gauges
from everlong.archive import manifest as manifests
from everlong.client.lookup import ANSWER_SECONDS_MAX, Standing, standing
from everlong.client.status import pending
from everlong.client.visibility import ThreadRow
from everlong.errors import EverlongError
from everlong.models import Approval, ThreadStatus, thread_key
from everlong.storage.packstore import PackStore


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateSizes:
    """What a thread takes up, by class."""

    operational_bytes: int
    """Carried from run to run."""
    context_bytes: int
    """Of the last model call."""
    stored_bytes: int
    """In the store, written by the thread's own steps."""
    history_bytes: int
    """Of the newest run."""
    history_events: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreadOverview:
    """A thread at one moment."""

    thread_id: str
    row: ThreadRow
    status: ThreadStatus | None
    """None if nobody runs the thread."""
    sizes: StateSizes
    gauges: tuple[Gauge, ...]
    """Empty without a status, and of a thread that is gone."""
    approvals: tuple[Approval, ...]
    last_seq: int
    """Of the newest entry in its journal; without a status, when the newest run began."""
    began_ms: int | None
    """When its first entry was made; of a fork, when it was forked."""
    unavailable: str
    """Why there is no status; empty if there is one."""
    archive: str = ""
    """Its newest archive that can be read, if it has ended and there is one."""
    unreadable_archives: tuple[str, ...] = ()
    """Newer archives that cannot be read, and why."""
    is_gone: bool = False
    """Whether the server has forgotten the thread, so that all of this is read from its archive."""


async def overview(
    client: Client,
    packs: PackStore,
    thread_id: str,
    *,
    seconds_max: float = ANSWER_SECONDS_MAX,
) -> ThreadOverview:
    """Return a thread as a whole. Without a worker: what visibility and the store know."""
    found = await standing(client, packs, thread_id, seconds_max)
    status = found.status
    began_ms, problem = await _began(found)
    waiting: tuple[Approval, ...] = ()
    is_gone = found.archive is not None
    if status is not None and status.pending and not is_gone:
        with contextlib.suppress(EverlongError):  # The next look shows them.
            waiting = tuple(await pending(client, thread_id))
    shown: tuple[Gauge, ...] = ()
    if status is not None and not is_gone:
        shown = gauges(
            status,
            found.run_events,
            began_ms=began_ms,
            now_ms=time.time_ns() // 1_000_000,
            card=found.row.card,
        )
    archive, unreadable = await _archive(client, packs, found)
    return ThreadOverview(
        thread_id=thread_id,
        row=found.row,
        status=status,
        sizes=_sizes(found),
        gauges=shown,
        approvals=waiting,
        last_seq=found.last_seq,
        began_ms=began_ms,
        unavailable=found.unavailable or problem,
        archive=archive,
        unreadable_archives=unreadable,
        is_gone=is_gone,
    )


async def _archive(
    client: Client, packs: PackStore, found: Standing
) -> tuple[str, tuple[str, ...]]:
    """Return the newest archive that can be read, and newer ones that cannot.

    Of a thread that runs none is looked for, since a page looks every few seconds.
    """
    if found.archive is not None:
        return found.archive.archive_id, found.passed_over
    if found.row.is_open:
        return "", ()
    try:
        newest = await manifests.find_newest(packs, thread_key(client.namespace, found.thread_id))
    except EverlongError:  # The page is there without it.
        return "", ()
    archive_id = "" if newest.manifest is None else newest.manifest.archive_id
    return archive_id, tuple(map(str, newest.passed_over))


async def _began(found: Standing) -> tuple[int | None, str]:
    """Return when the thread's own first entry was made, or why that cannot be read."""
    if found.head is None:
        return None, ""
    if found.row.card is not None and found.row.card.since_ms is not None:
        return found.row.card.since_ms, ""
    try:
        entries = await found.journal.read(found.head, 1, 1)
    except EverlongError as error:
        return None, f"the journal cannot be read: {error}"
    return (entries[0].time_ms if entries else None), ""


def _sizes(found: Standing) -> StateSizes:
    status, card = found.status, found.row.card
    if status is not None:
        operational, context = status.state_bytes, status.context_bytes
        stored = status.counters.written_bytes
    else:
        operational = card.operational_bytes if card else 0
        context = card.context_bytes if card else 0
        stored = found.row.stored_bytes
    return StateSizes(
        operational_bytes=operational,
        context_bytes=context,
        stored_bytes=stored,
        history_bytes=found.run_history_bytes,
        history_events=found.run_events,
    )
