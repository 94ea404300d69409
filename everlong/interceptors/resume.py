"""The resume span: one for every time that a worker picks up a thread it has no memory of.

A resume is an instance whose first activation replays. It ends with the first activation that does
not (`live`), with a query that it answers (`query`), or because the worker dropped the thread
before it got there (`evicted`). A first execution and a warm step are not resumes.

What caused a resume is kept apart from what it served, which is how it ends: a query may be the first
to reach a thread after a crash. The causes are those of `RunHistory.cause`; if that is empty, `crash` if
the run's last worker was lost (`last_worker`), else `new_worker`.

The parts of a resume are children of its span, one after another, and together they are the span:
history (from the server's start of the task until the worker has it), scan (the wait until the worker
has read the history itself), read (payloads from the store), replay (all else up to the activation
that ends the resume) and command (that activation). The attribute `<part>_seconds` is the length of the
child. Reads between replayed activations are drawn as one, before the replay. The time in the queue
comes before the resume, as a span of its own.
"""

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from temporalio import workflow
from temporalio.api.enums.v1 import ContinueAsNewInitiator

from everlong.interceptors.activation import ActivationHook
from everlong.interceptors.history import RunHistory
from everlong.interceptors.sdk_internals import (
    InitializeWorkflow,
    WorkflowActivation,
    WorkflowActivationCompletion,
)
from everlong.models import AGENT_WORKFLOW
from everlong.telemetry import Spans, Telemetry
from everlong.telemetry.resumes import RecentRuns, ResumeSummary
from everlong.telemetry.spans import (
    AGENT,
    CONTINUE_AS_NEW,
    RESUME,
    RUN,
    THREAD,
    Attributes,
    TurnSpan,
)

# The server's clock may be off from ours. A task that seems to have started longer ago than any
# task timeout (10 s by default) would make nonsense of the span.
_TASK_AGE_NS_MAX: Final = 60 * 10**9


PARTS: Final = ("history", "scan", "read", "replay", "command")
"""The children of a resume, in order."""


@dataclasses.dataclass(frozen=True)
class _Times:
    """When a resume began, and how long its parts took."""

    queued_ns: int
    """Before it began."""
    started_ns: int
    parts_ns: Sequence[int]
    """As in `PARTS`. Their sum is the whole."""


@dataclasses.dataclass(frozen=True)
class ResumeLog:
    """What a worker remembers of resumes, for all runs."""

    telemetry: Telemetry
    evicted: RecentRuns[bool] = dataclasses.field(default_factory=RecentRuns)
    """Runs that this worker had, and dropped."""
    last: RecentRuns[ResumeSummary] = dataclasses.field(default_factory=RecentRuns)
    """The last resume of a run, for the run to publish and to journal."""


