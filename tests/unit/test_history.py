"""The counters of recorded commands last as long as the replay that needs them."""

import types
from typing import Any, cast

from temporalio.api.history.v1 import ActivityTaskScheduledEventAttributes, HistoryEvent
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance

from everlong.interceptors.activation import _HookedInstance
from everlong.interceptors.history import RunHistory


def scheduled(number: int) -> HistoryEvent:
    attributes = ActivityTaskScheduledEventAttributes(activity_id=str(number))
    return HistoryEvent(activity_task_scheduled_event_attributes=attributes)


def read(events: int) -> RunHistory:
    history = RunHistory()
    for number in range(events):
        history.add(scheduled(number))
    history.finish(complete=True)
    return history


def sizes(history: RunHistory) -> list[int]:
    return [len(getattr(history, name) or ()) for name in ("_events", "_taken", "_unseen")]


class Instance:
    """A workflow that issues nothing by itself."""

    def get_info(self) -> Any:
        return types.SimpleNamespace(parent=None, headers={}, workflow_id="w", run_id="r")

    def activate(self, _: WorkflowActivation) -> WorkflowActivationCompletion:
        return WorkflowActivationCompletion()


def test_a_cached_instance_keeps_no_counters_after_its_replay() -> None:
    history = read(1000)
    hooked = _HookedInstance(cast("WorkflowInstance", Instance()), history, [], lambda _: None)
    hooked.activate(WorkflowActivation(run_id="r", is_replaying=True, history_length=3))
    assert all(history.take("schedule_activity", str(number)) for number in range(1000))
    assert not history.take("schedule_activity", "1000")
    assert sizes(history)[1:] == [1001, 1]
    hooked.activate(WorkflowActivation(run_id="r", history_length=2000))
    assert sizes(history) == [0, 0, 0]


def test_after_the_replay_no_command_counts_as_recorded_and_nothing_is_counted() -> None:
    history = read(3)
    history.release()
    history.add(scheduled(7))  # The history may still be read.
    assert not history.take("schedule_activity", "0")
    assert not history.take("schedule_activity", "7")
    assert not history.holds_all()
    assert not history.went_beyond
    assert sizes(history) == [0, 0, 0]
