"""History of a run: which commands it has recorded, and which bytes workflow code has consumed.

On a replay, Core discards a command if history has its event. If history does not have it, as when new
code issues more commands than the old code did, Core sends the command after the replay. So a value may
be dropped only if its event is known to exist. Events are counted as the history is read, and each
command takes the next event of its kind and id.
"""

import asyncio
import collections
import dataclasses
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent

from everlong.codecs.budget import Drain
from everlong.codecs.payloads import walk_encoded_payloads
from everlong.interceptors.last_worker import LastWorker
from everlong.interceptors.sdk_internals import (
    WorkflowActivation,
    WorkflowActivationCompletion,
    WorkflowCommand,
)
from everlong.storage.instrumented import Reads

# Event attributes -> the command that led to the event, and the id among commands of that kind.
_EVENTS: Final[dict[str, tuple[str, Callable[[Any], str]]]] = {
    "activity_task_scheduled_event_attributes": (
        "schedule_activity",
        lambda event: str(event.activity_id),
    ),
    "start_child_workflow_execution_initiated_event_attributes": (
        "start_child_workflow_execution",
        lambda event: str(event.workflow_id),
    ),
    "workflow_execution_update_completed_event_attributes": (
        "update_response",
        lambda event: str(event.meta.update_id),
    ),
    "signal_external_workflow_execution_initiated_event_attributes": (
        "signal_external_workflow_execution",
        lambda _: "",
    ),
    "workflow_properties_modified_event_attributes": (
        "modify_workflow_properties",
        lambda _: "",
    ),
    "nexus_operation_scheduled_event_attributes": ("schedule_nexus_operation", lambda _: ""),
    "workflow_execution_completed_event_attributes": (
        "complete_workflow_execution",
        lambda _: "",
    ),
    "workflow_execution_failed_event_attributes": ("fail_workflow_execution", lambda _: ""),
    "workflow_execution_canceled_event_attributes": ("cancel_workflow_execution", lambda _: ""),
    "workflow_execution_continued_as_new_event_attributes": (
        "continue_as_new_workflow_execution",
        lambda _: "",
    ),
}
# Queries are in no history; the arguments of the run start the next run too.
_NOT_CONSUMED: Final = frozenset({"initialize_workflow", "query_workflow"})
_COMMANDS: Final = {command for command, _ in _EVENTS.values()}


@dataclasses.dataclass
class PendingTask:
    """State of the current workflow task, as far as the history has been read."""

    scheduled_ns: int = 0
    """Time of the first attempt. Tasks that failed or timed out are attempts of the same task."""
    attempt: int = 1
    failed: bool = False
    """Whether an attempt failed: workflow code or a codec raised."""
    was_reset: bool = False
    """Whether the workflow was reset to this point."""
    timed_out: bool = False
    """Whether an attempt timed out: its worker had gone, or died during the attempt."""

    def advance(self, event: HistoryEvent) -> "PendingTask":
        """Return the state after the next event."""
        kind = event.WhichOneof("attributes")
        if kind == "workflow_task_scheduled_event_attributes":
            self.scheduled_ns = self.scheduled_ns or event.event_time.ToNanoseconds()
            # The server restarts its count after some failures, and leaves others out of history.
            attempt = event.workflow_task_scheduled_event_attributes.attempt
            self.attempt = max(self.attempt, attempt)
        elif kind == "workflow_task_failed_event_attributes":
            cause = event.workflow_task_failed_event_attributes.cause
            self.was_reset = (
                cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW
            )
            self.failed = True
            self.attempt += 1
        elif kind == "workflow_task_timed_out_event_attributes":
            self.timed_out = True
            self.attempt += 1
        elif kind == "workflow_task_completed_event_attributes":
            return PendingTask()
        return self


class Consumption:
    """Counts the payload bytes that a workflow instance has consumed, and that a replay must read again.

    The count decides when a workflow continues as new (`everlong.workflows.should_continue_as_new`), so
    it must be the same in every replay. It counts the decoded bytes of jobs. It leaves out jobs that are
    in no history (queries, and updates that were not accepted), and the arguments of the run, since the
    next run would start with them too.
    """

    def __init__(self) -> None:
        self._bytes = 0
        self._offered: dict[str, int] = {}

    def get_bytes(self) -> int:
        """Return the bytes consumed up to and including the current activation."""
        return self._bytes

    def count_jobs(self, activation: WorkflowActivation) -> None:
        """Count the payloads of an activation's jobs."""
        self._offered = {}
        for job in activation.jobs:
            kind = job.WhichOneof("variant")
            if kind is None or kind in _NOT_CONSUMED:
                continue
            size_bytes = sum(len(each.data) for each in walk_encoded_payloads(getattr(job, kind)))
            if kind == "do_update":
                # A rejected update leaves no event: a replay would not count it.
                self._offered[job.do_update.protocol_instance_id] = size_bytes
            else:
                self._bytes += size_bytes

    def count_accepted_updates(self, completion: WorkflowActivationCompletion) -> None:
        """Count the updates that a completion accepts."""
        for command in completion.successful.commands:
            if command.HasField("update_response") and command.update_response.HasField("accepted"):
                instance_id = command.update_response.protocol_instance_id
                self._bytes += self._offered.pop(instance_id, 0)


