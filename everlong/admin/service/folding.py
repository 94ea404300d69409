"""Approvals and changes in entries of a journal: pure functions, the same on every machine."""

import dataclasses
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, TypeVar

from pydantic import TypeAdapter

from everlong.models import Approval, ControlNote, Decided, Entry, Kind

H = TypeVar("H", bound=Hashable)

_APPROVAL: Final = TypeAdapter(Approval)
_DECIDED: Final = TypeAdapter(Decided)
_CONTROL: Final = TypeAdapter(ControlNote)
# Calls belong to the newest reply. With one of these, none of them waits for a person any more.
_ENDS_CALLS: Final = frozenset({Kind.MESSAGE, Kind.REPLY, Kind.FAILURE, Kind.FORK})


def pending_after(entries: Iterable[Entry]) -> tuple[Approval, ...]:
    """Return the approvals that wait after these entries, the oldest first."""
    waiting: dict[str, Approval] = {}
    for entry in entries:
        if entry.kind in _ENDS_CALLS or _is_stop(entry):
            waiting.clear()
        elif entry.kind == Kind.ASKED:
            approval = _APPROVAL.validate_python(entry.data)
            waiting[approval.id] = approval
        elif entry.kind == Kind.DECIDED:
            decided = _DECIDED.validate_python(entry.data)
            asked = waiting.pop(decided.id, None)
            if asked is not None and decided.escalated:
                waiting[asked.id] = dataclasses.replace(
                    asked, escalated=True, approvers=asked.escalate_to, deadline_ms=None
                )
    return tuple(waiting.values())


def asked_in(entries: Iterable[Entry]) -> tuple[Approval, ...]:
    """Return the approvals that were asked for."""
    return tuple(
        _APPROVAL.validate_python(entry.data) for entry in entries if entry.kind == Kind.ASKED
    )


def decided_in(entries: Iterable[Entry]) -> tuple[Decided, ...]:
    """Return the decisions that were made, by people and by deadlines."""
    return tuple(
        _DECIDED.validate_python(entry.data) for entry in entries if entry.kind == Kind.DECIDED
    )


def added(before: Sequence[H], after: Sequence[H]) -> tuple[H, ...]:
    """Return what `after` has and `before` has not, in order; what is there twice counts twice."""
    left = Counter(before)
    found = []
    for each in after:
        if left[each] > 0:
            left[each] -= 1
        else:
            found.append(each)
    return tuple(found)


def _is_stop(entry: Entry) -> bool:
    return entry.kind == Kind.CONTROL and _CONTROL.validate_python(entry.data).action == "stop"
