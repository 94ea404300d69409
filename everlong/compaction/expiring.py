"""How long things stay in a context, by the kind of their entry. They stay in the journal."""

from collections.abc import Iterable, Iterator, Sequence

from everlong.compaction.facts import facts_at
from everlong.compaction.snapshot import Item, Note, Snapshot
from everlong.models import Kind
from everlong.policy import Policy


def expires_ms(kind: Kind, time_ms: int, policy: Policy) -> int | None:
    """Return when an entry's message is no longer shown as it is, if ever."""
    seconds = None
    if kind == Kind.TOOL_RESULT:
        seconds = policy.tool_result_ttl_seconds
    elif kind == Kind.REPLY:
        seconds = policy.reply_ttl_seconds
    elif kind == Kind.MESSAGE:
        seconds = policy.message_ttl_seconds
    elif kind == Kind.FAILURE:
        seconds = policy.failure_ttl_seconds
    return None if seconds is None else time_ms + int(seconds * 1000)


def has_expired(kind: Kind, time_ms: int, policy: Policy, now_ms: int) -> bool:
    """Tell whether an entry's message has been in the context for long enough."""
    until_ms = expires_ms(kind, time_ms, policy)
    return until_ms is not None and until_ms <= now_ms


def note_expires_ms(note: Note, policy: Policy) -> int | None:
    """Return when a note is no longer shown.

    What was asked and decided stays, and so does the line of a tool call: it says where to find what
    has expired.
    """
    if note.kind in ("open", "decision", "pair"):
        return None
    return expires_ms(note.source, note.time_ms, policy)


def is_live(note: Note, policy: Policy, now_ms: int) -> bool:
    """Tell whether a note is still shown."""
    until_ms = note_expires_ms(note, policy)
    return until_ms is None or until_ms > now_ms


def live_notes(notes: Iterable[Note], policy: Policy, now_ms: int) -> list[Note]:
    """Return the notes that have not expired."""
    return [note for note in notes if is_live(note, policy, now_ms)]


def next_expiry_ms(
    base: Snapshot | None, items: Sequence[Item], policy: Policy, now_ms: int
) -> int | None:
    """Return when the next part of the context expires: after now, or None for never."""
    times = _expiries(base, items, policy, now_ms)
    return min((each for each in times if each is not None and each > now_ms), default=None)


def newest_message_seq(base: Snapshot | None, items: Sequence[Item]) -> int:
    """Return the seq of the message of the current turn; 0 if there is none."""
    for item in reversed(items):
        if item.entry.kind == Kind.MESSAGE:
            return item.entry.seq
    seqs = [kept.seq for kept in base.kept if kept.kind == Kind.MESSAGE] if base else []
    return max(seqs, default=0)


def _expiries(
    base: Snapshot | None, items: Sequence[Item], policy: Policy, now_ms: int
) -> Iterator[int | None]:
    for fact in facts_at(base, items, policy, now_ms):
        yield fact.expires_ms
    # The message of the current turn is shown for as long as the turn lasts.
    spared = newest_message_seq(base, items)
    if base is not None:
        for note in base.notes:
            yield note_expires_ms(note, policy)
        for kept in base.kept:
            if kept.seq != spared:
                yield expires_ms(kept.kind, kept.time_ms, policy)
    for item in items:
        if item.entry.seq != spared:
            yield expires_ms(item.entry.kind, item.entry.time_ms, policy)
