"""Header interceptors: headers on calls to workflows.

A header is part of the history. Therefore the client adds one only to Everlong's own updates (the time
of sending) and to workflows that answer a Nexus operation (a mark that keeps their result inline).
"""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import trace
from pydantic import TypeAdapter, ValidationError
from temporalio import client, worker, workflow
from temporalio.api.common.v1 import Payload

from everlong.interceptors import sdk_internals
from everlong.models import DECIDE_UPDATE, SEND_UPDATE, SENT, SentTime
from everlong.telemetry.spans import format_traceparent

SENT_HEADER: Final = "everlong-sent"
NEXUS_HEADER: Final = "everlong-nexus"
_YES: Final = Payload(metadata={"encoding": b"json/plain"}, data=b"true")
_UPDATES: Final = frozenset({SEND_UPDATE, DECIDE_UPDATE})
_SENT: Final = TypeAdapter(SentTime)


class SentTimeInterceptor(client.Interceptor, worker.Interceptor):
    """Carries the time of sending from the client to the update handler.

    It is the start of the measured time from a message or decision to the thread's step, including
    queues, crashes and replays.
    """

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
        # Not reset: each update has its own task and context. On eviction, handlers end in another
        # context, where a reset would fail.
        SENT.set(_read_sent_header(input.headers))
        return await super().handle_update_handler(input)


def _add_sent_header(update: Any) -> Any:
    if update.update not in _UPDATES:
        return update
    place = trace.get_current_span().get_span_context()
    sent = SentTime(ms=time.time_ns() // 1_000_000, trace=format_traceparent(place))
    payload = Payload(metadata={"encoding": b"json/plain"}, data=_SENT.dump_json(sent))
    return dataclasses.replace(update, headers={**update.headers, SENT_HEADER: payload})


def _read_sent_header(headers: Mapping[str, Payload]) -> SentTime | None:
    """Return the content of the header; None if it is missing or has another format."""
    payload = headers.get(SENT_HEADER)
    if payload is None:
        return None
    try:
        return _SENT.validate_json(payload.data)
    except ValidationError:
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
