"""Delivery: sends notifications to their sinks, concurrently, and returns what is left to do.

A sink that hangs or fails delays no other. Nothing is raised for a sink: what was not delivered is
returned with the time of its next attempt, and the notifier's workflow keeps it.
"""

import asyncio
import dataclasses
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from everlong import limits
from everlong.models.notices import (
    Deliver,
    Delivered,
    Delivery,
    Event,
    Notification,
    Reminder,
)
from everlong.models.tools import short_digest
from everlong.notify.sinks import Notify, Outgoing, Sink, SinkFailed

_LOG: Final = logging.getLogger(__name__)

IsPending = Callable[[Notification], Awaitable[bool]]
"""Returns whether the approval of a notification still waits for a decision."""
Count = Callable[[str, str, int], None]
"""Called with the name of a sink, an outcome and a number, for a metric."""
SENT: Final = "sent"
FAILED: Final = "failed"
"""Outcome of an attempt after which another follows."""
GIVEN_UP: Final = "given_up"
DROPPED: Final = "dropped"


@dataclasses.dataclass(frozen=True)
class _Job:
    """One message to a sink, with the deliveries that it makes."""

    sink: Sink
    message: Outgoing
    deliveries: tuple[Delivery, ...]


class Deliverer:
    """Delivers notifications by one configuration."""

    def __init__(self, notify: Notify, is_pending: IsPending, count: Count) -> None:
        self._notify = notify
        self._is_pending = is_pending
        self._count = count

    async def deliver(self, request: Deliver) -> Delivered:
        """Attempt each delivery once; return those that did not succeed, with their next time."""
        if request.dropped:
            _LOG.error(
                "%d notifications were dropped: more than %d wait for sinks that fail",
                request.dropped,
                limits.NOTIFIER_QUEUE_MAX,
            )
            self._count("", DROPPED, request.dropped)
        later: list[Delivery] = []
        due: list[Delivery] = list(request.again)
        for item in [*request.new, *await self._find_pending(request.reminders)]:
            for sink in self._notify.sinks:
                if sink.wants(item):
                    delivery = Delivery(
                        item=item, sink=sink.name, due_ms=request.now_ms, since_ms=request.now_ms
                    )
                    put_off = sink.find_due(request.now_ms)
                    if put_off is None:
                        due.append(delivery)
                    else:
                        due_ms, group = put_off
                        later.append(dataclasses.replace(delivery, due_ms=due_ms, group=group))
        later += await self._attempt(due, request.now_ms)
        reminders = (
            Reminder(item=item, due_ms=near_ms)
            for item in request.new
            if (near_ms := self._notify.find_reminder_ms(item)) is not None
        )
        return Delivered(later=tuple(later), reminders=tuple(reminders))

    async def _find_pending(self, items: Sequence[Notification]) -> list[Notification]:
        """Return reminders of those approvals that are still pending."""
        pending = await asyncio.gather(*map(self._is_pending, items))
        return [
            # A key of its own: a receiver that drops duplicates has seen that of the request.
            dataclasses.replace(
                item,
                event=Event.DEADLINE_NEAR,
                key=f"n-{short_digest(f'{item.key} {Event.DEADLINE_NEAR}', size_bytes=16)}",
            )
            for item, is_pending in zip(items, pending, strict=True)
            if is_pending
        ]

    async def _attempt(self, due: Sequence[Delivery], now_ms: int) -> list[Delivery]:
        by_sink: dict[str, list[Delivery]] = defaultdict(list)
        for delivery in due:
            by_sink[delivery.sink].append(delivery)
        left = await asyncio.gather(
            *(self._attempt_sink(name, found, now_ms) for name, found in by_sink.items())
        )
        return [delivery for deliveries in left for delivery in deliveries]

    async def _attempt_sink(
        self, name: str, deliveries: Sequence[Delivery], now_ms: int
    ) -> list[Delivery]:
        """Send to one sink, some messages at a time. Returns the deliveries that failed."""
        sink = self._notify.find(name)
        if sink is None:
            _LOG.warning("sink %s was removed: %d notifications dropped", name, len(deliveries))
            self._count(name, GIVEN_UP, len(deliveries))
            return []
        jobs = build_jobs(sink, deliveries, self._notify.url)
        left: list[Delivery] = []
        failures = 0
        stop_at = time.monotonic() + limits.NOTIFY_ROUND_SECONDS_MAX

        async def work() -> None:
            nonlocal failures
            while jobs:
                job = jobs.pop(0)
                if failures >= limits.NOTIFY_FAILURES_MAX or time.monotonic() > stop_at:
                    left.extend(self._put_off(job, SinkFailed("it fails"), now_ms, tried=False))
                    continue
                try:
                    await _send(sink, job.message)
                except SinkFailed as error:
                    failures += 1
                    left.extend(self._put_off(job, error, now_ms, tried=True))
                else:
                    failures = 0
                    self._count(name, SENT, 1)

        await asyncio.gather(*(work() for _ in range(limits.NOTIFY_REQUESTS_MAX)))
        return left

    def _put_off(self, job: _Job, error: SinkFailed, now_ms: int, *, tried: bool) -> list[Delivery]:
        """Return the deliveries of a failed message with the time of their next attempt."""
        if tried:
            _LOG.warning("sink %s: %s", job.sink.name, error)
        oldest_ms = now_ms - limits.NOTICE_SECONDS_MAX * 1000
        kept = [
            dataclasses.replace(
                each,
                attempts=each.attempts + tried,
                due_ms=find_next_ms(now_ms, each.attempts + tried, error.wait_seconds),
            )
            for each in job.deliveries
            if not error.is_permanent and each.since_ms >= oldest_ms
        ]
        if tried:
            self._count(job.sink.name, FAILED if kept else GIVEN_UP, 1)
        if len(kept) < len(job.deliveries):
            _LOG.error(
                "sink %s: %d notifications given up: %s",
                job.sink.name,
                len(job.deliveries) - len(kept),
                error,
            )
        return kept


