"""Grants of a thread, as pure functions of its state. Those of an agent are in the store."""

from everlong import limits
from everlong.models import Call, ControlNote, Grant, Kind, RevokeGrant, ThreadState, make_printable
from everlong.models.grants import Always, describe_grant, make_grant_id, measure_grants
from everlong.models.state import Decide, replace_values
from everlong.workflows import approvals, transitions


def build_grant(
    decide: Decide, call: Call, arguments_digest: str, time_ms: int, key: str, **place: str
) -> Grant:
    """Return the grant that a decision gives. `place` names the thread and the agent, for an agent's."""
    always = decide.always or Always(match="tool")
    expires_ms = None if always.seconds is None else time_ms + int(always.seconds * 1000)
    return Grant(
        id=make_grant_id(always.scope, f"{key} {call.id}"),
        tool=call.tool,
        arguments_digest=arguments_digest if always.match == "arguments" else "",
        arguments=call.preview if always.match == "arguments" else "",
        by=make_printable(decide.by, limits.CALL_NAME_CHARS_MAX),
        granted_ms=time_ms,
        expires_ms=expires_ms,
        **place,
    )


def list_active(state: ThreadState, time_ms: int) -> tuple[Grant, ...]:
    """Return the grants that have not expired."""
    return tuple(each for each in state.grants if each.is_active(time_ms))


def explain_refusal(state: ThreadState, grant: Grant, time_ms: int) -> str:
    """Return why a thread cannot keep a grant; empty if it can."""
    size_bytes = measure_grants((*list_active(state, time_ms), grant))
    if size_bytes <= limits.GRANTS_BYTES_MAX:
        return ""
    return (
        f"the grants of this thread would have {size_bytes} bytes; the maximum is "
        f"{limits.GRANTS_BYTES_MAX}. Revoke one first"
    )


def add(state: ThreadState, grant: Grant, time_ms: int) -> ThreadState:
    """Keep a grant of the thread, and drop those that have expired."""
    kept = [each for each in list_active(state, time_ms) if each.id != grant.id]
    return replace_values(state, grants=(*kept, grant))


def note_grant(state: ThreadState, grant: Grant, reason: str, time_ms: int) -> ThreadState:
    """Journal that a grant was given."""
    note = ControlNote(action="grant", by=grant.by, reason=reason, changes=describe_grant(grant))
    return transitions.add_note(state, Kind.CONTROL, note, time_ms)


def explain_revoke_refusal(
    state: ThreadState, request: RevokeGrant, time_ms: int, key: str = ""
) -> str:
    """Return why a grant cannot be revoked; empty if it can. `key` identifies the request."""
    known = any(each.id == request.id for each in state.grants)
    if known or approvals.is_applied(state, request.id, key):
        return ""
    ids = ", ".join(each.id for each in list_active(state, time_ms)) or "none"
    return f"this thread has no grant {request.id!r}; it has: {ids}"


def revoke(state: ThreadState, request: RevokeGrant, time_ms: int, key: str = "") -> ThreadState:
    """Remove a grant, and journal that. A request that is sent again changes nothing."""
    found = next((each for each in state.grants if each.id == request.id), None)
    if found is None:
        return state
    kept = tuple(each for each in state.grants if each.id != request.id)
    note = ControlNote(
        action="revoke_grant",
        by=make_printable(request.by, limits.CALL_NAME_CHARS_MAX),
        reason=make_printable(request.reason, len(request.reason)),
        changes=describe_grant(found),
    )
    state = approvals.mark(replace_values(state, grants=kept), request.id, key)
    return transitions.add_note(state, Kind.CONTROL, note, time_ms)
