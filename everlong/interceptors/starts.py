"""Checks the ids of new threads that a program starts with Temporal's own client.

A client without the plugin, and Temporal's command line, start threads under any id; those are opened
and governed all the same.
"""

from typing import Any

from temporalio import client

from everlong.models import AGENT_WORKFLOW
from everlong.thread_ids import check_new_id


class StartInterceptor(client.Interceptor):
    """Refuses to start a thread under an id that a new thread may not have."""

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:  # noqa: A002
        """See `temporalio.client.Interceptor`."""
        return _Starts(next)


class _Starts(client.OutboundInterceptor):
    async def start_workflow(
        self,
        input: client.StartWorkflowInput,  # noqa: A002
    ) -> client.WorkflowHandle[Any, Any]:
        _check(input.workflow, input.id)
        return await super().start_workflow(input)

    async def start_update_with_start_workflow(
        self,
        input: client.StartWorkflowUpdateWithStartInput,  # noqa: A002
    ) -> client.WorkflowUpdateHandle[Any]:
        start = input.start_workflow_input
        _check(start.workflow, start.id)
        return await super().start_update_with_start_workflow(input)

    async def create_schedule(
        self,
        input: client.CreateScheduleInput,  # noqa: A002
    ) -> client.ScheduleHandle:
        action = input.schedule.action
        if isinstance(action, client.ScheduleActionStartWorkflow):
            _check(action.workflow, action.id)
        return await super().create_schedule(input)


def _check(workflow: str, thread_id: str) -> None:
    if workflow == AGENT_WORKFLOW:
        check_new_id(thread_id)
