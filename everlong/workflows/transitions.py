"""Transitions: pure functions from one operational state of a thread to the next.

The workflow decides when to apply one. Transitions of approvals are in `approvals`.
"""

from collections.abc import Sequence

from pydantic import TypeAdapter

from everlong import limits
from everlong.models import (
    Answer,
    AppendResult,
    Call,
    CompactionNote,
    CompactResult,
    Counters,
    Entry,
    FailedTurn,
    Kind,
    MemoryChange,
    Message,
    ModelTurn,
    ReceivedMessage,
    SendMessage,
    ThreadState,
    ToolResult,
    TurnEnd,
    build_entry,
    build_error_result,
    build_lost_entry,
    build_note,
    seq_after,
)
from everlong.models.state import replace_values
from everlong.models.thread_ids import clean_id
from everlong.policy import LimitHit, ObservedCall, Policy, Usage, count_step, count_turn

_STATE = TypeAdapter(ThreadState)
_MESSAGE = TypeAdapter(SendMessage)
_ENDED = "not run, since the thread ended"
_ENDED_UNKNOWN = "the thread ended before it was known whether the call took effect"
_TYPE_CHARS_MAX = 64
# Size of an entry without its body or data.
_ENTRY_BYTES = 160


def measure_state(state: ThreadState) -> int:
    """Return the size of a state as JSON."""
    return len(_STATE.dump_json(state))


def explain_refusal(state: ThreadState, message: SendMessage, thread: str) -> str:
    """Return why a message is refused; empty if it is accepted. `thread` is the thread's key."""
    if find_number(state, message) is not None:
        return ""
    if message.ref is not None:
        refs = [ref for ref in (message.ref, message.original) if ref is not None]
        if any(ref.thread != thread for ref in refs):
            return "the message's text is stored for another thread; send it to that one"
        if message.ref.kind != Kind.MESSAGE or message.text:
            return "a message has either a text or the ref of a stored message, not both"
        if message.ref.size_bytes > limits.TEXT_BYTES_MAX:
            return (
                f"the message has {message.ref.size_bytes} bytes; the maximum is "
                f"{limits.TEXT_BYTES_MAX}"
            )
    elif not message.text.strip():
        return "the message is empty"
    size_bytes = measure_message(message)
    if size_bytes > limits.MESSAGE_BYTES_MAX:
        return (
            f"the message has {size_bytes} bytes; the maximum of an inline message is "
            f"{limits.MESSAGE_BYTES_MAX}. Everlong's client stores a longer message and sends its ref."
        )
    if sum(map(measure_message, state.inbox)) + size_bytes > limits.INBOX_BYTES_MAX:
        return f"{len(state.inbox)} messages wait already; send again once some are answered"
    return ""


def find_number(state: ThreadState, message: SendMessage) -> int | None:
    """Return the number of a message that was queued before; None for a new one."""
    numbers = [each.number for each in state.received if each.id == message.id]
    return numbers[-1] if message.id and numbers else None


def measure_message(message: SendMessage) -> int:
    """Return the size of a message in the state's JSON, with the comma that follows it."""
    return len(_MESSAGE.dump_json(message)) + 1


def queue(state: ThreadState, message: SendMessage) -> ThreadState:
    """Queue a message."""
    # Bounded, since the sender reports the size: a long message is at most two packs.
    stored_bytes = min(message.stored_bytes, 2 * limits.TEXT_BYTES_MAX) if message.ref else 0
    state = add_to_counters(state, messages=1, written_bytes=stored_bytes)
    received = state.received
    if message.id:
        new = ReceivedMessage(id=message.id, number=state.counters.messages)
        received = (*received, new)[-limits.RECEIVED_MAX :]
    # The checks and the update have used these fields; the turn does not need them.
    message = replace_values(message, agent="", stored_bytes=0, until_answered=False)
    return replace_values(state, inbox=(*state.inbox, message), received=received)


