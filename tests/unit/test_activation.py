"""Detection of an instance that a query has run ahead of its history."""

import types
from typing import Any, cast

import pytest
from temporalio.api.history.v1 import ActivityTaskScheduledEventAttributes, HistoryEvent
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance

from everlong.interceptors.activation import LEGACY_QUERY_ID, RunAheadDetector, _HookedInstance
from everlong.interceptors.run_history import RunHistory

pytestmark = pytest.mark.guarantee(38)

STARTED_NS = 1_700_000_000_000_000_000


def activation(
    length: int,
    size_bytes: int,
    *,
    time_ns: int = STARTED_NS,
    replaying: bool = False,
    job: str = "resolve_activity",
    query_id: str = "",
) -> WorkflowActivation:
    made = WorkflowActivation(
        history_length=length, history_size_bytes=size_bytes, is_replaying=replaying
    )
    made.timestamp.FromNanoseconds(time_ns)
    each = WorkflowActivationJob()
    getattr(each, job).SetInParent()
    if query_id:
        each.query_workflow.query_id = query_id
    made.jobs.append(each)
    return made


def query(length: int, size_bytes: int, query_id: str = LEGACY_QUERY_ID) -> WorkflowActivation:
    return activation(length, size_bytes, replaying=True, job="query_workflow", query_id=query_id)


def test_tasks_with_one_timestamp_are_not_ahead_without_a_query() -> None:
    """So Core sends them after the server's clock has stepped back: the history grows all the same."""
    watch = RunAheadDetector()
    tasks = [activation(3 + 6 * n, 300 + 600 * n) for n in range(20)]
    assert not any(watch.observe(task) for task in tasks)
    assert not watch.must_evict(query(117, 11_700))


def test_tasks_with_one_timestamp_after_a_cold_resume_are_not_ahead() -> None:
    watch = RunAheadDetector()
    assert not watch.observe(activation(3, 300, replaying=True, job="initialize_workflow"))
    assert not any(watch.observe(activation(9 + 6 * n, 900 + 600 * n)) for n in range(5))


def test_a_query_evicts_an_instance_that_ran_ahead() -> None:
    watch = RunAheadDetector()
    assert not watch.observe(activation(3, 304, replaying=True, job="initialize_workflow"))
    ahead = activation(8, 304)
    assert watch.observe(ahead)
    assert not watch.must_evict(ahead)
    asking = query(8, 304)
    assert not watch.observe(asking)
    assert watch.must_evict(asking)


def test_an_instance_is_not_ahead_in_later_tasks() -> None:
    """If the instance stays in the cache, it runs the tasks that the server has started."""
    watch = RunAheadDetector()
    watch.observe(activation(3, 304, replaying=True, job="initialize_workflow"))
    assert watch.observe(activation(8, 304))
    # A local activity of the same events has answered.
    assert watch.observe(activation(8, 304))
    for n in range(5):
        assert not watch.observe(activation(9 + 6 * n, 921 + 600 * n))
        assert not watch.must_evict(query(9 + 6 * n, 921 + 600 * n))


def test_only_a_query_outside_of_a_task_evicts_an_instance() -> None:
    watch = RunAheadDetector()
    watch.observe(activation(3, 304, replaying=True, job="initialize_workflow"))
    watch.observe(activation(8, 304))
    assert not watch.must_evict(query(8, 304, "4d7c01b0"))
    assert not watch.must_evict(activation(8, 0, job="remove_from_cache"))
    assert watch.must_evict(query(8, 304))


def test_a_local_activity_that_answers_within_a_task_is_not_ahead() -> None:
    watch = RunAheadDetector()
    assert not any(watch.observe(activation(9, 921)) for _ in range(3))


def test_a_server_that_sends_no_sizes_is_not_suspected() -> None:
    watch = RunAheadDetector()
    assert not any(watch.observe(activation(3 + 6 * n, 0)) for n in range(5))


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
    assert all(history.match_command("schedule_activity", str(number)) for number in range(1000))
    assert not history.match_command("schedule_activity", "1000")
    assert sizes(history)[1:] == [1001, 1]
    hooked.activate(WorkflowActivation(run_id="r", history_length=2000))
    assert sizes(history) == [0, 0, 0]


def test_no_command_counts_as_recorded_after_the_replay() -> None:
    history = read(3)
    history.release()
    history.add(scheduled(7))  # The history may still be read.
    assert not history.match_command("schedule_activity", "0")
    assert not history.match_command("schedule_activity", "7")
    assert not history.holds_all()
    assert not history.went_beyond
    assert sizes(history) == [0, 0, 0]
