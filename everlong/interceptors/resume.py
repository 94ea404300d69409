"""The resume span: one for every time that a worker picks up a thread it has no memory of.

A resume is an instance whose first activation replays. It ends with the first activation that does
not (`live`), with the query that caused it (`query`), or because the worker dropped the thread
before it got there (`evicted`). A first execution and a warm step are not resumes.
"""

import time
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import Tracer
from temporalio import workflow
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from everlong.interceptors.activation import ActivationHook

RESUME_SPAN: Final = "everlong.resume"

# The server's clock may be off from ours. A task that seems to have started longer ago than any
# task timeout (10 s by default) would make nonsense of the span.
_TASK_AGE_SECONDS_MAX: Final = 60.0


class ResumeHook(ActivationHook):
    """Watches one workflow instance and emits its resume span, if it is a resume."""

    def __init__(self, tracer: Tracer, info: workflow.Info) -> None:
        self._tracer = tracer
        self._info = info
        self._created_ns = time.time_ns()
        self._events_replayed = 0
        self._activations_replayed = 0
        self._done = False

    def activated(
        self, activation: WorkflowActivation, completion: WorkflowActivationCompletion
    ) -> None:
        """See `ActivationHook`."""
        if self._done:
            return
        jobs = {job.WhichOneof("variant") for job in activation.jobs}
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
        started_ns = self._created_ns
        if end == "live":
            # The server's start of the task comes before the worker saw it: the history that has to
            # arrive first is a part of the resume.
            task_started_ns = activation.timestamp.ToNanoseconds()
            if 0 < started_ns - task_started_ns < _TASK_AGE_SECONDS_MAX * 1e9:
                started_ns = task_started_ns
        span = self._tracer.start_span(
            RESUME_SPAN,
            context=Context(),
            start_time=started_ns,
            attributes={
                "gen_ai.conversation.id": self._info.workflow_id,
                "everlong.run.id": self._info.run_id,
                "everlong.workflow.type": self._info.workflow_type,
                "everlong.resume.end": end,
                "everlong.resume.events": self._events_replayed,
                "everlong.resume.activations": self._activations_replayed,
                "everlong.resume.history_bytes": activation.history_size_bytes,
            },
        )
        span.end(end_time=time.time_ns())
