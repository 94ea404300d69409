"""Replay interceptor: drops recorded values, so that a replay writes nothing to the store.

The SDK converts and encodes every command again on a replay, although Core discards the commands that
history holds. Therefore arguments that history is known to hold are dropped before conversion, and other
recorded values are removed from the completion. A value that history may not hold is kept, since Core
may send it; the codec keeps it inline if it fits, and stores it only if the completion would exceed the
server's limit. Local activities are left alone: Core may run them again, and their arguments never leave
the worker.
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
from everlong.interceptors import read_mode, sdk_internals
from everlong.interceptors.headers import keep_nexus_header
from everlong.interceptors.run_history import RunHistory
from everlong.interceptors.sdk_internals import WorkflowActivationCompletion

# Name of the extern function through which sandboxed workflow code calls `RunHistory.match_command`.
MATCH_COMMAND: Final = "__everlong_match_command"
# Commands whose arguments the interceptor drops. `drop_recorded` skips them: `match_command` may
# be called only once for each command.
_INTERCEPTED: Final = {
    "schedule_activity",
    "start_child_workflow_execution",
    "continue_as_new_workflow_execution",
}
# An empty payload that any codec accepts.
_NOTHING: Final = Payload(metadata={"encoding": b"binary/null"})


class ReplayInterceptor(WorkflowInboundInterceptor):
    """Adds the outbound half to the chain. It must be the first interceptor, to be the innermost."""

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """See `WorkflowInboundInterceptor`."""
        super().init(_ReplayOutbound(outbound))


class _ReplayOutbound(WorkflowOutboundInterceptor):
    """Drops recorded arguments. Other interceptors are outside of this one and see them all."""

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002
        input = read_mode.mark_result(input)  # noqa: A001
        # Called first: it may switch the feature off, and then `drop_recorded` handles all activities.
        next_id = sdk_internals.next_activity_id()
        if sdk_internals.is_on(sdk_internals.ACTIVITY_IDS):
            input = _drop_args(input, "schedule_activity", input.activity_id or next_id)  # noqa: A001
        return super().start_activity(input)

    def start_local_activity(
        self,
        input: StartLocalActivityInput,  # noqa: A002
    ) -> workflow.ActivityHandle[Any]:
        return super().start_local_activity(read_mode.mark_result(input))

    async def start_child_workflow(
        self,
        input: StartChildWorkflowInput,  # noqa: A002
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        marked = read_mode.mark_result(input)
        child = _drop_args(marked, "start_child_workflow_execution", input.id)
        return await super().start_child_workflow(child)

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:  # noqa: A002
        dropped = _drop_args(input, "continue_as_new_workflow_execution", "", memo=None)
        headers = read_mode.keep_drain_header(keep_nexus_header(input.headers))
        super().continue_as_new(dataclasses.replace(dropped, headers=headers))


def _drop_args(call: Any, command: str, command_id: str, **dropped: None) -> Any:
    if not workflow.unsafe.is_replaying():
        return call
    is_recorded = workflow.extern_functions()[MATCH_COMMAND](command, command_id)
    return dataclasses.replace(call, args=[], **dropped) if is_recorded else call


def drop_recorded(completion: WorkflowActivationCompletion, history: RunHistory) -> None:
    """Remove recorded values that no outbound interceptor sees: results, failures, memos."""
    intercepted = _INTERCEPTED
    if not sdk_internals.is_on(sdk_internals.ACTIVITY_IDS):
        # The command has its id by now, so its converted arguments can still be dropped unwritten.
        intercepted = _INTERCEPTED - {"schedule_activity"}
    for command in completion.successful.commands:
        if command.WhichOneof("variant") in intercepted:
            continue
        if history.match_completion_command(command):
            for payload in walk_encoded_payloads(command):
                payload.CopyFrom(_NOTHING)
