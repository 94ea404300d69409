"""Head of a thread's journal, read from its history: asks no worker, so nothing resumes."""

from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from temporalio.api.common.v1 import Payloads, WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client

from everlong.client.errors import translate_errors
from everlong.errors import ThreadError
from everlong.models import SegmentRef
from everlong.models.thread_ids import quote_id

_HEAD: Final = TypeAdapter(SegmentRef)
_PAGE_EVENTS: Final = 100
# A run has 400 events, and one step of 20 tools more. A run that is longer began elsewhere.
_PAGES_MAX: Final = 20


async def head_of(client: Client, thread_id: str) -> SegmentRef | None:
    """Return the head of a thread's journal, as the newest event of its last run that has it says.

    None if nothing is journalled yet.
    """
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=thread_id),
        maximum_page_size=_PAGE_EVENTS,
    )
    with translate_errors(thread_id):
        for _ in range(_PAGES_MAX):
            page = await client.workflow_service.get_workflow_execution_history_reverse(request)
            for event in page.history.events:
                found = await _said(client, event)
                if found is not None:
                    return found
            if not page.next_page_token:
                return None
            request.next_page_token = page.next_page_token
    raise ThreadError(
        f"the newest {_PAGES_MAX * _PAGE_EVENTS:,} events of thread {thread_id!r} do not say where its "
        f"journal ends. Ask its worker: everlong show {quote_id(thread_id)}"
    )


async def _said(client: Client, event: HistoryEvent) -> SegmentRef | None:
    """Return the head that an event has: a step's or an append's result, the end, or the beginning."""
    if event.HasField("activity_task_completed_event_attributes"):
        return _head(await _value(client, event.activity_task_completed_event_attributes.result))
    if event.HasField("workflow_execution_completed_event_attributes"):
        said = event.workflow_execution_completed_event_attributes.result
        return _head(await _value(client, said))
    if event.HasField("workflow_execution_started_event_attributes"):
        said = event.workflow_execution_started_event_attributes.input
        return _head((await _value(client, said)).get("state"))
    return None


async def _value(client: Client, payloads: Payloads) -> dict[str, Any]:
    values = await client.data_converter.decode(payloads.payloads[:1])
    return values[0] if values and isinstance(values[0], dict) else {}


def _head(value: object) -> SegmentRef | None:
    head = value.get("head") if isinstance(value, dict) else None
    if head is None:
        return None
    try:
        return _HEAD.validate_python(head)
    except ValidationError:
        return None
