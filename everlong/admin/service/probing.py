"""Asking the workers of a task queue what they are, by a workflow of our own.

Its arguments and answers are plain, so that they get through where keys or stores do not agree. A
worker that does not know the workflow fails its task: that is read from the history, and told.
"""

import asyncio
import contextlib
import dataclasses
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from temporalio.api.enums.v1 import TaskQueueType, WorkerVersioningMode
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import PinnedVersioningOverride, WorkerDeploymentVersion
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode

from everlong.models import CHECKS_MAX, DOCTOR_WORKFLOW, Check, Checked, Checkup, printable

ID_PREFIX: Final = "everlong-doctor-"
_WORKFLOW: Final = timedelta(seconds=30)
# A worker that has just started is listed once its first poll has arrived.
_POLLERS_SECONDS_MAX: Final = 2.0
# A poll takes a minute at most. The server lists all who have polled within five.
_POLLER_AGE_SECONDS_MAX: Final = 70.0
# The activities have 10 s. A task that has failed gets a little time to reach another worker.
_ANSWERS_SECONDS_MAX: Final = 12.0
_FAILED_SECONDS_MAX: Final = 2.0
_POLL_SECONDS: Final = 0.1
# The server's answer if it does not know a version, or does not know it on this task queue.
_UNKNOWN_VERSION: Final = frozenset(
    {
        RPCStatusCode.FAILED_PRECONDITION,
        RPCStatusCode.INVALID_ARGUMENT,
        RPCStatusCode.NOT_FOUND,
    }
)
# Of what a worker or the server said, what is told.
_REASON_CHARS_MAX: Final = 300


@dataclasses.dataclass(frozen=True)
class Clock:
    """How this machine's clock differs from the server's."""

    ahead_seconds: float
    error_seconds: float
    """By how much that may be wrong: half of a round trip."""


@dataclasses.dataclass(frozen=True)
class Poller:
    """A worker that polls a task queue."""

    identity: str
    version: WorkerDeploymentVersion | None = None
    """None without worker versioning."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one activity, or one task of the workflow, got out of a worker."""

    worker: str
    """Its identity; empty if none has taken it."""
    checked: Checked | None = None
    error: str = ""
    started_ms: int = 0
    """When the worker took it, by the server's clock."""
    ended_ms: int = 0


def new_id() -> str:
    """Return an id for a check-up."""
    return f"{ID_PREFIX}{uuid.uuid4().hex[:16]}"


async def read_clock(client: Client, task_queue: str) -> Clock:
    """Compare clocks: the server notes when a workflow starts. It asks nothing of workers."""
    nothing = Checkup(check=Check(probe_key="", payload=""), times=0)
    before = time.time()
    async with _started(client, new_id(), task_queue, nothing) as handle:
        after = time.time()
        started = (await handle.describe()).start_time.timestamp()
    return Clock((before + after) / 2 - started, (after - before) / 2)


async def pollers(client: Client, task_queue: str, clock: Clock) -> list[Poller]:
    """Return the workers that poll a task queue, waiting a moment for the first."""
    deadline = time.monotonic() + _POLLERS_SECONDS_MAX
    while True:
        oldest = time.time() - clock.ahead_seconds - _POLLER_AGE_SECONDS_MAX
        found = {
            each.identity: Poller(each.identity, _version(each.deployment_options))
            for kind in (
                TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
                TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
            )
            for each in (await _described(client, task_queue, kind)).pollers
            if each.last_access_time.ToMilliseconds() > 1000 * oldest
        }
        if found or time.monotonic() > deadline:
            return [found[identity] for identity in sorted(found)]
        await asyncio.sleep(_POLL_SECONDS)


async def ask_workers(
    client: Client,
    workflow_id: str,
    task_queue: str,
    check: Check,
    workers: int,
    version: WorkerDeploymentVersion | None = None,
) -> list[Answer]:
    """Have the workers of a task queue answer; return what they said, also where they failed.

    With worker versioning, the server sends tasks to one version: that which is named, if any.
    """
    times = min(CHECKS_MAX, 2 * max(1, workers))
    checkup = Checkup(check=check, times=times)
    try:
        async with _started(client, workflow_id, task_queue, checkup, version) as handle:
            return answers_in(await _followed(handle))
    except RPCError as error:
        if version is None or error.status not in _UNKNOWN_VERSION:
            raise
        return []  # Its workers have just come, or just gone.


