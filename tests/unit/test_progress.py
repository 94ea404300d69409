"""Progress of a thread by made-up histories: what each event changes, and what it does not."""

import dataclasses
import json
from typing import Any, Self, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import to_json
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from everlong.client.follower import make_decoder
from everlong.client.progress import Activity, ThreadProgress, Tracker
from everlong.errors import KeyMissing
from everlong.models import (
    AGENT_WORKFLOW,
    APPEND_JOURNAL,
    BRIEF,
    CALL_MODEL,
    CALL_STATUS_SIGNAL,
    COLLECT,
    HELD,
    RUN_TOOL,
    Append,
    AppendResult,
    Call,
    CallOptions,
    CallStatus,
    Context,
    Control,
    Counters,
    Decide,
    Kind,
    Message,
    ModelCall,
    ModelTurn,
    Pause,
    PendingApproval,
    PendingOutcome,
    ReceivedMessage,
    Ref,
    Report,
    Resolve,
    RevokeGrant,
    SegmentRef,
    SendMessage,
    Status,
    ThreadStart,
    ThreadState,
    ThreadStatus,
    ToolRun,
    WantedCall,
    build_entry,
    identify_call,
)

_CONVERTER = pydantic_data_converter.payload_converter


class _Client:
    """The part of a client that a decoder uses."""

    namespace = "default"
    data_converter = pydantic_data_converter


decode = make_decoder(cast("Client", _Client()), "ops-7")


def head(seq: int) -> SegmentRef:
    """The head of a journal whose newest entry has that seq."""
    ref = Ref(thread="0" * 32, digest="0" * 64, size_bytes=1, kind=Kind.SEGMENT)
    return SegmentRef(ref=ref, first_seq=1, count=seq)


def reply(seq: int, *calls: WantedCall) -> ModelTurn:
    return ModelTurn(head=head(seq), tool_calls=calls, context_bytes=1, written_bytes=1)


def call(**options: Any) -> WantedCall:
    return WantedCall(
        call_id="c",
        tool="pay",
        digest="abcdef",
        options=CallOptions(needs_approval=True, **options),
    )


TOOL = WantedCall(call_id="t", tool="read")
SUB_AGENT = WantedCall(call_id="s", tool="research", options=CallOptions(agent="research"))


def run(call_id: str) -> ToolRun:
    context = Context(agent="ops", head=None, snapshot=None, now_ms=1)
    return ToolRun(context=context, call_id=call_id, tool="read")