def begin_turn(state: ThreadState, time_ms: int) -> ThreadState:
    """Begin a turn with the oldest message of the inbox."""
    message, *inbox = state.inbox
    state = _add_received(state, message, time_ms)
    return replace_values(
        state,
        inbox=tuple(inbox),
        in_turn=True,
        turn_ms=time_ms,
        acts_on=() if message.sent is None else (message.sent,),
        turn_steps=0,
        last_failure="",
        rested=False,
    )


def replace_lost_messages(state: ThreadState) -> ThreadState:
    """Replace stored messages of the tail by a notice: the store does not have them."""
    tail = tuple(
        build_lost_entry(entry) if entry.kind == Kind.MESSAGE and entry.ref is not None else entry
        for entry in state.tail
    )
    return replace_values(state, tail=tail)


def end_turn(state: ThreadState, seq: int, failure: str = "") -> ThreadState:
    """Count a turn as ended, with the seq of the reply or the failure that ended it."""
    state = add_to_counters(state, answered=1)
    answer = Answer(number=state.counters.answered, seq=seq)
    return replace_values(
        state,
        in_turn=False,
        last_failure=failure,
        answers=(*state.answers, answer)[-limits.ANSWERS_MAX :],
        streaks=count_turn(state.streaks, failed=bool(failure)),
    )


def find_turn_end(state: ThreadState, number: int) -> TurnEnd:
    """Return where the turn of a message ended. Without a head if it has not, or too long ago."""
    for answer in state.answers:
        if answer.number == number:
            return TurnEnd(number=number, seq=answer.seq, head=state.head)
    return TurnEnd(number=number)


def fail_turn(
    state: ThreadState, reason: str, time_ms: int, error_type: str = "LimitReached"
) -> ThreadState:
    """End a turn without an answer. The turn is counted once the reason is journalled."""
    state = take_notes(state)
    seq = seq_after(state.head, state.tail)
    failed = FailedTurn(seq=seq, reason=reason, error_type=error_type[:_TYPE_CHARS_MAX])
    state = add_message(state, Kind.FAILURE, Message(role="failure", text=reason), time_ms)
    return replace_values(state, in_turn=False, last_failure=reason, failed_turn=failed)


def break_off(state: ThreadState, time_ms: int) -> ThreadState:
    """Give a result to all calls that have none, since the thread ends."""
    for call in state.calls:
        if call.result is None:
            # Attempts are counted for a call whose effect must not happen twice: one may have run.
            reason = _ENDED_UNKNOWN if call.attempts else _ENDED
            not_run = build_error_result(call.call_id, call.tool, reason, time_ms)
            ended = replace_values(call, waits=None, unknown=None, result=not_run)
            state = replace_call(state, ended)
    return take_notes(settle(state, time_ms))


def empty_inbox(state: ThreadState, time_ms: int) -> ThreadState:
    """Move the unread messages to the tail, since the thread ends."""
    for message in state.inbox:
        state = _add_received(state, message, time_ms)
    return replace_values(state, inbox=())


def apply_reply(state: ThreadState, turn: ModelTurn) -> ThreadState:
    """Apply a reply. The activity has journalled it, together with the tail before it."""
    reply_seq = seq_after(turn.head) - 1
    state = add_to_counters(
        state,
        steps=1,
        written_bytes=turn.written_bytes,
        context_bytes=turn.context_bytes,
        tokens=turn.tokens,
        cost_usd=turn.cost_usd,
    )
    state = replace_values(
        state,
        head=turn.head,
        tail=(),
        calls=tuple(
            Call(
                # With a digest, since after a reset another call may have the same seq and number.
                id=f"{reply_seq}-{number}-{wanted.digest[:4]}",
                call_id=wanted.call_id,
                tool=wanted.tool,
                preview=wanted.preview,
                digest=wanted.digest,
                options=wanted.options,
                quiet=wanted.quiet,
            )
            for number, wanted in enumerate(turn.tool_calls, 1)
        ),
        turn_steps=state.turn_steps + 1,
        reply_seq=reply_seq,
        step_bytes=turn.written_bytes,
        context_bytes=turn.context_bytes,
        context_tokens=turn.context_tokens,
        acts_on=(),
        attributes=state.attributes or turn.attributes,
        resume_ms=turn.resume_ms or state.resume_ms,
        notify=turn.notify,
    )
    if turn.evicted:
        change = MemoryChange(evicted=turn.evicted)
        state = add_note(state, Kind.MEMORY, change, turn.time_ms)
    return _end_failed_turn(state)


