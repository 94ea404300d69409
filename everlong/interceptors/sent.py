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
from temporalio import client, worker
from temporalio.api.common.v1 import Payload

from everlong.models import DECIDE_UPDATE, SEND_UPDATE, SENT, Sent
from everlong.telemetry.spans import traceparent

HEADER: Final = "everlong-sent"
_UPDATES: Final = frozenset({SEND_UPDATE, DECIDE_UPDATE})
_SENT: Final = TypeAdapter(Sent)


class SentInterceptor(client.Interceptor, worker.Interceptor):
    """Puts the header there, and reads it."""

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:  # noqa: A002
        """See `temporalio.client.Interceptor`."""
        return _Sending(next)

    def workflow_interceptor_class(
        self,
        input: worker.WorkflowInterceptorClassInput,  # noqa: A002
    ) -> type[worker.WorkflowInboundInterceptor]:
        """See `temporalio.worker.Interceptor`."""
        return _Receiving


class _Sending(client.OutboundInterceptor):
    async def start_workflow_update(
        self,
        input: client.StartWorkflowUpdateInput,  # noqa: A002
    ) -> client.WorkflowUpdateHandle[Any]:
        return await super().start_workflow_update(_marked(input))

    async def start_update_with_start_workflow(
        self,
        input: client.StartWorkflowUpdateWithStartInput,  # noqa: A002
    ) -> client.WorkflowUpdateHandle[Any]:
        input.update_workflow_input = _marked(input.update_workflow_input)
        return await super().start_update_with_start_workflow(input)


class _Receiving(worker.WorkflowInboundInterceptor):
    async def handle_update_handler(self, input: worker.HandleUpdateInput) -> Any:  # noqa: A002
        # Not reset: each update has a task and a context of its own. A run that is evicted ends its
        # handlers in another context, where a reset fails.
        SENT.set(_sent(input.headers))
        return await super().handle_update_handler(input)


def _marked(update: Any) -> Any:
    if update.update not in _UPDATES:
        return update
    place = trace.get_current_span().get_span_context()
    sent = Sent(ms=time.time_ns() // 1_000_000, trace=traceparent(place))
    payload = Payload(metadata={"encoding": b"json/plain"}, data=_SENT.dump_json(sent))
    return dataclasses.replace(update, headers={**update.headers, HEADER: payload})


def _sent(headers: Mapping[str, Payload]) -> Sent | None:
    """Return what a header says; nothing for one that is missing or not ours to read."""
    payload = headers.get(HEADER)
    if payload is None:
        return None
    try:
        return _SENT.validate_json(payload.data)
    except ValidationError:
        return None
