"""History reader: runs, events, pending activities, memos and schedules of a namespace. Read-only."""

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final, Protocol

from google.protobuf.message import Message
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeScheduleRequest,
    DescribeScheduleResponse,
    DescribeWorkflowExecutionRequest,
    GetWorkflowExecutionHistoryReverseRequest,
    ListSchedulesRequest,
    ListWorkflowExecutionsRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everlong.errors import ServerUnreachable
from everlong.models import make_printable

_RUNS_PAGE: Final = 1000
_EVENTS_PAGE: Final = 256
_SCHEDULES_PAGE: Final = 100
# A run in any other status may continue: a paused run, and statuses of newer servers.
_ENDS: Final = ("completed", "failed", "canceled", "terminated", "continued_as_new", "timed_out")
CLOSED: Final = frozenset(
    WorkflowExecutionStatus.Value(f"WORKFLOW_EXECUTION_STATUS_{each.upper()}") for each in _ENDS
)
_CLOSING: Final = frozenset(f"workflow_execution_{each}_event_attributes" for each in _ENDS)


@dataclasses.dataclass(frozen=True)
class Run:
    """One execution that Temporal retains."""

    run_id: str
    workflow_id: str
    root: str
    """The workflow id at the top of its tree."""
    is_open: bool


@dataclasses.dataclass(frozen=True)
class RunDescription:
    """Description of a run: payloads outside its history, and the length of the history."""

    is_open: bool
    events: int
    holds: Sequence[Message]
    """Messages with payloads: heartbeats and failures of activities, memo."""
    busy_since_ms: int | None
    """Start of the oldest pending activity, in Unix milliseconds; None if no activity is pending."""
    run_id: str
    root: str
    """The workflow id at the top of its tree."""


class HistorySource(Protocol):
    """Histories of a namespace. `Histories` reads them from the server; tests have a fake."""

    namespace: str

    async def fetch_namespace_id(self) -> str:
        """Return the id of the namespace, which is unique across clusters."""
        ...

    def list_runs(self) -> AsyncIterator[list[Run]]:
        """Yield all runs, open and closed, of every workflow type, in pages. A run may come twice."""
        ...

    async def describe_run(self, workflow_id: str, run_id: str) -> RunDescription | None:
        """Return the description of a run; None if Temporal no longer retains it.

        Without a run id it is the newest run of the workflow.
        """
        ...

    def read_events(
        self, workflow_id: str, run_id: str, after: int
    ) -> AsyncIterator[list[HistoryEvent]]:
        """Yield the events after event `after`, newest first, in pages. No page if the run is gone."""
        ...

    def list_schedules(self) -> AsyncIterator[list[str]]:
        """Yield the ids of all schedules, in pages."""
        ...

    async def describe_schedule(self, schedule_id: str) -> DescribeScheduleResponse | None:
        """Return the description of a schedule; None if Temporal no longer retains it."""
        ...