class History:
    """Writes the events of one run as a server would."""

    def __init__(self, state: ThreadState | None = None, name: str = AGENT_WORKFLOW) -> None:
        self.events: list[HistoryEvent] = []
        self.now_ms = 1_000_000
        started = self._add("workflow_execution_started_event_attributes")
        started.workflow_type.name = name
        start = ThreadStart(agent="ops", state=state or ThreadState())
        started.input.payloads.append(_payload(start))

    def _add(self, name: str) -> Any:
        event = HistoryEvent(event_id=len(self.events) + 1)
        event.event_time.FromMilliseconds(self.now_ms)
        getattr(event, name).SetInParent()
        self.events.append(event)
        return getattr(event, name)

    def task(self) -> Self:
        self._add("workflow_task_scheduled_event_attributes")
        self._add("workflow_task_started_event_attributes")
        self._add("workflow_task_completed_event_attributes")
        return self

    def task_scheduled(self) -> Self:
        self._add("workflow_task_scheduled_event_attributes")
        return self

    def send(self, number: int) -> Self:
        return self._update("send", {"text": "hi"}, number)

    def decide(self, approval_id: str, approve: bool) -> Self:
        return self._update("decide", Decide(id=approval_id, approve=approve, by="ann"), None)

    def _update(self, name: str, argument: object, result: object) -> Self:
        return self.task().update_completed(self.accepted(name, argument), result)

    def accepted(self, name: str, argument: object) -> int:
        accepted = self._add("workflow_execution_update_accepted_event_attributes")
        accepted.accepted_request.input.name = name
        accepted.accepted_request.input.args.payloads.append(_payload(argument))
        return len(self.events)

    def update_completed(self, accepted_id: int, result: object) -> Self:
        completed = self._add("workflow_execution_update_completed_event_attributes")
        completed.accepted_event_id = accepted_id
        completed.outcome.success.payloads.append(_payload(result))
        return self

    def scheduled(self, name: str, argument: object = None) -> int:
        scheduled = self._add("activity_task_scheduled_event_attributes")
        scheduled.activity_type.name = name
        scheduled.task_queue.name = "agents"
        scheduled.input.payloads.append(_payload(argument))
        return len(self.events)

    def completed(self, scheduled_id: int, result: object) -> Self:
        completed = self._add("activity_task_completed_event_attributes")
        completed.scheduled_event_id = scheduled_id
        completed.result.payloads.append(_payload(result))
        return self

    def failed(self, scheduled_id: int, kind: str, message: str) -> Self:
        failed = self._add("activity_task_failed_event_attributes")
        failed.scheduled_event_id = scheduled_id
        failed.failure.message = message
        failed.failure.application_failure_info.type = kind
        return self

    def model(self, turn: ModelTurn) -> Self:
        return self.completed(self.scheduled(CALL_MODEL), turn).task()

    def tool(self) -> Self:
        return self.completed(self.scheduled(RUN_TOOL), {}).task()

    def signal(self, name: str, *arguments: object) -> Self:
        signaled = self._add("workflow_execution_signaled_event_attributes")
        signaled.signal_name = name
        signaled.input.payloads.extend(map(_payload, arguments))
        return self

    def attributes(self, **values: str) -> Self:
        fields = self._add("upsert_workflow_search_attributes_event_attributes").search_attributes
        for name, value in values.items():
            fields.indexed_fields[name].data = json.dumps(value).encode()
        return self

    def child(self, child_id: str) -> Self:
        initiated = self._add("start_child_workflow_execution_initiated_event_attributes")
        initiated.workflow_id = child_id
        return self

    def closed(self, how: str, result: object = None) -> Self:
        closed = self._add(f"workflow_execution_{how}_event_attributes")
        if result is not None:
            closed.result.payloads.append(_payload(result))
        return self

    async def progress(self) -> ThreadProgress:
        tracker = Tracker(decode)
        await tracker.add(self.events)
        return tracker.progress()


def _payload(value: object) -> Payload:
    if isinstance(value, Payload):
        return value
    return _CONVERTER.to_payloads([value])[0]


async def test_an_answer_is_found_where_the_reply_was_journalled() -> None:
    seen = await History().send(1).model(reply(2, TOOL)).tool().model(reply(4)).progress()
    assert (seen.answered, seen.messages, seen.steps, seen.tool_calls) == (1, 1, 2, 1)
    assert [(each.number, each.seq) for each in seen.answers] == [(1, 4)]
    assert (seen.head, seen.status, seen.is_busy) == (head(4), "waiting", False)


async def test_a_message_is_answered_once_the_thread_has_recorded_the_reply() -> None:
    history = History().send(1)
    history.completed(history.scheduled(CALL_MODEL), reply(2))
    assert (await history.task_scheduled().progress()).answered == 0
    assert (await history.task().progress()).answered == 1


async def test_a_tool_that_runs_is_work() -> None:
    history = History().send(1).model(reply(2, TOOL))
    history.scheduled(RUN_TOOL)
    seen = await history.progress()
    assert (seen.status, seen.is_busy, seen.answered, seen.needs_query) == (
        "working",
        True,
        0,
        False,
    )


async def test_a_repeated_message_is_not_a_new_one() -> None:
    seen = await History().send(1).send(1).model(reply(2)).progress()
    assert (seen.messages, seen.status, seen.needs_query) == (1, "waiting", False)


async def test_a_message_is_counted_while_its_update_waits_for_the_answer() -> None:
    history = History().task()
    accepted = history.accepted("send", SendMessage(text="hi", id="a", until_answered=True))
    seen = await history.progress()
    assert (seen.messages, seen.answered, seen.status) == (1, 0, "paused"), "no step is taken"
    history.completed(history.scheduled(CALL_MODEL), reply(2))
    assert (await history.progress()).needs_query is False
    seen = await history.task().update_completed(accepted, 1).progress()
    assert (seen.messages, seen.answered, seen.status) == (1, 1, "waiting")


