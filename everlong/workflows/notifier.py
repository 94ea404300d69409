"""The `everlong.Notifier` workflow: takes events from threads, and delivers them to sinks.

There is one for each task queue. It holds names of sinks and small events, never secrets or URLs: the
activity has the configuration of the worker that it runs on. New events are delivered by one activity
for all sinks. What fails is tried again by sink, so that a sink that is down delays no other, and no
thread at all: a thread hands its events over by a signal.
"""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError, is_cancelled_exception

from everlong import limits
from everlong.models.json_payloads import from_raw, to_raw
from everlong.models.names import NOTIFIER_WORKFLOW, NOTIFY, NOTIFY_SIGNAL
from everlong.models.notices import (
    Deliver,
    Delivered,
    Delivery,
    Event,
    Notification,
    Notifications,
    NotifierStart,
    Reminder,
)
from everlong.models.tools import short_digest

_TIMEOUT: Final = timedelta(seconds=limits.NOTIFY_ACTIVITY_SECONDS_MAX)
# Shows a killed worker. An activity that ends within half of it sends no heartbeat, which is billed.
_HEARTBEAT: Final = timedelta(seconds=15)
# For killed workers, three hours of them. Failures of sinks are results, and no attempts.
_RETRY: Final = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    maximum_interval=timedelta(minutes=10),
    maximum_attempts=25,
)
_PAUSE_MS: Final = int(limits.NOTIFIER_RETRY_SECONDS_MIN * 1000)


