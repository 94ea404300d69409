"""What of a workflow's commands its history holds already.

Core discards a command that a replay issues again, if history has the event that it led to. If not,
as when new code goes further than the old did, Core keeps the command and sends it once the replay is
over. So a value may be dropped only where the event is known to be there. The events are counted as
the history is read, and each command takes the next one of its kind and id.
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

# The command that an event comes from, and how to tell one from another of the same kind.
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
_COMMANDS: Final = {command for command, _ in _EVENTS.values()}


@dataclasses.dataclass
class PendingTask:
    """What a history says of the workflow task that is under way, and of those before it."""

    scheduled_ns: int = 0
    """When it was first wanted: tasks that failed or timed out since are tries of the same."""
    attempt: int = 1
    failed: bool = False
    """Whether a try failed: code or a codec raised."""
    was_reset: bool = False
    """Whether somebody has set the workflow back to this point."""
    timed_out: bool = False
    """Whether the worker of a try was gone, or died during it."""

    def advance(self, event: HistoryEvent) -> "PendingTask":
        """Return what is known after one more event."""
        kind = event.WhichOneof("attributes")
        if kind == "workflow_task_scheduled_event_attributes":
            self.scheduled_ns = self.scheduled_ns or event.event_time.ToNanoseconds()
            # The server begins to count anew after some failures, and leaves others out of history.
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


class RunHistory:
    """The events of one run that commands led to, as far as they have been read.

    Filled in the worker's event loop, asked in the SDK's workflow threads. The counters are kept for
    the replay only: a worker keeps the instance in its cache for as long as it can.
    """

    def __init__(self) -> None:
        # None after `release`. The event loop adds to the counter that it has just looked up, so what
        # it adds while a workflow thread releases goes into a counter that is not kept.
        self._events: collections.Counter[tuple[str, str]] | None = collections.Counter()
        self._taken: collections.Counter[tuple[str, str]] = collections.Counter()
        self._unseen: set[tuple[str, str]] = set()
        self._ended = threading.Event()
        self._complete = False
        self.went_beyond = False
        """Whether a command was issued that history does not have: it will be sent."""
        self.task = PendingTask()
        self.reads = Reads()
        """What the workflow's own payloads took to read."""
        self.prefetched = Reads()
        """What was read ahead of them."""
        self.scan_seconds = 0.0
        """How long the replay waited until the history had been read here."""
        self.was_evicted = False
        """Whether this worker had the run before, and dropped it."""
        self.last_worker = LastWorker()
        self.is_worker_lost: Future[bool] = Future()
        """Whether the last worker is gone without having been shut down, once that is known."""
        self.consumption = Consumption()
        self.drain: Drain | None = None
        """Where the worker has `mode="read"`: whether the run goes on offloading."""

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
            command, id_of = _EVENTS[kind]
            events[command, id_of(getattr(event, kind))] += 1

    def finish(self, *, complete: bool) -> None:
        """Tell that no more of the history will be read."""
        self._complete = complete
        self._ended.set()

    @property
    def cause(self) -> str:
        """Why the run has to be replayed, by its history and this worker's memory.

        Empty if neither tells: then it depends on what became of the last worker.
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
        """Say what became of the last worker. The first answer counts."""
        if not self.is_worker_lost.done():
            self.is_worker_lost.set_result(is_lost)

    @property
    def has_ended(self) -> bool:
        """Whether no more of the history will be read."""
        return self._ended.is_set()

    def holds_refs(self) -> bool:
        """Tell whether the run is known to drain: it offloads though its worker writes plain."""
        return self.drain is not None and self.drain.holds_refs

    @property
    def is_complete(self) -> bool:
        """Whether all of the history has been read."""
        return self._complete

    def wait(self, seconds: float) -> None:
        """Wait until the history has been read, or the time is over."""
        started = time.monotonic()
        self._ended.wait(seconds)
        self.scan_seconds = time.monotonic() - started

    def take(self, command: str, command_id: str = "") -> bool:
        """Tell whether the next command of this kind and id is known to be in history."""
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
        """Whether history is known by now to hold all commands that were taken.

        Only the workflow's thread may ask: it is the one that takes.
        """
        events = self._events
        if events is None:
            return False
        self._unseen = {key for key in self._unseen if self._taken[key] > events[key]}
        return not self._unseen

    def release(self) -> None:
        """Drop the counters: the replay is over.

        If Core should replay to this instance again, no command counts as history. So their values
        are kept, and Core discards what it does not need.
        """
        if self._events is not None:
            self._events = None
            self._taken.clear()
            self._unseen.clear()

    def take_command(self, command: WorkflowCommand) -> bool:
        """Do the same for a command as it is sent to Core."""
        kind = command.WhichOneof("variant") or ""
        if kind not in _COMMANDS:
            return False
        if kind == "schedule_activity":
            return self.take(kind, command.schedule_activity.activity_id)
        is_answer = kind == "update_response"
        if is_answer and not command.update_response.HasField("completed"):
            return False
        return self.take(kind, command.update_response.protocol_instance_id if is_answer else "")


# Consumption: payload bytes that workflow code has been handed, which a replay has to read again.
#
# The count decides when a workflow continues as new (`everlong.workflows.should_continue_as_new`), so it
# is the same in every replay. It counts decoded bytes of the jobs of activations. It leaves out what no
# history holds, queries and updates that were not accepted; and what the run was started with, since the
# next run would be started with it too.
#
_NOT_CONSUMED: Final = frozenset({"initialize_workflow", "query_workflow"})


class Consumption:
    """Counts the payload bytes of one workflow instance, activation by activation."""

    def __init__(self) -> None:
        self._bytes = 0
        self._offered: dict[str, int] = {}

    def consumed_bytes(self) -> int:
        """Return the bytes up to and including the activation that is being carried out."""
        return self._bytes

    def count_jobs(self, activation: WorkflowActivation) -> None:
        """Count what an activation is about to hand over."""
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
        """Count the updates that were accepted."""
        for command in completion.successful.commands:
            if command.HasField("update_response") and command.update_response.HasField("accepted"):
                instance_id = command.update_response.protocol_instance_id
                self._bytes += self._offered.pop(instance_id, 0)


def in_event_loop() -> bool:
    """Return whether this is the event loop's own thread: so it is in the SDK's debug mode."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