async def test_a_message_carried_to_a_second_run_is_not_a_new_one() -> None:
    counters = Counters(messages=3, answered=2)
    received = (ReceivedMessage(id="a", number=3),)
    history = History(ThreadState(in_turn=True, counters=counters, received=received)).task()
    history.accepted("send", SendMessage(text="hi", id="a", until_answered=True))
    assert (await history.progress()).messages == 3
    history.accepted("send", SendMessage(text="hi", id="b", until_answered=True))
    assert (await history.progress()).messages == 4


async def test_a_roll_carries_the_state_over() -> None:
    carried = ThreadState(
        in_turn=True, head=head(9), counters=Counters(runs=3, messages=5, answered=4, steps=7)
    )
    before = await History(carried).task().progress()
    assert (before.runs, before.messages, before.answered, before.steps) == (3, 5, 4, 7)
    after = await History(carried).task().model(reply(11)).progress()
    assert [(each.number, each.seq) for each in after.answers] == [(5, 11)]
    assert after.status == "waiting"


async def test_a_roll_in_the_middle_of_a_turn_is_work() -> None:
    before = History().send(1).model(reply(2, TOOL)).tool().closed("continued_as_new")
    tracker = Tracker(decode)
    await tracker.add(before.events)
    rolled = tracker.progress()
    await tracker.add(History(ThreadState(in_turn=True)).events)
    begun = tracker.progress()
    for seen in (rolled, begun):
        assert (seen.status, seen.is_busy, seen.needs_query) == ("working", True, False)


async def test_an_approval_waits_until_it_is_decided() -> None:
    history = History().send(1).model(reply(2, call()))
    asked = await history.progress()
    assert (asked.status, asked.pending, asked.needs_query) == ("approval", 1, False)
    decided = await history.decide("2-1-abcd", approve=False).model(reply(5)).progress()
    assert (decided.pending, decided.answered, decided.tool_calls) == (0, 1, 1)


async def test_an_approval_precedes_a_running_tool() -> None:
    history = History().send(1).model(reply(2, call(), TOOL))
    history.scheduled(RUN_TOOL)
    seen = await history.progress()
    assert (seen.status, seen.pending) == ("approval", 1)


@pytest.mark.parametrize(("on_deadline", "pending"), [("deny", 0), ("escalate", 1)])
async def test_a_deadline_denies_or_asks_others(on_deadline: str, pending: int) -> None:
    wanted = call(deadline_seconds=60, on_deadline=on_deadline)
    history = History().send(1).model(reply(2, wanted, TOOL))
    history.scheduled(RUN_TOOL)
    history.now_ms += 59_999
    assert (await history.task().progress()).pending == 1
    history.now_ms += 1
    assert (await history.task().progress()).pending == pending


async def test_a_failure_ends_a_turn_once_it_is_journalled() -> None:
    history = History().send(1)
    history.failed(history.scheduled(CALL_MODEL), "Refused", "no").task()
    refusal = build_entry(2, Kind.FAILURE, Message(role="failure", text="no"), 1)
    appending = history.scheduled(APPEND_JOURNAL, Append(head=None, entries=(refusal,)))
    assert (await history.progress()).answered == 0
    seen = (
        await history.completed(appending, AppendResult(head=head(2), written_bytes=1))
        .task()
        .progress()
    )
    assert [(each.number, each.seq) for each in seen.answers] == [(1, 2)]
    assert (seen.status, seen.needs_query) == ("failed", False)
    assert (await history.send(2).model(reply(4)).progress()).status == "waiting"


def model_call(now_ms: int = 1) -> ModelCall:
    context = Context(agent="ops", head=None, snapshot=None, now_ms=now_ms)
    return ModelCall(context=context, tail=())


def call_status(argument: ModelCall | ToolRun, status: Any, text: str = "") -> CallStatus:
    name = CALL_MODEL if isinstance(argument, ModelCall) else RUN_TOOL
    return CallStatus(call=identify_call(name, argument), status=status, text=text)