def replace_call(state: ThreadState, changed: Call) -> ThreadState:
    """Replace the call with the same id."""
    calls = tuple(changed if call.id == changed.id else call for call in state.calls)
    return replace_values(state, calls=calls)


def add_result(state: ThreadState, call: Call, result: ToolResult) -> ThreadState:
    """Add a call's result. Its entry waits in the call until all calls of the reply have a result."""
    state = add_to_counters(state, tool_calls=1, written_bytes=result.written_bytes)
    state = replace_values(
        state, step_bytes=state.step_bytes + result.written_bytes, child_checks=0
    )
    # Fields that only a call without a result needs are dropped.
    done = Call(id=call.id, call_id=call.call_id, tool=call.tool, digest=call.digest, result=result)
    return replace_call(state, done)


def settle(state: ThreadState, time_ms: int) -> ThreadState:
    """Move the results of all calls to the tail, in call order, and then their memory changes."""
    done = [(call, call.result) for call in state.calls if call.result is not None]
    if len(done) < len(state.calls):
        raise ValueError("a call has no result yet")
    state = take_notes(state)  # Requests and decisions of approvals come before the results.
    for _, result in done:
        entry = replace_values(result.entry, seq=seq_after(state.head, state.tail))
        state = replace_values(state, tail=(*state.tail, entry))
    for _, result in done:
        if result.memory is not None:
            state = add_note(state, Kind.MEMORY, result.memory, time_ms)
    if done:
        observed = [
            ObservedCall(call.digest, result.digest, result.outcome) for call, result in done
        ]
        state = replace_values(state, streaks=count_step(state.streaks, observed))
    return replace_values(state, calls=())


def apply_append(state: ThreadState, appended: AppendResult) -> ThreadState:
    """Remove the journalled entries from the tail. It may have got more of them meanwhile."""
    state = add_to_counters(state, written_bytes=appended.written_bytes)
    upto_seq = seq_after(appended.head) - 1
    tail = tuple(entry for entry in state.tail if entry.seq > upto_seq)
    return _end_failed_turn(replace_values(state, head=appended.head, tail=tail))


def apply_compaction(
    state: ThreadState, done: CompactResult, reason: str, time_ms: int
) -> ThreadState:
    """Use the new snapshot, if there is one, and note the compaction."""
    due_ms = state.compaction_due_ms
    state = add_to_counters(state, tokens=done.tokens, cost_usd=done.cost_usd)
    state = replace_values(
        state,
        compaction_due_ms=None,
        compact_asked=False,
        compacted_bytes=done.after_bytes,
        next_expiry_ms=done.next_expiry_ms,
    )
    if done.snapshot is None or done.snapshot == state.snapshot:
        return state
    state = add_to_counters(state, compactions=1, written_bytes=done.written_bytes)
    state = replace_values(
        state, snapshot=done.snapshot, context_bytes=done.after_bytes, context_tokens=0
    )
    compacted = CompactionNote(
        snapshot=done.snapshot,
        reason=reason,
        before_bytes=done.before_bytes,
        after_bytes=done.after_bytes,
        lag_seconds=0.0 if due_ms is None else (time_ms - due_ms) / 1000,
        summarised=done.summarised,
        expired=done.expired,
    )
    return add_note(state, Kind.COMPACTION, compacted, time_ms)