@workflow.defn(name=NOTIFIER_WORKFLOW, sandboxed=False)
class NotifierWorkflow:
    """One run of the notifier of a task queue."""

    @workflow.init
    def __init__(self, start: NotifierStart) -> None:
        self._new: list[Notification] = list(start.new)
        self._later: list[Delivery] = list(start.later)
        self._reminders: list[Reminder] = list(start.reminders)
        self._seen: dict[str, None] = dict.fromkeys(start.seen)
        self._dropped = start.dropped
        self._running = 0
        """Activities in flight."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: list[BaseException] = []
        """Defects of tasks. They fail the workflow task, so that a mended worker tries it again."""
        self._lanes: set[str] = set()
        """Sinks that have a task for their deliveries."""
        self._is_leaving = False

    @workflow.run
    async def run(self, start: NotifierStart) -> None:
        """Deliver until the run is long enough, then continue as new."""
        self._start_task(self._remind())
        while not self._should_leave():
            for error in self._errors:
                raise error
            self._start_lanes()
            if self._new and self._running < limits.NOTIFIER_ACTIVITIES_MAX:
                batch = self._new[: limits.NOTIFIER_BATCH_MAX]
                del self._new[: len(batch)]
                self._running += 1
                self._start_task(self._deliver_new(batch))
                continue
            await workflow.wait_condition(self._should_wake)
        self._is_leaving = True
        # An activity takes three minutes at most, unless no worker runs it. Signals are taken meanwhile.
        await workflow.wait_condition(lambda: not self._tasks)
        for error in self._errors:
            raise error
        workflow.continue_as_new(
            to_raw(
                NotifierStart(
                    new=tuple(self._new),
                    later=tuple(self._later),
                    reminders=tuple(self._reminders),
                    seen=tuple(self._seen),
                    dropped=self._dropped,
                ),
                workflow.payload_converter(),
            )
        )

    @workflow.signal(name=NOTIFY_SIGNAL)
    def notify(self, notifications: Notifications) -> None:
        """Queue events, except for those that were queued before."""
        for item in notifications.items:
            if item.key in self._seen:
                continue
            self._seen[item.key] = None
            self._new.append(item)
            if item.event == Event.DECIDED:
                self._forget_reminder(item)
        for key in list(self._seen)[: -limits.NOTIFIER_SEEN_MAX]:
            del self._seen[key]
        self._drop_oldest()

    def _should_leave(self) -> bool:
        info = workflow.info()
        return (
            info.get_current_history_length() > limits.NOTIFIER_EVENTS_MAX
            or info.is_continue_as_new_suggested()
        )

    def _should_wake(self) -> bool:
        can_start = self._new and self._running < limits.NOTIFIER_ACTIVITIES_MAX
        return bool(can_start) or self._lacks_lane() or self._should_leave() or bool(self._errors)

    def _lacks_lane(self) -> bool:
        return any(each.sink not in self._lanes for each in self._later)

    def _start_lanes(self) -> None:
        for sink in dict.fromkeys(each.sink for each in self._later):
            if sink not in self._lanes:
                self._lanes.add(sink)
                self._start_task(self._run_lane(sink))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._end_task)

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._errors.append(error)

    async def _deliver_new(self, batch: list[Notification]) -> None:
        try:
            self._take(await self._execute(Deliver(new=tuple(batch))))
        finally:
            self._running -= 1

    async def _run_lane(self, sink: str) -> None:
        """Deliver again what a sink did not take, or collects, until nothing is left."""
        try:
            while not self._is_leaving:
                mine = [each for each in self._later if each.sink == sink]
                if not mine:
                    return
                if not await self._wait_until(lambda: _find_first(self._later, sink)):
                    return
                now_ms = _now_ms()
                batch = _cut_batch(
                    [each for each in self._later if each.sink == sink and each.due_ms <= now_ms]
                )
                taken = {id(each) for each in batch}
                self._later = [each for each in self._later if id(each) not in taken]
                self._take(await self._execute(Deliver(again=tuple(batch))))
        finally:
            self._lanes.discard(sink)

    async def _remind(self) -> None:
        """Deliver reminders when they are due."""
        while not self._is_leaving:
            await workflow.wait_condition(lambda: bool(self._reminders) or self._should_leave())
            if not await self._wait_until(
                lambda: min((each.due_ms for each in self._reminders), default=None)
            ):
                if self._should_leave():
                    return
                continue
            now_ms = _now_ms()
            due = [each for each in self._reminders if each.due_ms <= now_ms]
            due = due[: limits.NOTIFIER_BATCH_MAX]
            taken = {id(each) for each in due}
            self._reminders = [each for each in self._reminders if id(each) not in taken]
            request = Deliver(reminders=tuple(each.item for each in due))
            self._take(await self._execute(request))

    async def _wait_until(self, find_ms: Callable[[], int | None]) -> bool:
        """Wait until the time that `find_ms` returns. False if there is none any more, or at a roll.

        A timer is a billed action, so a new one is started only for an earlier time.
        """
        while (due_ms := find_ms()) is not None and not self._should_leave():
            wait_ms = due_ms - _now_ms()
            if wait_ms <= 0:
                return True

            def has_changed(due_ms: int = due_ms) -> bool:
                first = find_ms()
                return first is None or first < due_ms - _PAUSE_MS or self._should_leave()

            try:
                await workflow.wait_condition(has_changed, timeout=timedelta(milliseconds=wait_ms))
            except TimeoutError:
                continue
        return False

    async def _execute(self, request: Deliver) -> Delivered:
        """Run the activity. If it fails for ever, which is a defect, its deliveries are dropped."""
        converter = workflow.payload_converter()
        dropped, self._dropped = self._dropped, 0
        request = _stamp(request, dropped)
        try:
            found: RawValue = await workflow.execute_activity(
                NOTIFY,
                to_raw(request, converter),
                result_type=RawValue,
                start_to_close_timeout=_TIMEOUT,
                heartbeat_timeout=_HEARTBEAT,
                retry_policy=_RETRY,
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._dropped += dropped + len(request.new) + len(request.again)
            workflow.logger.error("notifications were not delivered: %s", error.cause or error)
            return Delivered()
        return from_raw(found, Delivered, converter)

    def _take(self, delivered: Delivered) -> None:
        """Keep what an activity has left to do."""
        self._later += delivered.later
        self._reminders += [
            each for each in delivered.reminders if _mark_decided(each.item) not in self._seen
        ]
        self._drop_oldest()

    def _forget_reminder(self, item: Notification) -> None:
        """Drop the reminder of an approval that was decided, and of one that is about to be added."""
        about = (item.thread_id, item.about)
        self._reminders = [
            each for each in self._reminders if (each.item.thread_id, each.item.about) != about
        ]
        self._seen[_mark_decided(item)] = None

    def _drop_oldest(self) -> None:
        """Keep the queues within their bounds."""
        bound = limits.NOTIFIER_QUEUE_MAX
        for queue in (self._new, self._later, self._reminders):
            if (excess := len(queue) - bound) > 0:
                del queue[:excess]
                self._dropped += excess


def _mark_decided(item: Notification) -> str:
    """Return the mark of a decided approval among the keys of notifications."""
    return f"d-{short_digest(f'{item.thread_id} {item.about}', size_bytes=16)}"


def _find_first(later: list[Delivery], sink: str) -> int | None:
    """Return the time of a sink's next delivery; None if it has none."""
    return min((each.due_ms for each in later if each.sink == sink), default=None)


def _cut_batch(due: list[Delivery]) -> list[Delivery]:
    """Return the deliveries of one activity. A group stays whole, since it is one message."""
    groups: dict[str, list[Delivery]] = {}
    for each in due:
        groups.setdefault(each.group or each.item.key, []).append(each)
    batch: list[Delivery] = []
    for found in groups.values():
        if batch and len(batch) + len(found) > limits.NOTIFIER_BATCH_MAX:
            break
        batch += found
    return batch


def _stamp(request: Deliver, dropped: int) -> Deliver:
    return Deliver(
        new=request.new,
        again=request.again,
        reminders=request.reminders,
        now_ms=_now_ms(),
        dropped=dropped,
    )


def _now_ms() -> int:
    return workflow.time_ns() // 1_000_000


@workflow.defn(
    name=NOTIFIER_WORKFLOW, sandboxed=False, versioning_behavior=VersioningBehavior.AUTO_UPGRADE
)
class VersionedNotifierWorkflow(NotifierWorkflow):
    """A notifier on workers with worker versioning. Its next task goes to the current version."""

    @workflow.init
    def __init__(self, start: NotifierStart) -> None:
        super().__init__(start)

    @workflow.run
    async def run(self, start: NotifierStart) -> None:
        """See `NotifierWorkflow`."""
        await super().run(start)
