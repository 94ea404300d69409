"""Approvals: tool calls that wait for a person, as pure functions of a thread's state.

An approval is requested once, when the reply arrives, and decided once: the decision removes it from the
state and adds its id to `decided`.
"""

from collections.abc import Sequence
from datetime import timedelta

from everlong import limits
from everlong.models import (
    Approval,
    Call,
    Decide,
    Decision,
    Kind,
    PendingApproval,
    SentTime,
    ThreadState,
    ToolResult,
    build_error_result,
    make_printable,
    short_digest,
)
from everlong.models.state import replace_values
from everlong.workflows import transitions

DEADLINE = "deadline"


def list_pending(state: ThreadState) -> list[Approval]:
    """Return the pending approvals, in call order."""
    return [_build_approval(call, call.waits) for call in state.calls if call.waits is not None]


def _build_approval(call: Call, waits: PendingApproval) -> Approval:
    options = call.options
    return Approval(
        id=call.id,
        tool=call.tool,
        arguments=call.preview,
        asked_ms=waits.asked_ms,
        deadline_ms=waits.deadline_ms,
        on_deadline=options.on_deadline,
        approvers=options.escalate_to if waits.escalated else options.approvers,
        escalate_to=options.escalate_to,
        escalated=waits.escalated,
    )


def request(state: ThreadState, time_ms: int) -> ThreadState:
    """Request the approvals that the calls of a new reply need."""
    for call in state.calls:
        if not call.options.needs_approval or call.waits or call.approved or call.result:
            continue
        deadline_seconds = call.options.deadline_seconds
        waits = PendingApproval(
            asked_ms=time_ms,
            deadline_ms=None
            if deadline_seconds is None
            else time_ms + int(deadline_seconds * 1000),
        )
        state = transitions.replace_call(state, replace_values(call, waits=waits))
        state = transitions.add_note(state, Kind.ASKED, _build_approval(call, waits), time_ms)
    return state


def explain_refusal(state: ThreadState, decide: Decide, time_ms: int, key: str = "") -> str:
    """Return why a decision is refused; empty if it is accepted.

    `key` identifies the request: a client sends it again if it met a continue-as-new. A request that was
    applied before is accepted, and changes nothing.
    """
    state = apply_deadlines(state, time_ms)  # The timer may fire late.
    approval = next((each for each in list_pending(state) if each.id == decide.id), None)
    if approval is None:
        if key and _format_mark(decide.id, key) in state.decided:
            return ""
        if any(each.split()[0] == decide.id for each in state.decided):
            return f"approval {decide.id!r} has been decided already; the journal says by whom"
        ids = ", ".join(each.id for each in list_pending(state)) or "none"
        return f"there is no approval {decide.id!r}; waiting: {ids}"
    if not decide.by.strip() or decide.by == DEADLINE:
        return f"`by` must be the name of the approver, not {decide.by!r}"
    if approval.approvers and decide.by not in approval.approvers:
        return f"{decide.by!r} may not decide {decide.id!r}; {_join_names(approval.approvers)} may"
    return ""


def decide(
    state: ThreadState,
    decision: Decide,
    time_ms: int,
    key: str = "",
    sent: SentTime | None = None,
) -> ThreadState:
    """Apply a decision that `explain_refusal` accepts."""
    state = apply_deadlines(state, time_ms)
    if explain_refusal(state, decision, time_ms) or _format_mark(decision.id, key) in state.decided:
        return state
    [approval] = [each for each in list_pending(state) if each.id == decision.id]
    # Made printable, since JSON needs six bytes for a control character.
    decided = Decision(
        id=approval.id,
        tool=approval.tool,
        asked_ms=approval.asked_ms,
        approve=decision.approve,
        by=make_printable(decision.by, len(decision.by)),
        reason=make_printable(decision.reason, len(decision.reason)),
    )
    return _record_decision(state, decided, time_ms, key, sent)


def get_time_to_deadline(state: ThreadState, time_ms: int) -> timedelta | None:
    """Return the time until the first approval is overdue; None without deadlines."""
    deadlines = [each.deadline_ms for each in list_pending(state) if each.deadline_ms is not None]
    return timedelta(milliseconds=max(0, min(deadlines) - time_ms)) if deadlines else None


def apply_deadlines(state: ThreadState, time_ms: int) -> ThreadState:
    """Deny or escalate the approvals whose deadline has passed."""
    for approval in list_pending(state):
        if approval.deadline_ms is None or approval.deadline_ms > time_ms:
            continue
        if approval.on_deadline == "deny" or approval.escalated:
            late = replace_values(_build_overdue(approval), reason="no decision came in time")
            state = _record_decision(state, late, time_ms)
        else:
            state = _escalate(state, approval, time_ms)
    return state


def _build_overdue(approval: Approval) -> Decision:
    return Decision(
        id=approval.id,
        tool=approval.tool,
        asked_ms=approval.asked_ms,
        approve=False,
        by=DEADLINE,
    )


def _escalate(state: ThreadState, approval: Approval, time_ms: int) -> ThreadState:
    """Pass an approval on to `escalate_to`, with the same time as the first approvers had."""
    [call] = [each for each in state.calls if each.id == approval.id]
    seconds = call.options.deadline_seconds or 0.0
    waits = PendingApproval(
        asked_ms=approval.asked_ms,
        asked_run=call.waits.asked_run if call.waits else None,
        deadline_ms=time_ms + int(seconds * 1000),
        escalated=True,
    )
    state = transitions.replace_call(state, replace_values(call, waits=waits))
    decided = replace_values(_build_overdue(approval), escalated=True)
    return transitions.add_note(state, Kind.DECIDED, decided, time_ms)


def _record_decision(
    state: ThreadState,
    decided: Decision,
    time_ms: int,
    key: str = "",
    sent: SentTime | None = None,
) -> ThreadState:
    [call] = [each for each in state.calls if each.id == decided.id]
    decided = replace_values(decided, asked_run=call.waits.asked_run if call.waits else None)
    state = replace_values(
        state,
        decided=(*state.decided, _format_mark(decided.id, key))[-limits.DECIDED_MAX :],
        rested=False,
    )
    state = transitions.add_note(state, Kind.DECIDED, decided, time_ms)
    if decided.approve:
        approved = replace_values(call, waits=None, approved=True, sent=sent)
        return transitions.replace_call(state, approved)
    if sent is not None:  # The model reads the denial once all calls have a result.
        acts_on = (*state.acts_on, sent)[-limits.TOOL_CALLS_MAX :]
        state = replace_values(state, acts_on=acts_on)
    return transitions.add_result(state, call, build_denial(call, decided, time_ms))


def _format_mark(approval_id: str, key: str) -> str:
    """Return a decision in the format of `ThreadState.decided`."""
    return f"{approval_id} {short_digest(key, size_bytes=8)}" if key else approval_id


def build_denial(call: Call, decided: Decision, time_ms: int) -> ToolResult:
    """Return the result of a denied call, for the model. It does not count as a failure."""
    why = f": {make_printable(decided.reason, limits.REASON_CHARS_MAX)}" if decided.reason else ""
    reason = f"denied by {make_printable(decided.by, limits.CALL_NAME_CHARS_MAX)}{why}"
    return build_error_result(call.call_id, call.tool, reason, time_ms, outcome="ok")


def _join_names(names: Sequence[str]) -> str:
    return " or ".join(names)
