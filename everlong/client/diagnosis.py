"""Diagnosis: why a thread does not answer.

Reads from the server only, so that it works where workers do not answer. One diagnosis takes at most
four calls of the server: the thread's description, the newest events of its
history, and the pollers of its task queue (workflows and activities).
"""

import asyncio
import contextlib
import dataclasses
import logging
import math
import re
import time
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import (
    PendingActivityState,
    PendingWorkflowTaskState,
    TaskQueueType,
    WorkflowExecutionStatus,
)
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import Client

from everlong.client.errors import START_ONE
from everlong.client.status import read_held_reason
from everlong.errors import NoWorker, suggest
from everlong.models import HELD, make_printable

logger = logging.getLogger(__name__)

Kind: TypeAlias = Literal[
    "no_worker", "busy", "no_agent", "unreadable", "no_plugin", "no_store", "failing", "held"
]
Report: TypeAlias = Callable[[str], None]
"""Called with the reason why a thread waits, once for each change."""

FIRST_SECONDS: Final = 3.0
"""Time without an answer after which a thread is diagnosed. A cold resume takes a second or two."""
SECOND_SECONDS: Final = 4.0
"""Until the second look, if the first one finds nothing: a task may have been about to fail."""
EVERY_SECONDS: Final = 10.0
"""Between two diagnoses of a thread that waits for something.

Later it is a twentieth of the time so far, up to a minute."""
HEALTHY_SECONDS: Final = 20.0
"""Between two diagnoses of a thread that waits for nothing, or for a busy worker.

At first it is the time so far. So 100 s of work take 7 diagnoses."""
_EVERY_SECONDS_MAX: Final = 60.0
_DIAGNOSIS_SECONDS_MAX: Final = 5.0
# A caller gives up by a diagnosis that is not older: workers may have come or gone since.
_FRESH_SECONDS_MAX: Final = 2.0
# A worker with a free slot takes a task within milliseconds.
_TAKEN_SECONDS_MAX: Final = 1.5
# A poll takes a minute at most, so a worker that has not polled for longer has no free slot, or is gone.
# The rest is for clocks that differ.
_POLLED_SECONDS_MAX: Final = 90.0
_LISTED_SECONDS: Final = 1.0
_LISTINGS_MAX: Final = 64
# Between two looks of one process at threads that it waits for. A server takes milliseconds for each,
# and a process may wait for a thousand threads.
_TURN_SECONDS: Final = 0.25
_EVENTS: Final = 30
_REASON_CHARS_MAX: Final = 300
_WORKERS_SHOWN: Final = 5
_UNREADABLE: Final = ("KeyMissing", "BlobMissing", "RefRefused", "BlobCorrupt", "UnknownVersion")
# Messages of workers without the plugin, about payloads and threads.
_NO_PLUGIN: Final = re.compile(
    r"Unknown payload encoding binary/everlong|Workflow class everlong\.\w+ is not registered"
)
_NO_AGENT: Final = re.compile(r"a worker runs no agent '(?P<name>[^']*)', only \[(?P<has>[^\]]*)\]")
_ERROR_TYPE: Final = re.compile(r"(?:held by )?(?P<type>[A-Z][A-Za-z]+): ")
_WORKFLOWS: Final = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
_ACTIVITIES: Final = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What a thread waits for, with the remedy."""

    kind: Kind
    text: str
    """One sentence or two, which begins in lower case."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """A failure of a task, and the worker that reported it."""

    worker: str
    types: tuple[str, ...]
    """Error types, from the outermost to the cause."""
    message: str
    """All messages, from the outermost to the cause."""


async def diagnose(client: Client, thread_id: str) -> Diagnosis | None:
    """Return why a thread waits; None if it has ended, is working, or waits for an approval."""
    return await _diagnose(client, thread_id, await _describe(client, thread_id))


async def _describe(client: Client, thread_id: str) -> DescribeWorkflowExecutionResponse:
    return await client.workflow_service.describe_workflow_execution(
        DescribeWorkflowExecutionRequest(
            namespace=client.namespace, execution=WorkflowExecution(workflow_id=thread_id)
        )
    )


async def _diagnose(
    client: Client, thread_id: str, described: DescribeWorkflowExecutionResponse
) -> Diagnosis | None:
    info = described.workflow_execution_info
    if info.status != WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING:
        return None
    queue = info.task_queue
    if described.HasField("pending_workflow_task"):
        return await _diagnose_workflow_task(client, thread_id, queue, described)
    if described.pending_activities:
        return await _diagnose_activities(client, queue, described.pending_activities)
    faults = _find_held_faults(await _read_newest_events(client, thread_id))
    if faults:
        return await _explain_held(client, queue, faults)
    found = _Pollers(queue, await _get_pollers(client, queue, _WORKFLOWS))
    return None if found.has_recent else found.explain("task")


async def _diagnose_workflow_task(
    client: Client, thread_id: str, queue: str, described: DescribeWorkflowExecutionResponse
) -> Diagnosis | None:
    task = described.pending_workflow_task
    if task.attempt > 1:
        fault = _find_task_fault(await _read_newest_events(client, thread_id))
        if fault is not None:
            return explain_fault(fault)
    is_taken = task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED
    if is_taken or _compute_age_seconds(task.scheduled_time.ToMilliseconds()) < _TAKEN_SECONDS_MAX:
        return None
    return _Pollers(queue, await _get_pollers(client, queue, _WORKFLOWS)).explain("workflow task")


async def _diagnose_activities(
    client: Client, queue: str, activities: Sequence[PendingActivityInfo]
) -> Diagnosis | None:
    for each in activities:
        if each.HasField("last_failure"):
            return explain_fault(_parse_fault(each.last_worker_identity, each.last_failure))
    scheduled = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    waiting = [each for each in activities if each.state == scheduled]
    if len(waiting) < len(activities) or not waiting:
        return None
    if (
        min(_compute_age_seconds(each.scheduled_time.ToMilliseconds()) for each in waiting)
        < _TAKEN_SECONDS_MAX
    ):
        return None
    return _Pollers(queue, await _get_pollers(client, queue, _ACTIVITIES)).explain("activity")


async def _explain_held(client: Client, queue: str, faults: Sequence[Fault]) -> Diagnosis:
    """Explain why a thread waits before it tries an activity again."""
    if not _NO_AGENT.search(faults[0].message):
        return explain_fault(faults[0])
    listed = {each.identity for each in await _get_pollers(client, queue, _ACTIVITIES)}
    return explain_agent(queue, faults, listed)


def explain_agent(queue: str, faults: Sequence[Fault], listed: Collection[str]) -> Diagnosis:
    """Return which agent workers lack, by their failures. Other listed workers may have it."""
    found = [(each.worker, match) for each in faults if (match := _NO_AGENT.search(each.message))]
    name = found[0][1]["name"]
    lacking = {worker: match["has"] for worker, match in found if match["name"] == name}
    agents = sorted({each.strip(" '\"") for has in lacking.values() for each in has.split(",")})
    has = ", ".join(each for each in agents if each) or "none"
    remedy = f"Start a worker that has it on task queue {queue!r}"
    if set(listed) <= set(lacking):
        text = f"no worker has agent {name!r}; workers have: {has}.{suggest(name, agents)} {remedy}"
        return Diagnosis("no_agent", text)
    workers = _join_names(sorted(lacking))
    return Diagnosis(
        "no_agent", f"{workers} has no agent {name!r}; it has: {has}. {remedy}, or wait for another"
    )


def explain_fault(fault: Fault) -> Diagnosis:
    """Explain a failed task by the worker that it failed on."""
    worker = f"worker {fault.worker}" if fault.worker else "a worker"
    reason = make_printable(fault.message, _REASON_CHARS_MAX)
    if match := _NO_PLUGIN.search(fault.message):
        return Diagnosis(
            "no_plugin",
            f"{worker} runs without EverlongPlugin, or without its agents ({match[0]}...). Give its "
            "client the plugin with agents, or stop it",
        )
    match = _ERROR_TYPE.match(fault.message)
    types = {*fault.types, match["type"] if match else ""}
    if unreadable := [each for each in _UNREADABLE if each in types]:
        text_before = reason if reason.startswith(unreadable[0]) else f"{unreadable[0]}: {reason}"
        return Diagnosis(
            "unreadable",
            f"{worker} cannot read what this client writes: run everlong doctor ({text_before})",
        )
    if "StoreUnavailable" in types:
        return Diagnosis("no_store", f"{worker} cannot reach the store ({reason})")
    if HELD in types:
        return Diagnosis("held", f"held on {worker}: {reason}")
    return Diagnosis("failing", f"tasks fail on {worker}: {reason}. See its log")


def compute_look_seconds(elapsed_seconds: float) -> float:
    """Return the seconds until the next diagnosis of a thread whose workers are polling."""
    early_seconds = min(max(SECOND_SECONDS, elapsed_seconds), HEALTHY_SECONDS)
    return min(max(early_seconds, elapsed_seconds / 20), _EVERY_SECONDS_MAX)


class Watch:
    """Diagnoses a thread repeatedly while a caller waits for it.

    It runs concurrently with the wait. Errors of a diagnosis are only logged: the wait meets them too.
    """

    def __init__(self, client: Client, thread_id: str, report: Report | None = None) -> None:
        self._client = client
        self._thread_id = thread_id
        self._report = report
        self._task: asyncio.Task[None] | None = None
        self.latest: Diagnosis | None = None
        """Result of the last diagnosis."""
        self.held_by = ""
        """Reason in the heartbeats of an activity that cannot begin."""
        self._diagnosed_at = -math.inf
        self._is_quiet = False
        self._woken = asyncio.Event()
        self.on_held: Callable[[str], None] = lambda _: None
        """Called when `held_by` has changed."""

    async def __aenter__(self) -> Self:
        """Begin to watch."""
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Watch no more."""
        if self._task is not None:
            self._task.cancel()
            # Not `suppress(CancelledError)`, which would also take a cancellation of the caller.
            await asyncio.wait([self._task])

    def set_quiet(self, is_quiet: bool) -> None:
        """Look once a minute while the caller knows that no task of the thread is open."""
        if self._is_quiet and not is_quiet:
            self._woken.set()
        self._is_quiet = is_quiet

    @property
    def finds_workers(self) -> bool:
        """Whether, by the last diagnosis, workers are there that will take the thread's next task."""
        return self.latest is None or self.latest.kind == "busy"

    async def explain(self, error: NoWorker) -> NoWorker:
        """Return an error with the reason why no worker has answered, if a diagnosis finds one."""
        if self.latest is None or time.monotonic() - self._diagnosed_at > _FRESH_SECONDS_MAX:
            await self._diagnose()
        if self.latest is None:
            return error
        text = f"{self.latest.text[:1].upper()}{self.latest.text[1:]}."
        text_before = str(error)
        if START_ONE in text_before:
            return NoWorker(text_before.replace(START_ONE, text))
        return NoWorker(f"{text_before} {text}")

    async def _run(self) -> None:
        begun = time.monotonic()
        pause_seconds = FIRST_SECONDS
        while True:
            if await self._is_woken(pause_seconds):
                pause_seconds = FIRST_SECONDS
                continue
            async with _take_turn():
                await self._diagnose()
            elapsed = time.monotonic() - begun
            if self._is_quiet:
                pause_seconds = _EVERY_SECONDS_MAX
            elif pause_seconds == FIRST_SECONDS and self.latest is None:
                pause_seconds = SECOND_SECONDS
            elif self.finds_workers:
                pause_seconds = compute_look_seconds(elapsed)
            else:
                pause_seconds = min(max(EVERY_SECONDS, elapsed / 20), _EVERY_SECONDS_MAX)

    async def _is_woken(self, pause_seconds: float) -> bool:
        """Wait; return whether the thread has something to do again."""
        try:
            async with asyncio.timeout(pause_seconds):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True

    async def _diagnose(self) -> None:
        try:
            async with asyncio.timeout(_DIAGNOSIS_SECONDS_MAX):
                described = await _describe(self._client, self._thread_id)
                found = await _diagnose(self._client, self._thread_id, described)
        except Exception as error:  # noqa: BLE001 - it must not fail the wait that it explains
            logger.debug("no diagnosis of thread %s: %s", self._thread_id, type(error).__name__)
            return
        self._diagnosed_at = time.monotonic()
        await self._read_heartbeats(described.pending_activities)
        before, self.latest = self.latest, found
        if found is not None and found != before and self._report is not None:
            try:
                self._report(found.text)
            except Exception:
                logger.exception("a diagnosis of thread %s was not reported", self._thread_id)

    async def _read_heartbeats(self, activities: Sequence[PendingActivityInfo]) -> None:
        """Update `held_by`. Heartbeats that this client cannot read leave it as it is."""
        try:
            async with asyncio.timeout(_DIAGNOSIS_SECONDS_MAX):
                text = await read_held_reason(self._client, activities)
        except Exception as error:  # noqa: BLE001 - it must not fail the wait that it explains
            logger.debug("no heartbeats of thread %s: %s", self._thread_id, type(error).__name__)
            return
        if text == self.held_by:
            return
        self.held_by = text
        try:
            self.on_held(text)
        except Exception:
            logger.exception("what holds thread %s was not reported", self._thread_id)