async def test_a_hold_is_reported_until_the_next_try_is_known_to_run() -> None:
    history, asked = History().send(1), model_call()
    history.failed(history.scheduled(CALL_MODEL, asked), HELD, "the store is away").task()
    held = await history.progress()
    assert (held.status, held.held_by, held.needs_query) == ("held", "the store is away", False)
    again = history.scheduled(CALL_MODEL, asked)
    assert (await history.progress()).held_by == "the store is away"
    history.signal(CALL_STATUS_SIGNAL, call_status(asked, Status.WORKING))
    assert (await history.progress()).status == "working"
    assert (await history.completed(again, reply(2)).task().progress()).status == "waiting"


async def test_a_call_that_is_tried_again_is_reported_until_it_ends() -> None:
    history, asked = History().send(1), model_call()
    called = history.scheduled(CALL_MODEL, asked)
    signalled = call_status(asked, Status.RETRYING)
    assert (await history.signal(CALL_STATUS_SIGNAL, signalled).progress()).status == "retrying"
    history.completed(called, reply(2)).task()
    assert (await history.progress()).status == "waiting"
    late = await history.signal(CALL_STATUS_SIGNAL, signalled).task().progress()
    assert late.status == "waiting"


async def test_an_activity_that_goes_on_after_its_effect_is_held_by_its_signal() -> None:
    history, asked = History().send(1), model_call()
    called = history.scheduled(CALL_MODEL, asked)
    history.signal(CALL_STATUS_SIGNAL, call_status(asked, Status.HELD, "no store"))
    seen = await history.progress()
    assert (seen.status, seen.held_by) == ("held", "no store")
    assert (await history.completed(called, reply(2)).task().progress()).held_by == ""


@pytest.mark.guarantee(43)
@pytest.mark.parametrize("name", [CALL_MODEL, RUN_TOOL, BRIEF, COLLECT])
@pytest.mark.parametrize("is_paused_first", [False, True])
async def test_a_held_step_is_not_retried_while_the_thread_is_paused(
    name: str, is_paused_first: bool
) -> None:
    history = History().send(1)
    if name != CALL_MODEL:
        history.model(reply(2, TOOL if name == RUN_TOOL else SUB_AGENT))
    step = history.scheduled(name)
    if is_paused_first:
        history.signal("pause", Control(by="ann")).task().failed(step, HELD, "no store").task()
    else:
        history.failed(step, HELD, "no store").task().signal("pause", Control(by="ann")).task()
    seen = await history.progress()
    assert (seen.status, seen.held_by, seen.pause) == ("paused", "", Pause(by="ann"))
    assert (seen.is_busy, seen.needs_query) == (False, False)


async def test_a_limit_that_is_still_reached_after_a_pause_is_no_hold() -> None:
    history = History().send(1)
    history.failed(history.scheduled(CALL_MODEL), HELD, "no store").task()
    seen = await history.signal("pause").task().signal("unpause").task().progress()
    assert (seen.status, seen.held_by, seen.needs_query) == ("paused", "", True)


async def test_a_brief_pause_leaves_a_step_held() -> None:
    history = History().send(1)
    history.failed(history.scheduled(CALL_MODEL), HELD, "no store").task()
    seen = await history.signal("pause").signal("unpause").task().progress()
    assert (seen.status, seen.held_by, seen.needs_query) == ("held", "no store", False)


async def test_the_journal_is_held_in_a_paused_thread_too() -> None:
    history = History().send(1).signal("pause").task()
    history.failed(history.scheduled(APPEND_JOURNAL, Append(head=None, entries=())), HELD, "away")
    seen = await history.task().progress()
    assert (seen.status, seen.held_by) == ("held", "away")


async def test_parallel_tools_are_held_independently() -> None:
    history = History().send(1).model(reply(2, TOOL, TOOL))
    first, second = (history.scheduled(RUN_TOOL, run(each)) for each in "ab")
    history.failed(first, HELD, "store away").failed(second, HELD, "no key").task()
    assert (await history.progress()).held_by == "store away"
    second = history.scheduled(RUN_TOOL, run("b"))
    assert (await history.progress()).held_by == "store away"
    seen = await history.completed(second, {}).task().progress()
    assert (seen.status, seen.held_by, seen.needs_query) == ("held", "store away", False)
    first = history.scheduled(RUN_TOOL, run("a"))
    history.signal(CALL_STATUS_SIGNAL, call_status(run("a"), Status.WORKING))
    seen = await history.progress()
    assert (seen.status, seen.held_by) == ("working", "")
    seen = await history.completed(first, {}).model(reply(5)).progress()
    assert (seen.status, seen.answered, seen.tool_calls) == ("waiting", 1, 2)


