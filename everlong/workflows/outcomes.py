"""Unknown outcomes: calls that may have taken effect, as pure functions of a thread's state.

Only calls whose effect must not happen twice are here (`CallOptions.once`). What their tool raises is a
known outcome. Any other end of the activity, such as a lost worker, is not: the call waits for a person,
who says that it was done, that it was not, or that it may run again with the same idempotency key. Until
then the model gets nothing.
"""

from pydantic_core import to_json

from everlong import limits
from everlong.models import (
    Call,
    Kind,
    Message,
    Outcome,
    PendingOutcome,
    Resolution,
    Resolve,
    SentTime,
    ThreadState,
    ToolResult,
    UnknownOutcome,
    build_entry,
    failure_digest,
    make_printable,
    short_digest,
)
from everlong.models.notices import Event
from everlong.models.state import replace_values
from everlong.models.tools import UnknownCause, get_outcome_id
from everlong.workflows import approvals, transitions
from everlong.workflows.approvals import DEADLINE
from everlong.workflows.notices import add_notice

_REASONS = {
    "lost": "its worker was lost while it ran",
    "timeout": "it did not end in its time",
    "unsaved": "its result was lost",
    "unclear": "the tool did not know",
}


def list_unknown(state: ThreadState) -> list[UnknownOutcome]:
    """Return the calls whose outcome is unknown, in call order."""
    return [_build_outcome(call, call.unknown) for call in state.calls if call.unknown is not None]


def _build_outcome(call: Call, unknown: PendingOutcome) -> UnknownOutcome:
    options = call.options
    return UnknownOutcome(
        id=get_outcome_id(call),
        tool=call.tool,
        arguments=call.preview,
        cause=unknown.cause,
        idempotency_key=call.idempotency_key,
        asked_ms=unknown.asked_ms,
        deadline_ms=unknown.deadline_ms,
        on_deadline=options.on_deadline,
        approvers=options.escalate_to if unknown.escalated else options.approvers,
        escalate_to=options.escalate_to,
        escalated=unknown.escalated,
        edit=call.edit,
    )


def begin_attempt(state: ThreadState, call: Call, idempotency_key: str) -> ThreadState:
    """Count an attempt of a call whose effect must not happen twice. Later ones keep the first key."""
    begun = replace_values(
        call,
        attempts=call.attempts + 1,
        idempotency_key=call.idempotency_key or idempotency_key,
    )
    return transitions.replace_call(state, begun)


def ask(state: ThreadState, call: Call, cause: UnknownCause, time_ms: int) -> ThreadState:
    """Ask what became of a call."""
    seconds = call.options.deadline_seconds
    unknown = PendingOutcome(
        cause=cause,
        asked_ms=time_ms,
        deadline_ms=None if seconds is None else time_ms + int(seconds * 1000),
    )
    state = transitions.replace_call(state, replace_values(call, unknown=unknown))
    state = transitions.add_note(
        state, Kind.OUTCOME_UNKNOWN, _build_outcome(call, unknown), time_ms
    )
    if call.quiet:
        return state
    return add_notice(state, Event.OUTCOME_UNKNOWN, get_outcome_id(call), time_ms)


def explain_refusal(state: ThreadState, resolve: Resolve, time_ms: int, key: str = "") -> str:
    """Return why an answer is refused; empty if it is accepted. `key` identifies the request."""
    if approvals.is_applied(state, resolve.id, key):
        return ""
    state = apply_deadlines(state, time_ms)  # The timer may fire late.
    outcome = next((each for each in list_unknown(state) if each.id == resolve.id), None)
    if outcome is None:
        if any(each.split()[0] == resolve.id for each in state.decided):
            return f"outcome {resolve.id!r} has been resolved already; the journal says by whom"
        ids = ", ".join(each.id for each in list_unknown(state)) or "none"
        return f"there is no unknown outcome {resolve.id!r}; waiting: {ids}"
    if resolve.result and resolve.outcome != "done":
        return f"only a call that is done has a `result`, not one that is {resolve.outcome!r}"
    size_bytes = len(to_json(resolve.result.encode(errors="replace")))
    if size_bytes > limits.OUTCOME_RESULT_BYTES_MAX:
        return (
            f"`result` has {size_bytes} bytes; the maximum is {limits.OUTCOME_RESULT_BYTES_MAX}. Send "
            "the rest as a message"
        )
    return approvals.explain_author_refusal(resolve.by, outcome.id, outcome.approvers)