def is_compaction_due(state: ThreadState, policy: Policy) -> bool:
    """Return whether the context exceeds the policy's bound, and has grown since the last compaction.

    Growth is required because a compaction cannot shorten instructions, tools, or a step in progress.
    """
    grown = state.context_bytes > state.compacted_bytes * 5 // 4
    return grown and (
        state.context_bytes >= min(policy.compact_at_bytes, policy.context_bytes_max)
        or state.context_tokens >= policy.compact_at_tokens
    )


def build_usage(state: ThreadState) -> Usage:
    """Return the usage that the policy's limits are compared with."""
    counters, streaks = state.counters, state.streaks
    return Usage(
        steps=counters.steps,
        tokens=counters.tokens,
        cost_usd=counters.cost_usd,
        thread_bytes=counters.written_bytes,
        step_bytes=state.step_bytes,
        context_bytes=state.context_bytes,
        failed_turns=streaks.failed_turns,
        same_failure=streaks.same_failure,
        no_progress_steps=streaks.no_progress_steps,
    )


def forgive(state: ThreadState, hit: LimitHit | None) -> ThreadState:
    """Reset the counts of repeated failures after an operator has unpaused the thread at a limit."""
    if hit is None:
        return state
    fresh = replace_values(
        state.streaks, failed_turns=0, refused_steps=0, failures=(), no_progress_steps=0, recent=()
    )
    return replace_values(state, streaks=fresh, step_bytes=0)


def add_message(state: ThreadState, kind: Kind, message: Message, time_ms: int) -> ThreadState:
    """Add a message to the tail."""
    entry = build_entry(seq_after(state.head, state.tail), kind, message, time_ms)
    return replace_values(state, tail=(*state.tail, entry))


def add_note(state: ThreadState, kind: Kind, data: object, time_ms: int) -> ThreadState:
    """Add a note. It gets its seq later, since a model call in flight may append entries first."""
    return replace_values(state, notes=(*state.notes, build_note(1, kind, data, time_ms)))


def take_notes(state: ThreadState) -> ThreadState:
    """Move the notes to the end of the tail, and give them their seq."""
    seq = seq_after(state.head, state.tail)
    taken = tuple(replace_values(each, seq=seq + i) for i, each in enumerate(state.notes))
    return replace_values(state, tail=(*state.tail, *taken), notes=())


def measure_entries(entries: Sequence[Entry]) -> int:
    """Return the approximate size of entries in the state."""
    return sum(_ENTRY_BYTES + entry.size_bytes for entry in entries)


def add_to_counters(state: ThreadState, **more: float) -> ThreadState:
    """Add to the counters."""
    counters: Counters = replace_values(
        state.counters, **{name: getattr(state.counters, name) + n for name, n in more.items()}
    )
    return replace_values(state, counters=counters)


def build_child_id(parent_id: str, agent: str, suffix: str) -> str:
    """Return the id of a sub-agent's thread: valid for a new thread, whatever the parent's id is.

    Its length is bounded at any depth, since only the beginning of the parent's id is used.
    """
    return f"{clean_id(parent_id[: limits.CHILD_PARENT_CHARS_MAX])}/{agent}-{suffix}"


def _end_failed_turn(state: ThreadState) -> ThreadState:
    """Count a failed turn once its reason is journalled."""
    failed = state.failed_turn
    if failed is None or failed.seq >= seq_after(state.head):
        return state
    ended = end_turn(state, failed.seq, failure=failed.reason)
    # Keep the fields of the next turn, which may have begun.
    return replace_values(
        ended, failed_turn=None, in_turn=state.in_turn, last_failure=state.last_failure
    )


def _add_received(state: ThreadState, message: SendMessage, time_ms: int) -> ThreadState:
    text = Message(role="user", text=message.text)
    entry = build_entry(seq_after(state.head, state.tail), Kind.MESSAGE, text, time_ms)
    if message.ref is not None:
        entry = replace_values(
            entry,
            body=None,
            ref=message.ref,
            size_bytes=message.ref.size_bytes,
            original=message.original,
        )
    if message.by:
        entry = replace_values(entry, data={"by": message.by})
    return replace_values(state, tail=(*state.tail, entry))