class ResumeHook(ActivationHook):
    """Watches one workflow instance and emits its resume span, if it is a resume."""

    def __init__(self, resumes: ResumeLog, info: workflow.Info, history: RunHistory) -> None:
        self._resumes = resumes
        self._info = info
        self._history = history
        history.was_evicted = bool(resumes.evicted.pop(info.run_id))
        # The first payloads have been read by now.
        self._arrived_ns = time.time_ns() - int(history.reads.seconds * 1e9)
        self._first_misses = history.reads.misses
        self._activating_ns = 0
        self._events_replayed = 0
        self._activations_replayed = 0
        self._agent = ""
        self._done = False

    def before_activation(self, activation: WorkflowActivation) -> None:
        """See `ActivationHook`."""
        self._activating_ns = time.time_ns()
        for job in activation.jobs:
            if activation.is_replaying and job.HasField("initialize_workflow"):
                self._agent = parse_start(job.initialize_workflow).agent

    def after_activation(
        self, activation: WorkflowActivation, completion: WorkflowActivationCompletion
    ) -> None:
        """See `ActivationHook`."""
        jobs = {job.WhichOneof("variant") for job in activation.jobs}
        if jobs == {"remove_from_cache"}:
            self._resumes.evicted.put(self._info.run_id, True)
        if self._done:
            return
        if jobs == {"remove_from_cache"}:
            self._finish("evicted", activation)
        elif not activation.is_replaying:
            self._finish("live", activation)
        elif jobs == {"query_workflow"}:
            self._finish("query", activation)
        else:
            self._activations_replayed += 1
            self._events_replayed = activation.history_length

    def _finish(self, end: str, activation: WorkflowActivation) -> None:
        self._done = True
        if not self._activations_replayed:
            return  # Nothing was replayed: a first execution.
        times = self._times(end, activation, time.time_ns())
        attributes = self._attributes(end, activation, times)

        def emit(is_worker_lost: bool) -> None:
            cause = self._history.cause or ("crash" if is_worker_lost else "new_worker")
            self._emit(end, cause, attributes, times)

        lost = self._history.is_worker_lost
        if self._history.cause or end == "evicted":
            emit(lost.done() and lost.result())
        else:
            # Mostly it is known by now. If not, the event loop emits the span once it is.
            lost.add_done_callback(lambda done: emit(done.result()))

    def _emit(self, end: str, cause: str, attributes: Attributes, times: _Times) -> None:
        telemetry = self._resumes.telemetry
        own = build_run_attributes(self._info, self._agent)
        run_id = self._info.run_id
        links = telemetry.spans.link_previous_run(self._info.continued_run_id or "")
        at_ns = times.started_ns
        if times.queued_ns:
            queue = telemetry.spans.start(
                f"{RESUME}.queue", own, run_id=run_id, links=links, start_ns=at_ns - times.queued_ns
            )
            telemetry.spans.end(queue, at_ns)
        span = telemetry.spans.start(
            RESUME,
            {**own, **attributes, f"{RESUME}.cause": cause},
            run_id=run_id,
            links=links,
            start_ns=at_ns,
        )
        place = span.get_span_context()
        for name, part_ns in zip(PARTS, times.parts_ns, strict=True):
            part = telemetry.spans.start(f"{RESUME}.{name}", own, parent=place, start_ns=at_ns)
            at_ns += part_ns
            telemetry.spans.end(part, at_ns)
        telemetry.spans.end(span, at_ns)
        context = trace.set_span_in_context(span, Context())
        seconds = (at_ns - times.started_ns) / 1e9
        labels = {"cause": cause, "end": end}
        telemetry.meters.record("everlong.resume.duration", seconds, labels, context)
        if end != "evicted":
            # After a query too: the next step finds the thread in memory and is no resume.
            resumed = ResumeSummary(seconds * 1000, cause, self._events_replayed)
            self._resumes.last.put(self._info.run_id, resumed)

    def _times(self, end: str, activation: WorkflowActivation, ended_ns: int) -> _Times:
        started_ns = self._started_ns(activation) if end == "live" else self._arrived_ns
        scheduled_ns = self._history.task.scheduled_ns if end == "live" else 0
        live_ns = ended_ns if end == "evicted" else self._activating_ns
        left_ns = live_ns - self._arrived_ns
        read_ns = min(int(self._history.reads.seconds * 1e9), left_ns)
        scan_ns = min(int(self._history.scan_seconds * 1e9), left_ns - read_ns)
        return _Times(
            queued_ns=max(0, started_ns - scheduled_ns) if scheduled_ns else 0,
            started_ns=started_ns,
            parts_ns=(
                self._arrived_ns - started_ns,
                scan_ns,
                read_ns,
                left_ns - read_ns - scan_ns,
                ended_ns - live_ns,
            ),
        )

    def _started_ns(self, activation: WorkflowActivation) -> int:
        """Return when the server started the task, if its clock can be believed.

        That comes before the worker saw it: the history that has to arrive first is a part of it.
        """
        started_ns = activation.timestamp.ToNanoseconds()
        is_sound = 0 < self._arrived_ns - started_ns < _TASK_AGE_NS_MAX
        return started_ns if is_sound else self._arrived_ns

    def _attributes(self, end: str, activation: WorkflowActivation, times: _Times) -> Attributes:
        history, reads = self._history, self._history.reads
        task, prefetched = history.task, history.prefetched
        # What is read ahead is in the cache when the replay asks for it. Neither that, nor what the
        # first payloads have put there, was in the cache when the resume began.
        again = prefetched.hits + prefetched.misses
        hits = prefetched.hits - self._first_misses if again else 0
        return {
            f"{RESUME}.end": end,
            f"{RESUME}.attempt": task.attempt,
            f"{RESUME}.events": self._events_replayed,
            f"{RESUME}.activations": self._activations_replayed,
            f"{RESUME}.history_bytes": activation.history_size_bytes,
            f"{RESUME}.blobs": reads.blobs,
            f"{RESUME}.bytes": reads.bytes + prefetched.bytes,
            f"{RESUME}.cache.hits": max(0, hits + max(0, reads.hits - again)),
            f"{RESUME}.cache.misses": reads.misses + prefetched.misses,
            f"{RESUME}.prefetch.blobs": prefetched.blobs,
            f"{RESUME}.prefetch.bytes": prefetched.bytes,
            f"{RESUME}.queue_seconds": times.queued_ns / 1e9,
            **{
                f"{RESUME}.{name}_seconds": part_ns / 1e9
                for name, part_ns in zip(PARTS, times.parts_ns, strict=True)
            },
        }


