"""Approvals: tool calls that wait for people, as pure functions of a thread's state.

An approval is requested once, when the reply arrives, and decided once: the decision removes it from the
state and adds its id to `decided`. One denial denies. A call that needs several approvals keeps the
votes until the last of them. A change of the arguments, and an escalation, make earlier votes void.
"""

from collections.abc import Sequence

from pydantic_core import to_json

from everlong import limits
from everlong.models import (
    Approval,
    Call,
    Decide,
    Decision,
    DecisionCheck,
    Kind,
    PendingApproval,
    SentTime,
    ThreadState,
    ToolResult,
    Vote,
    VoteNote,
    WantedCall,
    build_error_result,
    make_printable,
    short_digest,
)
from everlong.models.grants import is_thread_grant
from everlong.models.notices import Event
from everlong.models.state import replace_values
from everlong.models.tools import count_needed, get_approval_id, remove_edit
from everlong.workflows import transitions
from everlong.workflows.notices import add_notice

DEADLINE = "deadline"
_VOTE = "+"


def list_pending(state: ThreadState) -> list[Approval]:
    """Return the pending approvals, in call order."""
    return [_build_approval(call, call.waits) for call in state.calls if call.waits is not None]


def _build_approval(call: Call, waits: PendingApproval) -> Approval:
    options = call.options
    approvers = options.escalate_to if waits.escalated else options.approvers
    needed = count_needed(options.approvals_needed, approvers)
    return Approval(
        id=get_approval_id(call),
        tool=call.tool,
        arguments=call.preview,
        asked_ms=waits.asked_ms,
        deadline_ms=waits.deadline_ms,
        on_deadline=options.on_deadline,
        approvers=approvers,
        escalate_to=options.escalate_to,
        escalated=waits.escalated,
        needed=needed,
        votes=waits.votes,
        always=options.always and options.approvals_needed == 1,
        edit=call.edit,
    )


def request(state: ThreadState, time_ms: int, wanted: Sequence[WantedCall] = ()) -> ThreadState:
    """Request the approvals that the calls of a new reply need.

    `wanted` has the same calls with their grants: a call that a grant allows needs no approval.
    """
    grants = {each.call_id: each for each in wanted if each.grant}
    for call in state.calls:
        if not call.options.needs_approval or call.waits or call.approved or call.result:
            continue
        if call.call_id in grants and _holds(state, grants[call.call_id].grant, time_ms):
            state = _use_grant(state, call, grants[call.call_id], time_ms)
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
        if not call.quiet:
            state = add_notice(state, Event.ASKED, call.id, time_ms)
    return state


def _holds(state: ThreadState, grant_id: str, time_ms: int) -> bool:
    """Whether a grant was not revoked since the model call began, and has not expired.

    For an agent's grant, the worker that runs the call asks the store.
    """
    return not is_thread_grant(grant_id) or any(
        each.id == grant_id and each.is_active(time_ms) for each in state.grants
    )


def _use_grant(state: ThreadState, call: Call, wanted: WantedCall, time_ms: int) -> ThreadState:
    """Approve a call by a grant. The journal records the use, and who gave the grant."""
    used = Decision(
        id=call.id,
        tool=call.tool,
        asked_ms=time_ms,
        approve=True,
        by=wanted.granted_by,
        arguments=call.preview,
        grant=wanted.grant,
    )
    state = transitions.add_note(state, Kind.DECIDED, used, time_ms)
    approved = replace_values(call, approved=True, grant=wanted.grant)
    return transitions.replace_call(state, approved)


def is_usable(state: ThreadState, call: Call, time_ms: int) -> bool:
    """Whether the grant of a call still holds when the call is about to run; true without a grant.

    A call whose sub-agent has been started has begun to run: only its answer is collected.
    """
    return not call.grant or bool(call.child_id) or _holds(state, call.grant, time_ms)


def withdraw(state: ThreadState, call: Call, time_ms: int) -> ThreadState:
    """Ask for the approval of a call whose grant has ended before the call ran."""
    state = transitions.replace_call(state, replace_values(call, approved=False, grant=""))
    return request(state, time_ms)


def explain_refusal(state: ThreadState, decide: Decide, time_ms: int, key: str = "") -> str:
    """Return why a decision is refused; empty if it is accepted.

    `key` identifies the request: a client sends it again if it met a continue-as-new. A request that was
    applied before is accepted, and changes nothing.
    """
    if is_applied(state, decide.id, key):
        return ""
    state = apply_deadlines(state, time_ms)  # The timer may fire late.
    approval = next((each for each in list_pending(state) if each.id == decide.id), None)
    if approval is None:
        return _explain_unknown(state, decide.id)
    if reason := explain_author_refusal(decide.by, approval.id, approval.approvers):
        return reason
    if not decide.approve:
        extra = decide.arguments is not None or decide.always is not None
        return "a denial has neither `arguments` nor `always`" if extra else ""
    return (
        _explain_vote_refusal(state, approval, decide)
        or _explain_edit_refusal(find_call(state, approval.id), decide)
        or _explain_always_refusal(approval, decide)
    )


