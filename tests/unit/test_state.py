"""Operational state fits its bound in the worst case that the limits admit."""

import dataclasses
from collections.abc import Callable

import pytest
from pydantic import TypeAdapter, ValidationError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter

from everlong import Policy, ThreadStart, limits
from everlong.models import (
    Answer,
    Call,
    CallOptions,
    Control,
    ControlNote,
    Counters,
    Decide,
    Edit,
    Entry,
    Fact,
    Grant,
    Kind,
    MemoryChange,
    Message,
    ModelTurn,
    Pause,
    PublishedSize,
    Ref,
    Report,
    Resolve,
    SegmentRef,
    SendMessage,
    SentTime,
    SnapshotRef,
    ThreadState,
    ToolResult,
    WantedCall,
    build_entry,
    make_printable,
    seq_after,
)
from everlong.models.grants import make_grant_id
from everlong.models.state import replace_values
from everlong.policy import LimitHit, RepeatedFailure, Streaks
from everlong.workflows import approvals, grants, outcomes, transitions

WIDE = "\U0001f600"  # Four bytes in UTF-8, the most that a printable character takes in JSON.
THREAD = "a" * 32
REF = Ref(
    thread=THREAD,
    digest="b" * 64,
    size_bytes=limits.TEXT_BYTES_MAX,
    kind=Kind.TOOL_RESULT,
    preview=WIDE * limits.PREVIEW_CHARS_MAX,
)
HEAD = SegmentRef(ref=dataclasses.replace(REF, preview=""), first_seq=10**9, count=10**6)
NOW_MS = 10**13
SENT = SentTime(ms=NOW_MS, trace="0" * 55)


def with_full_inbox(state: ThreadState, message: SendMessage) -> ThreadState:
    for number in range(10_000):
        each = dataclasses.replace(message, id=message.id and f"{number:04}{message.id[4:]}")
        if transitions.explain_refusal(state, each, THREAD):
            return state
        state = transitions.queue(state, each)
    raise AssertionError("there is room for ever")


def busy(message: SendMessage) -> ThreadState:
    """Return the state of a thread of which everything that is always there is at its fullest."""
    hit = LimitHit(limit="no_progress_steps_max", value=10**15, bound=10**15, action="archive")
    state = ThreadState(
        head=HEAD,
        snapshot=SnapshotRef(ref=HEAD.ref, upto_seq=10**9, context_bytes=10**9),
        decided=tuple(f"{10**9 + i}-20 {'d' * 16}" for i in range(limits.DECIDED_MAX)),
        configured=("e" * 16,) * limits.CONFIGURED_MAX,
        answers=tuple(Answer(number=10**9 + i, seq=10**9 + i) for i in range(limits.ANSWERS_MAX)),
        pause=Pause(by=WIDE * 64, reason=WIDE * 300, limit=hit),
        ended=hit,
        context_bytes=10**9,
        context_tokens=10**9,
        compaction_due_ms=NOW_MS,
        next_expiry_ms=NOW_MS,
        in_turn=True,
        turn_steps=10**9,
        step_bytes=10**9,
        streaks=Streaks(
            failures=(RepeatedFailure(call="c" * 8, failure="f" * 8, count=10**6),)
            * limits.TOOL_CALLS_MAX,
            recent=("e" * 8,) * 8,
        ),
        counters=Counters(
            written_bytes=10**15, context_bytes=10**15, tokens=10**15, cost_usd=1 / 3
        ),
        last_failure=WIDE * limits.REASON_CHARS_MAX,
        published=f"approval no_progress_steps_max {limits.TOOL_CALLS_MAX}",
        turn_ms=NOW_MS,
        carried_after="c" * 36,
        acts_on=(SENT,) * limits.TOOL_CALLS_MAX,
        published_size=PublishedSize(
            ms=NOW_MS,
            thread_bytes=10**15,
            context_bytes=10**9,
            steps=10**9,
            resume_ms=1e6 / 3,
        ),
        trend=((NOW_MS, 10**15),) * limits.TREND_MAX,
        resume_ms=1e6 / 3,
    )
    return with_full_inbox(with_full_grants(state), message)


