"""Approvals as functions of a thread's state."""

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from everlong import limits
from everlong.models import (
    Call,
    CallOptions,
    Decide,
    Kind,
    Message,
    ThreadState,
    ToolResult,
    build_entry,
    parse_message,
)
from everlong.workflows import approvals, deadlines
from everlong.workflows.continue_as_new import carry_approvals

NOW_MS = 1_000_000


def make_state(*options: CallOptions) -> ThreadState:
    calls = tuple(
        Call(id=f"4-{i}", call_id=f"c{i}", tool="pay", preview="{}", options=each)
        for i, each in enumerate(options, 1)
    )
    return ThreadState(calls=calls, in_turn=True)


def make_options(**options: Any) -> CallOptions:
    return CallOptions(needs_approval=True, **options)


def decision(number: int = 1, *, approve: bool = True, by: str = "alice") -> Decide:
    return Decide(id=f"4-{number}", approve=approve, by=by, reason="so")


def kinds(state: ThreadState) -> list[Kind]:
    return [note.kind for note in state.notes]


def test_each_call_that_needs_approval_is_requested_once() -> None:
    state = approvals.request(make_state(make_options(), CallOptions(), make_options()), NOW_MS)
    assert [each.id for each in approvals.list_pending(state)] == ["4-1", "4-3"]
    assert kinds(state) == [Kind.ASKED, Kind.ASKED]
    assert approvals.request(state, NOW_MS + 5) == state
    state = approvals.decide(state, decision(1), NOW_MS)
    state = approvals.decide(state, decision(3, approve=False), NOW_MS)
    assert approvals.request(state, NOW_MS + 9) == state
    assert approvals.list_pending(state) == []


def test_an_approved_call_can_be_run_and_a_denied_one_has_its_result() -> None:
    state = approvals.request(make_state(make_options(), make_options()), NOW_MS)
    state = approvals.decide(state, decision(2, approve=False, by="bob\n"), NOW_MS + 7)
    state = approvals.decide(state, decision(1), NOW_MS + 8)
    first, second = state.calls
    assert (first.approved, first.waits, first.result) == (True, None, None)
    assert second.result is not None
    assert second.result.outcome == "ok"  # A denial is no failure.
    assert second.result.entry.body is not None
    message = parse_message(Kind.TOOL_RESULT, second.result.entry.body)
    assert (message.text, message.call_id) == ("error: denied by bob : so", "c2")
    assert [each.split()[0] for each in state.decided] == ["4-2", "4-1"]
    assert [(note.data or {})["by"] for note in state.notes[2:]] == ["bob ", "alice"]


@pytest.mark.parametrize(
    ("decide", "reason"),
    [
        (decision(1), ""),
        (decision(9), "there is no approval '4-9'; waiting: 4-1"),
        (decision(2), "has been decided already"),
        (decision(1, by=""), "`by` must be the name of the approver"),
        (decision(1, by=" \t"), "`by` must be the name of the approver"),
        (decision(1, by=approvals.DEADLINE), "`by` must be the name of the approver"),
        (decision(1, by="Alice"), "'Alice' may not decide '4-1'; alice or bob may"),
    ],
)
def test_an_invalid_decision_is_refused_with_a_reason(decide: Decide, reason: str) -> None:
    state = approvals.request(
        make_state(make_options(approvers=("alice", "bob")), make_options()), NOW_MS
    )
    state = approvals.decide(state, decision(2), NOW_MS)
    refused = approvals.explain_refusal(state, decide, NOW_MS)
    assert reason in refused
    assert bool(reason) == bool(refused)


def test_a_repeated_decision_changes_nothing() -> None:
    state = approvals.request(make_state(make_options()), NOW_MS)
    once = approvals.decide(state, decision(), NOW_MS, "request 1")
    assert approvals.explain_refusal(once, decision(), NOW_MS, "request 1") == ""
    assert approvals.decide(once, decision(), NOW_MS + 9, "request 1") == once
    assert "decided already" in approvals.explain_refusal(once, decision(), NOW_MS, "request 2")
    assert "decided already" in approvals.explain_refusal(once, decision(), NOW_MS)


def test_a_deadline_is_kept_to_the_millisecond() -> None:
    state = approvals.request(
        make_state(make_options(deadline_seconds=2.5), make_options()), NOW_MS
    )
    assert deadlines.get_time_to_deadline(state, NOW_MS) == timedelta(seconds=2.5)
    assert approvals.apply_deadlines(state, NOW_MS + 2499) == state
    late = approvals.apply_deadlines(state, NOW_MS + 2500)
    assert [each.id for each in approvals.list_pending(late)] == ["4-2"]
    assert (late.notes[-1].data or {})["by"] == approvals.DEADLINE
    assert deadlines.get_time_to_deadline(late, NOW_MS) is None
    assert deadlines.get_time_to_deadline(state, NOW_MS + 9999) == timedelta(0)


