"""Resume spans, and continue-as-new spans.

A resume is a workflow instance whose first activation replays. It ends with the first activation that
does not replay (`live`), with a query that it answers (`query`), or because the worker evicted the run
before either (`evicted`). A first execution and a step on a warm worker are not resumes.

The cause of a resume is recorded apart from its end, since a query may be the first to reach a thread
after a crash. `RunHistory.cause` has the cause. If it is empty, the cause is `crash` if the run's last
worker was lost (`last_worker`), and else `new_worker`.

The parts of a resume are child spans, one after another, that add up to the resume: history (from the
server's start of the task until the worker has it), scan (the wait until the worker has read the history
itself), read (payloads from the store), replay (all else up to the activation that ends the resume) and
command (that activation). The attribute `<part>_seconds` is the duration of the child. Reads between
replayed activations are shown as one span, before the replay. The time in the queue comes before the
resume, as its own span.
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
from everlong.interceptors.run_history import RunHistory
from everlong.interceptors.sdk_internals import (
    InitializeWorkflow,
    WorkflowActivation,
    WorkflowActivationCompletion,
)
from everlong.models import AGENT_WORKFLOW
from everlong.telemetry import Spans, Telemetry
from everlong.telemetry.spans import (
    AGENT,
    CONTINUE_AS_NEW,
    RESUME,
    RUN,
    THREAD,
    Attributes,
    RecentRuns,
    ResumeSummary,
    TurnSpan,
)

# The server's clock may differ from ours. A start that is longer ago than any task timeout (10 s by
# default) is ignored.
_TASK_AGE_NS_MAX: Final = 60 * 10**9

PARTS: Final = ("history", "scan", "read", "replay", "command")
"""Child spans of a resume, in order."""


@dataclasses.dataclass(frozen=True)
class _Times:
    """Start of a resume, and the durations of its parts."""

    queued_ns: int
    """Time in the queue, before the start."""
    started_ns: int
    parts_ns: Sequence[int]
    """Durations in the order of `PARTS`. They add up to the resume."""


@dataclasses.dataclass(frozen=True)
class StartArgument:
    """The fields of a thread's start argument that spans need."""

    agent: str = ""
    turn_number: int = 0
    """Number of the turn that the run continues; 0 if it continues none."""
    turn_ms: int = 0
    """Start of that turn, or of its part in the previous run, in Unix milliseconds."""
    carried_after: str = ""
    """Id of the run before the previous one."""


def parse_start(init: InitializeWorkflow) -> StartArgument:
    """Parse the start argument of a thread's run. Other workflows and formats give the defaults."""
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
        return StartArgument()  # A user's converter may write another format than JSON.


def build_run_attributes(info: workflow.Info, agent: str) -> Attributes:
    """Return the attributes that identify a run's spans."""
    found = {
        THREAD: info.workflow_id,
        RUN: info.run_id,
        "everlong.workflow.type": info.workflow_type,
    }
    return {**found, AGENT: agent} if agent else found


@dataclasses.dataclass(frozen=True)
class ResumeLog:
    """Evictions and last resumes of all runs of a process."""

    telemetry: Telemetry
    evicted: RecentRuns[bool] = dataclasses.field(default_factory=RecentRuns)
    """Runs that a worker of this process has evicted."""
    last: RecentRuns[ResumeSummary] = dataclasses.field(default_factory=RecentRuns)
    """Last resume of each run. The next model call takes it, to publish and journal it."""


class ResumeHook(ActivationHook):
    """Emits the resume span of one workflow instance, if it resumes."""

    def __init__(self, resumes: ResumeLog, info: workflow.Info, history: RunHistory) -> None:
        self._resumes = resumes
        self._info = info
        self._history = history
        history.was_evicted = bool(resumes.evicted.pop(info.run_id))
        # The payloads of the first activation have been read by now.
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
            return  # A first execution: nothing was replayed.
        times = self._measure(end, activation, time.time_ns())
        attributes = self._build_attributes(end, activation, times)

        def emit(is_worker_lost: bool) -> None:
            cause = self._history.cause or ("crash" if is_worker_lost else "new_worker")
            self._emit(end, cause, attributes, times)

        lost = self._history.is_worker_lost
        if self._history.cause or end == "evicted":
            emit(lost.done() and lost.result())
        else:
            # Usually the look-up is done by now. If not, the event loop emits the span afterwards.
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
            # Also after a query: the next step finds the run in the cache and is no resume.
            resumed = ResumeSummary(seconds * 1000, cause, self._events_replayed)
            self._resumes.last.put(self._info.run_id, resumed)

    def _measure(self, end: str, activation: WorkflowActivation, ended_ns: int) -> _Times:
        started_ns = self._get_started_ns(activation) if end == "live" else self._arrived_ns
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

    def _get_started_ns(self, activation: WorkflowActivation) -> int:
        """Return when the server started the task, if its clock is plausible.

        That is earlier than the worker's first sight of the task, since the history must arrive first.
        """
        started_ns = activation.timestamp.ToNanoseconds()
        is_sound = 0 < self._arrived_ns - started_ns < _TASK_AGE_NS_MAX
        return started_ns if is_sound else self._arrived_ns

    def _build_attributes(
        self, end: str, activation: WorkflowActivation, times: _Times
    ) -> Attributes:
        history, reads = self._history, self._history.reads
        task, prefetched = history.task, history.prefetched
        # The replay finds in the cache what the prefetch and the first activation have read. These
        # objects were not in the cache when the resume began, so they do not count as hits.
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


class ContinueAsNewHook(ActivationHook):
    """Emits the last spans of the previous run, on the first activation of a run that continues it.

    These are the continue-as-new span and the span of the turn's part in that run. The new run emits
    them, since only its start proves that the previous run was continued. A retried first task emits the
    same spans again, with the same ids.
    """

    def __init__(self, spans: Spans, info: workflow.Info) -> None:
        self._spans = spans
        self._info = info
        self._first = True

    def before_activation(self, activation: WorkflowActivation) -> None:
        """See `ActivationHook`."""
        if self._first and not activation.is_replaying:
            for job in activation.jobs:
                if job.HasField("initialize_workflow"):
                    self._emit(job.initialize_workflow)
        self._first = False

    def _emit(self, init: InitializeWorkflow) -> None:
        last_run = init.continued_from_execution_run_id
        rolled = ContinueAsNewInitiator.CONTINUE_AS_NEW_INITIATOR_WORKFLOW
        if not last_run or init.continued_initiator != rolled:
            return  # A first run, a retry or a cron run.
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