def with_full_grants(state: ThreadState) -> ThreadState:
    """Return a state with as many grants as it keeps."""
    for number in range(1000):
        grant = Grant(
            id=make_grant_id("thread", str(number)),
            tool="t" * limits.CALL_NAME_CHARS_MAX,
            arguments_digest="d" * 32,
            arguments="x" * limits.CALL_PREVIEW_CHARS_MAX,
            by=WIDE * limits.CALL_NAME_CHARS_MAX,
            granted_ms=NOW_MS,
            expires_ms=2 * NOW_MS,
        )
        if grants.explain_refusal(state, grant, NOW_MS):
            return state
        state = grants.add(state, grant, NOW_MS)
    raise AssertionError("there is room for ever")


MESSAGES = {
    "long": SendMessage(text="x" * (limits.MESSAGE_BYTES_MAX // 2), sent=SENT),
    "short": SendMessage(text="x", sent=SENT),
    "named": SendMessage(text="x", id="i" * 64, by=WIDE * 64, sent=SENT),
    "stored": SendMessage(
        sent=SENT,
        ref=dataclasses.replace(REF, kind=Kind.MESSAGE),
        original=dataclasses.replace(REF, kind=Kind.MESSAGE),
    ),
}


def add_calls(state: ThreadState, tool: str, *, asks: bool = False) -> ThreadState:
    """Take in a reply with as many calls as there may be, with names as long as they may be."""
    people = (WIDE * (limits.APPROVERS_BYTES_MAX // 4 // 8),) * 4
    options = CallOptions(
        timeout_seconds=limits.ACTIVITY_SECONDS_MAX,
        attempts_max=10**6,
        needs_approval=asks,
        approvers=people if asks else (),
        deadline_seconds=limits.ACTIVITY_SECONDS_MAX if asks else None,
        on_deadline="escalate" if asks else "deny",
        escalate_to=people if asks else (),
    )
    calls = tuple(
        WantedCall(
            call_id=f"{number:02}" + WIDE * (limits.CALL_NAME_CHARS_MAX - 2),
            tool=tool,
            preview=WIDE * limits.CALL_PREVIEW_CHARS_MAX if asks else "",
            digest="d" * 8,
            options=options,
        )
        for number in range(limits.TOOL_CALLS_MAX)
    )
    turn = ModelTurn(head=HEAD, tool_calls=calls, context_bytes=1, written_bytes=1)
    return approvals.request(transitions.apply_reply(state, turn), NOW_MS)


# A tool that exists has a plain name; a model may make up any other.
KNOWN = "t" * limits.CALL_NAME_CHARS_MAX
UNKNOWN = WIDE * limits.CALL_NAME_CHARS_MAX


def short_result(call_id: str, tool: str) -> Entry:
    """Return a result that stays in its entry: as long as that allows."""
    message = Message(role="tool", text="", call_id=call_id, tool=tool)
    room = limits.ENTRY_BODY_BYTES_MAX - build_entry(1, Kind.TOOL_RESULT, message, 1).size_bytes
    text = "x" * max(0, room)
    return build_entry(1, Kind.TOOL_RESULT, dataclasses.replace(message, text=text), NOW_MS)


def stored_result(call_id: str, tool: str) -> Entry:
    """Return a result of which even what the model is shown is a pack."""
    entry = short_result(call_id, tool)
    return dataclasses.replace(
        entry, body=None, ref=REF, original=REF, size_bytes=limits.TEXT_BYTES_MAX
    )


def child_result(call_id: str, tool: str) -> Entry:
    """Return a result of a sub-agent: it names its thread."""
    child_id = f"{WIDE * limits.CHILD_PARENT_CHARS_MAX}/{'a' * 64}-{'0' * 12}"
    return dataclasses.replace(short_result(call_id, tool), data={"thread_id": child_id})


def refused_result(call_id: str, tool: str) -> Entry:
    """Return what a call of an unknown tool gets: its name, and those that there are."""
    return dataclasses.replace(stored_result(call_id, tool), original=None)


def failed_result(call_id: str, tool: str) -> Entry:
    text = "error: " + WIDE * limits.REASON_CHARS_MAX
    message = Message(role="tool", text=text, call_id=call_id, tool=tool)
    return build_entry(1, Kind.TOOL_RESULT, message, NOW_MS)


def largest_change() -> dict[str, object]:
    """Return what a call of `remember` changes at most: a fact, and as much that goes for it."""
    fact = Fact(key="k" * 64, text="", time_ms=NOW_MS, expires_ms=NOW_MS)
    size_bytes = len(TypeAdapter(Fact).dump_json(fact))
    fact = dataclasses.replace(fact, text="x" * (limits.FACT_BYTES_MAX - size_bytes))
    change = MemoryChange(remembered=fact, evicted=("k" * 64,) * (limits.FACT_BYTES_MAX // 64))
    found: dict[str, object] = TypeAdapter(MemoryChange).dump_python(
        change, mode="json", exclude_defaults=True
    )
    return found


CHANGE = largest_change()
RESULTS: dict[str, tuple[str, Callable[[str, str], Entry]]] = {
    "short": (KNOWN, short_result),
    "stored": (KNOWN, stored_result),
    "child": (KNOWN, child_result),
    "failed": (KNOWN, failed_result),
    "refused": (UNKNOWN, refused_result),
    "remembered": ("remember", refused_result),
}


def finish_calls(state: ThreadState, kind: str, leave: int = 1) -> ThreadState:
    """Give all calls but the last a result."""
    for call in state.calls[: limits.TOOL_CALLS_MAX - leave]:
        done = ToolResult(
            entry=RESULTS[kind][1](call.call_id, call.tool),
            written_bytes=limits.TEXT_BYTES_MAX,
            digest="d" * 8,
            memory=CHANGE if kind == "remembered" else None,
        )
        state = transitions.add_result(state, call, done)
    return state


def flush_state(state: ThreadState) -> ThreadState:
    """Return a state after what the workflow does before it checks the bound."""
    waits = state.calls or state.notes or not state.in_turn
    if (
        not waits
        or transitions.measure_entries((*state.tail, *state.notes)) <= limits.TAIL_BYTES_MAX
    ):
        return state
    count = seq_after(state.head, transitions.take_notes(state).tail) - HEAD.first_seq
    return dataclasses.replace(
        state, tail=(), notes=(), head=dataclasses.replace(HEAD, count=count)
    )


def fill_unflushed(state: ThreadState, entry: ControlNote) -> ThreadState:
    """Add notes up to where one more would have them journalled."""
    while True:
        more = transitions.add_note(state, Kind.CONTROL, entry, NOW_MS)
        if transitions.measure_entries(more.notes) > limits.TAIL_BYTES_MAX:
            return state
        state = more


SMALL = ControlNote(action="unpause")


def measure_size(state: ThreadState) -> int:
    return transitions.measure_state(flush_state(state))


@pytest.mark.guarantee(56)
@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("tail", ["no tail", "notes"])
def test_calls_that_all_wait_for_approval_fit(message: SendMessage, tail: str) -> None:
    state = flush_state(add_calls(busy(message), KNOWN, asks=True))
    assert len(approvals.list_pending(state)) == limits.TOOL_CALLS_MAX
    if tail == "notes":
        state = fill_unflushed(state, SMALL)
    assert measure_size(state) <= limits.STATE_BYTES_MAX


@pytest.mark.guarantee(56)
@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("kind", RESULTS)
def test_calls_that_have_all_but_one_result_fit(message: SendMessage, kind: str) -> None:
    state = finish_calls(add_calls(busy(message), RESULTS[kind][0]), kind)
    assert measure_size(fill_unflushed(state, SMALL)) <= limits.STATE_BYTES_MAX


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("kind", ["short", "stored", "failed"])
def test_calls_that_were_approved_and_have_a_result_fit(message: SendMessage, kind: str) -> None:
    state = add_calls(busy(message), KNOWN, asks=True)
    for call in state.calls:
        decision = Decide(id=call.id, approve=True, by=WIDE * 64, reason=WIDE * 300)
        state = approvals.decide(state, decision, NOW_MS, sent=SENT)
    state = finish_calls(flush_state(state), kind)
    assert measure_size(fill_unflushed(state, SMALL)) <= limits.STATE_BYTES_MAX


def ask_all_outcomes(message: SendMessage) -> ThreadState:
    """Return a state in which all calls were changed, voted for and approved, and then were lost."""
    state = add_calls(busy(message), KNOWN, asks=True)
    for call in state.calls:
        lost = dataclasses.replace(
            call,
            waits=None,
            approved=True,
            sent=SENT,
            edit=Edit(digest="a" * 64, size_bytes=limits.EDIT_BYTES_MAX, number=99),
            options=dataclasses.replace(call.options, once=True, approvals_needed=8, always=False),
        )
        state = outcomes.begin_attempt(state, lost, "k" * 32)
        state = outcomes.ask(state, find_call(state, call.id), "unsaved", NOW_MS)
    return flush_state(state)


def find_call(state: ThreadState, call_id: str) -> Call:
    return next(call for call in state.calls if call.id == call_id)


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_calls_whose_outcomes_are_all_unknown_fit(message: SendMessage) -> None:
    state = ask_all_outcomes(message)
    assert measure_size(fill_unflushed(state, SMALL)) <= limits.STATE_BYTES_MAX
    for outcome in outcomes.list_unknown(state)[:-1]:
        resolve = Resolve(
            id=outcome.id,
            outcome="done",
            by=outcome.approvers[0],
            reason=WIDE * 300,
            result="x" * (limits.OUTCOME_RESULT_BYTES_MAX - 2),
        )
        state = outcomes.resolve(state, resolve, NOW_MS, "key", SENT)
    assert len(outcomes.list_unknown(state)) == 1
    assert measure_size(flush_state(state)) <= limits.STATE_BYTES_MAX


@pytest.mark.guarantee(56)
@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_calls_with_votes_fit(message: SendMessage) -> None:
    state = flush_state(add_calls(busy(message), KNOWN, asks=True))
    calls = tuple(
        replace_values(call, options=replace_values(call.options, approvals_needed=0))
        for call in state.calls
    )
    state, refused = replace_values(state, calls=calls), 0
    for approval in approvals.list_pending(state):
        for by in approval.approvers[:-1]:
            decide = Decide(id=approval.id, approve=True, by=by, reason=WIDE * 300)
            refused += bool(approvals.explain_refusal(state, decide, NOW_MS))
            state = approvals.decide(state, decide, NOW_MS, by)
    assert refused
    assert measure_size(flush_state(state)) <= limits.STATE_BYTES_MAX


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_calls_that_are_all_denied_at_length_fit(message: SendMessage) -> None:
    state = flush_state(add_calls(busy(message), KNOWN, asks=True))
    for call in state.calls[:-1]:
        decision = Decide(id=call.id, approve=False, by=WIDE * 64, reason=WIDE * 300)
        state = approvals.decide(state, decision, NOW_MS, sent=SENT)
    assert measure_size(state) <= limits.STATE_BYTES_MAX


@pytest.mark.guarantee(56)
@pytest.mark.parametrize("stops", [False, True], ids=["goes on", "stops"])
@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_the_unjournalled_backlog_is_bounded_too(message: SendMessage, stops: bool) -> None:
    """The store fails after the reply, while approvals are escalated, and denied with long reasons."""
    state = add_calls(busy(message), KNOWN, asks=True)
    calls = tuple(
        replace_values(call, options=replace_values(call.options, approvals_needed=0))
        for call in state.calls
    )
    state = replace_values(state, calls=calls)
    votes = 0
    for call in approvals.list_pending(state):
        for by in call.approvers[:-1]:
            vote = Decide(id=call.id, approve=True, by=by, reason=WIDE * 300)
            votes += not approvals.explain_refusal(state, vote, NOW_MS)
            state = approvals.decide(state, vote, NOW_MS, by, SENT)
    deadline_ms = NOW_MS + int(limits.ACTIVITY_SECONDS_MAX * 1000)
    state = approvals.apply_deadlines(state, deadline_ms)
    for call in approvals.list_pending(state):
        decision = Decide(
            id=call.id, approve=False, by=call.approvers[0], reason=WIDE * 299 + "\x00"
        )
        state = approvals.decide(state, decision, deadline_ms, "key", SENT)
    assert votes
    assert len(state.notes) == 3 * limits.TOOL_CALLS_MAX + votes
    if stops:
        state = transitions.empty_inbox(transitions.break_off(state, NOW_MS), NOW_MS)
    assert transitions.measure_state(state) <= limits.STATE_HELD_BYTES_MAX


@pytest.mark.guarantee(56)
@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("kind", RESULTS)
def test_results_on_their_way_to_the_model_fit(message: SendMessage, kind: str) -> None:
    state = finish_calls(add_calls(busy(message), RESULTS[kind][0]), kind, leave=0)
    state = transitions.settle(state, NOW_MS)
    assert len(state.tail) == limits.TOOL_CALLS_MAX
    assert measure_size(state) <= limits.STATE_BYTES_MAX


@pytest.mark.guarantee(56)
@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_a_turn_that_has_just_begun_fits(message: SendMessage) -> None:
    state = dataclasses.replace(busy(message), in_turn=False)
    state = fill_unflushed(state, SMALL)
    state = with_full_inbox(transitions.begin_turn(state, NOW_MS), message)
    assert measure_size(state) <= limits.STATE_BYTES_MAX


@pytest.mark.guarantee(56)
@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_sub_agents_of_a_thread_with_a_long_id_fit(message: SendMessage) -> None:
    """Temporal takes ids of up to 1,000 bytes."""
    state = add_calls(busy(message), KNOWN)
    name = transitions.build_child_id("i" * 1000, "a" * limits.CALL_NAME_CHARS_MAX, "f" * 12)
    report = Report(child_id=name, head=HEAD, tokens=10**15, cost_usd=1 / 3)
    for call in state.calls:
        changed = dataclasses.replace(call, child_id=name, report=report)
        state = transitions.replace_call(state, changed)
    assert measure_size(fill_unflushed(state, SMALL)) <= limits.STATE_BYTES_MAX


@pytest.mark.parametrize("converter", [DataConverter.default, pydantic_data_converter])
async def test_models_cross_both_converters_of_the_sdk(converter: DataConverter) -> None:
    state = finish_calls(add_calls(busy(MESSAGES["stored"]), "remember", asks=True), "remembered")
    start = ThreadStart(agent="ops", policy=Policy(run_events_max=99), state=state)
    [back] = await converter.decode(await converter.encode([start]), [ThreadStart])
    assert back == start


async def test_a_start_needs_only_the_agents_name() -> None:
    [payload] = await DataConverter.default.encode([{"agent": "ops"}])
    assert await DataConverter.default.decode([payload], [ThreadStart]) == [
        ThreadStart(agent="ops")
    ]


async def test_signals_may_be_empty_or_partial() -> None:
    for given, meant in (
        ({}, Control()),
        ({"by": "alice"}, Control(by="alice")),
        ({"reason": "so"}, Control(reason="so")),
    ):
        [payload] = await DataConverter.default.encode([given])
        assert await DataConverter.default.decode([payload], [Control]) == [meant]


def test_the_id_of_a_message_is_plain() -> None:
    assert SendMessage(text="x", id="0b1c-5f:7").id == "0b1c-5f:7"
    for bad in (WIDE, "i" * 65, "a\nb"):
        with pytest.raises(ValidationError):
            SendMessage(text="x", id=bad)


def test_printable_text_needs_no_escapes_but_quotes() -> None:
    assert make_printable("a\nb\x00c" + "d" * 100, 6) == "a b cd"
    assert make_printable("\ud800\u202e\u00ad", 9) == "   "


def test_with_values_equals_dataclasses_replace() -> None:
    state = ThreadState(counters=Counters(steps=3), rested=True)
    copy = replace_values(state, rested=False, holds=2)
    assert copy == dataclasses.replace(state, rested=False, holds=2)
    assert type(copy) is ThreadState
    assert state.rested
    assert state.holds == 0


def test_with_values_refuses_an_unknown_field() -> None:
    with pytest.raises(TypeError, match="ThreadState has no field 'tired'"):
        replace_values(ThreadState(), tired=True)
