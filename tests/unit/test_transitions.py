"""A thread's state over any order of events: nothing is lost, and all of it is in order."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pydantic import TypeAdapter

from everlong import limits
from everlong.models import (
    Append,
    AppendResult,
    CallOptions,
    CompactionNote,
    CompactResult,
    ControlNote,
    Decide,
    Entry,
    Kind,
    Message,
    ModelTurn,
    Ref,
    SegmentRef,
    SendMessage,
    SnapshotRef,
    ThreadState,
    ToolResult,
    WantedCall,
    build_entry,
    parse_message,
    seq_after,
)
from everlong.workflows import approvals, transitions
from tests.support.scale import scaled

THREAD = "a" * 32
REF = Ref(thread=THREAD, digest="b" * 64, size_bytes=1, kind=Kind.SEGMENT)
STATE = TypeAdapter(ThreadState)


class ThreadModel(RuleBasedStateMachine):
    """Does to a state what the workflow does, in any order that it allows."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ThreadState()
        self.journal: list[Entry] = []
        self.under_way: Append | None = None
        self.calling = False
        self.time_ms = 1000
        self.sent: list[str] = []
        self.noted: list[str] = []
        self.asked: set[str] = set()
        self.decided: dict[str, bool] = {}
        self.results = 0
        self.ended: list[str] = []
        self.failed = False

    @property
    def quiet(self) -> bool:
        return self.under_way is None and not self.calling

    # Events at any time.

    @rule(text=st.text("abc", min_size=1, max_size=3))
    def send(self, text: str) -> None:
        message = SendMessage(text=text)
        if transitions.explain_refusal(self.state, message, THREAD) == "":
            self.state = transitions.queue(self.state, message)
            self.sent.append(text)

    @rule()
    def note(self) -> None:
        self.noted.append(f"note {len(self.noted)}")
        note = ControlNote(action="pause", reason=self.noted[-1])
        self.state = transitions.add_note(self.state, Kind.CONTROL, note, self.time_ms)

    @precondition(lambda self: bool(approvals.list_pending(self.state)))
    @rule(data=st.data(), approve=st.booleans())
    def decide(self, data: st.DataObject, approve: bool) -> None:
        chosen = data.draw(st.sampled_from(approvals.list_pending(self.state)))
        decision = Decide(id=chosen.id, approve=approve, by="alice")
        in_time = chosen.deadline_ms is None or self.time_ms < chosen.deadline_ms
        refused = approvals.explain_refusal(self.state, decision, self.time_ms)
        assert in_time == (refused == "")
        before = self.state
        self.state = approvals.decide(self.state, decision, self.time_ms)
        self.count_expired(before, but=chosen.id if in_time else "")
        if in_time:
            self.decided[chosen.id] = approve
            self.results += not approve
        again = approvals.explain_refusal(self.state, decision, self.time_ms)
        assert "decided already" in again

    @rule(seconds=st.integers(1, 60))
    def pass_time(self, seconds: int) -> None:
        self.time_ms += 1000 * seconds

    def count_expired(self, before: ThreadState, but: str = "") -> None:
        left = {each.id for each in approvals.list_pending(self.state)}
        for approval in approvals.list_pending(before):
            late = approval.deadline_ms is not None and approval.deadline_ms <= self.time_ms
            assert late == (approval.id not in left) or approval.id == but
            if late:
                self.decided[approval.id] = False
                self.results += 1

    # Actions of the workflow, one at a time.

    @precondition(lambda self: self.quiet)
    @rule()
    def expire(self) -> None:
        before = self.state
        self.state = approvals.apply_deadlines(self.state, self.time_ms)
        self.count_expired(before)

    @precondition(lambda self: self.quiet and not self.state.in_turn and not self.failed)
    @rule()
    def begin(self) -> None:
        if self.state.inbox:
            self.state = transitions.begin_turn(self.state, self.time_ms)

    @precondition(lambda self: self.quiet and self.state.in_turn and not self.state.calls)
    @rule()
    def call_model(self) -> None:
        self.state = transitions.take_notes(self.state)
        self.under_way = Append(head=self.state.head, entries=self.state.tail)
        self.calling = True

    @precondition(lambda self: self.calling)
    @rule(kinds=st.lists(st.sampled_from(["plain", "asks", "late"]), max_size=4))
    def reply(self, kinds: list[str]) -> None:
        assert self.under_way is not None
        seq = seq_after(self.under_way.head, self.under_way.entries)
        reply = build_entry(seq, Kind.REPLY, Message(role="assistant", text="x"), self.time_ms)
        head = self.appended([*self.under_way.entries, reply])
        calls = tuple(
            WantedCall(
                call_id=f"c{number}",
                tool="t",
                options=CallOptions(
                    needs_approval=kind != "plain",
                    deadline_seconds=30.0 if kind == "late" else None,
                ),
            )
            for number, kind in enumerate(kinds)
        )
        turn = ModelTurn(head=head, tool_calls=calls, context_bytes=10, written_bytes=5)
        self.state = approvals.request(transitions.apply_reply(self.state, turn), self.time_ms)
        new = {each.id for each in approvals.list_pending(self.state)}
        assert not new & self.asked
        self.asked |= new
        if not calls:
            self.state = transitions.end_turn(self.state, seq)
            self.ended.append("x")
        self.under_way, self.calling = None, False

    @precondition(lambda self: self.calling)
    @rule()
    def model_fails(self) -> None:
        """The turn ends with a failure entry, and counts once that is journalled."""
        self.state = transitions.fail_turn(self.state, "no", self.time_ms)
        self.under_way, self.calling = None, False
        self.failed = True

    @precondition(lambda self: self.under_way is None)
    @rule(data=st.data(), remembers=st.booleans())
    def finish_a_call(self, data: st.DataObject, remembers: bool) -> None:
        calls = [each for each in self.state.calls if not each.result and not each.waits]
        if not calls:
            return
        call = data.draw(st.sampled_from(calls))
        message = Message(role="tool", text="r", call_id=call.call_id, tool=call.tool)
        result = ToolResult(
            entry=build_entry(1, Kind.TOOL_RESULT, message, self.time_ms),
            written_bytes=1,
            memory={"forgotten": "k"} if remembers else None,
        )
        self.state = transitions.add_result(self.state, call, result)
        self.results += 1

    @precondition(lambda self: self.quiet and self.state.calls)
    @rule()
    def settle(self) -> None:
        if all(call.result for call in self.state.calls):
            self.state = transitions.settle(self.state, self.time_ms)

    @precondition(lambda self: self.quiet)
    @rule()
    def begin_flush(self) -> None:
        self.state = transitions.take_notes(self.state)
        if self.state.tail:
            self.under_way = Append(head=self.state.head, entries=self.state.tail)

    @precondition(lambda self: self.under_way is not None and not self.calling)
    @rule()
    def end_flush(self) -> None:
        assert self.under_way is not None
        appended = AppendResult(head=self.appended(self.under_way.entries), written_bytes=1)
        self.state = transitions.apply_append(self.state, appended)
        self.under_way = None

    @precondition(lambda self: self.quiet and self.state.head is not None)
    @rule()
    def compact(self) -> None:
        seq = seq_after(self.state.head) - 1
        snapshot = SnapshotRef(ref=REF, upto_seq=seq)
        if snapshot != self.state.snapshot:
            self.noted.append(f"compacted to {seq}")
        done = CompactResult(snapshot=snapshot, before_bytes=2, after_bytes=1, written_bytes=1)
        self.state = transitions.apply_compaction(self.state, done, "asked", self.time_ms)

    @precondition(lambda self: self.quiet)
    @rule()
    def roll(self) -> None:
        """Only what JSON carries is there in the next run."""
        after = STATE.validate_json(STATE.dump_json(self.state))
        assert after == self.state
        self.state = after

    def appended(self, entries: list[Entry] | tuple[Entry, ...]) -> SegmentRef:
        for entry in entries:
            assert entry.seq == len(self.journal) + 1
            self.journal.append(entry)
            if entry.kind == Kind.FAILURE:
                self.ended.append("no")
                self.failed = False
        return SegmentRef(ref=REF, first_seq=1, count=len(self.journal))

    def all_entries(self) -> list[Entry]:
        return [*self.journal, *self.state.tail, *self.state.notes]

    @invariant()
    def nothing_is_lost_or_recorded_twice(self) -> None:
        entries = self.all_entries()
        notes = []
        for entry in entries:
            if entry.kind == Kind.CONTROL:
                notes.append((entry.data or {})["reason"])
            if entry.kind == Kind.COMPACTION:
                notes.append(f"compacted to {(entry.data or {})['snapshot']['upto_seq']}")
        assert notes == self.noted
        messages = [read_text(entry) for entry in entries if entry.kind == Kind.MESSAGE]
        assert [*messages, *(each.text for each in self.state.inbox)] == self.sent
        assert self.state.counters.messages == len(self.sent)
        asked = [(entry.data or {})["id"] for entry in entries if entry.kind == Kind.ASKED]
        assert (len(asked), set(asked)) == (len(self.asked), self.asked)
        decided = {
            (entry.data or {})["id"]: (entry.data or {})["approve"]
            for entry in entries
            if entry.kind == Kind.DECIDED
        }
        assert decided == self.decided

    @invariant()
    def seqs_have_no_gap_and_results_are_counted_once(self) -> None:
        seqs = [entry.seq for entry in (*self.journal, *self.state.tail)]
        assert seqs == list(range(1, len(seqs) + 1))
        entries = self.all_entries()
        there = sum(entry.kind == Kind.TOOL_RESULT for entry in entries)
        there += sum(call.result is not None for call in self.state.calls)
        assert there == self.results == self.state.counters.tool_calls

    @invariant()
    def answers_are_counted_once_and_lead_to_their_texts(self) -> None:
        state = self.state
        assert state.counters.answered == len(self.ended)
        ended = len(self.ended) + self.failed
        assert state.counters.messages == ended + len(state.inbox) + state.in_turn
        assert (state.failed_turn is not None) == self.failed
        by_seq = {entry.seq: entry for entry in self.journal}
        newest = self.ended[-limits.ANSWERS_MAX :]
        assert [read_text(by_seq[answer.seq]) for answer in state.answers] == newest

    def teardown(self) -> None:
        """Check that the end of a thread moves all its entries to the journal."""
        if not self.quiet:
            return
        before = len(self.state.inbox)
        calls = len(self.state.calls)
        state = transitions.break_off(self.state, self.time_ms)
        state = transitions.empty_inbox(state, self.time_ms)
        assert (state.inbox, state.calls, state.notes) == ((), (), ())
        entries = [*self.journal, *state.tail]
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
        messages = [read_text(entry) for entry in entries if entry.kind == Kind.MESSAGE]
        assert messages == self.sent
        waited = [entry.kind for entry in state.tail]
        assert waited.count(Kind.MESSAGE) >= before
        assert waited.count(Kind.TOOL_RESULT) >= calls