def resolve(
    state: ThreadState,
    answer: Resolve,
    time_ms: int,
    key: str = "",
    sent: SentTime | None = None,
) -> ThreadState:
    """Apply an answer that `explain_refusal` accepts."""
    state = apply_deadlines(state, time_ms)
    if approvals.is_applied(state, answer.id, key) or explain_refusal(state, answer, time_ms):
        return state
    call = _find_call(state, answer.id)
    resolved = Resolution(
        id=answer.id,
        tool=call.tool,
        asked_ms=call.unknown.asked_ms if call.unknown else time_ms,
        outcome=answer.outcome,
        by=make_printable(answer.by, limits.CALL_NAME_CHARS_MAX),
        reason=make_printable(answer.reason, len(answer.reason)),
        result=answer.result.encode(errors="replace").decode(),
    )
    return _record(state, call, resolved, time_ms, key, sent)


def apply_deadlines(state: ThreadState, time_ms: int) -> ThreadState:
    """Escalate the outcomes whose deadline has passed, or let the model know that they are unknown."""
    for outcome in list_unknown(state):
        if outcome.deadline_ms is None or outcome.deadline_ms > time_ms:
            continue
        call = _find_call(state, outcome.id)
        late = Resolution(
            id=outcome.id,
            tool=outcome.tool,
            asked_ms=outcome.asked_ms,
            outcome="unknown",
            by=DEADLINE,
            reason="no answer came in time",
            escalated=outcome.on_deadline == "escalate" and not outcome.escalated,
        )
        if late.escalated:
            state = _escalate(state, call, late, time_ms)
        else:
            state = _record(state, call, late, time_ms)
    return state


def _escalate(state: ThreadState, call: Call, late: Resolution, time_ms: int) -> ThreadState:
    """Pass the question on to `escalate_to`, with the same time as the first people had."""
    deadline_ms = time_ms + int((call.options.deadline_seconds or 0.0) * 1000)
    unknown = call.unknown and replace_values(call.unknown, deadline_ms=deadline_ms, escalated=True)
    state = transitions.replace_call(state, replace_values(call, unknown=unknown))
    state = transitions.add_note(state, Kind.OUTCOME_RESOLVED, late, time_ms)
    return state if call.quiet else add_notice(state, Event.OUTCOME_UNKNOWN, late.id, time_ms)


def _record(
    state: ThreadState,
    call: Call,
    resolved: Resolution,
    time_ms: int,
    key: str = "",
    sent: SentTime | None = None,
) -> ThreadState:
    state = approvals.mark(state, resolved.id, key)
    state = transitions.add_note(state, Kind.OUTCOME_RESOLVED, resolved, time_ms)
    if resolved.outcome == "retry":
        # The person's word also replaces the grant that allowed the first attempt. A grant that was
        # revoked since would make the model read that nothing was run, and call the tool again.
        again = replace_values(call, unknown=None, sent=sent, approved=True, grant="")
        return transitions.replace_call(state, again)
    state = approvals.note_act(state, sent)
    return transitions.add_result(state, call, _build_result(call, resolved, time_ms))


def _find_call(state: ThreadState, outcome_id: str) -> Call:
    return next(call for call in state.calls if call.unknown and get_outcome_id(call) == outcome_id)


def _build_result(call: Call, resolved: Resolution, time_ms: int) -> ToolResult:
    """Return the result of a call, as the model reads it."""
    text, outcome = _describe(call, resolved)
    message = Message(role="tool", text=text, call_id=call.call_id, tool=call.tool)
    return ToolResult(
        entry=build_entry(1, Kind.TOOL_RESULT, message, time_ms),
        written_bytes=0,
        outcome=outcome,
        digest=short_digest(text) if outcome == "ok" else failure_digest(text),
    )


def _describe(call: Call, resolved: Resolution) -> tuple[str, Outcome]:
    cause = _REASONS[call.unknown.cause] if call.unknown else ""
    why = make_printable(resolved.reason, limits.REASON_CHARS_MAX)
    if resolved.outcome == "done":
        said = f"{resolved.result or 'done'} [reported by {resolved.by}: {cause}]"
        return said, "ok"
    if resolved.outcome == "not_done":
        because = f" ({why})" if why else ""
        return f"error: it had no effect, {resolved.by} found{because}: {cause}", "failed"
    return (
        f"error: it is not known whether it took effect: {cause}, and {why}. Find out before you call "
        "it again"
    ), "failed"
