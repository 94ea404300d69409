"""Why a thread is as it is, in words, and what a person can do about it."""

from everlong.admin.service.overview import ThreadOverview
from everlong.admin.web.pages.words import Explained, limit_name, number
from everlong.models import Pause, ThreadStatus
from everlong.policy import LimitHit

_ENDED = {
    "terminated": "Somebody terminated it in Temporal, so its last step may not be in the journal.",
    "canceled": "It was cancelled in Temporal.",
    "failed": "Its workflow failed.",
    "timed_out": "Its workflow ran out of time.",
}
_AFTER = "It can be forked from any entry, and goes on there."


def explain(found: ThreadOverview) -> Explained:
    """Return a thread's status in words."""
    status = found.status
    if found.is_gone:
        return Explained(
            f"Temporal has forgotten this thread. All of it is read from archive {found.archive}.",
            "It can be revived as a new thread, up to any entry.",
        )
    if not found.row.is_open:
        return _ended(found.row.status, status, has_archive=bool(found.archive))
    if status is None:
        return Explained(
            found.unavailable or "Nobody runs this thread.",
            "What is shown is what it published, and its journal up to its last run. Start a worker for "
            "it, and it answers again.",
            "bad",
        )
    return _living(status)


def _living(status: ThreadStatus) -> Explained:
    match status.status:
        case "working":
            waiting = f" {status.waiting_messages} more wait." if status.waiting_messages else ""
            text = f"At work on message {number(status.counters.answered + 1)}.{waiting}"
            if status.children:
                text += f" {len(status.children)} sub-agents work for it."
            return Explained(text)
        case "waiting":
            text = "Waits for a message. Everything so far is answered."
            if status.last_failure:
                failed = f"The last turn failed: {status.last_failure}"
                return Explained(failed, "Send it again once the cause is gone.", "warn")
            return Explained(text)
        case "approval":
            return Explained(
                "A person has to decide before it goes on.", "The call stands below.", "warn"
            )
        case "paused":
            return _paused(status.pause)
        case "held":
            return Explained(
                f"Held: {status.held_by}" if status.held_by else "Held.",
                "Nothing is lost. Restore what it waits for, and it goes on by itself.",
                "bad",
            )
        case "stopping":
            return Explained("It ends at its next safe point.")
    return Explained(f"Its status is {status.status}.")


def _paused(pause: Pause | None) -> Explained:
    if pause is not None and pause.limit is not None:
        return Explained(
            f"Paused by a limit. {_hit(pause.limit)}",
            "Raise the limit, then unpause it. Unpaused alone, it would be paused again.",
            "warn",
        )
    by = f" by {pause.by}" if pause is not None and pause.by else ""
    why = f": {pause.reason}" if pause is not None and pause.reason else "."
    return Explained(
        f"Paused{by}{why}", "It takes no steps until somebody unpauses it; messages queue.", "warn"
    )


def _ended(word: str, status: ThreadStatus | None, *, has_archive: bool) -> Explained:
    if status is not None and status.ended is not None:
        return Explained(f"Ended by a limit. {_hit(status.ended)}", _AFTER, "warn")
    if word in _ENDED:
        return Explained(_ENDED[word], _AFTER, "bad")
    if word == "archived" and has_archive:
        return Explained(
            "Ended, and archived.", "It can be revived from its archive as a new thread."
        )
    if word == "archived":
        return Explained(
            "Ended, to be archived.", "A sweep writes the archive, or the button here."
        )
    return Explained("It was stopped.", _AFTER)


def _hit(hit: LimitHit) -> str:
    return f"{limit_name(hit.limit)}: {number(hit.value)} of {number(hit.bound)}."
