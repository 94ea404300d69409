"""Billed actions, counted from histories and from the server's request metrics.

The rules are those that Temporal Cloud publishes (docs.temporal.io/cloud/actions, read in November
2026). Most actions leave an event in a history. Queries and heartbeats leave none, so they are counted
as requests to the server's frontend.
"""

import dataclasses
import re
import urllib.request
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

_SCRAPE_SECONDS_MAX: Final = 10.0
_BILLED: Final = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: "starts and rolls",
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: "activities",
    EventType.EVENT_TYPE_TIMER_STARTED: "timers",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: "signals",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: "updates",
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: "search attributes",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_OPTIONS_UPDATED: "options",
    EventType.EVENT_TYPE_NEXUS_OPERATION_SCHEDULED: "Nexus operations",
}
# Two actions: the command, and the child's start, whose own event is not billed again.
_CHILD: Final = EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED
# All markers of one workflow task are one action.
_MARKER: Final = EventType.EVENT_TYPE_MARKER_RECORDED
_REQUESTED: Final = {
    "QueryWorkflow": "queries",
    "RecordActivityTaskHeartbeat": "heartbeats",
    "RecordActivityTaskHeartbeatById": "heartbeats",
}
_SERIES: Final = re.compile(r"service_requests\{(?P<labels>[^}]*)\} (?P<count>\S+)")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


@dataclasses.dataclass(frozen=True)
class Cost:
    """Costs of one workflow id so far, over all its runs."""

    actions: Counter[str] = dataclasses.field(default_factory=Counter)
    """Billed actions by kind."""
    events: int = 0
    """Events of its histories."""
    runs: int = 0

    @property
    def billed(self) -> int:
        """All billed actions."""
        return self.actions.total()

    def since(self, earlier: "Cost") -> "Cost":
        """Return the difference to an earlier count, or to another thread's."""
        actions = Counter(self.actions)
        actions.subtract(earlier.actions)
        return Cost(actions, self.events - earlier.events, self.runs - earlier.runs)

    def with_requests(self, requests: Counter[str]) -> "Cost":
        """Add the actions that leave no event."""
        asked: Counter[str] = Counter()
        for operation, kind in _REQUESTED.items():
            asked[kind] += requests[operation]
        return dataclasses.replace(self, actions=self.actions + asked)


def list_billed_events(events: Iterable[HistoryEvent]) -> Counter[str]:
    """Return the billed actions of one run, by kind."""
    actions: Counter[str] = Counter()
    tasks_with_markers: set[int] = set()
    for event in events:
        started = event.workflow_execution_started_event_attributes
        if event.event_type in _BILLED and not started.HasField("parent_workflow_execution"):
            actions[_BILLED[event.event_type]] += 1
        elif event.event_type == _CHILD:
            actions["children"] += 2
        elif event.event_type == _MARKER:
            attributes = event.marker_recorded_event_attributes
            tasks_with_markers.add(attributes.workflow_task_completed_event_id)
        # Failed attempts leave no event, only the number of attempts.
        attempt = event.activity_task_started_event_attributes.attempt
        if attempt > 1:
            actions["retries"] += attempt - 1
    if tasks_with_markers:
        actions["markers"] += len(tasks_with_markers)
    return actions


async def histories(client: Client, workflow_id: str) -> list[Sequence[HistoryEvent]]:
    """Return the events of all runs, newest run first. Reading a history is not billed."""
    found: list[Sequence[HistoryEvent]] = []
    run_id = (await client.get_workflow_handle(workflow_id).describe()).run_id
    while run_id:
        handle = client.get_workflow_handle(workflow_id, run_id=run_id)
        events = (await handle.fetch_history()).events
        found.append(events)
        started = events[0].workflow_execution_started_event_attributes
        run_id = started.continued_execution_run_id
    return found


async def read_cost(client: Client, workflow_id: str) -> Cost:
    """Return the costs of a workflow id so far, without queries and heartbeats."""
    runs = await histories(client, workflow_id)
    actions: Counter[str] = sum((list_billed_events(events) for events in runs), Counter())
    return Cost(actions, sum(len(events) for events in runs), len(runs))


def requests(metrics_port: int, namespace: str) -> Counter[str]:
    """Return the number of requests for each operation, from the metrics of the server's frontend."""
    url = f"http://127.0.0.1:{metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=_SCRAPE_SECONDS_MAX) as answer:
        text = answer.read().decode()
    counts: Counter[str] = Counter()
    for series in _SERIES.finditer(text):
        labels = dict(_LABEL.findall(series["labels"]))
        if labels["service_name"] == "frontend" and labels["namespace"] == namespace:
            counts[labels["operation"]] += int(float(series["count"]))
    return counts
