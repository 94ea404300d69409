"""Visibility: what a thread publishes about itself.

The `status` query is computed when a client asks. Search attributes and the card (a memo) are written by
the thread. Each upsert is an event and a billed action, so a thread publishes only changes that an
operator looks for: of its status at once, of its size when `is_size_due` says so.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from temporalio import workflow
from temporalio.common import RawValue, SearchAttributeUpdate

from everlong import limits
from everlong.models import (
    CARD_MEMO,
    PublishedSize,
    Status,
    ThreadCard,
    ThreadState,
    ThreadStatus,
    choose_status,
    compute_growth_per_hour,
    find_hold_cause,
)
from everlong.models import search_attributes as attributes
from everlong.models.state import replace_values
from everlong.models.status import CALLS, OUTCOME, PERSON
from everlong.workflows import deadlines, outcomes, transitions

if TYPE_CHECKING:
    from everlong.workflows.thread import Thread

# The size is published again after it has grown by a quarter: about 55 times up to 4 GiB.
_GROWN: Final = 1.25
_GROWN_BYTES_MIN: Final = 64 * limits.KIB
_GROWN_STEPS_MIN: Final = 8
_HOUR_MS: Final = 3_600_000


def build_status(thread: "Thread", *, ended: bool) -> ThreadStatus:
    """Return the answer of the `status` query."""
    state = thread.state
    status = _get_status(thread, ended=ended)
    policy, policy_from = thread.find_policy()
    return ThreadStatus(
        agent=thread.agent,
        status=status,
        reason=_get_reason(thread, status),
        stopping=thread.stopping,
        counters=state.counters,
        head=state.head,
        waiting_messages=len(state.inbox),
        last_failure=state.last_failure,
        held_by=thread.held_by,
        pause=state.pause,
        ended=state.ended,
        snapshot=state.snapshot,
        tail_entries=len(state.tail) + len(state.notes),
        pending=deadlines.count_waiting(state),
        outcomes=len(outcomes.list_unknown(state)),
        children=tuple(call.child_id for call in state.calls if call.child_id and not call.report),
        answers=state.answers,
        streaks=state.streaks,
        state_bytes=transitions.measure_state(state),
        context_bytes=state.context_bytes,
        compaction_lag_bytes=_compute_lag_bytes(thread),
        compaction_due_ms=state.compaction_due_ms,
        policy=policy,
        policy_from=policy_from,
    )


def _compute_lag_bytes(thread: "Thread") -> int:
    """Return the bytes by which the context exceeds its bound, if a compaction is due."""
    state = thread.state
    if state.compaction_due_ms is None:
        return 0
    return max(0, state.context_bytes - thread.policy.compact_at_bytes)


def _get_status(thread: "Thread", *, ended: bool) -> Status:
    state = thread.state
    if ended:
        return thread.end_status
    found = [Status.FAILED if state.last_failure else Status.WAITING]
    if thread.has_work or state.in_turn or thread.stopping:
        found.append(Status.WORKING)
    if thread.held_by:
        found.append(Status.HELD)
    if thread.retried:
        found.append(Status.RETRYING)
    # A thread that is stopping takes neither a decision nor an `unpause` any more.
    if state.pause is not None and not thread.stopping:
        found.append(Status.PAUSED)
    if deadlines.count_waiting(state) and not thread.stopping:
        found.append(Status.APPROVAL)
    return choose_status(found)


def _get_reason(thread: "Thread", status: Status) -> str:
    """Return the second word of a status."""
    state = thread.state
    match status:
        case Status.HELD:
            return find_hold_cause(thread.held_by)
        case Status.RETRYING:
            return CALLS.get(thread.retried, "")
        case Status.PAUSED:
            return state.pause.limit.limit if state.pause and state.pause.limit else PERSON
        case Status.APPROVAL:
            return OUTCOME if outcomes.list_unknown(state) else ""
        case Status.DONE | Status.ARCHIVED:
            return state.ended.limit if state.ended else ""
    return ""


def adopt_start_attributes(thread: "Thread") -> None:
    """Record the search attributes that the client set at the start, so that they are not set again."""
    state = thread.state
    if state.published_size is not None or state.published:
        return  # The thread has published already.
    status = workflow.info().typed_search_attributes.get(attributes.STATUS)
    if status is None:
        return
    now_ms = thread.now_ms()
    thread.state = replace_values(
        state,
        attributes=True,
        published=_format_published(status, "", 0),
        published_size=build_published_size(state, now_ms),
        trend=build_trend(state, now_ms),
    )


def publish(thread: "Thread", *, ended: bool = False) -> None:
    """Upsert the card and the search attributes if they have changed enough.

    Search attributes are left out until a worker reports that the server has them.
    """
    state = thread.state
    now_ms = thread.now_ms()
    waits = not thread.has_work or state.pause is not None
    is_due = is_size_due(state, now_ms, waits=waits)
    if is_due:
        size = build_published_size(state, now_ms)
        trend = build_trend(state, now_ms)
        thread.state = replace_values(state, published_size=size, trend=trend)
        workflow.upsert_memo({CARD_MEMO: _build_card(thread, now_ms)})
    if not state.attributes:
        return
    updates = _take_status_updates(thread, ended=ended)
    if is_due:
        # With the trend of the card, so that a list computes the same growth from the card.
        updates += _build_size_updates(thread.state, now_ms)
    if updates:
        workflow.upsert_search_attributes(updates)


def publish_status(thread: "Thread") -> None:
    """Upsert the status if it has changed: within a step, when a call is held or is decided."""
    if thread.state.attributes and (updates := _take_status_updates(thread, ended=False)):
        workflow.upsert_search_attributes(updates)


def get_labels() -> tuple[str, ...]:
    """Return the thread's labels: its search attribute, which the next run inherits."""
    return tuple(workflow.info().typed_search_attributes.get(attributes.LABELS) or ())


