"""Thread id interceptor: checks ids of threads that a program starts by Temporal's client."""

from typing import Any

from temporalio import client

from everlong.models import AGENT_WORKFLOW
from everlong.models.thread_ids import check_new_id


class ThreadIdInterceptor(client.Interceptor):
    """Rejects invalid ids of new threads that a program starts with Temporal's client.

    A client without the plugin and Temporal's CLI can start threads under any id. Everlong handles those
    threads like all others.
    """

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:  # noqa: A002
        """See `temporalio.client.Interceptor`."""
        return _ThreadIdOutbound(next)


class _ThreadIdOutbound(client.OutboundInterceptor):
    async def start_workflow(
        self,
        input: client.StartWorkflowInput,  # noqa: A002
    ) -> client.WorkflowHandle[Any, Any]:
        _check_thread_id(input.workflow, input.id)
        return await super().start_workflow(input)

    async def start_update_with_start_workflow(
        self,
        input: client.StartWorkflowUpdateWithStartInput,  # noqa: A002
    ) -> client.WorkflowUpdateHandle[Any]:
        start = input.start_workflow_input
        _check_thread_id(start.workflow, start.id)
        return await super().start_update_with_start_workflow(input)

    async def create_schedule(
        self,
        input: client.CreateScheduleInput,  # noqa: A002
    ) -> client.ScheduleHandle:
        action = input.schedule.action
        if isinstance(action, client.ScheduleActionStartWorkflow):
            _check_thread_id(action.workflow, action.id)
        return await super().create_schedule(input)


def _check_thread_id(workflow: str, thread_id: str) -> None:
    if workflow == AGENT_WORKFLOW:
        check_new_id(thread_id)
