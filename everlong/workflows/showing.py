"""What a thread says of itself: in its status, and in search attributes.

An upsert of those is an event, so only of changes that a person looks for.
"""

import dataclasses
from typing import Final

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from everlong.models import ThreadStatus
from everlong.workflows import approvals, transitions
from everlong.workflows.thread import Thread

_AGENT: Final = SearchAttributeKey.for_keyword("EverlongAgent")
_STATUS: Final = SearchAttributeKey.for_keyword("EverlongStatus")
_REASON: Final = SearchAttributeKey.for_keyword("EverlongReason")
_PENDING: Final = SearchAttributeKey.for_int("EverlongPendingApprovals")


def status_of(thread: Thread, *, stopped: bool) -> ThreadStatus:
    """Return the answer of the `status` query."""
    state = thread.state
    lag_bytes = state.context_bytes - thread.policy.compact_at_bytes
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
        compaction_lag_bytes=max(0, lag_bytes) if state.compaction_due_ms is not None else 0,
        compaction_due_ms=state.compaction_due_ms,
        policy=thread.policy,
    )


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


def publish(thread: Thread) -> None:
    """Upsert search attributes, if what they say has changed and the server has them."""
    state = thread.state
    if not state.attributes:
        return
    pending = len(approvals.pending(state))
    status, reason = _status(thread, pending)
    published = f"{status} {reason} {pending}"
    if published == state.published:
        return
    thread.state = dataclasses.replace(state, published=published)
    workflow.upsert_search_attributes(
        [
            _AGENT.value_set(thread.agent),
            _STATUS.value_set(status),
            _REASON.value_set(reason),
            _PENDING.value_set(pending),
        ]
    )


def _status(thread: Thread, pending: int) -> tuple[str, str]:
    state = thread.state
    if thread.stopping:
        return thread.end_status(), state.ended.limit if state.ended else ""
    if state.pause is not None:
        return "paused", state.pause.limit.limit if state.pause.limit else "person"
    return ("approval" if pending else "active"), ""