class Histories:
    """Reads a namespace from the Temporal server, and changes nothing there."""

    def __init__(self, client: Client) -> None:
        self._service = client.workflow_service
        self.namespace = client.namespace

    async def fetch_namespace_id(self) -> str:
        """See `HistorySource`."""
        with _translate_errors():
            found = await self._service.describe_namespace(
                DescribeNamespaceRequest(namespace=self.namespace), retry=True
            )
        return found.namespace_info.id

    async def list_runs(self) -> AsyncIterator[list[Run]]:
        """See `HistorySource`."""
        async for page in self.find_runs(""):
            yield page

    async def find_runs(self, query: str) -> AsyncIterator[list[Run]]:
        """Yield the runs that match a visibility query, newest first, in pages."""
        token = b""
        while True:
            with _translate_errors():
                page = await self._service.list_workflow_executions(
                    ListWorkflowExecutionsRequest(
                        namespace=self.namespace,
                        page_size=_RUNS_PAGE,
                        next_page_token=token,
                        query=query,
                    ),
                    retry=True,
                )
            yield [
                Run(
                    each.execution.run_id,
                    each.execution.workflow_id,
                    each.root_execution.workflow_id or each.execution.workflow_id,
                    each.status not in CLOSED,
                )
                for each in page.executions
            ]
            token = page.next_page_token
            if not token:
                return

    async def describe_run(self, workflow_id: str, run_id: str) -> RunDescription | None:
        """See `HistorySource`."""
        with _translate_errors(), _ignore_not_found():
            found = await self._service.describe_workflow_execution(
                DescribeWorkflowExecutionRequest(
                    namespace=self.namespace, execution=_build_execution(workflow_id, run_id)
                ),
                retry=True,
            )
            info = found.workflow_execution_info
            started = [
                ms
                for each in found.pending_activities
                if (ms := _get_busy_since_ms(each)) is not None
            ]
            return RunDescription(
                is_open=info.status not in CLOSED,
                events=info.history_length,
                holds=[
                    *found.pending_activities,
                    *found.pending_nexus_operations,
                    info.memo,
                ],
                busy_since_ms=min(started, default=None),
                run_id=info.execution.run_id,
                root=info.root_execution.workflow_id or workflow_id,
            )
        return None

    async def read_events(
        self, workflow_id: str, run_id: str, after: int
    ) -> AsyncIterator[list[HistoryEvent]]:
        """See `HistorySource`."""
        token = b""
        while True:
            page = None
            with _translate_errors(), _ignore_not_found():
                page = await self._service.get_workflow_execution_history_reverse(
                    GetWorkflowExecutionHistoryReverseRequest(
                        namespace=self.namespace,
                        execution=_build_execution(workflow_id, run_id),
                        maximum_page_size=_EVENTS_PAGE,
                        next_page_token=token,
                    ),
                    retry=True,
                )
            if page is None:
                return
            events = [each for each in page.history.events if each.event_id > after]
            yield events
            token = page.next_page_token
            if not token or len(events) < len(page.history.events):
                return

    async def list_schedules(self) -> AsyncIterator[list[str]]:
        """See `HistorySource`."""
        token = b""
        while True:
            with _translate_errors():
                page = await self._service.list_schedules(
                    ListSchedulesRequest(
                        namespace=self.namespace,
                        maximum_page_size=_SCHEDULES_PAGE,
                        next_page_token=token,
                    ),
                    retry=True,
                )
            yield [each.schedule_id for each in page.schedules]
            token = page.next_page_token
            if not token:
                return

    async def describe_schedule(self, schedule_id: str) -> DescribeScheduleResponse | None:
        """See `HistorySource`."""
        with _translate_errors(), _ignore_not_found():
            return await self._service.describe_schedule(
                DescribeScheduleRequest(namespace=self.namespace, schedule_id=schedule_id),
                retry=True,
            )
        return None


def is_closing(event: HistoryEvent) -> bool:
    """Return whether an event closes its run: no event follows it."""
    return event.WhichOneof("attributes") in _CLOSING


def find_related_runs(event: HistoryEvent) -> Iterator[tuple[str, str]]:
    """Yield the workflow id (empty if the same) and the run id of each run that an event names.

    Runs that it started, and runs that this run continued from: a listing may lack either.
    """
    match event.WhichOneof("attributes"):
        case "child_workflow_execution_started_event_attributes":
            execution = event.child_workflow_execution_started_event_attributes.workflow_execution
            yield execution.workflow_id, execution.run_id
        case "workflow_execution_started_event_attributes":
            started = event.workflow_execution_started_event_attributes
            before = (
                started.continued_execution_run_id,
                started.original_execution_run_id,
                started.first_execution_run_id,
            )
            yield from (("", run_id) for run_id in before if run_id)
        case str() as name:
            run_id = getattr(getattr(event, name), "new_execution_run_id", "")
            if run_id:
                yield "", run_id


def _build_execution(workflow_id: str, run_id: str) -> WorkflowExecution:
    return WorkflowExecution(workflow_id=workflow_id, run_id=run_id)


def _get_busy_since_ms(activity: PendingActivityInfo) -> int | None:
    """Return the start of the current attempt: it does not know what an earlier attempt wrote."""
    for field in ("last_started_time", "scheduled_time"):
        if activity.HasField(field):
            return int(getattr(activity, field).ToMilliseconds())
    return None


@contextlib.contextmanager
def _ignore_not_found() -> Iterator[None]:
    """Ignore not-found errors for runs and schedules, but not for the namespace itself."""
    try:
        yield
    except RPCError as error:
        gone = error.status == RPCStatusCode.NOT_FOUND and not error.message.startswith("Namespace")
        if not gone:
            raise


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except RPCError as error:
        raise ServerUnreachable(
            "the Temporal server refused to list or read histories: "
            f"{make_printable(error.message, 200)}. "
            "Check that this client may list, describe and read workflows and schedules."
        ) from error
