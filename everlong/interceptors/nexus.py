"""Nexus: what a workflow returns to another namespace is not offloaded.

Most Nexus payloads have a context that says so. One kind has not: where an operation is answered by a
workflow, the server copies that workflow's result, as it is encoded, into the caller's history. Such
a workflow is marked by a header when it is started, and the mark follows it over continue-as-new.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from temporalio import client, workflow
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import CommandType

from everlong.interceptors import sdk_internals
from everlong.interceptors.sdk_internals import WorkflowActivationCompletion

MARK: Final = "everlong-nexus"
_YES: Final = Payload(metadata={"encoding": b"json/plain"}, data=b"true")


class NexusInterceptor(client.Interceptor):
    """Marks the workflows that answer a Nexus operation."""

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:  # noqa: A002
        """See `temporalio.client.Interceptor`."""
        return _Marking(next)


class _Marking(client.OutboundInterceptor):
    async def start_workflow(
        self,
        input: client.StartWorkflowInput,  # noqa: A002
    ) -> client.WorkflowHandle[Any, Any]:
        if sdk_internals.starts_for_operation():
            input = dataclasses.replace(input, headers={**input.headers, MARK: _YES})  # noqa: A001
        return await super().start_workflow(input)


def passed_on(headers: Mapping[str, Payload]) -> dict[str, Payload]:
    """Return the headers of a run that continues this one, with its mark if it has one."""
    mark = workflow.info().headers.get(MARK)
    return {**headers, MARK: mark} if mark is not None else dict(headers)


def answers_operation(info: workflow.Info) -> bool:
    """Tell whether a workflow's result goes to the caller of a Nexus operation."""
    return MARK in info.headers


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