def is_applied(state: ThreadState, approval_id: str, key: str) -> bool:
    """Whether a request was applied before, as a decision or as a vote."""
    marks = {_format_mark(approval_id, key), _format_mark(approval_id + _VOTE, key)}
    return bool(key) and not marks.isdisjoint(state.decided)


def explain_author_refusal(by: str, what: str, approvers: Sequence[str]) -> str:
    """Return why a person may not decide; empty if the person may."""
    if not by.strip() or by == DEADLINE:
        return f"`by` must be the name of the approver, not {by!r}"
    if approvers and by not in approvers:
        return f"{by!r} may not decide {what!r}; {_join_names(approvers)} may"
    return ""


def _explain_unknown(state: ThreadState, approval_id: str) -> str:
    pending = [each.id for each in list_pending(state)]
    call_id = remove_edit(approval_id)
    if newer := next((each for each in pending if remove_edit(each) == call_id), ""):
        return (
            f"the arguments of {approval_id!r} have been changed since. Look at the call again, and "
            f"decide on {newer!r}"
        )
    if any(each.split()[0] == approval_id for each in state.decided):
        return f"approval {approval_id!r} has been decided already; the journal says by whom"
    return f"there is no approval {approval_id!r}; waiting: {', '.join(pending) or 'none'}"


def _explain_vote_refusal(state: ThreadState, approval: Approval, decide: Decide) -> str:
    missing = approval.needed - len(approval.votes)
    if decide.arguments is not None:  # The change makes earlier votes void, this person's own too.
        missing = approval.needed
    elif _has_voted(approval, decide.by):
        return (
            f"{decide.by!r} has approved {decide.id!r} already; {missing} more must: "
            f"{_join_names(approval.approvers) or 'anyone else'}"
        )
    votes = [each for call in state.calls if call.waits for each in call.waits.votes]
    added = Vote(by=decide.by, ms=approval.asked_ms)
    if missing > 1 and len(to_json([*votes, added])) > limits.VOTES_BYTES_MAX:
        return "too many calls of this thread have a part of their approvals; complete one of them first"
    if missing > 1 and transitions.measure_entries(state.notes) > limits.VOTE_NOTES_BYTES_MAX:
        return "this thread has too many entries that are not journalled yet; try again later"
    return ""


def _explain_edit_refusal(call: Call, decide: Decide) -> str:
    if decide.arguments is None:
        return ""
    if decide.always is not None:
        return "`arguments` and `always` do not go together: decide on the changed call alone"
    if call.options.agent:
        return "a request to a sub-agent cannot be changed; deny it, and say what to ask instead"
    size_bytes = len(to_json(decide.arguments))
    if size_bytes > limits.EDIT_BYTES_MAX:
        return f"`arguments` has {size_bytes} bytes; the maximum is {limits.EDIT_BYTES_MAX}"
    return ""


def _explain_always_refusal(approval: Approval, decide: Decide) -> str:
    if decide.always is None or approval.always:
        return ""
    if approval.needed > 1:
        return (
            f"a call of {approval.tool!r} needs {approval.needed} approvals, so no single person can "
            "allow later ones"
        )
    return f"each call of {approval.tool!r} needs its own approval; decide without `always`"


def decide(
    state: ThreadState,
    decision: Decide,
    time_ms: int,
    key: str = "",
    sent: SentTime | None = None,
    check: DecisionCheck | None = None,
) -> ThreadState:
    """Apply a decision that `explain_refusal` accepts. `check` has the arguments that it changes."""
    state = apply_deadlines(state, time_ms)
    if is_applied(state, decision.id, key) or explain_refusal(state, decision, time_ms):
        return state
    call = find_call(state, decision.id)
    waits = call.waits or PendingApproval(asked_ms=time_ms)
    decided = Decision(
        id=decision.id,
        tool=call.tool,
        asked_ms=waits.asked_ms,
        approve=decision.approve,
        # Made printable, since JSON needs six bytes for a control character.
        by=make_printable(decision.by, len(decision.by)),
        reason=make_printable(decision.reason, len(decision.reason)),
    )
    if not decision.approve:
        return _record_decision(state, call, decided, time_ms, key, sent)
    votes = waits.votes
    if check is not None and check.edit is not None:
        call, votes = replace_values(call, edit=check.edit, preview=check.preview), ()
        state = transitions.add_to_counters(state, written_bytes=check.written_bytes)
    votes = (*votes, Vote(by=decided.by, ms=time_ms))
    needed = _build_approval(call, waits).needed
    if len(votes) < needed:
        call = replace_values(call, waits=replace_values(waits, votes=votes))
        return _record_vote(state, call, decided, needed, time_ms, key)
    decided = replace_values(
        decided,
        votes=tuple(each.by for each in votes) if needed > 1 else (),
        arguments=call.preview if call.edit is not None else "",
        edit=call.edit.digest if call.edit is not None else "",
    )
    return _record_decision(state, call, decided, time_ms, key, sent)


