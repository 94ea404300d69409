"""The resume span: one for every time that a worker picks up a thread it has no memory of.

A resume is an instance whose first activation replays. It ends with the first activation that does
not (`live`), with the query that caused it (`query`), or because the worker dropped the thread
before it got there (`evicted`). A first execution and a warm step are not resumes.

It has four parts. Together they are the span; what they took is in its attributes too:
history (from the server's start of the task until the worker has it), reads (payloads that lie in the
store), replay (all else up to the activation that ends the resume), and command (that activation).
"""

import dataclasses
import time
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from temporalio import workflow

from everlong.interceptors.activation import ActivationHook
from everlong.interceptors.recorded import Recorded
from everlong.interceptors.rolls import identity, started_with
from everlong.interceptors.sdk_internals import WorkflowActivation, WorkflowActivationCompletion
from everlong.telemetry import Telemetry
from everlong.telemetry.recent import Recent, Resumed
from everlong.telemetry.spans import RESUME, Attributes

# The server's clock may be off from ours. A task that seems to have started longer ago than any
# task timeout (10 s by default) would make nonsense of the span.
_TASK_AGE_NS_MAX: Final = 60 * 10**9


@dataclasses.dataclass(frozen=True)
class Resumes:
    """What a worker remembers of resumes, for all runs."""

    telemetry: Telemetry
    evicted: Recent[bool] = dataclasses.field(default_factory=Recent)
    """Runs that this worker had, and dropped."""
    last: Recent[Resumed] = dataclasses.field(default_factory=Recent)
    """The last resume of a run, for the run to publish and to journal."""


class ResumeHook(ActivationHook):
    """Watches one workflow instance and emits its resume span, if it is a resume."""

    def __init__(self, resumes: Resumes, info: workflow.Info, recorded: Recorded) -> None:
        self._resumes = resumes
        self._info = info
        self._recorded = recorded
        self._was_evicted = bool(resumes.evicted.take(info.run_id))
        # The first payloads have been read by now.
        self._arrived_ns = time.time_ns() - int(recorded.reads.seconds * 1e9)
        self._activating_ns = 0
        self._events_replayed = 0
        self._activations_replayed = 0
        self._agent = ""
        self._done = False

    def activating(self, activation: WorkflowActivation) -> None:
        """See `ActivationHook`."""
        self._activating_ns = time.time_ns()
        for job in activation.jobs:
            if activation.is_replaying and job.HasField("initialize_workflow"):
                self._agent = started_with(job.initialize_workflow).agent

    def activated(
        self, activation: WorkflowActivation, completion: WorkflowActivationCompletion
    ) -> None:
        """See `ActivationHook`."""
        jobs = {job.WhichOneof("variant") for job in activation.jobs}
        if jobs == {"remove_from_cache"}:
            self._resumes.evicted.note(self._info.run_id, True)
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
        ended_ns = time.time_ns()
        started_ns = self._started_ns(activation) if end == "live" else self._arrived_ns
        live_ns = ended_ns if end == "evicted" else self._activating_ns
        seconds = (ended_ns - started_ns) / 1e9
        telemetry = self._resumes.telemetry
        cause = self._cause(end)
        span = telemetry.spans.start(
            RESUME,
            self._attributes(end, cause, activation, started_ns, live_ns, ended_ns),
            run_id=self._info.run_id,
            links=telemetry.spans.links_to(self._info.continued_run_id or ""),
            start_ns=started_ns,
        )
        place = span.get_span_context()
        parts = (
            ("history", started_ns, self._arrived_ns),
            ("replay", self._arrived_ns, live_ns),
            ("command", live_ns, ended_ns),
        )
        for name, from_ns, to_ns in parts:
            part = telemetry.spans.start(
                f"{RESUME}.{name}",
                identity(self._info, self._agent),
                parent=place,
                start_ns=from_ns,
            )
            telemetry.spans.end(part, to_ns)
        telemetry.spans.end(span, ended_ns)
        context = trace.set_span_in_context(span, Context())
        labels = {"cause": cause, "end": end}
        telemetry.meters.record("everlong.resume.duration", seconds, labels, context)
        if end == "live":
            resumed = Resumed(seconds * 1000, cause, self._events_replayed)
            self._resumes.last.note(self._info.run_id, resumed)

    def _started_ns(self, activation: WorkflowActivation) -> int:
        """Return when the server started the task, if its clock can be believed.

        That comes before the worker saw it: the history that has to arrive first is a part of it.
        """
        started_ns = activation.timestamp.ToNanoseconds()
        is_sound = 0 < self._arrived_ns - started_ns < _TASK_AGE_NS_MAX
        return started_ns if is_sound else self._arrived_ns

    def _cause(self, end: str) -> str:
        if end == "query":
            return "query"
        if self._recorded.tasks.timed_out:
            return "crash"
        if self._recorded.tasks.was_reset:
            return "reset"
        if self._recorded.tasks.failed:
            return "failure"
        return "eviction" if self._was_evicted else "new_worker"

    def _attributes(
        self,
        end: str,
        cause: str,
        activation: WorkflowActivation,
        started_ns: int,
        live_ns: int,
        ended_ns: int,
    ) -> Attributes:
        recorded, reads = self._recorded, self._recorded.reads
        tasks, prefetched = recorded.tasks, recorded.prefetched
        queued_ns = started_ns - tasks.scheduled_ns if tasks.scheduled_ns and end == "live" else 0
        return {
            **identity(self._info, self._agent),
            "everlong.resume.end": end,
            "everlong.resume.cause": cause,
            "everlong.resume.attempt": tasks.attempt,
            "everlong.resume.events": self._events_replayed,
            "everlong.resume.activations": self._activations_replayed,
            "everlong.resume.history_bytes": activation.history_size_bytes,
            "everlong.resume.blobs": reads.blobs,
            "everlong.resume.bytes": reads.bytes + prefetched.bytes,
            "everlong.resume.cache.hits": reads.hits,
            "everlong.resume.cache.misses": reads.misses,
            "everlong.resume.prefetch.blobs": prefetched.blobs,
            "everlong.resume.prefetch.bytes": prefetched.bytes,
            "everlong.resume.prefetch.wait_seconds": recorded.waited_seconds,
            "everlong.resume.queue_seconds": max(0, queued_ns) / 1e9,
            "everlong.resume.history_seconds": (self._arrived_ns - started_ns) / 1e9,
            "everlong.resume.read_seconds": reads.seconds,
            "everlong.resume.replay_seconds": (live_ns - self._arrived_ns) / 1e9 - reads.seconds,
            "everlong.resume.command_seconds": (ended_ns - live_ns) / 1e9,
        }