async def test_an_approved_tool_does_not_release_a_held_one() -> None:
    history = History().send(1).model(reply(2, TOOL, call()))
    history.failed(history.scheduled(RUN_TOOL, run("t")), HELD, "store away").task()
    approved = history.decide("2-2-abcd", approve=True).scheduled(RUN_TOOL, run("c"))
    seen = await history.completed(approved, {}).task().progress()
    assert (seen.status, seen.held_by, seen.needs_query) == ("held", "store away", False)


@pytest.mark.parametrize("is_rolled", [False, True])
async def test_an_idle_tool_next_to_an_approval_means_a_pause_by_policy(
    is_rolled: bool,
) -> None:
    history = History().send(1).model(reply(2, call(), TOOL))
    if is_rolled:
        calls = (
            Call(id="2-1-abcd", call_id="c", tool="pay", waits=PendingApproval(asked_ms=1)),
            Call(id="2-2-", call_id="t", tool="read"),
        )
        history = History(ThreadState(in_turn=True, head=head(2), calls=calls)).task()
    seen = await history.progress()
    assert (seen.status, seen.pending, seen.needs_query) == ("paused", 1, True)
    seen = await history.tool().progress()
    assert (seen.status, seen.pending, seen.needs_query) == ("approval", 1, False)


@pytest.mark.parametrize("approve", [False, True])
async def test_a_decision_next_to_another_approval_is_no_pause(approve: bool) -> None:
    history = History().send(1).model(reply(2, call(), call()))
    history.decide("2-1-abcd", approve)
    if approve:
        history.tool()
    seen = await history.progress()
    assert (seen.status, seen.pending, seen.needs_query) == ("approval", 1, False)


async def test_a_pause_by_a_person_is_known_with_its_reason() -> None:
    history = History().signal("pause", Control(by="ann", reason="wrong cluster")).task().send(1)
    seen = await history.progress()
    assert (seen.status, seen.pause) == ("paused", Pause(by="ann", reason="wrong cluster"))
    assert not seen.needs_query
    assert not seen.is_busy
    gone_on = await history.signal("unpause").model(reply(2)).progress()
    assert (gone_on.status, gone_on.pause, gone_on.answered) == ("waiting", None, 1)


@pytest.mark.parametrize("arguments", [(), (None,)])
async def test_a_pause_by_another_program_needs_no_argument(arguments: tuple[object, ...]) -> None:
    seen = await History().signal("pause", *arguments).task().progress()
    assert (seen.status, seen.pause) == ("paused", Pause())


JUNK = [
    Payload(metadata={"encoding": b"json/plain"}, data=b'"because"'),
    Payload(metadata={"encoding": b"json/plain"}, data=b"7"),
    Payload(metadata={"encoding": b"json/plain"}, data=b"{oops"),
    Payload(metadata={"encoding": b"binary/plain"}, data=b"abc"),
    Payload(metadata={"encoding": b"theirs"}, data=b"z"),
]


@pytest.mark.guarantee(43)
@pytest.mark.parametrize("payload", JUNK, ids=lambda each: each.data.decode())
@pytest.mark.parametrize("name", ["pause", "unpause", "stop", "everlong.report"])
async def test_a_signal_that_the_worker_drops_changes_nothing(name: str, payload: Payload) -> None:
    """The SDK drops a signal whose argument does not convert."""
    history = History().send(1).model(reply(2, SUB_AGENT)).child("ops/child-1").task()
    if name == "unpause":
        history.signal("pause").task()
    before = await history.progress()
    assert await history.signal(name, payload).task().progress() == before


async def test_a_signal_lost_by_the_store_is_an_error() -> None:
    history = History().signal("pause", Control())
    tracker = Tracker(_unreadable)
    await tracker.add(history.events[:1])
    with pytest.raises(KeyMissing):
        await tracker.add(history.events[1:])


async def _unreadable(payloads: Any, kind: Any, activity: Activity | None) -> Any:
    if kind is ThreadStart:
        return await decode(payloads, kind, activity)
    raise KeyMissing("sealed with key 'a'")