# What a run says of the one before it, when it begins: that it ended, and the turn's part in it.
#
# It is told here, since only a run that has begun is sure to have been wanted. A first task that
# is tried again tells of the same spans.
#
@dataclasses.dataclass(frozen=True)
class StartArgument:
    """What a thread's run was started with, as far as spans have to know."""

    agent: str = ""
    turn_number: int = 0
    """Of the turn that it goes on with; 0 if there is none."""
    turn_ms: int = 0
    """When that turn began, or its part in the last run."""
    carried_after: str = ""
    """The run before the last."""


def parse_start(init: InitializeWorkflow) -> StartArgument:
    """Read the argument of a thread's run. Of another workflow, or in another form, nothing is known."""
    if init.workflow_type != AGENT_WORKFLOW or not init.arguments:
        return StartArgument()
    try:
        start: dict[str, Any] = json.loads(init.arguments[0].data)
        state: dict[str, Any] = start.get("state") or {}
        answered = int((state.get("counters") or {}).get("answered", 0))
        return StartArgument(
            agent=str(start["agent"]),
            turn_number=answered + 1 if state.get("in_turn") else 0,
            turn_ms=int(state.get("turn_ms", 0)),
            carried_after=str(state.get("carried_after", "")),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return StartArgument()  # A team's converter writes no JSON.


def build_run_attributes(info: workflow.Info, agent: str) -> Attributes:
    """Return the attributes by which a run's spans are found."""
    found = {
        THREAD: info.workflow_id,
        RUN: info.run_id,
        "everlong.workflow.type": info.workflow_type,
    }
    return {**found, AGENT: agent} if agent else found


class ContinueAsNewHook(ActivationHook):
    """Watches for the first activation of a run that continues another."""

    def __init__(self, spans: Spans, info: workflow.Info) -> None:
        self._spans = spans
        self._info = info
        self._first = True

    def before_activation(self, activation: WorkflowActivation) -> None:
        """See `ActivationHook`."""
        if self._first and not activation.is_replaying:
            for job in activation.jobs:
                if job.HasField("initialize_workflow"):
                    self._tell(job.initialize_workflow)
        self._first = False

    def _tell(self, init: InitializeWorkflow) -> None:
        last_run = init.continued_from_execution_run_id
        rolled = ContinueAsNewInitiator.CONTINUE_AS_NEW_INITIATOR_WORKFLOW
        if (
            not last_run or init.continued_initiator != rolled
        ):  # Retries and crons are none of ours.
            return
        now_ns = time.time_ns()
        began_ns = min(init.start_time.ToNanoseconds(), now_ns)
        started = parse_start(init)
        span = self._spans.start(
            CONTINUE_AS_NEW,
            {
                **build_run_attributes(self._info, started.agent),
                RUN: last_run,
                "everlong.next_run.id": self._info.run_id,
                "everlong.continue_as_new.bytes": sum(len(each.data) for each in init.arguments),
            },
            run_id=last_run,
            key=last_run,
            start_ns=began_ns,
        )
        self._spans.end(span, now_ns)
        if started.turn_number and started.turn_ms:
            part = TurnSpan(
                thread_id=self._info.workflow_id,
                run_id=last_run,
                agent=started.agent,
                number=started.turn_number,
            )
            began_ms = began_ns // 1_000_000
            part.emit(self._spans, started.turn_ms, began_ms, started.carried_after, "continued")