def _has_voted(approval: Approval, by: str) -> bool:
    """Whether a person has approved already. Among free names, no spelling makes another person."""
    if approval.approvers:
        return make_printable(by, len(by)) in {each.by for each in approval.votes}
    return _fold_name(by) in {_fold_name(each.by) for each in approval.votes}


def _fold_name(name: str) -> str:
    return " ".join(make_printable(name, len(name)).split()).casefold()


def _record_vote(
    state: ThreadState, call: Call, decided: Decision, needed: int, time_ms: int, key: str
) -> ThreadState:
    """Record an approval that leaves the call waiting for more of them."""
    next_id = get_approval_id(call)
    is_edit = next_id != decided.id
    voted = VoteNote(
        id=decided.id,
        tool=call.tool,
        by=decided.by,
        reason=decided.reason,
        votes=len(call.waits.votes) if call.waits else 0,
        needed=needed,
        next_id=next_id if is_edit else "",
        arguments=call.preview if is_edit else "",
        edit=call.edit.digest if is_edit and call.edit else "",
    )
    state = mark(state, decided.id + _VOTE, key)
    state = transitions.add_note(state, Kind.VOTED, voted, time_ms)
    if is_edit and not call.quiet:  # Others have to approve arguments that they have not seen.
        state = add_notice(state, Event.ASKED, next_id, time_ms)
    return transitions.replace_call(state, call)


def apply_deadlines(state: ThreadState, time_ms: int) -> ThreadState:
    """Deny or escalate the approvals whose deadline has passed."""
    for approval in list_pending(state):
        if approval.deadline_ms is None or approval.deadline_ms > time_ms:
            continue
        if approval.on_deadline == "deny" or approval.escalated:
            late = replace_values(_build_overdue(approval), reason="no decision came in time")
            state = _record_decision(state, find_call(state, approval.id), late, time_ms)
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
    call = find_call(state, approval.id)
    seconds = call.options.deadline_seconds or 0.0
    waits = PendingApproval(
        asked_ms=approval.asked_ms,
        asked_run=call.waits.asked_run if call.waits else None,
        deadline_ms=time_ms + int(seconds * 1000),
        escalated=True,
    )
    state = transitions.replace_call(state, replace_values(call, waits=waits))
    decided = replace_values(_build_overdue(approval), escalated=True)
    state = transitions.add_note(state, Kind.DECIDED, decided, time_ms)
    return state if call.quiet else add_notice(state, Event.ESCALATED, approval.id, time_ms)


def _record_decision(
    state: ThreadState,
    call: Call,
    decided: Decision,
    time_ms: int,
    key: str = "",
    sent: SentTime | None = None,
) -> ThreadState:
    decided = replace_values(decided, asked_run=call.waits.asked_run if call.waits else None)
    state = mark(state, decided.id, key)
    state = transitions.add_note(state, Kind.DECIDED, decided, time_ms)
    if not call.quiet:
        text = "approved" if decided.approve else "denied"
        state = add_notice(
            state, Event.DECIDED, decided.id, time_ms, by=decided.by, text=text, tool=call.tool
        )
    if decided.approve:
        approved = replace_values(call, waits=None, approved=True, sent=sent)
        return transitions.replace_call(state, approved)
    return transitions.add_result(note_act(state, sent), call, build_denial(call, decided, time_ms))


def note_act(state: ThreadState, sent: SentTime | None) -> ThreadState:
    """Note a decision that the model reads of once all calls have a result."""
    if sent is None:
        return state
    return replace_values(state, acts_on=(*state.acts_on, sent)[-limits.TOOL_CALLS_MAX :])


def mark(state: ThreadState, what: str, key: str) -> ThreadState:
    """Remember a request, to recognise it if it is sent again."""
    decided = (*state.decided, _format_mark(what, key))[-limits.DECIDED_MAX :]
    return replace_values(state, decided=decided, rested=False)


def find_call(state: ThreadState, approval_id: str) -> Call:
    """Return the call that waits for an approval."""
    return next(call for call in state.calls if call.waits and get_approval_id(call) == approval_id)


def _format_mark(what: str, key: str) -> str:
    """Return a decision in the format of `ThreadState.decided`."""
    return f"{what} {short_digest(key, size_bytes=8)}" if key else what


def build_denial(call: Call, decided: Decision, time_ms: int) -> ToolResult:
    """Return the result of a denied call, for the model. It does not count as a failure."""
    why = f": {make_printable(decided.reason, limits.REASON_CHARS_MAX)}" if decided.reason else ""
    reason = f"denied by {make_printable(decided.by, limits.CALL_NAME_CHARS_MAX)}{why}"
    return build_error_result(call.call_id, call.tool, reason, time_ms, outcome="ok")


def _join_names(names: Sequence[str]) -> str:
    return " or ".join(names)