async def _send(sink: Sink, message: Outgoing) -> None:
    """Send a message. Raises `SinkFailed`, also for a defect of a team's own sink."""
    try:
        await sink.send(message)
    except SinkFailed:
        raise
    except Exception as error:  # noqa: BLE001 - a team's class may raise anything; its text may be secret
        raise SinkFailed(f"it raised {type(error).__name__}") from None


def build_jobs(sink: Sink, deliveries: Sequence[Delivery], base_url: str) -> list[_Job]:
    """Return the messages to a sink: one for each delivery, or for each group of them."""
    groups: dict[str, list[Delivery]] = {}
    for each in deliveries:
        groups.setdefault(each.group or each.item.key, []).append(each)
    jobs = []
    for found in groups.values():
        items = tuple(
            each.item if sink.contents else dataclasses.replace(each.item, arguments="")
            for each in found
        )
        keys = sorted(item.key for item in items)
        key = keys[0] if len(keys) == 1 else f"n-{short_digest(' '.join(keys), size_bytes=16)}"
        message = Outgoing(key=key, items=items, base_url=base_url)
        jobs.append(_Job(sink, message, tuple(found)))
    return jobs


def find_next_ms(now_ms: int, attempts: int, wait_seconds: float) -> int:
    """Return when a failed delivery is tried again, after `attempts` failures.

    Times are on a grid, so that the deliveries of a sink that fails come due together, in one activity.
    """
    seconds = min(
        limits.NOTIFIER_RETRY_SECONDS_MIN * 2.0 ** min(max(0, attempts - 1), 16),
        limits.NOTIFIER_RETRY_SECONDS_MAX,
    )
    step_ms = int(seconds * 1000)
    due_ms = (now_ms // step_ms + 1) * step_ms
    # At least half of the step, or a failure just before a grid point would be tried again at once.
    if due_ms - now_ms < step_ms // 2:
        due_ms += step_ms
    return max(due_ms, now_ms + int(wait_seconds * 1000))