_turns: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]" = (
    weakref.WeakKeyDictionary()
)


@contextlib.asynccontextmanager
async def _take_turn() -> AsyncIterator[None]:
    """Serialise the diagnoses of all waits of a process, with a pause after each."""
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        begun = time.monotonic()
        yield
        await asyncio.sleep(begun + _TURN_SECONDS - time.monotonic())


class _Pollers:
    """The workers that have polled a task queue in the last minutes, as the server lists them."""

    def __init__(self, queue: str, listed: Iterable["_Poller"]) -> None:
        self._queue = queue
        self._listed = sorted(listed, key=lambda each: each.age_seconds)

    @property
    def has_recent(self) -> bool:
        return any(each.age_seconds <= _POLLED_SECONDS_MAX for each in self._listed)

    def explain(self, what: str) -> Diagnosis:
        """Explain why none of them has taken a task."""
        start = "start one with: everlong worker MODULE:AGENT"
        if not self._listed:
            return Diagnosis(
                "no_worker",
                f"no worker polls task queue {self._queue!r}: {start}, with "
                f"EVERLONG_TASK_QUEUE={self._queue}",
            )
        if not self.has_recent:
            last = self._listed[0]
            return Diagnosis(
                "no_worker",
                f"no worker has polled task queue {self._queue!r} for {last.age_seconds:.0f} s; the "
                f"last was {last.identity}, which has stopped, or is busy with other tasks. If it has "
                f"stopped, {start}",
            )
        recent = [e.identity for e in self._listed if e.age_seconds <= _POLLED_SECONDS_MAX]
        names = _join_names(list(dict.fromkeys(recent)))
        return Diagnosis(
            "busy",
            f"{names} polls task queue {self._queue!r} and has not taken the thread's {what} yet: it "
            "is busy with others, or has just stopped",
        )


