"""The counters of recorded commands last as long as the replay that needs them."""

import types
from typing import Any, cast

from temporalio.api.history.v1 import ActivityTaskScheduledEventAttributes, HistoryEvent
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance

from everlong.interceptors.activation import _HookedInstance
from everlong.interceptors.history import Recorded


def scheduled(number: int) -> HistoryEvent:
    attributes = ActivityTaskScheduledEventAttributes(activity_id=str(number))
    return HistoryEvent(activity_task_scheduled_event_attributes=attributes)


def read(events: int) -> Recorded:
    recorded = Recorded()
    for number in range(events):
        recorded.note(scheduled(number))
    recorded.finish(complete=True)
    return recorded


def sizes(recorded: Recorded) -> list[int]:
    return [len(getattr(recorded, name) or ()) for name in ("_events", "_taken", "_unseen")]


class Instance:
    """A workflow that issues nothing by itself."""

    def get_info(self) -> Any:
        return types.SimpleNamespace(parent=None, headers={}, workflow_id="w", run_id="r")

    def activate(self, _: WorkflowActivation) -> WorkflowActivationCompletion:
        return WorkflowActivationCompletion()


def test_a_cached_instance_keeps_no_counters_after_its_replay() -> None:
    recorded = read(1000)
    hooked = _HookedInstance(cast("WorkflowInstance", Instance()), recorded, [], lambda _: None)
    hooked.activate(WorkflowActivation(run_id="r", is_replaying=True, history_length=3))
    assert all(recorded.take("schedule_activity", str(number)) for number in range(1000))
    assert not recorded.take("schedule_activity", "1000")
    assert sizes(recorded)[1:] == [1001, 1]
    hooked.activate(WorkflowActivation(run_id="r", history_length=2000))
    assert sizes(recorded) == [0, 0, 0]


def test_after_the_replay_no_command_counts_as_recorded_and_nothing_is_counted() -> None:
    recorded = read(3)
    recorded.release()
    recorded.note(scheduled(7))  # The history may still be read.
    assert not recorded.take("schedule_activity", "0")
    assert not recorded.take("schedule_activity", "7")
    assert not recorded.holds_all()
    assert not recorded.went_beyond
    assert sizes(recorded) == [0, 0, 0]
