"""Watcher: finds what no thread can report, and sends it to the sinks.

A thread that is held, or that no worker runs, executes nothing. The watcher reads it from visibility and
from the task queue's pollers, which costs no billed action. It delivers by itself: the notifier is a
workflow, and needs workers too.
"""

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final

from temporalio.client import Client

from everlong import limits
from everlong.client.diagnosis import has_workers
from everlong.client.visibility import QUERY, ThreadRow, read_rows
from everlong.models import make_printable, short_digest
from everlong.models.notices import Deliver, Delivery, Event, Notification
from everlong.models.status import Status
from everlong.models.thread_ids import show_id
from everlong.notify.delivery import Deliverer
from everlong.notify.sinks import Notify

_LOG: Final = logging.getLogger(__name__)
LOOK_SECONDS: Final = 60.0
# Threads of one reading; of more, the first thousand are watched.
_ROWS_MAX: Final = 1_000
_QUEUES_MAX: Final = 16
_SHOWN_MAX: Final = 3
_DELIVERIES_MAX: Final = 200
_TEXT_CHARS_MAX: Final = 300
_HOUR_MS: Final = 3_600_000
_QUERY: Final = (
    f"{QUERY} AND EverlongStatus IN "
    f"('{Status.HELD.value}', '{Status.RETRYING.value}', '{Status.WORKING.value}')"
)


@dataclasses.dataclass
class _Incident:
    """Threads of one agent that are held for one reason, or a task queue without workers."""

    since: dict[str, int]
    """Time at which each thread was seen first, by its id."""
    is_reported: bool = False


class HeldWatcher:
    """Looks for held threads and queues without workers, and reports each incident once."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Client]],
        notify: Notify,
        task_queue: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._connect = connect
        self._task_queue = task_queue
        self._clock = clock
        self._after_ms = int(notify.held_minutes * 60_000)
        self._deliverer = Deliverer(notify, _is_never_pending, _ignore_count)
        self._incidents: dict[tuple[str, ...], _Incident] = {}
        self._later: tuple[Delivery, ...] = ()

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look once a minute while the context is open."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - a row may hold anything; the watch goes on
                # Without the message, which may hold contents.
                _LOG.warning("held threads cannot be seen now: %s", type(error).__name__)
            await self.deliver(())
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Read which threads are held and which queues lack workers; report what lasts."""
        client = await self._connect()
        page = await read_rows(client, _QUERY, size=_ROWS_MAX)
        found: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for row in page.rows:
            if row.status == Status.HELD:
                found["held", row.agent, row.reason].append(row.thread_id)
        for queue, rows in _group_by_queue(page.rows, self._task_queue).items():
            if rows and not await has_workers(client, queue):
                found["no worker", "", queue] += [row.thread_id for row in rows]
        await self.deliver(self._update(found, client.namespace))

    def _update(
        self, found: dict[tuple[str, ...], list[str]], namespace: str
    ) -> tuple[Notification, ...]:
        """Compare with the incidents so far; return the notifications of those that last now."""
        now_ms = int(self._clock() * 1000)
        self._incidents = {
            what: _Incident(
                {each: before.since.get(each, now_ms) for each in ids}, before.is_reported
            )
            for what, ids in found.items()
            for before in [self._incidents.get(what) or _Incident({})]
        }
        reported = []
        for what, incident in self._incidents.items():
            lasting = [each for each, ms in incident.since.items() if now_ms - ms >= self._after_ms]
            if lasting and not incident.is_reported:
                incident.is_reported = True
                reported.append(self._build(what, lasting, now_ms, namespace))
        return tuple(reported)

    def _build(
        self, what: tuple[str, ...], ids: Sequence[str], now_ms: int, namespace: str
    ) -> Notification:
        kind, agent, detail = what
        minutes = round(self._after_ms / 60_000, 1)
        threads = "1 thread" if len(ids) == 1 else f"{len(ids)} threads"
        shown = ", ".join(map(show_id, ids[:_SHOWN_MAX])) + (", …" if len(ids) > _SHOWN_MAX else "")
        if kind == "held":
            held = f"held for {minutes:g} minutes" + (f" ({detail})" if detail else "")
            text = held if len(ids) == 1 else f"{threads} {held}: {shown}"
        else:
            text = f"no worker on task queue {detail} for {minutes:g} minutes; {threads}: {shown}"
        # Servers that watch the same namespace find the same key, unless an hour ends between them.
        parts = (namespace, *what, str(now_ms // _HOUR_MS))
        return Notification(
            key=f"n-{short_digest(chr(0).join(parts), size_bytes=16)}",
            event=Event.HELD,
            thread_id=ids[0] if len(ids) == 1 else "",
            agent=make_printable(agent, limits.CALL_NAME_CHARS_MAX),
            about=make_printable(detail, 64),
            ms=now_ms,
            text=make_printable(text, _TEXT_CHARS_MAX),
        )

    async def deliver(self, new: Sequence[Notification]) -> None:
        """Deliver notifications, and those that failed before and are due."""
        now_ms = int(self._clock() * 1000)
        due = tuple(each for each in self._later if each.due_ms <= now_ms)
        if not new and not due:
            return
        waiting = tuple(each for each in self._later if each.due_ms > now_ms)
        request = Deliver(new=tuple(new), again=due, now_ms=now_ms)
        delivered = await self._deliverer.deliver(request)
        # The oldest are dropped: an incident that is over says little.
        self._later = (*waiting, *delivered.later)[-_DELIVERIES_MAX:]


def _group_by_queue(rows: Iterable[ThreadRow], task_queue: str) -> dict[str, list[ThreadRow]]:
    """Return the threads that need a worker, by task queue; the configured queue is always one."""
    found: dict[str, list[ThreadRow]] = {task_queue: []}
    for row in rows:
        queue = row.task_queue or task_queue
        if queue in found or len(found) < _QUEUES_MAX:
            found.setdefault(queue, []).append(row)
    return found


async def _is_never_pending(item: Notification) -> bool:
    """Stand in for a check of approvals: the watcher reports none."""
    return False


def _ignore_count(sink: str, outcome: str, number: int) -> None:
    """Stand in for a metric: its source is the worker."""