def answers_in(events: Iterable[HistoryEvent]) -> list[Answer]:
    """Return what workers have answered, by the history of a check-up."""
    started: dict[int, tuple[str, int]] = {}
    answers: list[Answer] = []
    for event in events:
        if event.HasField("activity_task_started_event_attributes"):
            taken = event.activity_task_started_event_attributes
            started[taken.scheduled_event_id] = (taken.identity, event.event_time.ToMilliseconds())
        elif event.HasField("activity_task_completed_event_attributes"):
            done = event.activity_task_completed_event_attributes
            worker, started_ms = started[done.scheduled_event_id]
            checked, error = _parsed(done.result.payloads)
            answers.append(
                Answer(worker, checked, error, started_ms, event.event_time.ToMilliseconds())
            )
        elif event.HasField("activity_task_failed_event_attributes"):
            failed = event.activity_task_failed_event_attributes
            answers.append(
                Answer(started[failed.scheduled_event_id][0], error=_said(failed.failure.message))
            )
        elif event.HasField("activity_task_timed_out_event_attributes"):
            late = event.activity_task_timed_out_event_attributes
            worker, _ = started.get(late.scheduled_event_id, ("", 0))
            answers.append(Answer(worker, error="it did not answer within 10 s"))
        elif event.HasField("workflow_task_failed_event_attributes"):
            refused = event.workflow_task_failed_event_attributes
            answers.append(Answer(refused.identity, error=_said(refused.failure.message)))
    return answers


@contextlib.asynccontextmanager
async def _started(
    client: Client,
    workflow_id: str,
    task_queue: str,
    checkup: Checkup,
    version: WorkerDeploymentVersion | None = None,
) -> AsyncIterator[WorkflowHandle[Any, Any]]:
    """Start a check-up, without our codec and any other; see to it that it ends."""
    plain = Client(client.service_client, namespace=client.namespace)
    handle = await plain.start_workflow(
        DOCTOR_WORKFLOW,
        checkup,
        id=workflow_id,
        task_queue=task_queue,
        execution_timeout=_WORKFLOW,
        versioning_override=None if version is None else PinnedVersioningOverride(version),
    )
    try:
        yield handle
    finally:
        with contextlib.suppress(RPCError):  # It has ended by itself.
            await handle.terminate("the check-up is over")


async def _followed(handle: WorkflowHandle[Any, Any]) -> list[HistoryEvent]:
    """Return the history of a check-up once it has ended, or once it is waited for no more."""
    begun = time.monotonic()
    while True:
        description = await handle.describe()
        events = list((await handle.fetch_history()).events)
        elapsed = time.monotonic() - begun
        if description.status != WorkflowExecutionStatus.RUNNING or elapsed > _patience(events):
            return events
        await asyncio.sleep(_POLL_SECONDS)


def _patience(events: Sequence[HistoryEvent]) -> float:
    """Return for how many seconds a check-up is waited for that has come so far."""
    failed = any(each.HasField("workflow_task_failed_event_attributes") for each in events)
    begun = any(each.HasField("activity_task_scheduled_event_attributes") for each in events)
    return _FAILED_SECONDS_MAX if failed and not begun else _ANSWERS_SECONDS_MAX


async def _described(client: Client, task_queue: str, kind: TaskQueueType.ValueType) -> Any:
    return await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=kind,
        )
    )


def _version(options: Any) -> WorkerDeploymentVersion | None:
    if options.worker_versioning_mode != WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED:
        return None
    return WorkerDeploymentVersion(options.deployment_name, options.build_id)


def _parsed(payloads: Sequence[Any]) -> tuple[Checked | None, str]:
    try:
        [checked] = DataConverter.default.payload_converter.from_payloads(payloads, [Checked])
    except Exception as error:  # noqa: BLE001 - another codec may lie around ours
        return None, f"its answer cannot be read ({type(error).__name__})"
    return checked, ""


def _said(text: str) -> str:
    return printable(text, _REASON_CHARS_MAX)