def test_an_escalation_grants_the_same_time_once() -> None:
    options = make_options(
        approvers=("alice",), deadline_seconds=10.0, on_deadline="escalate", escalate_to=("chief",)
    )
    state = approvals.apply_deadlines(
        approvals.request(make_state(options), NOW_MS), NOW_MS + 12_000
    )
    [approval] = approvals.list_pending(state)
    assert approval.escalated
    assert (approval.asked_ms, approval.deadline_ms) == (NOW_MS, NOW_MS + 22_000)
    assert "chief may" in approvals.explain_refusal(state, decision(by="alice"), NOW_MS + 12_000)
    assert approvals.explain_refusal(state, decision(by="chief"), NOW_MS + 12_000) == ""
    assert approvals.apply_deadlines(state, NOW_MS + 21_999) == state
    late = approvals.apply_deadlines(state, NOW_MS + 22_000)
    assert approvals.list_pending(late) == []
    assert "decided already" in approvals.explain_refusal(late, decision(by="chief"), NOW_MS)
    assert kinds(late) == [Kind.ASKED, Kind.DECIDED, Kind.DECIDED]


def test_a_decision_in_time_is_not_overruled_by_the_deadline() -> None:
    state = approvals.request(make_state(make_options(deadline_seconds=1.0)), NOW_MS)
    state = approvals.decide(state, decision(), NOW_MS + 999)
    assert approvals.apply_deadlines(state, NOW_MS + 5000) == state


def test_a_decision_after_the_deadline_is_late_even_before_its_timer() -> None:
    state = approvals.request(
        make_state(make_options(deadline_seconds=1.0), make_options()), NOW_MS
    )
    late_ms = NOW_MS + 1000
    assert approvals.explain_refusal(state, decision(), late_ms - 1) == ""
    assert "decided already" in approvals.explain_refusal(state, decision(), late_ms)
    late = approvals.decide(state, decision(), late_ms)
    assert [each.id for each in approvals.list_pending(late)] == ["4-2"]
    assert (late.calls[0].approved, late.calls[0].result is not None) == (False, True)


def test_a_result_of_another_call_does_not_change_an_approval() -> None:
    state = approvals.request(make_state(make_options(), CallOptions()), NOW_MS)
    done = ToolResult(
        entry=build_entry(1, Kind.TOOL_RESULT, Message(role="tool", call_id="c2"), NOW_MS),
        written_bytes=0,
    )
    second = dataclasses.replace(state.calls[1], result=done)
    after = dataclasses.replace(state, calls=(state.calls[0], second))
    assert approvals.list_pending(after) == approvals.list_pending(state)


@given(st.integers(1, 3 * limits.DECIDED_MAX))
def test_only_the_last_decisions_are_remembered(count: int) -> None:
    state = ThreadState()
    for number in range(count):
        [call] = make_state(make_options()).calls
        call = dataclasses.replace(call, id=f"{number}-1")
        state = approvals.request(dataclasses.replace(state, calls=(call,), notes=()), NOW_MS)
        state = approvals.decide(state, Decide(id=call.id, approve=True, by="a"), NOW_MS)
    assert len(state.decided) == min(count, limits.DECIDED_MAX)
    assert state.decided[-1] == f"{count - 1}-1"


def test_the_denial_that_the_model_reads_is_bounded() -> None:
    wide = "\U0001f600"
    state = approvals.request(make_state(make_options()), NOW_MS)
    decide = Decide(id="4-1", approve=False, by=wide * 64, reason=wide * 300)
    [call] = approvals.decide(state, decide, NOW_MS).calls
    assert call.result is not None
    assert call.result.entry.size_bytes < 1200


def test_a_decision_names_the_run_that_asked_once_the_thread_has_rolled() -> None:
    state = approvals.request(make_state(make_options(), make_options(), make_options()), NOW_MS)
    state = approvals.decide(state, decision(1), NOW_MS)
    state = carry_approvals(state, "run-1")
    state = approvals.decide(state, decision(2), NOW_MS)
    state = carry_approvals(state, "run-2")
    state = approvals.decide(state, decision(3), NOW_MS)
    asked = [note.data for note in state.notes if note.kind == Kind.DECIDED]
    assert [data and data["asked_run"] for data in asked] == ["run-1", "run-1", "run-1"]


def test_a_decision_carried_to_the_next_run_counts_its_whole_size() -> None:
    state = approvals.request(make_state(make_options()), NOW_MS)
    state = approvals.decide(state, decision(1), NOW_MS)
    carried = carry_approvals(state, "run-1")
    assert carried.notes[-1].size_bytes == len(to_json(carried.notes[-1].data))
    assert carried.notes[-1].size_bytes > state.notes[-1].size_bytes
    assert carried.notes[0] == state.notes[0]  # The question names no run.
    assert carry_approvals(carried, "run-2") == carried


def test_a_decision_of_the_run_that_asked_takes_no_more_of_the_state() -> None:
    state = approvals.request(make_state(make_options()), NOW_MS)
    state = approvals.decide(state, decision(1), NOW_MS)
    assert "asked_run" not in (state.notes[-1].data or {})
