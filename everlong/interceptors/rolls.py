"""What a run says of the one before it, when it begins: that it ended, and the turn's part in it.

It is told here, since only a run that has begun is sure to have been wanted. A first task that is tried
again tells of the same spans.
"""

import dataclasses
import json
import time
from typing import Any

from temporalio import workflow
from temporalio.api.enums.v1 import ContinueAsNewInitiator

from everlong.interceptors.activation import ActivationHook
from everlong.interceptors.sdk_internals import InitializeWorkflow, WorkflowActivation
from everlong.models import AGENT_WORKFLOW
from everlong.telemetry import Spans
from everlong.telemetry.spans import AGENT, CONTINUE_AS_NEW, RUN, THREAD, Attributes
from everlong.telemetry.turns import TurnPart


@dataclasses.dataclass(frozen=True)
class Started:
    """What a thread's run was started with, as far as spans have to know."""

    agent: str = ""
    turn_number: int = 0
    """Of the turn that it goes on with; 0 if there is none."""
    turn_ms: int = 0
    """When that turn began, or its part in the last run."""
    carried_after: str = ""
    """The run before the last."""


def started_with(init: InitializeWorkflow) -> Started:
    """Read the argument of a thread's run. Of another workflow, or in another form, nothing is known."""
    if init.workflow_type != AGENT_WORKFLOW or not init.arguments:
        return Started()
    try:
        start: dict[str, Any] = json.loads(init.arguments[0].data)
        state: dict[str, Any] = start.get("state") or {}
        answered = int((state.get("counters") or {}).get("answered", 0))
        return Started(
            agent=str(start["agent"]),
            turn_number=answered + 1 if state.get("in_turn") else 0,
            turn_ms=int(state.get("turn_ms", 0)),
            carried_after=str(state.get("carried_after", "")),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return Started()  # A team's converter writes no JSON.


def identity(info: workflow.Info, agent: str) -> Attributes:
    """Return the attributes by which a run's spans are found."""
    found = {
        THREAD: info.workflow_id,
        RUN: info.run_id,
        "everlong.workflow.type": info.workflow_type,
    }
    return {**found, AGENT: agent} if agent else found


class RollHook(ActivationHook):
    """Watches for the first activation of a run that continues another."""

    def __init__(self, spans: Spans, info: workflow.Info) -> None:
        self._spans = spans
        self._info = info
        self._first = True

    def activating(self, activation: WorkflowActivation) -> None:
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
        started = started_with(init)
        span = self._spans.start(
            CONTINUE_AS_NEW,
            {
                **identity(self._info, started.agent),
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
            part = TurnPart(
                thread_id=self._info.workflow_id,
                run_id=last_run,
                agent=started.agent,
                number=started.turn_number,
            )
            began_ms = began_ns // 1_000_000
            part.emit(self._spans, started.turn_ms, began_ms, started.carried_after, "continued")
