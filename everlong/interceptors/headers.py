"""Header interceptors: headers on calls to workflows.

A header is part of the history. Therefore the client adds one only to Everlong's own updates (the time
of sending) and to workflows that answer a Nexus operation (a mark that keeps their result inline).
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from temporalio import client, worker, workflow
from temporalio.api.common.v1 import Payload

from everlong.interceptors import sdk_internals
from everlong.interceptors.send_time import SENT_HEADER, SendTimeInterceptor
from everlong.models import POLICY_FUNCTION, SENT, SentTime
from everlong.policy import Policy

NEXUS_HEADER: Final = "everlong-nexus"
_YES: Final = Payload(metadata={"encoding": b"json/plain"}, data=b"true")
_SENT: Final = TypeAdapter(SentTime)


class SentTimeInterceptor(SendTimeInterceptor, worker.Interceptor):
    """Carries the time of sending from the client to the update handler.

    It is the start of the measured time from a message or decision to the thread's step, including
    queues, crashes and replays.
    """

    def workflow_interceptor_class(
        self,
        input: worker.WorkflowInterceptorClassInput,  # noqa: A002
    ) -> type[worker.WorkflowInboundInterceptor]:
        """See `temporalio.worker.Interceptor`."""
        return _SentTimeInbound


class _SentTimeInbound(worker.WorkflowInboundInterceptor):
    async def handle_update_handler(self, input: worker.HandleUpdateInput) -> Any:  # noqa: A002
        # Not reset: each update has its own task and context. On eviction, handlers end in another
        # context, where a reset would fail.
        SENT.set(_read_sent_header(input.headers))
        return await super().handle_update_handler(input)


def _read_sent_header(headers: Mapping[str, Payload]) -> SentTime | None:
    """Return the content of the header; None if it is missing or has another format."""
    payload = headers.get(SENT_HEADER)
    if payload is None:
        return None
    try:
        return _SENT.validate_json(payload.data)
    except ValidationError:
        return None


class PolicyInterceptor(worker.Interceptor):
    """Lets a thread's `status` query read the policy of its agent from the worker."""

    def __init__(self, find_policy: Callable[[str], Policy | None]) -> None:
        self._find_policy = find_policy

    def workflow_interceptor_class(
        self,
        input: worker.WorkflowInterceptorClassInput,  # noqa: A002
    ) -> type[worker.WorkflowInboundInterceptor] | None:
        """See `temporalio.worker.Interceptor`."""
        input.unsafe_extern_functions[POLICY_FUNCTION] = self._find_policy
        return None


class NexusInterceptor(client.Interceptor):
    """Marks the workflows that answer a Nexus operation, so that their result is not offloaded.

    Most Nexus payloads have a serialization context that identifies them. The result of a workflow that
    answers an operation has none, and the server copies it, as encoded, into the caller's history, in
    another namespace. So such a workflow gets a header at its start, which continue-as-new keeps.
    """

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
    """Return the headers of the next run, with the Nexus mark if this run has it."""
    mark = workflow.info().headers.get(NEXUS_HEADER)
    return {**headers, NEXUS_HEADER: mark} if mark is not None else dict(headers)


def answers_operation(info: workflow.Info) -> bool:
    """Return whether a workflow's result goes to the caller of a Nexus operation."""
    return NEXUS_HEADER in info.headers
