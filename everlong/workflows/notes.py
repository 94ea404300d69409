"""What somebody did about a thread, as its journal has it."""

from everlong import limits
from everlong.models import Control, ControlNote, Entry, Kind, printable


def control_note(action: str, control: Control | None) -> ControlNote:
    """Return what somebody did, as it is journalled."""
    said = control or Control()
    return ControlNote(
        action=action,
        by=printable(said.by, limits.CALL_NAME_CHARS_MAX),
        reason=printable(said.reason, limits.REASON_CHARS_MAX),
    )


def may_be_replaced(note: Entry) -> bool:
    """Whether a note says no more than the one after it. A change of the policy is refused instead."""
    return note.kind == Kind.CONTROL and not (note.data or {}).get("changes")
