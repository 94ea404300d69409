"""The vocabulary of states: which of two precedes, and what a signal of a running call changes."""

import itertools
from typing import Any, cast

import pytest
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client
from temporalio.converter import DataConverter

from everlong.client.status import refine_status
from everlong.models import (
    CALL_MODEL,
    RUN_TOOL,
    CallStatus,
    Context,
    Counters,
    ModelCall,
    Status,
    ThreadStatus,
    ToolRun,
    choose_status,
    find_hold_cause,
    identify_call,
)
from everlong.models.status import parse_status, read_end
from everlong.workflows.activity_executor import ActivityExecutor, _Call


@pytest.mark.parametrize(
    ("also", "shown"),
    [
        ((Status.WAITING, Status.WORKING), Status.WORKING),
        ((Status.FAILED, Status.WORKING), Status.WORKING),
        ((Status.WORKING, Status.APPROVAL), Status.APPROVAL),
        ((Status.RETRYING, Status.APPROVAL), Status.APPROVAL),
        ((Status.RETRYING, Status.WORKING), Status.RETRYING),
        ((Status.APPROVAL, Status.PAUSED), Status.PAUSED),
        ((Status.PAUSED, Status.HELD), Status.HELD),
        ((Status.HELD, Status.DONE), Status.DONE),
    ],
)
def test_of_two_states_the_one_that_needs_a_person_sooner_is_shown(
    also: tuple[Status, ...], shown: Status
) -> None:
    for order in itertools.permutations(also):
        assert choose_status(order) == shown


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("StoreUnavailable: the store is down", "store"),
        ("held by KeyMissing: no key 'k1'", "key"),
        ("AgentNotFound: a worker runs no agent 'ops'", "agent"),
        ("BlobMissing: v1/ab is gone", "bytes"),
        ("something else", ""),
        ("OSError: StoreUnavailable: no", ""),
    ],
)
def test_a_hold_names_what_is_missing(text: str, cause: str) -> None:
    assert find_hold_cause(text) == cause


def test_words_of_temporal_and_of_other_releases_are_read() -> None:
    assert read_end("timed_out") == (Status.TERMINATED, "timed_out")
    assert read_end("terminated") == (Status.TERMINATED, "")
    assert read_end("canceled") == (Status.DONE, "canceled")
    assert (parse_status("held"), parse_status("active"), parse_status("")) == (
        Status.HELD,
        Status.UNKNOWN,
        Status.UNKNOWN,
    )


def context(now_ms: int) -> Context:
    return Context(agent="ops", head=None, snapshot=None, now_ms=now_ms)


def test_a_call_is_identified_by_its_step_and_its_id() -> None:
    calls = [
        (CALL_MODEL, ModelCall(context=context(1), tail=())),
        (CALL_MODEL, ModelCall(context=context(2), tail=())),
        (RUN_TOOL, ToolRun(context=context(1), call_id="a", tool="t")),
        (RUN_TOOL, ToolRun(context=context(1), call_id="b", tool="t")),
    ]
    assert len({identify_call(*each) for each in calls}) == 4


def make_executor(*calls: _Call) -> ActivityExecutor:
    executor = ActivityExecutor(cast("Any", None))
    executor._calls.extend(calls)
    return executor


def signal(key: str, status: Any, text: str = "") -> CallStatus:
    return CallStatus(call=key, status=status, text=text)


def test_a_retry_signal_counts_once_and_only_while_the_call_runs() -> None:
    running, pausing = _Call(RUN_TOOL, "a"), _Call(RUN_TOOL, "b", is_running=False)
    executor = make_executor(running, pausing)
    assert executor.take_call_status(signal("a", Status.RETRYING))
    assert executor.retried == RUN_TOOL
    assert not executor.take_call_status(signal("a", Status.RETRYING)), "it is a duplicate"
    assert not executor.take_call_status(signal("b", Status.RETRYING)), "its try is over"
    assert not executor.take_call_status(signal("c", Status.RETRYING)), "it has ended"
    executor._calls.remove(running)
    assert executor.retried == ""


def test_a_hold_ends_with_the_signal_that_the_call_runs() -> None:
    executor = make_executor(_Call(CALL_MODEL, "a", held_by="KeyMissing: no key"))
    assert executor.held_by == "KeyMissing: no key"
    assert executor.take_call_status(signal("a", Status.WORKING))
    assert executor.held_by == ""
    assert not executor.take_call_status(signal("a", Status.WORKING))
    assert executor.take_call_status(signal("a", Status.HELD, "StoreUnavailable: down"))
    assert executor.held_by == "StoreUnavailable: down"


class _Client:
    data_converter = DataConverter.default


def answer(status: Status, reason: str = "", **fields: Any) -> ThreadStatus:
    return ThreadStatus(
        agent="ops",
        status=status,
        reason=reason,
        counters=Counters(),
        head=None,
        waiting_messages=0,
        last_failure="",
        **fields,
    )


def activity(attempt: int, *, next_ms: int = 0) -> PendingActivityInfo:
    info = PendingActivityInfo(attempt=attempt, maximum_attempts=12)
    info.activity_type.name = CALL_MODEL
    info.state = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    if next_ms:
        info.state = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
        info.next_attempt_schedule_time.FromMilliseconds(next_ms)
    if attempt > 1:
        info.last_failure.message = "model failed: 503"
    return info


async def refine(found: ThreadStatus, *activities: PendingActivityInfo) -> ThreadStatus:
    return await refine_status(cast("Client", _Client()), found, activities)


async def test_attempts_that_only_the_server_knows_make_a_thread_retry() -> None:
    found = await refine(answer(Status.WORKING), activity(4, next_ms=5000))
    [retry] = found.retries
    assert (found.status, found.reason) == (Status.RETRYING, "model")
    assert (retry.attempt, retry.attempts_max, retry.next_ms) == (4, 12, 5000)
    assert retry.error == "model failed: 503"
    [runs] = (await refine(answer(Status.WORKING), activity(2))).retries
    assert runs.next_ms is None
    assert (await refine(answer(Status.WORKING), activity(1))).status == Status.WORKING


@pytest.mark.parametrize(
    ("status", "reason"), [(Status.APPROVAL, ""), (Status.PAUSED, "person"), (Status.DONE, "")]
)
async def test_attempts_do_not_hide_a_more_urgent_state(status: Status, reason: str) -> None:
    found = await refine(answer(status, reason), activity(3))
    assert (found.status, found.reason) == (status, reason)
