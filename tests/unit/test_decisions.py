"""Votes, changed arguments, grants and unknown outcomes, as functions of a thread's state."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from everlong import limits
from everlong.models import (
    Always,
    Approval,
    Call,
    CallOptions,
    Decide,
    DecisionCheck,
    Edit,
    Grant,
    Kind,
    Resolve,
    RevokeGrant,
    ThreadState,
    WantedCall,
    parse_message,
)
from everlong.models.grants import digest_arguments, make_grant_id
from everlong.testing import FakeApprover
from everlong.workflows import approvals, deadlines, grants, outcomes, transitions

NOW_MS = 1_000_000
STATE = TypeAdapter(ThreadState)
CHECK = DecisionCheck(
    edit=Edit(digest="a" * 64, size_bytes=9), preview='{"euros":9}', written_bytes=70
)


def make_state(*options: CallOptions) -> ThreadState:
    calls = tuple(
        Call(id=f"4-{i}-ab12", call_id=f"c{i}", tool="pay", preview="{}", options=each)
        for i, each in enumerate(options, 1)
    )
    return approvals.request(ThreadState(calls=calls, in_turn=True), NOW_MS)


def needs(number: int, approvers: Sequence[str] = (), **options: Any) -> CallOptions:
    return CallOptions(
        needs_approval=True, approvals_needed=number, approvers=tuple(approvers), **options
    )


def approve(by: str, number: int = 1, approval_id: str = "", **fields: Any) -> Decide:
    return Decide(id=approval_id or f"4-{number}-ab12", approve=True, by=by, **fields)


def vote(state: ThreadState, decide: Decide, key: str = "") -> ThreadState:
    assert approvals.explain_refusal(state, decide, NOW_MS, key) == ""
    check = CHECK if decide.arguments is not None else None
    return approvals.decide(state, decide, NOW_MS, key, check=check)


def roll(state: ThreadState) -> ThreadState:
    return STATE.validate_json(STATE.dump_json(state))


# Several approvers.


@pytest.mark.guarantee(114)
@pytest.mark.parametrize(
    ("needed", "approvers", "names"),
    [(2, (), "ab"), (2, "abc", "bc"), (0, "abc", "cab"), (3, "abc", "abc"), (1, "ab", "b")],
)
def test_a_call_runs_after_the_last_approval_that_it_needs(
    needed: int, approvers: str, names: str
) -> None:
    state = make_state(needs(needed, approvers))
    for name in names[:-1]:
        state = roll(vote(state, approve(name)))
        assert not state.calls[0].approved
        assert len(approvals.list_pending(state)) == 1
    state = vote(state, approve(names[-1]))
    assert state.calls[0].approved
    assert approvals.list_pending(state) == []
    decided = state.notes[-1].data or {}
    assert decided.get("votes", []) == (list(names) if len(names) > 1 else [])
    assert [note.kind for note in state.notes[1:-1]] == [Kind.VOTED] * (len(names) - 1)


@pytest.mark.parametrize("name", ["ann", "Ann", " ann ", "ANN\n"])
def test_a_person_counts_once_however_the_name_is_written(name: str) -> None:
    state = vote(make_state(needs(2)), approve("ann"))
    refused = approvals.explain_refusal(state, approve(name), NOW_MS)
    assert "has approved '4-1-ab12' already; 1 more must: anyone else" in refused
    assert approvals.decide(state, approve(name), NOW_MS) == state


def test_one_denial_denies_whoever_has_approved() -> None:
    state = vote(make_state(needs(3)), approve("ann"))
    denial = dataclasses.replace(approve("ben"), approve=False)
    state = approvals.decide(state, denial, NOW_MS)
    assert approvals.list_pending(state) == []
    assert state.calls[0].result is not None


def test_a_vote_that_is_sent_again_counts_once() -> None:
    state = vote(make_state(needs(3)), approve("ann"), "request 1")
    assert approvals.explain_refusal(roll(state), approve("ann"), NOW_MS, "request 1") == ""
    assert approvals.decide(roll(state), approve("ann"), NOW_MS, "request 1") == state
    assert approvals.explain_refusal(state, approve("ann"), NOW_MS, "request 2") != ""


def test_an_escalation_asks_other_people_from_the_start() -> None:
    options = needs(2, "abc", deadline_seconds=10, on_deadline="escalate", escalate_to=("chief",))
    state = vote(make_state(options), approve("a"))
    state = deadlines.apply_deadlines(state, NOW_MS + 10_000)
    [approval] = approvals.list_pending(state)
    assert (approval.needed, approval.votes, approval.escalated) == (1, (), True)
    assert "chief may" in approvals.explain_refusal(state, approve("b"), NOW_MS + 10_000)
    state = approvals.decide(state, approve("chief"), NOW_MS + 10_000)
    assert state.calls[0].approved


def test_a_deadline_denies_a_call_that_lacks_approvals() -> None:
    state = vote(make_state(needs(2, deadline_seconds=10)), approve("ann"))
    late = deadlines.apply_deadlines(state, NOW_MS + 10_000)
    assert late.calls[0].result is not None
    assert not late.calls[0].approved


def test_votes_are_bounded_in_all() -> None:
    state = make_state(*[needs(8)] * limits.TOOL_CALLS_MAX)
    refused = ""
    for number in range(1, limits.TOOL_CALLS_MAX + 1):
        for voter in range(7):
            decide = approve(f"\U0001f600{voter}" * 20, number)
            if refused := refused or approvals.explain_refusal(state, decide, NOW_MS):
                break
            state = approvals.decide(state, decide, NOW_MS)
    assert "too many calls of this thread have a part of their approvals" in refused
    votes = [each for call in state.calls if call.waits for each in call.waits.votes]
    assert len(TypeAdapter(list[Any]).dump_json(votes)) <= limits.VOTES_BYTES_MAX


# Changed arguments.


def test_a_change_makes_earlier_votes_void_and_the_old_id_stale() -> None:
    state = vote(make_state(needs(2)), approve("ann"))
    state = roll(vote(state, approve("ben", arguments={"euros": 9})))
    [changed] = approvals.list_pending(state)
    assert (changed.id, changed.arguments) == ("4-1-ab12-r1", '{"euros":9}')
    assert [each.by for each in changed.votes] == ["ben"]
    assert "decide on '4-1-ab12-r1'" in approvals.explain_refusal(state, approve("ann"), NOW_MS)
    state = vote(state, approve("ann", approval_id="4-1-ab12-r1"))
    assert state.calls[0].approved
    assert state.calls[0].edit == CHECK.edit
    decided = state.notes[-1].data or {}
    assert (decided["edit"], decided["arguments"]) == ("a" * 64, '{"euros":9}')
    assert state.counters.written_bytes == 70


@pytest.mark.parametrize(
    ("decide", "options", "reason"),
    [
        (approve("ann", arguments={"a": "x" * 40_000}), {}, "has 40008 bytes; the maximum is"),
        (approve("ann", arguments={}), {"agent": "sub"}, "a request to a sub-agent cannot be"),
        (approve("ann", arguments={}, always=Always(match="tool")), {}, "do not go together"),
        (approve("ann", always=Always(match="tool")), {"always": False}, "needs its own approval"),
        (
            approve("ann", always=Always(match="tool")),
            {"approvals_needed": 2},
            "needs 2 approvals, so no single person",
        ),
        (
            Decide(id="4-1-ab12", approve=False, by="ann", arguments={}),
            {},
            "a denial has neither",
        ),
    ],
)
def test_an_impossible_decision_is_refused_with_a_reason(
    decide: Decide, options: dict[str, Any], reason: str
) -> None:
    state = make_state(CallOptions(needs_approval=True, **options))
    assert reason in approvals.explain_refusal(state, decide, NOW_MS)
    assert approvals.decide(state, decide, NOW_MS, check=CHECK) == state


# Grants.


def make_grant(**fields: Any) -> Grant:
    known = {"id": make_grant_id("thread", "1"), "tool": "pay", "by": "ann", "granted_ms": NOW_MS}
    return Grant(**{**known, **fields})


WANTED = WantedCall(call_id="c1", tool="pay", options=needs(1))


@pytest.mark.guarantee(115)
@pytest.mark.parametrize(
    ("grant", "options", "allowed"),
    [
        ({}, {}, True),
        ({"tool": "pay_more"}, {}, False),
        ({"arguments_digest": "d" * 32}, {}, True),
        ({"arguments_digest": "e" * 32}, {}, False),
        ({"expires_ms": NOW_MS + 1}, {}, True),
        ({"expires_ms": NOW_MS}, {}, False),
        ({}, {"always": False}, False),
        ({}, {"approvals_needed": 2}, False),
        ({}, {"approvals_needed": 0}, False),
        ({}, {"approvers": ("ann", "ben")}, True),
        ({}, {"approvers": ("ben",)}, False),
    ],
)
def test_a_grant_allows_what_its_giver_could_allow(
    grant: dict[str, Any], options: dict[str, Any], allowed: bool
) -> None:
    wanted = dataclasses.replace(WANTED, options=CallOptions(needs_approval=True, **options))
    assert make_grant(**grant).allows(wanted, "d" * 32, NOW_MS) is allowed


def test_a_call_that_a_grant_allows_is_journalled_and_not_asked() -> None:
    grant = make_grant()
    call = Call(id="4-1-ab12", call_id="c1", tool="pay", preview="{}", options=needs(1))
    state = grants.add(ThreadState(calls=(call,)), grant, NOW_MS)
    wanted = dataclasses.replace(WANTED, grant=grant.id, granted_by="ann")
    allowed = approvals.request(state, NOW_MS, [wanted])
    assert allowed.calls[0].approved
    [used] = allowed.notes
    assert (used.kind, (used.data or {})["grant"]) == (Kind.DECIDED, grant.id)
    # Revoked while the model was called, and after that but before the call ran.
    revoked = grants.revoke(state, RevokeGrant(id=grant.id, by="ben"), NOW_MS)
    assert len(approvals.list_pending(approvals.request(revoked, NOW_MS, [wanted]))) == 1
    late = grants.revoke(allowed, RevokeGrant(id=grant.id, by="ben"), NOW_MS)
    assert not approvals.is_usable(late, late.calls[0], NOW_MS)
    assert len(approvals.list_pending(approvals.withdraw(late, late.calls[0], NOW_MS))) == 1


@pytest.mark.guarantee(115)
def test_a_grant_that_expires_before_the_call_runs_allows_nothing() -> None:
    grant = make_grant(expires_ms=NOW_MS + 5)
    call = Call(id="4-1-ab12", call_id="c1", tool="pay", preview="{}", options=needs(1))
    state = grants.add(ThreadState(calls=(call,)), grant, NOW_MS)
    wanted = dataclasses.replace(WANTED, grant=grant.id, granted_by="ann")
    # It expired during the model call.
    assert len(approvals.list_pending(approvals.request(state, NOW_MS + 5, [wanted]))) == 1
    # It expired while the thread was paused.
    [allowed] = approvals.request(state, NOW_MS + 4, [wanted]).calls
    assert approvals.is_usable(state, allowed, NOW_MS + 4)
    assert not approvals.is_usable(state, allowed, NOW_MS + 5)
    # A call whose sub-agent works has begun to run: no person is asked when its answer is collected.
    begun = dataclasses.replace(allowed, child_id="ops-7/helper-1")
    assert approvals.is_usable(state, begun, NOW_MS + 5)


def test_grants_are_bounded_and_expired_ones_make_room() -> None:
    state = ThreadState()
    for number in range(100):
        grant = make_grant(id=make_grant_id("thread", str(number)), expires_ms=NOW_MS + 1)
        if reason := grants.explain_refusal(state, grant, NOW_MS):
            break
        state = grants.add(state, grant, NOW_MS)
    assert "Revoke one first" in reason
    assert grants.explain_refusal(state, grant, NOW_MS + 1) == ""
    assert grants.add(state, grant, NOW_MS + 1).grants == (grant,)


def test_a_revocation_that_is_sent_again_is_accepted_once() -> None:
    grant = make_grant()
    state = grants.add(ThreadState(), grant, NOW_MS)
    request = RevokeGrant(id=grant.id, by="ann")
    gone = grants.revoke(state, request, NOW_MS, "request 1")
    assert grants.explain_revoke_refusal(gone, request, NOW_MS, "request 1") == ""
    assert grants.revoke(gone, request, NOW_MS, "request 1") == gone
    refused = grants.explain_revoke_refusal(gone, request, NOW_MS, "request 2")
    assert refused == f"this thread has no grant '{grant.id}'; it has: none"


NAMES = st.text("abc", min_size=1, max_size=2)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)


@given(st.dictionaries(NAMES, VALUES, max_size=3), st.dictionaries(NAMES, VALUES, max_size=3))
def test_the_digest_of_arguments_depends_on_their_values_alone(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    turned = dict(reversed(first.items()))
    assert digest_arguments("pay", first) == digest_arguments("pay", turned)
    assert digest_arguments("pay", first) != digest_arguments("play", first)
    same = digest_arguments("pay", first) == digest_arguments("pay", second)
    assert same == (json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True))


# Unknown outcomes.


def make_unknown(**options: Any) -> ThreadState:
    call = Call(
        id="4-1-ab12",
        call_id="c1",
        tool="pay",
        preview="{}",
        options=CallOptions(attempts_max=1, once=True, **options),
    )
    state = outcomes.begin_attempt(ThreadState(calls=(call,), in_turn=True), call, "k" * 32)
    return outcomes.ask(state, state.calls[0], "lost", NOW_MS)


def answer(outcome: Any, outcome_id: str = "4-1-ab12-1", **fields: Any) -> Resolve:
    return Resolve(id=outcome_id, outcome=outcome, by="ann", **fields)


def read_result(state: ThreadState) -> str:
    result = state.calls[0].result
    assert result is not None
    assert result.entry.body is not None
    return parse_message(Kind.TOOL_RESULT, result.entry.body).text


@pytest.mark.guarantee(116)
def test_an_unknown_outcome_waits_across_runs_with_its_key() -> None:
    state = roll(make_unknown())
    [unknown] = outcomes.list_unknown(state)
    assert (unknown.id, unknown.cause, unknown.idempotency_key) == ("4-1-ab12-1", "lost", "k" * 32)
    assert approvals.list_pending(state) == []
    assert deadlines.count_waiting(state) == 1
    assert [note.kind for note in state.notes] == [Kind.OUTCOME_UNKNOWN]


@pytest.mark.guarantee(116)
def test_the_word_to_run_a_call_again_replaces_its_grant() -> None:
    """If a revoked grant stopped the new attempt, the model would read that nothing was run."""
    state = make_unknown()
    granted = dataclasses.replace(state.calls[0], grant=make_grant_id("agent", "1"))
    state = outcomes.resolve(dataclasses.replace(state, calls=(granted,)), answer("retry"), NOW_MS)
    assert (state.calls[0].grant, state.calls[0].approved) == ("", True)


@pytest.mark.parametrize(
    ("resolve", "text"),
    [
        (answer("done", result='{"id": 7}'), '{"id": 7} [reported by ann: its worker was lost'),
        (answer("done"), "done [reported by ann: its worker was lost while it ran]"),
        (answer("not_done", reason="no entry"), "error: it had no effect, ann found (no entry): "),
    ],
)
def test_the_model_reads_what_a_person_found(resolve: Resolve, text: str) -> None:
    state = make_unknown()
    assert outcomes.explain_refusal(state, resolve, NOW_MS) == ""
    state = outcomes.resolve(state, resolve, NOW_MS, "request 1")
    assert read_result(state).startswith(text)
    assert outcomes.explain_refusal(state, resolve, NOW_MS, "request 1") == ""
    assert outcomes.resolve(state, resolve, NOW_MS, "request 1") == state
    assert "resolved already" in outcomes.explain_refusal(state, resolve, NOW_MS, "request 2")


def test_a_new_attempt_keeps_the_key_and_makes_the_old_id_stale() -> None:
    state = outcomes.resolve(make_unknown(), answer("retry"), NOW_MS)
    call = state.calls[0]
    assert (call.result, call.unknown) == (None, None)
    state = outcomes.begin_attempt(state, call, "another key")
    state = outcomes.ask(state, state.calls[0], "timeout", NOW_MS)
    [unknown] = outcomes.list_unknown(state)
    assert (unknown.id, unknown.idempotency_key) == ("4-1-ab12-2", "k" * 32)
    assert "resolved already" in outcomes.explain_refusal(state, answer("done"), NOW_MS)


@pytest.mark.parametrize(
    ("resolve", "reason"),
    [
        (answer("done", "4-1-ab12-9"), "there is no unknown outcome '4-1-ab12-9'; waiting: 4-1"),
        (answer("retry", result="x"), "only a call that is done has a `result`"),
        (answer("done", result="\U0001f600" * 200), "`result` has 802 bytes; the maximum is 512"),
        (dataclasses.replace(answer("done"), by=" "), "`by` must be the name"),
        (dataclasses.replace(answer("done"), by="deadline"), "`by` must be the name"),
        (dataclasses.replace(answer("done"), by="eve"), "'eve' may not decide"),
    ],
)
def test_an_invalid_answer_is_refused_with_a_reason(resolve: Resolve, reason: str) -> None:
    state = make_unknown(approvers=("ann", " "))
    assert reason in outcomes.explain_refusal(state, resolve, NOW_MS)
    assert outcomes.resolve(state, resolve, NOW_MS) == state


def test_after_the_deadline_the_model_reads_that_the_outcome_is_unknown() -> None:
    options = {"deadline_seconds": 10.0, "on_deadline": "escalate", "escalate_to": ("chief",)}
    state = make_unknown(**options)
    assert deadlines.get_time_to_deadline(state, NOW_MS) is not None
    state = deadlines.apply_deadlines(state, NOW_MS + 10_000)
    [unknown] = outcomes.list_unknown(state)
    assert (unknown.escalated, unknown.approvers) == (True, ("chief",))
    state = deadlines.apply_deadlines(state, NOW_MS + 20_000)
    assert "error: it is not known whether it took effect" in read_result(state)
    assert deadlines.count_waiting(state) == 0


@pytest.mark.parametrize("running", [False, True])
def test_a_thread_that_ends_tells_the_model_that_the_outcome_is_unknown(*, running: bool) -> None:
    state = make_unknown()
    if running:
        state = outcomes.resolve(state, answer("retry"), NOW_MS)
    state = transitions.break_off(state, NOW_MS)
    assert state.calls == ()
    body = next(entry.body for entry in state.tail if entry.kind == Kind.TOOL_RESULT)
    assert body is not None
    assert "before it was known whether" in parse_message(Kind.TOOL_RESULT, body).text


# The approver of the testing kit.


@pytest.mark.parametrize(
    ("approver", "fields", "names"),
    [
        (FakeApprover(), {"needed": 3}, ["tester", "tester-2", "tester-3"]),
        (FakeApprover(), {"needed": 2, "approvers": ("a", "b", "c")}, ["a", "b"]),
        (FakeApprover(by="kim"), {"needed": 2}, ["kim"]),
        (FakeApprover(False), {"needed": 2, "approvers": ("a", "b")}, ["a"]),
    ],
)
async def test_a_tests_approver_votes_as_often_as_the_call_needs(
    approver: FakeApprover, fields: dict[str, Any], names: list[str]
) -> None:
    decided: list[str] = []

    class Thread:
        async def arguments(self, approval: Approval) -> str:
            return approval.arguments

        async def decide(self, _: str, *, approve: bool, by: str, reason: str) -> None:
            decided.append(by)

    approval = Approval(id="4-1-ab12", tool="pay", arguments="{}", asked_ms=1, **fields)
    await approver._decide(Thread(), approval)  # type: ignore[arg-type] # all that it calls
    assert decided == names
