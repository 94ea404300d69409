"""Which events of a history Temporal Cloud bills."""

import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import (
    ActivityTaskStartedEventAttributes,
    HistoryEvent,
    MarkerRecordedEventAttributes,
    WorkflowExecutionStartedEventAttributes,
)

from bench.cost_actions import Cost, list_billed_events, requests

METRICS = """\
# TYPE service_requests counter
service_requests{namespace="default",operation="QueryWorkflow",service_name="frontend"} 3
service_requests{namespace="default",operation="QueryWorkflow",service_name="history"} 5
service_requests{namespace="temporal_system",operation="QueryWorkflow",service_name="frontend"} 7
service_requests{namespace="default",operation="RecordActivityTaskHeartbeat",service_name="frontend"} 2
service_errors{namespace="default",operation="QueryWorkflow",service_name="frontend"} 9
"""


def event(name: str) -> HistoryEvent:
    return HistoryEvent(event_type=EventType.Value(f"EVENT_TYPE_{name}"))


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [
        ("WORKFLOW_EXECUTION_STARTED", "starts and rolls", 1),
        ("ACTIVITY_TASK_SCHEDULED", "activities", 1),
        ("TIMER_STARTED", "timers", 1),
        ("WORKFLOW_EXECUTION_SIGNALED", "signals", 1),
        ("WORKFLOW_EXECUTION_UPDATE_ACCEPTED", "updates", 1),
        ("UPSERT_WORKFLOW_SEARCH_ATTRIBUTES", "search attributes", 1),
        ("START_CHILD_WORKFLOW_EXECUTION_INITIATED", "children", 2),
    ],
)
def test_an_event_that_is_an_action_is_billed(name: str, kind: str, count: int) -> None:
    assert list_billed_events([event(name)]) == Counter({kind: count})


@pytest.mark.parametrize(
    "name",
    [
        "WORKFLOW_TASK_COMPLETED",
        "ACTIVITY_TASK_COMPLETED",
        "TIMER_FIRED",
        "TIMER_CANCELED",
        "WORKFLOW_PROPERTIES_MODIFIED",
        "WORKFLOW_EXECUTION_UPDATE_COMPLETED",
        # The next run's start is billed, and a signal where it arrives.
        "WORKFLOW_EXECUTION_CONTINUED_AS_NEW",
        "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED",
    ],
)
def test_a_consequence_of_an_action_is_not_billed(name: str) -> None:
    assert list_billed_events([event(name)]) == Counter()


def test_a_child_is_billed_where_its_parent_starts_it() -> None:
    parent = WorkflowExecution(workflow_id="parent")
    child = event("WORKFLOW_EXECUTION_STARTED")
    child.workflow_execution_started_event_attributes.CopyFrom(
        WorkflowExecutionStartedEventAttributes(parent_workflow_execution=parent)
    )
    assert list_billed_events([child]) == Counter()


def test_each_attempt_after_the_first_is_billed() -> None:
    started = event("ACTIVITY_TASK_STARTED")
    started.activity_task_started_event_attributes.CopyFrom(
        ActivityTaskStartedEventAttributes(attempt=3)
    )
    assert list_billed_events([event("ACTIVITY_TASK_SCHEDULED"), started]).total() == 3


def test_the_markers_of_one_workflow_task_are_one_action() -> None:
    markers = [event("MARKER_RECORDED") for _ in range(3)]
    for marker, task in zip(markers, (4, 4, 9), strict=True):
        marker.marker_recorded_event_attributes.CopyFrom(
            MarkerRecordedEventAttributes(workflow_task_completed_event_id=task)
        )
    assert list_billed_events(markers) == Counter(markers=2)


@pytest.fixture
def metrics_port() -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(METRICS.encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_queries_and_heartbeats_are_requests_to_the_frontend(metrics_port: int) -> None:
    asked = requests(metrics_port, "default")
    assert asked == Counter(QueryWorkflow=3, RecordActivityTaskHeartbeat=2)
    cost = Cost(Counter(activities=4), events=24, runs=1).with_requests(asked)
    assert cost.actions == Counter(activities=4, queries=3, heartbeats=2)
    assert cost.billed == 9