@dataclasses.dataclass(frozen=True)
class _Poller:
    identity: str
    age_seconds: float


# By connection, then by namespace, task queue and kind.
_Listings: TypeAlias = dict[tuple[str, str, int], tuple[float, list[_Poller]]]
_listings: "weakref.WeakKeyDictionary[Any, _Listings]" = weakref.WeakKeyDictionary()


async def _get_pollers(client: Client, queue: str, kind: TaskQueueType.ValueType) -> list[_Poller]:
    """List a queue's pollers. Waits of one connection share a listing for a second.

    Hundreds of callers of a busy worker would ask for the same at the same time.
    """
    listings = _listings.setdefault(client.service_client, {})
    key = (client.namespace, queue, int(kind))
    listed_at, listed = listings.get(key, (-math.inf, []))
    if time.monotonic() - listed_at < _LISTED_SECONDS:
        return listed
    listed = await _list_pollers(client, queue, kind)
    if len(listings) >= _LISTINGS_MAX:
        listings.clear()
    listings[key] = (time.monotonic(), listed)
    return listed


async def has_workers(client: Client, queue: str) -> bool:
    """Return whether a worker has polled a task queue for workflow tasks in the last minutes."""
    kind = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    return _Pollers(queue, await _get_pollers(client, queue, kind)).has_recent


