"""Client interceptor that adds the time of sending to Everlong's own updates.

Apart from the other headers, so that a client that runs no worker imports nothing of the SDK's workers.
"""

import dataclasses
import time
from typing import Any, Final

from opentelemetry import trace
from pydantic import TypeAdapter
from temporalio import client
from temporalio.api.common.v1 import Payload

from everlong.models import DECIDE_UPDATE, SEND_UPDATE, SentTime
from everlong.telemetry.spans import format_traceparent

SENT_HEADER: Final = "everlong-sent"
_UPDATES: Final = frozenset({SEND_UPDATE, DECIDE_UPDATE})
_SENT: Final = TypeAdapter(SentTime)


class SendTimeInterceptor(client.Interceptor):
    """Adds the time of sending, and the caller's span, to messages and decisions."""

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:  # noqa: A002
        """See `temporalio.client.Interceptor`."""
        return _SendTimeOutbound(next)


class _SendTimeOutbound(client.OutboundInterceptor):
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


def _add_sent_header(update: Any) -> Any:
    if update.update not in _UPDATES:
        return update
    place = trace.get_current_span().get_span_context()
    sent = SentTime(ms=time.time_ns() // 1_000_000, trace=format_traceparent(place))
    payload = Payload(metadata={"encoding": b"json/plain"}, data=_SENT.dump_json(sent))
    return dataclasses.replace(update, headers={**update.headers, SENT_HEADER: payload})
