"""A replay writes nothing, unless it issues more than the server takes in one completion.

The SDK converts and encodes every command again when it replays, though Core discards those that it
finds in history. So while replaying, arguments that history is known to hold are dropped before they
are converted, and other values that it holds are taken out of the completion. What it may not hold
is kept, for Core may send it; the codec keeps it inline where it fits. Local activities are left
alone, since Core may run them again; their arguments never leave the worker.
"""

import dataclasses
from typing import Any, Final, NoReturn

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.worker import (
    ContinueAsNewInput,
    StartActivityInput,
    StartChildWorkflowInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)

from everlong.codecs.payloads import walk_encoded_payloads
from everlong.interceptors import drain, sdk_internals
from everlong.interceptors.headers import keep_nexus_header
from everlong.interceptors.history import RunHistory
from everlong.interceptors.sdk_internals import WorkflowActivationCompletion

# The name under which workflow code, in its sandbox, finds `RunHistory.take`.
TAKE: Final = "__everlong_take"
# Those whose arguments the interceptor drops. Of what is left of them, nothing is dropped later.
_INTERCEPTED: Final = {
    "schedule_activity",
    "start_child_workflow_execution",
    "continue_as_new_workflow_execution",
}
# A payload that says nothing, and that any codec takes.
_NOTHING: Final = Payload(metadata={"encoding": b"binary/null"})


class ReplayInterceptor(WorkflowInboundInterceptor):
    """Puts the outbound half into the chain. The first of the chain has the innermost."""

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """See `WorkflowInboundInterceptor`."""
        super().init(_ReplayOutbound(outbound))


class _ReplayOutbound(WorkflowOutboundInterceptor):
    """Drops the arguments that go out. What other interceptors see of them is untouched."""

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002
        input = drain.mark_result(input)  # noqa: A001
        # Asked first: without ids of its own, all activities are left to `drop_recorded`.
        next_id = sdk_internals.next_activity_id()
        if sdk_internals.is_on(sdk_internals.ACTIVITY_IDS):
            input = _drop_args(input, "schedule_activity", input.activity_id or next_id)  # noqa: A001
        return super().start_activity(input)

    def start_local_activity(
        self,
        input: StartLocalActivityInput,  # noqa: A002
    ) -> workflow.ActivityHandle[Any]:
        return super().start_local_activity(drain.mark_result(input))

    async def start_child_workflow(
        self,
        input: StartChildWorkflowInput,  # noqa: A002
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        marked = drain.mark_result(input)
        child = _drop_args(marked, "start_child_workflow_execution", input.id)
        return await super().start_child_workflow(child)

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:  # noqa: A002
        dropped = _drop_args(input, "continue_as_new_workflow_execution", "", memo=None)
        headers = drain.keep_drain_header(keep_nexus_header(input.headers))
        super().continue_as_new(dataclasses.replace(dropped, headers=headers))


def _drop_args(call: Any, command: str, command_id: str, **beside: None) -> Any:
    if not workflow.unsafe.is_replaying():
        return call
    is_recorded = workflow.extern_functions()[TAKE](command, command_id)
    return dataclasses.replace(call, args=[], **beside) if is_recorded else call


def drop_recorded(completion: WorkflowActivationCompletion, history: RunHistory) -> None:
    """Take out what history holds and no outbound interceptor sees: results, failures, memos."""
    intercepted = _INTERCEPTED
    if not sdk_internals.is_on(sdk_internals.ACTIVITY_IDS):
        # A command has its id, so its arguments, though converted by now, are not written again.
        intercepted = _INTERCEPTED - {"schedule_activity"}
    for command in completion.successful.commands:
        if command.WhichOneof("variant") in intercepted:
            continue
        if history.take_command(command):
            for payload in walk_encoded_payloads(command):
                payload.CopyFrom(_NOTHING)