def publish_labels(labels: Sequence[str]) -> None:
    """Upsert the labels. The client has checked that the server has the attribute."""
    key = attributes.LABELS
    update = key.value_set(list(labels)) if labels else key.value_unset()
    workflow.upsert_search_attributes([update])


def _take_status_updates(thread: "Thread", *, ended: bool) -> list[SearchAttributeUpdate[Any]]:
    """Return the updates of a status that is not published yet, and note that it is."""
    pending = deadlines.count_waiting(thread.state)
    status = _get_status(thread, ended=ended)
    reason = _get_reason(thread, status)
    published = _format_published(status, reason, pending)
    if published == thread.state.published:
        return []
    before = thread.state.published
    thread.state = replace_values(thread.state, published=published)
    updates: list[SearchAttributeUpdate[Any]] = [
        attributes.STATUS.value_set(status.value),
        attributes.REASON.value_set(reason),
    ]
    if not before:
        updates.append(attributes.AGENT.value_set(thread.agent))
    if pending or not before.endswith(" 0"):
        asked_ms = deadlines.find_oldest_ms(thread.state)
        updates += [attributes.PENDING.value_set(pending), _build_asked_at(asked_ms)]
    return updates


def build_next_memo(thread: "Thread") -> dict[str, object]:
    """Return the memo for the next run. By default it would get the memo that this run began with."""
    memo: dict[str, object] = {
        name: RawValue(payload) for name, payload in workflow.info().raw_memo.items()
    }
    return memo | {CARD_MEMO: _build_card(thread, thread.now_ms())}


def compute_growth(state: ThreadState, now_ms: int) -> float:
    """Return the thread's growth in bytes per hour, as `compute_growth_per_hour` defines it."""
    return compute_growth_per_hour(
        state.trend, state.counters.written_bytes, now_ms, rested=state.rested
    )