async def test_a_pause_counts_once_the_thread_has_received_it() -> None:
    assert (await History().send(1).signal("pause").task_scheduled().progress()).is_busy


async def test_an_idle_thread_with_work_was_paused_by_its_policy() -> None:
    seen = await History().send(1).model(reply(2)).send(2).progress()
    assert (seen.status, seen.pause, seen.needs_query) == ("paused", None, True)


async def test_search_attributes_name_the_limit_that_paused_a_thread() -> None:
    history = History().send(1).model(reply(2)).send(2)
    history.attributes(EverlongStatus="paused", EverlongReason="steps_max")
    seen = await history.progress()
    assert (seen.pause, seen.needs_query) == (Pause(by="policy", reason="steps_max"), True)
    history.signal("unpause").attributes(EverlongStatus="working", EverlongReason="")
    history.scheduled(CALL_MODEL)
    seen = await history.progress()
    assert (seen.status, seen.pause, seen.needs_query) == ("working", None, False)


async def test_a_thread_waits_for_its_sub_agent_until_it_reports() -> None:
    history = History().send(1).model(reply(2, SUB_AGENT)).child("ops/child-1").task()
    waiting = await history.progress()
    assert (waiting.status, waiting.needs_query) == ("working", False)
    history.signal("everlong.report", Report(child_id="ops/child-1")).task()
    # It has reported, and its answer is not taken over: the policy has paused the thread.
    assert (await history.progress()).needs_query


async def test_a_reset_begins_the_run_again() -> None:
    before = History().send(1).model(reply(2)).send(2).model(reply(4)).closed("terminated")
    tracker = Tracker(decode)
    await tracker.add(before.events)
    assert (tracker.progress().ended, tracker.progress().answered) == ("terminated", 2)
    await tracker.add(History().send(1).model(reply(2)).events)
    assert (tracker.progress().ended, tracker.progress().answered) == ("", 1)


async def test_a_stopped_thread_reports_how_it_ended() -> None:
    last = ThreadStatus(
        agent="ops",
        status=Status.DONE,
        counters=Counters(messages=2, answered=1),
        head=head(3),
        waiting_messages=0,
        last_failure="",
    )
    history = History().send(1).model(reply(2)).signal("stop").task()
    assert (await history.progress()).status == "working"
    seen = await history.closed("completed", last).progress()
    assert (seen.status, seen.ended, seen.answered, seen.head) == (
        "done",
        "completed",
        1,
        head(3),
    )


@pytest.mark.parametrize("how", ["failed", "timed_out", "canceled", "terminated"])
async def test_a_closed_run_has_ended(how: str) -> None:
    seen = await History().send(1).closed(how).progress()
    status = Status.DONE if how == "canceled" else Status.TERMINATED
    assert (seen.status, seen.ended, seen.needs_query) == (status, how, False)


async def test_another_workflow_is_no_thread() -> None:
    tracker = Tracker(decode)
    await tracker.add(History(name="theirs").send(1).events)
    assert not tracker.is_agent


@pytest.mark.guarantee(43)
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(["answer", "tool", "approve", "deny", "fail", "pause"]), max_size=12)
)
async def test_progress_does_not_depend_on_how_events_are_paged(turns: list[str]) -> None:
    """And all messages are answered in the end, by entries in the order of their numbers."""
    history, seq = History().task(), 0
    for number, turn in enumerate(turns, 1):
        seq = _play(history.send(number), turn, seq)
    whole, paged = Tracker(decode), Tracker(decode)
    await whole.add(history.events)
    for event in history.events:
        await paged.add([event])
        paged.progress()
    seen = whole.progress()
    assert paged.progress() == seen
    assert (seen.answered, seen.messages) == (len(turns), len(turns))
    last = turns[-1] if turns else "answer"
    expected = Status.FAILED if last == "fail" else Status.WAITING
    assert (seen.status, seen.pending, seen.needs_query) == (expected, 0, False)
    assert [each.number for each in seen.answers] == list(range(1, len(turns) + 1))
    assert sorted(each.seq for each in seen.answers) == [each.seq for each in seen.answers]
    assert len(to_json(seen)) < 10_000


