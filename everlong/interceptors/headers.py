"""When something was sent: a header from the client's side to the workflow's.

With it the time from a person's word to the thread's acting on it can be measured, queues, crashes
and replays included. Only our own updates have it: a header is a part of the history.
"""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import trace
from pydantic import TypeAdapter, ValidationError
from temporalio import client, worker, workflow
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import CommandType

from everlong.interceptors import sdk_internals
from everlong.interceptors.sdk_internals import WorkflowActivationCompletion
from everlong.models import AGENT_WORKFLOW, DECIDE_UPDATE, SEND_UPDATE, SENT, Sent
from everlong.models.thread_ids import check_new_id
from everlong.telemetry.spans import format_traceparent

SENT_HEADER: Final = "everlong-sent"
_UPDATES: Final = frozenset({SEND_UPDATE, DECIDE_UPDATE})
_SENT: Final = TypeAdapter(Sent)


class SentTimeInterceptor(client.Interceptor, worker.Interceptor):
    """Puts the header there, and reads it."""

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:  # noqa: A002
        """See `temporalio.client.Interceptor`."""
        return _SentTimeOutbound(next)

    def workflow_interceptor_class(
        self,
        input: worker.WorkflowInterceptorClassInput,  # noqa: A002
    ) -> type[worker.WorkflowInboundInterceptor]:
        """See `temporalio.worker.Interceptor`."""
        return _SentTimeInbound


class _SentTimeOutbound(client.OutboundInterceptor):
    async def start_workflow_update(
        self,
        input: client.StartWorkflowUpdateInput,  # noqa: A002
    ) -> client.WorkflowUpdateHandle[Any]:
        return await super().start_workflow_update(_add_sent_header(input))

    async def start_update_with_start_workflow(
        self,
        input: client.StartWorkflowUpdateWithStartInput,  # noqa: A002
    ) -> client.WorkflowUpdateHandle[Any]:
        input.update_workflow_input = _add_sent_header(input.update_workflow_input)
        return await super().start_update_with_start_workflow(input)


class _SentTimeInbound(worker.WorkflowInboundInterceptor):
    async def handle_update_handler(self, input: worker.HandleUpdateInput) -> Any:  # noqa: A002
        # Not reset: each update has a task and a context of its own. A run that is evicted ends its
        # handlers in another context, where a reset fails.
        SENT.set(_read_sent_header(input.headers))
        return await super().handle_update_handler(input)


def _add_sent_header(update: Any) -> Any:
    if update.update not in _UPDATES:
        return update
    place = trace.get_current_span().get_span_context()
    sent = Sent(ms=time.time_ns() // 1_000_000, trace=format_traceparent(place))
    payload = Payload(metadata={"encoding": b"json/plain"}, data=_SENT.dump_json(sent))
    return dataclasses.replace(update, headers={**update.headers, SENT_HEADER: payload})


def _read_sent_header(headers: Mapping[str, Payload]) -> Sent | None:
    """Return what a header says; nothing for one that is missing or not ours to read."""
    payload = headers.get(SENT_HEADER)
    if payload is None:
        return None
    try:
        return _SENT.validate_json(payload.data)
    except ValidationError:
        return None


# Nexus: what a workflow returns to another namespace is not offloaded.
#
# Most Nexus payloads have a context that says so. One kind has not: where an operation is answered by a
# workflow, the server copies that workflow's result, as it is encoded, into the caller's history. Such
# a workflow is marked by a header when it is started, and the mark follows it over continue-as-new.
#
NEXUS_HEADER: Final = "everlong-nexus"
_YES: Final = Payload(metadata={"encoding": b"json/plain"}, data=b"true")


class NexusInterceptor(client.Interceptor):
    """Marks the workflows that answer a Nexus operation."""

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:  # noqa: A002
        """See `temporalio.client.Interceptor`."""
        return _NexusMarkOutbound(next)


class _NexusMarkOutbound(client.OutboundInterceptor):
    async def start_workflow(
        self,
        input: client.StartWorkflowInput,  # noqa: A002
    ) -> client.WorkflowHandle[Any, Any]:
        if sdk_internals.starts_for_operation():
            input = dataclasses.replace(input, headers={**input.headers, NEXUS_HEADER: _YES})  # noqa: A001
        return await super().start_workflow(input)


def keep_nexus_header(headers: Mapping[str, Payload]) -> dict[str, Payload]:
    """Return the headers of a run that continues this one, with its mark if it has one."""
    mark = workflow.info().headers.get(NEXUS_HEADER)
    return {**headers, NEXUS_HEADER: mark} if mark is not None else dict(headers)


def answers_operation(info: workflow.Info) -> bool:
    """Tell whether a workflow's result goes to the caller of a Nexus operation."""
    return NEXUS_HEADER in info.headers


def fails_workflow(completion: WorkflowActivationCompletion) -> bool:
    """Tell whether a completion holds the workflow's failure."""
    commands = completion.successful.commands
    return any(command.HasField("fail_workflow_execution") for command in commands)


def ends_workflow(command_info: Any, fails: bool) -> bool:
    """Tell whether a payload is of the workflow's result, or may be of its failure."""
    if command_info is None:
        return fails
    command_type = getattr(command_info, "command_type", None)
    return bool(command_type == CommandType.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION)


# Checks the ids of new threads that a program starts with Temporal's own client.
#
# A client without the plugin, and Temporal's command line, start threads under any id; those are opened
# and governed all the same.
#
class ThreadIdInterceptor(client.Interceptor):
    """Refuses to start a thread under an id that a new thread may not have."""

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:  # noqa: A002
        """See `temporalio.client.Interceptor`."""
        return _ThreadIdOutbound(next)


class _ThreadIdOutbound(client.OutboundInterceptor):
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