def is_size_due(state: ThreadState, now_ms: int, *, waits: bool) -> bool:
    """Return whether the published size differs enough from the current one."""
    last = state.published_size
    size_bytes, steps = state.counters.written_bytes, state.counters.steps
    if last is None:
        return size_bytes > 0
    if state.rested and not last.rested:
        return True
    if waits and (steps > last.steps or state.context_bytes != last.context_bytes):
        return True
    if size_bytes > last.thread_bytes and (state.stopping or now_ms - last.ms >= _HOUR_MS):
        return True
    return _has_grown(state, last) or _has_other_resumes(state, last)


def _has_grown(state: ThreadState, last: PublishedSize) -> bool:
    size_bytes, steps = state.counters.written_bytes, state.counters.steps
    return steps >= max(last.steps * _GROWN, last.steps + _GROWN_STEPS_MIN) or size_bytes >= max(
        last.thread_bytes * _GROWN, last.thread_bytes + _GROWN_BYTES_MIN
    )


def _has_other_resumes(state: ThreadState, last: PublishedSize) -> bool:
    slower = state.resume_ms > 2 * last.resume_ms
    return slower or 0 < state.resume_ms < last.resume_ms / 2


def build_trend(state: ThreadState, now_ms: int) -> tuple[tuple[int, int], ...]:
    """Return the trend with the current size added.

    At most `TREND_MAX` samples cover the whole life of the thread. If there are more, the sample is
    dropped whose neighbours are closest to each other relative to its age. So there is always a sample
    of some hours ago and one of some days ago, however old the thread is.
    """
    samples = (*state.trend, (now_ms, state.counters.written_bytes))
    if len(samples) <= limits.TREND_MAX:
        return samples
    inner = range(1, len(samples) - 1)
    ages = [max(1, now_ms - ms) for ms, _ in samples]
    crowded = min(inner, key=lambda at: (ages[at - 1] - ages[at + 1]) / ages[at])
    return samples[:crowded] + samples[crowded + 1 :]


def build_published_size(state: ThreadState, now_ms: int) -> PublishedSize:
    """Return the record of a size that is published now."""
    return PublishedSize(
        ms=now_ms,
        thread_bytes=state.counters.written_bytes,
        context_bytes=state.context_bytes,
        steps=state.counters.steps,
        resume_ms=state.resume_ms,
        rested=state.rested,
    )


def _build_card(thread: "Thread", now_ms: int) -> ThreadCard:
    state, counters = thread.state, thread.state.counters
    return ThreadCard(
        ms=now_ms,
        steps=counters.steps,
        messages=counters.messages,
        runs=counters.runs,
        tokens=counters.tokens,
        cost_usd=counters.cost_usd,
        operational_bytes=transitions.measure_state(state),
        context_bytes=state.context_bytes,
        stored_bytes=counters.written_bytes,
        read_bytes=counters.context_bytes,
        lag_bytes=_compute_lag_bytes(thread),
        lag_since_ms=state.compaction_due_ms,
        resume_ms=round(state.resume_ms, 1),
        since_ms=state.since_ms,
        trend=state.trend,
        rested=state.rested,
    )


def _build_size_updates(state: ThreadState, now_ms: int) -> list[SearchAttributeUpdate[Any]]:
    updates: list[SearchAttributeUpdate[Any]] = [
        attributes.STATE_BYTES.value_set(state.counters.written_bytes),
        attributes.GROWTH.value_set(compute_growth(state, now_ms)),
    ]
    if state.resume_ms:
        updates.append(attributes.LAST_RESUME.value_set(round(state.resume_ms, 1)))
    return updates


def _build_asked_at(asked_ms: int | None) -> SearchAttributeUpdate[Any]:
    """Return the update of the time since which the oldest call waits for a person."""
    if asked_ms is None:
        return attributes.ASKED_AT.value_unset()
    return attributes.ASKED_AT.value_set(datetime.fromtimestamp(asked_ms / 1000, UTC))


def _format_published(status: str, reason: str, pending: int) -> str:
    return f"{status} {reason} {pending}"