def _play(history: History, turn: str, seq: int) -> int:
    """Add the events of a turn; return the seq of its last entry."""
    if turn == "fail":
        entry = build_entry(seq + 2, Kind.FAILURE, Message(role="failure", text="no"), 1)
        history.failed(history.scheduled(CALL_MODEL), "Refused", "no").task()
        appending = history.scheduled(APPEND_JOURNAL, Append(head=None, entries=(entry,)))
        history.completed(appending, AppendResult(head=head(seq + 2), written_bytes=1)).task()
        return seq + 2
    if turn == "pause":
        history.signal("pause").task().signal("unpause").task()
    elif turn == "tool":
        history.model(reply(seq + 2, TOOL)).tool()
        seq += 2
    elif turn in ("approve", "deny"):
        history.model(reply(seq + 2, call())).decide(f"{seq + 2}-1-abcd", turn == "approve")
        seq += 2
        if turn == "approve":
            history.tool()
    history.model(reply(seq + 2))
    return seq + 2


async def test_a_call_waits_for_the_approvals_that_it_needs() -> None:
    history = History().send(1).model(reply(2, call(approvals_needed=2, approvers=("ann", "ben"))))
    assert (await history.decide("2-1-abcd", approve=True).progress()).pending == 1
    assert (await history.decide("2-1-abcd", approve=True).progress()).pending == 1  # Sent again.
    changed = Decide(id="2-1-abcd", approve=True, by="ben", arguments={"euros": 1})
    assert (await history._update("decide", changed, "").progress()).pending == 1
    assert (await history.decide("2-1-abcd", approve=True).progress()).pending == 1  # Stale.
    assert (await history.decide("2-1-abcd-r1", approve=True).progress()).pending == 0


async def test_a_call_that_a_grant_allows_does_not_wait() -> None:
    granted = dataclasses.replace(call(), grant="t-0123456789abcdef", granted_by="ann")
    assert (await History().send(1).model(reply(2, granted)).progress()).pending == 0
    revoke = RevokeGrant(id="t-0123456789abcdef", by="ben")
    history = History().send(1)._update("revoke_grant", revoke, None)
    assert (await history.model(reply(2, granted)).progress()).pending == 1


async def test_a_held_call_whose_grant_is_revoked_is_no_hold_any_more() -> None:
    granted = dataclasses.replace(call(), grant="t-0123456789abcdef", granted_by="ann")
    history = History().send(1).model(reply(2, granted))
    history.failed(history.scheduled(RUN_TOOL, run(granted.call_id)), HELD, "store away").task()
    assert (await history.progress()).status == "held"
    revoke = RevokeGrant(id="t-0123456789abcdef", by="ben")
    seen = await history._update("revoke_grant", revoke, None).progress()
    assert (seen.held_by, seen.needs_query) == ("", True)


@pytest.mark.parametrize("outcome", ["done", "not_done", "retry"])
@pytest.mark.parametrize("is_rolled", [False, True])
async def test_a_call_whose_outcome_is_unknown_waits_for_a_person(
    outcome: Any, is_rolled: bool
) -> None:
    options = CallOptions(attempts_max=1, once=True)
    once = WantedCall(call_id="t", tool="pay", digest="abcdef", options=options)
    history = History().send(1).model(reply(2, once))
    argument = dataclasses.replace(run("t"), outcome_id="2-1-abcd-1")
    history.failed(history.scheduled(RUN_TOOL, argument), "", "lost").task()
    if is_rolled:
        waiting = Call(
            id="2-1-abcd",
            call_id="t",
            tool="pay",
            options=options,
            attempts=1,
            unknown=PendingOutcome(cause="lost", asked_ms=1),
        )
        state = ThreadState(in_turn=True, head=head(2), calls=(waiting,))
        history = History(state).task()
    seen = await history.progress()
    assert (seen.status, seen.pending, seen.needs_query) == ("approval", 1, False)
    resolve = Resolve(id="2-1-abcd-1", outcome=outcome, by="ann")
    history._update("resolve", resolve, None)
    if outcome == "retry":
        retried = dataclasses.replace(argument, outcome_id="2-1-abcd-2")
        history.completed(history.scheduled(RUN_TOOL, retried), {}).task()
    seen = await history.model(reply(5)).progress()
    assert (seen.status, seen.pending, seen.answered, seen.tool_calls) == ("waiting", 0, 1, 1)