def read_text(entry: Entry) -> str:
    assert entry.body is not None
    return parse_message(entry.kind, entry.body).text


TestLife = ThreadModel.TestCase
TestLife.settings = settings(max_examples=scaled(25, 60), stateful_step_count=60, deadline=None)


@pytest.mark.guarantee(63)
@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_results_are_journalled_in_call_order(order: list[bool]) -> None:
    wanted = tuple(WantedCall(call_id=f"c{i}", tool="t") for i in range(len(order)))
    head = SegmentRef(ref=REF, first_seq=1, count=7)
    turn = ModelTurn(head=head, tool_calls=wanted, context_bytes=1, written_bytes=1)
    state = transitions.apply_reply(ThreadState(in_turn=True), turn)
    places = [call.id.rsplit("-", 1)[0] for call in state.calls]
    assert places == [f"7-{i}" for i in range(1, len(order) + 1)]
    late = [call for call, first in zip(state.calls, order, strict=True) if not first]
    for call in [*(each for each in state.calls if each not in late), *late]:
        message = Message(role="tool", call_id=call.call_id, text="r")
        result = ToolResult(entry=build_entry(1, Kind.TOOL_RESULT, message, 1), written_bytes=10)
        state = transitions.add_result(state, call, result)
    state = transitions.settle(state, 1)
    bodies = [entry.body["parts"][0]["tool_call_id"] for entry in state.tail if entry.body]
    assert bodies == [call.call_id for call in wanted]
    assert [entry.seq for entry in state.tail] == list(range(8, 8 + len(order)))
    assert (state.calls, state.step_bytes) == ((), 1 + 10 * len(order))


