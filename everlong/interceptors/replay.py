"""A replay writes nothing.

The SDK converts and encodes every command again when it replays, though Core discards the bytes: it
matches commands with history by their kind and id. So while replaying, arguments are dropped before
they are converted, and what cannot be reached there is taken out of the completion. Local activities
are left alone, since Core may run them again; their arguments never leave the worker.
"""

import dataclasses
from typing import Any, Final, NoReturn

from temporalio import workflow
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import (
    ContinueAsNewInput,
    SignalChildWorkflowInput,
    SignalExternalWorkflowInput,
    StartActivityInput,
    StartChildWorkflowInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)

from everlong.interceptors.nexus import passed_on
from everlong.interceptors.payloads import payloads_of

# An answer to a query is wanted also while replaying; a local activity may be run again.
_KEPT: Final = {"respond_to_query", "schedule_local_activity"}


class ReplayInterceptor(WorkflowInboundInterceptor):
    """Puts the outbound half into the chain. The first of the chain has the innermost."""

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """See `WorkflowInboundInterceptor`."""
        super().init(_DropWhileReplaying(outbound))


class _DropWhileReplaying(WorkflowOutboundInterceptor):
    """Drops the arguments that go out. What other interceptors see of them is untouched."""

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002
        return super().start_activity(_dropped(input))

    async def start_child_workflow(
        self,
        input: StartChildWorkflowInput,  # noqa: A002
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        return await super().start_child_workflow(_dropped(input))

    async def signal_child_workflow(self, input: SignalChildWorkflowInput) -> None:  # noqa: A002
        await super().signal_child_workflow(_dropped(input))

    async def signal_external_workflow(
        self,
        input: SignalExternalWorkflowInput,  # noqa: A002
    ) -> None:
        await super().signal_external_workflow(_dropped(input))

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:  # noqa: A002
        headers = passed_on(input.headers)
        super().continue_as_new(dataclasses.replace(_dropped(input), headers=headers))


def _dropped(call: Any) -> Any:
    return dataclasses.replace(call, args=[]) if workflow.unsafe.is_replaying() else call


def drop_values(completion: WorkflowActivationCompletion) -> None:
    """Take out what no outbound interceptor sees: results, failures, memos, summaries."""
    for command in completion.successful.commands:
        if command.WhichOneof("variant") not in _KEPT:
            for payload in payloads_of(command):
                payload.Clear()
