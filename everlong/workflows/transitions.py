"""How a thread's operational state changes: pure functions from one state to the next.

The workflow decides when; what that means for the state is here.
"""

import dataclasses
from collections.abc import Mapping

from pydantic import TypeAdapter
from pydantic_core import to_json

from everlong import limits
from everlong.models import (
    Appended,
    Entry,
    Kind,
    Message,
    ModelTurn,
    ThreadState,
    ToolName,
    ToolResult,
)

_MESSAGE = TypeAdapter(Message)
_STATE = TypeAdapter(ThreadState)


def state_bytes(state: ThreadState) -> int:
    """Return the size of a state as JSON."""
    return len(_STATE.dump_json(state))


def why_refused(state: ThreadState, text: str) -> str:
    """Return why a message cannot be queued, or an empty string."""
    size_bytes = _queued_bytes(text)
    waiting_bytes = sum(map(_queued_bytes, state.inbox))
    if not text.strip():
        return "the message is empty"
    if size_bytes > limits.MESSAGE_BYTES_MAX:
        return (
            f"the message has {size_bytes} bytes; {limits.MESSAGE_BYTES_MAX} is the most. Send a "
            "path or a link that a tool can read."
        )
    if waiting_bytes + size_bytes > limits.INBOX_BYTES_MAX:
        return f"{len(state.inbox)} messages wait already; send again once some are answered"
    return ""


def queue(state: ThreadState, text: str) -> ThreadState:
    """Take in a message that has arrived."""
    counters = dataclasses.replace(state.counters, messages=state.counters.messages + 1)
    return dataclasses.replace(state, inbox=(*state.inbox, text), counters=counters)


def begin_turn(state: ThreadState, time_ms: int) -> ThreadState:
    """Take up the oldest message that waits."""
    text, *inbox = state.inbox
    state = dataclasses.replace(
        state, inbox=tuple(inbox), in_turn=True, turn_steps=0, last_failure=""
    )
    return add_to_tail(state, Kind.MESSAGE, Message(role="user", text=text), time_ms)


def end_turn(state: ThreadState, failure: str = "") -> ThreadState:
    """Count the message as dealt with: it has been answered, or will not be."""
    counters = dataclasses.replace(state.counters, answered=state.counters.answered + 1)
    return dataclasses.replace(state, in_turn=False, last_failure=failure, counters=counters)


def empty_inbox(state: ThreadState, time_ms: int) -> ThreadState:
    """Move what nobody will read to the tail, since the thread ends."""
    for text in state.inbox:
        state = add_to_tail(state, Kind.MESSAGE, Message(role="user", text=text), time_ms)
    return dataclasses.replace(state, inbox=())


def after_model(state: ThreadState, turn: ModelTurn) -> ThreadState:
    """Take in a reply, which has been journalled with the tail before it."""
    counters = dataclasses.replace(
        state.counters,
        steps=state.counters.steps + 1,
        written_bytes=state.counters.written_bytes + turn.written_bytes,
        context_bytes=state.counters.context_bytes + turn.context_bytes,
    )
    return dataclasses.replace(
        state,
        head=turn.head,
        tail=(),
        calls=turn.tool_calls,
        turn_steps=state.turn_steps + 1,
        counters=counters,
    )


def after_tools(state: ThreadState, results: Mapping[ToolName, ToolResult]) -> ThreadState:
    """Take in the results of some or all of the calls."""
    first_seq = next_seq(state)
    kept = tuple(
        dataclasses.replace(result.entry, seq=first_seq + index)
        for index, result in enumerate(results.values())
    )
    written_bytes = sum(result.written_bytes for result in results.values())
    counters = dataclasses.replace(
        state.counters,
        tool_calls=state.counters.tool_calls + len(results),
        written_bytes=state.counters.written_bytes + written_bytes,
    )
    return dataclasses.replace(
        state,
        tail=(*state.tail, *kept),
        calls=tuple(call for call in state.calls if call not in results),
        counters=counters,
    )


def after_append(state: ThreadState, appended: Appended) -> ThreadState:
    """Empty the tail, which has been journalled."""
    counters = dataclasses.replace(
        state.counters, written_bytes=state.counters.written_bytes + appended.written_bytes
    )
    return dataclasses.replace(state, head=appended.head, tail=(), counters=counters)


def add_to_tail(state: ThreadState, kind: Kind, message: Message, time_ms: int) -> ThreadState:
    """Add something that the journal has yet to get."""
    entry = new_entry(next_seq(state), kind, message, time_ms)
    return dataclasses.replace(state, tail=(*state.tail, entry))


def new_entry(seq: int, kind: Kind, message: Message, time_ms: int) -> Entry:
    """Return an entry that holds its message."""
    size_bytes = len(_MESSAGE.dump_json(message))
    return Entry(seq=seq, kind=kind, time_ms=time_ms, size_bytes=size_bytes, message=message)


def next_seq(state: ThreadState) -> int:
    """Return the seq that the next entry gets."""
    if state.tail:
        return state.tail[-1].seq + 1
    return 1 if state.head is None else state.head.first_seq + state.head.count


def _queued_bytes(text: str) -> int:
    """Size of a text in the state's JSON, with the comma that follows it."""
    return len(to_json(text)) + 1