@pytest.mark.guarantee(40)
def test_a_message_repeated_with_its_id_is_recognized() -> None:
    message = SendMessage(text="once", id="m1")
    state = transitions.queue(ThreadState(), message)
    assert transitions.find_number(state, message) == 1
    assert transitions.find_number(state, SendMessage(text="once")) is None
    other = SendMessage(text="another")
    state = transitions.queue(transitions.queue(state, other), dataclasses.replace(other, id="m3"))
    state = transitions.begin_turn(state, 1)
    assert transitions.find_number(state, message) == 1
    assert transitions.find_number(state, SendMessage(text="different", id="m3")) == 3


def test_a_compaction_without_effect_is_not_recorded() -> None:
    snapshot = SnapshotRef(ref=REF, upto_seq=3)
    state = ThreadState(snapshot=snapshot, compaction_due_ms=5, context_bytes=9)
    done = CompactResult(
        snapshot=snapshot, before_bytes=9, after_bytes=9, written_bytes=0, next_expiry_ms=77
    )
    after = transitions.apply_compaction(state, done, "policy", 10)
    assert (after.counters.compactions, after.notes) == (0, ())
    assert (after.compaction_due_ms, after.next_expiry_ms) == (None, 77)


def test_a_compaction_records_its_delay() -> None:
    state = ThreadState(compaction_due_ms=1000, context_bytes=9)
    done = CompactResult(
        snapshot=SnapshotRef(ref=REF, upto_seq=3), before_bytes=9, after_bytes=4, written_bytes=2
    )
    after = transitions.apply_compaction(state, done, "policy", 3500)
    [note] = after.notes
    compacted = TypeAdapter(CompactionNote).validate_python(note.data)
    assert (compacted.lag_seconds, compacted.reason) == (2.5, "policy")
    assert (after.context_bytes, after.counters.compactions) == (4, 1)
