"""What a thread says of itself: in its status, in search attributes, and in a card, which is a memo.

An upsert of those is an event, so only of changes that a person looks for.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, SearchAttributeUpdate

from everlong.models import CARD_MEMO, Approval, ThreadCard, ThreadState, ThreadStatus
from everlong.models import search_attributes as attributes
from everlong.models.state import with_values
from everlong.workflows import approvals, sizes, transitions
from everlong.workflows.thread import Thread


def status_of(thread: Thread, *, stopped: bool) -> ThreadStatus:
    """Return the answer of the `status` query."""
    state = thread.state
    return ThreadStatus(
        agent=thread.agent,
        status=_word(thread, stopped),
        counters=state.counters,
        head=state.head,
        waiting_messages=len(state.inbox),
        last_failure=state.last_failure,
        held_by=thread.held_by,
        pause=state.pause,
        ended=state.ended,
        snapshot=state.snapshot,
        tail_entries=len(state.tail) + len(state.notes),
        pending=len(approvals.pending(state)),
        children=tuple(call.child_id for call in state.calls if call.child_id and not call.report),
        answers=state.answers,
        streaks=state.streaks,
        state_bytes=transitions.state_bytes(state),
        context_bytes=state.context_bytes,
        compaction_lag_bytes=_lag_bytes(thread),
        compaction_due_ms=state.compaction_due_ms,
        policy=thread.policy,
    )


def _lag_bytes(thread: Thread) -> int:
    """Return by how much the context is larger than it should be, if a compaction is due."""
    state = thread.state
    if state.compaction_due_ms is None:
        return 0
    return max(0, state.context_bytes - thread.policy.compact_at_bytes)


def _word(thread: Thread, stopped: bool) -> str:
    state = thread.state
    if thread.stopping:
        return thread.end_status() if stopped else "stopping"
    if thread.held_by:
        return "held"
    if state.pause is not None:
        return "paused"
    if thread.has_work or not approvals.pending(state):
        return "working" if thread.has_work or state.in_turn else "waiting"
    return "approval"


def take_start_attributes(thread: Thread) -> None:
    """Take note of the search attributes that a new thread was started with, if it was."""
    state = thread.state
    if state.published_size is not None or state.published:
        return  # It has written its own.
    if workflow.info().typed_search_attributes.get(attributes.STATUS) != attributes.ACTIVE:
        return
    now_ms = thread.now_ms()
    thread.state = with_values(
        state,
        attributes=True,
        published=_published(attributes.ACTIVE, "", 0),
        published_size=sizes.published(state, now_ms),
        trend=sizes.trend(state, now_ms),
    )


def publish(thread: Thread) -> None:
    """Upsert the card and search attributes, if what they say has changed and the server has them."""
    state = thread.state
    now_ms = thread.now_ms()
    waits = not thread.has_work or state.pause is not None
    is_due = sizes.is_due(state, now_ms, waits=waits)
    if is_due:
        size = sizes.published(state, now_ms)
        trend = sizes.trend(state, now_ms)
        thread.state = with_values(state, published_size=size, trend=trend)
        workflow.upsert_memo({CARD_MEMO: _card(thread, now_ms)})
    if not state.attributes:
        return
    pending = approvals.pending(state)
    status, reason = _status(thread, len(pending))
    published = _published(status, reason, len(pending))
    updates: list[SearchAttributeUpdate[Any]] = []
    if published != state.published:
        updates += [
            attributes.AGENT.value_set(thread.agent),
            attributes.STATUS.value_set(status),
            attributes.REASON.value_set(reason),
            attributes.PENDING.value_set(len(pending)),
            _asked_at(pending),
        ]
    if is_due:
        # With the trend that the card has: a list computes the same growth from it.
        updates += _size(thread.state, now_ms)
    if updates:
        thread.state = with_values(thread.state, published=published)
        workflow.upsert_search_attributes(updates)


def next_memo(thread: Thread) -> dict[str, object]:
    """Return the memo of the next run. By itself it would be the one that this run began with."""
    memo: dict[str, object] = {
        name: RawValue(payload) for name, payload in workflow.info().raw_memo.items()
    }
    return memo | {CARD_MEMO: _card(thread, thread.now_ms())}


def _card(thread: Thread, now_ms: int) -> ThreadCard:
    state, counters = thread.state, thread.state.counters
    return ThreadCard(
        ms=now_ms,
        steps=counters.steps,
        messages=counters.messages,
        runs=counters.runs,
        tokens=counters.tokens,
        cost_usd=counters.cost_usd,
        operational_bytes=transitions.state_bytes(state),
        context_bytes=state.context_bytes,
        stored_bytes=counters.written_bytes,
        read_bytes=counters.context_bytes,
        lag_bytes=_lag_bytes(thread),
        lag_since_ms=state.compaction_due_ms,
        resume_ms=round(state.resume_ms, 1),
        since_ms=state.since_ms,
        trend=state.trend,
        rested=state.rested,
    )


def _size(state: ThreadState, now_ms: int) -> list[SearchAttributeUpdate[Any]]:
    updates: list[SearchAttributeUpdate[Any]] = [
        attributes.STATE_BYTES.value_set(state.counters.written_bytes),
        attributes.GROWTH.value_set(sizes.growth(state, now_ms)),
    ]
    if state.resume_ms:
        updates.append(attributes.LAST_RESUME.value_set(round(state.resume_ms, 1)))
    return updates


def _asked_at(pending: Sequence[Approval]) -> SearchAttributeUpdate[Any]:
    """Say since when a person is waited for: for the longest, if there are several."""
    if not pending:
        return attributes.ASKED_AT.value_unset()
    asked_ms = min(each.asked_ms for each in pending)
    return attributes.ASKED_AT.value_set(datetime.fromtimestamp(asked_ms / 1000, UTC))


def _status(thread: Thread, pending: int) -> tuple[str, str]:
    state = thread.state
    if thread.stopping:
        return thread.end_status(), state.ended.limit if state.ended else ""
    if state.pause is not None:
        return "paused", state.pause.limit.limit if state.pause.limit else "person"
    return ("approval" if pending else attributes.ACTIVE), ""


def _published(status: str, reason: str, pending: int) -> str:
    return f"{status} {reason} {pending}"