class RunHistory:
    """The history of one run, as far as it has been read, and the reads of its payloads.

    Filled in the worker's event loop, queried in the SDK's workflow threads. The counters of events are
    kept only during the replay, since the instance stays in the worker's cache.
    """

    def __init__(self) -> None:
        # None after `release`. The event loop may add to a counter that a workflow thread has just
        # released; that counter is not used any more.
        self._events: collections.Counter[tuple[str, str]] | None = collections.Counter()
        self._taken: collections.Counter[tuple[str, str]] = collections.Counter()
        self._unseen: set[tuple[str, str]] = set()
        self._ended = threading.Event()
        self._complete = False
        self.went_beyond = False
        """Whether the replay issued a command that history does not have. Core will send it."""
        self.task = PendingTask()
        self.reads = Reads()
        """Reads for the workflow's own payloads."""
        self.prefetched = Reads()
        """Reads of the prefetch."""
        self.scan_seconds = 0.0
        """Time in seconds that the replay waited for the history to be read."""
        self.was_evicted = False
        """Whether this worker had the run in its cache before, and evicted it."""
        self.last_worker = LastWorker()
        self.is_worker_lost: Future[bool] = Future()
        """Whether the last worker went away without a shutdown. Set once that is known."""
        self.consumption = Consumption()
        self.drain: Drain | None = None
        """With `mode="read"`: decides whether the run goes on offloading."""

    def add(self, event: HistoryEvent) -> None:
        """Count an event of the history."""
        if self.drain is not None:
            self.drain.note(event)
        self.task = self.task.advance(event)
        kind = event.WhichOneof("attributes")
        if kind is not None:
            self.last_worker.add_event(kind, event)
        events = self._events
        if events is not None and kind in _EVENTS:
            command, get_id = _EVENTS[kind]
            events[command, get_id(getattr(event, kind))] += 1

    def finish(self, *, complete: bool) -> None:
        """Note that no more of the history will be read."""
        self._complete = complete
        self._ended.set()

    @property
    def cause(self) -> str:
        """Cause of the replay, by the history and this worker's evictions.

        Empty if neither shows it. Then the cause depends on the state of the last worker.
        """
        if self.task.timed_out:
            return "crash"
        if self.task.was_reset:
            return "reset"
        if self.task.failed:
            return "failure"
        if self.last_worker.is_closed:
            return "closed"
        return "eviction" if self.was_evicted else ""

    def settle_worker(self, *, is_lost: bool) -> None:
        """Set whether the last worker is lost. Only the first call has an effect."""
        if not self.is_worker_lost.done():
            self.is_worker_lost.set_result(is_lost)

    @property
    def has_ended(self) -> bool:
        """Whether no more of the history will be read."""
        return self._ended.is_set()

    def holds_refs(self) -> bool:
        """Return whether the run is known to drain: it offloads although its worker writes plain."""
        return self.drain is not None and self.drain.holds_refs

    @property
    def is_complete(self) -> bool:
        """Whether all of the history has been read."""
        return self._complete

    def wait(self, seconds: float) -> None:
        """Wait until the history has been read, for at most `seconds`."""
        started = time.monotonic()
        self._ended.wait(seconds)
        self.scan_seconds = time.monotonic() - started

    def match_command(self, command: str, command_id: str = "") -> bool:
        """Return whether the next command of this kind and id is known to be in history."""
        if self._events is None:
            return False
        key = (command, command_id)
        self._taken[key] += 1
        if self._taken[key] <= self._events[key]:
            return True
        self._unseen.add(key)
        if self._complete:
            self.went_beyond = True
        return False

    def holds_all(self) -> bool:
        """Return whether history is known to hold all commands taken so far.

        Call it only in the workflow's thread, which is the thread that takes.
        """
        events = self._events
        if events is None:
            return False
        self._unseen = {key for key in self._unseen if self._taken[key] > events[key]}
        return not self._unseen

    def release(self) -> None:
        """Drop the counters after the replay.

        If Core replays to this instance again, no command counts as recorded. Their values are then
        kept, and Core discards those that it does not need.
        """
        if self._events is not None:
            self._events = None
            self._taken.clear()
            self._unseen.clear()

    def match_completion_command(self, command: WorkflowCommand) -> bool:
        """Call `match_command` for a command of a completion. False for kinds that carry no values."""
        kind = command.WhichOneof("variant") or ""
        if kind not in _COMMANDS:
            return False
        if kind == "schedule_activity":
            return self.match_command(kind, command.schedule_activity.activity_id)
        is_answer = kind == "update_response"
        if is_answer and not command.update_response.HasField("completed"):
            return False
        return self.match_command(
            kind, command.update_response.protocol_instance_id if is_answer else ""
        )


def in_event_loop() -> bool:
    """Return whether workflow code runs in the event loop's thread, as in the SDK's debug mode."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