async def _list_pollers(client: Client, queue: str, kind: TaskQueueType.ValueType) -> list[_Poller]:
    found = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
        )
    )
    return [
        _Poller(
            make_printable(each.identity, 100),
            _compute_age_seconds(each.last_access_time.ToMilliseconds()),
        )
        for each in found.pollers
    ]


async def _read_newest_events(client: Client, thread_id: str) -> Sequence[HistoryEvent]:
    page = await client.workflow_service.get_workflow_execution_history_reverse(
        GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(workflow_id=thread_id),
            maximum_page_size=_EVENTS,
        )
    )
    return page.history.events


def _find_task_fault(newest: Sequence[HistoryEvent]) -> Fault | None:
    """Return the newest failure of a workflow task, unless one was completed after it."""
    for event in newest:
        if event.HasField("workflow_task_completed_event_attributes"):
            return None
        if event.HasField("workflow_task_failed_event_attributes"):
            failed = event.workflow_task_failed_event_attributes
            return _parse_fault(failed.identity, failed.failure)
    return None


def _find_held_faults(newest: Sequence[HistoryEvent]) -> list[Fault]:
    """Return failures of activities that hold the thread now, the newest first."""
    faults: list[Fault] = []
    for event in newest:
        if event.HasField("activity_task_completed_event_attributes"):
            break
        if event.HasField("activity_task_scheduled_event_attributes") and not faults:
            break
        if event.HasField("activity_task_failed_event_attributes"):
            failed = event.activity_task_failed_event_attributes
            if failed.failure.application_failure_info.type != HELD:
                break
            faults.append(_parse_fault(failed.identity, failed.failure))
    return faults


def _parse_fault(worker: str, failure: Failure) -> Fault:
    types, messages = [], []
    for _ in range(10):
        types.append(failure.application_failure_info.type)
        messages.append(failure.message)
        if not failure.HasField("cause"):
            break
        failure = failure.cause
    return Fault(make_printable(worker, 100), tuple(types), ": ".join(filter(None, messages)))


def _join_names(workers: Sequence[str]) -> str:
    more = len(workers) - _WORKERS_SHOWN
    names = ", ".join(workers[:_WORKERS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"worker {names}"


def _compute_age_seconds(time_ms: int) -> float:
    return max(0.0, time.time() - time_ms / 1000)
