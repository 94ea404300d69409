"""Activities of notifications: deliver events to sinks; start a notifier that a thread lacks."""

import dataclasses
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from opentelemetry.trace import SpanKind
from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from everlong.activities.heartbeat import heartbeat
from everlong.models import PENDING_QUERY, Approval
from everlong.models.json_payloads import from_raw, to_raw
from everlong.models.names import (
    NOTIFIER_WORKFLOW,
    NOTIFY,
    NOTIFY_SIGNAL,
    START_NOTIFIER,
)
from everlong.models.notices import (
    Deliver,
    Delivered,
    Notification,
    Notifications,
    NotifierStart,
    build_notifier_id,
)
from everlong.notify.delivery import Deliverer
from everlong.notify.sinks import Notify, is_about_approval
from everlong.telemetry import Telemetry
from everlong.telemetry.spans import AGENT, APPROVAL, RUN, THREAD
from everlong.telemetry.spans import NOTIFY as NOTIFY_SPAN

_LOG: Final = logging.getLogger(__name__)
_QUERY: Final = timedelta(seconds=10)
_ENDED: Final = frozenset({RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION})


class NotifyActivities:
    """The activities of one worker, with its configuration."""

    def __init__(self, notify: Notify | None, telemetry: Telemetry) -> None:
        self._notify = notify
        self._telemetry = telemetry

    def list_activities(self) -> list[Callable[..., Any]]:
        """Return the activities that a worker must register."""

        @activity.defn(name=NOTIFY)
        async def deliver(raw: RawValue) -> RawValue:
            converter = activity.payload_converter()
            request = from_raw(raw, Deliver, converter)
            async with heartbeat(_ignore_hold):
                return to_raw(await self.deliver(request), converter)

        @activity.defn(name=START_NOTIFIER)
        async def start(raw: RawValue) -> None:
            await start_notifier(from_raw(raw, Notifications, activity.payload_converter()))

        return [deliver, start]

    async def deliver(self, request: Deliver) -> Delivered:
        """Deliver notifications by the configuration of this worker."""
        if self._notify is None:
            # While notifications are rolled out, other workers of the task queue have sinks already. So
            # the server tries the activity again, and the notifier counts what it gives up at last.
            raise ApplicationError(
                "this worker has no configuration of notifications; give all workers of the task queue "
                "the same (EVERLONG_NOTIFY)",
                type="ConfigError",
            )
        for item in request.new:
            self._record(item)
        deliverer = Deliverer(self._notify, _is_pending, self._count)
        return await deliverer.deliver(request)

    def _count(self, sink: str, outcome: str, number: int) -> None:
        labels = {"sink": sink, "outcome": outcome}
        self._telemetry.meters.add("everlong.notifications", number, labels)

    def _record(self, item: Notification) -> None:
        """Emit a span in the thread's trace: of an approval, as a child of its span."""
        spans = self._telemetry.spans
        if spans.is_silent or not item.run_id:
            return
        parent = None
        if is_about_approval(item):
            parent = spans.build_context(item.run_id, APPROVAL, item.about)
        span = spans.start(
            NOTIFY_SPAN,
            {
                THREAD: item.thread_id,
                RUN: item.run_id,
                AGENT: item.agent,
                "everlong.notify.event": item.event.value,
            },
            run_id=item.run_id,
            key=item.key,
            parent=parent,
            kind=SpanKind.PRODUCER,
        )
        spans.end(span)


async def start_notifier(notifications: Notifications) -> None:
    """Start the notifier of this task queue with a signal; if it runs by now, signal it."""
    task_queue = activity.info().task_queue
    await activity.client().start_workflow(
        NOTIFIER_WORKFLOW,
        NotifierStart(),
        id=build_notifier_id(task_queue),
        task_queue=task_queue,
        start_signal=NOTIFY_SIGNAL,
        start_signal_args=[notifications],
    )


async def _is_pending(item: Notification) -> bool:
    """Return whether an approval still waits. If that cannot be asked, it is taken to wait."""
    handle = activity.client().get_workflow_handle(item.thread_id)
    try:
        pending = await handle.query(PENDING_QUERY, result_type=list[Approval], rpc_timeout=_QUERY)
    except RPCError as error:
        return error.status not in _ENDED
    except Exception as error:  # noqa: BLE001 - one thread must not keep others from their reminders
        # For example an answer in the store, which is away. Without the message: it may hold contents.
        _LOG.warning("whether an approval still waits is not known: %s", type(error).__name__)
        return True
    return any(each.id == item.about for each in pending)


def _ignore_hold(error: str) -> None:
    """Stand in for a counter of holds: this activity uses no store."""


def find_wanted(notify: Notify | None, agent: str) -> int:
    """Return what sinks want of an agent's threads, as a result of a model call has it."""
    return 0 if notify is None else notify.build_mask(agent)


def mark_quiet(notify: Notify | None, agent: str, calls: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return wanted calls, those marked that no sink gets."""
    if notify is None or not notify.build_mask(agent):
        return calls
    return tuple(
        dataclasses.replace(call, quiet=True)
        if (call.options.needs_approval or call.options.once)
        and not notify.wants_tool(agent, call.tool)
        else call
        for call in calls
    )
