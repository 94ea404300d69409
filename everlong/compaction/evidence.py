"""What is kept of an entry whose message is no longer shown: notes, in its own words."""

from collections.abc import Iterator
from typing import Final

from everlong.compaction import cues
from everlong.compaction.commands import find_commands
from everlong.compaction.context import Group, cut_of
from everlong.compaction.pairs import BULK_BYTES, call_text, outcome_of, texts_of
from everlong.compaction.refs import find_numbers, find_refs
from everlong.compaction.shortening import clipped, sound, utf8_bytes
from everlong.compaction.snapshot import Kept, Note, NoteKind
from everlong.models import Entry, Kind

_SENTENCE_BYTES_MAX: Final = 400
_PROSE_BYTES_MAX: Final = 260
_DECISION_BYTES_MAX: Final = 600
# What one entry says, before the rest of it is mere prose: a user may paste a whole log.
_SAID_BYTES_MAX: Final = 2048
# Refs of one entry: a dump of 10,000 ids must not push out all that came before.
_REFS_BYTES_MAX: Final = 4096
_NUMBERS_MAX: Final = 64
_NOT_RUN: Final = "not run"
APPROVAL: Final = "approval "
"""How the note of an approval begins."""
_CUED: Final = ("open", "decision")


def notes_of_group(group: Group) -> Iterator[Note]:
    """Yield the notes of a message, or of a reply with its calls and results."""
    yield from notes_of_head(group.head)
    for call, result in zip(calls_of(group.head), group.results, strict=True):
        where = group.head if result is None else result
        outcome = _NOT_RUN if result is None else outcome_of_result(result)
        yield _note(where, "pair", f"{call} -> {outcome}")
        if result is not None:
            yield from notes_of_result(result)


def calls_of(reply: Kept) -> tuple[str, ...]:
    """Return what a line says about each call of a reply, also of one that was shortened since."""
    return reply.calls or tuple(map(call_text, reply.message.tool_calls))


def outcome_of_result(result: Kept) -> str:
    """Return what a line says about a result, also of one that was shortened since."""
    return result.outcome or outcome_of(result.message.text, cut_of(result).left_out)


def notes_of_head(kept: Kept) -> Iterator[Note]:
    """Yield what a message or a reply says, and what its calls name."""
    if kept.noted:
        return
    text = sound(kept.message.text)
    yield from _sentences(kept, text)
    yield from _refs(kept, text, bulk=False)
    yield from _numbers(kept, text)
    for call in kept.message.tool_calls:
        for value in texts_of(call.arguments):
            yield from _refs(kept, value, bulk=utf8_bytes(value) > BULK_BYTES)


def notes_of_result(kept: Kept) -> Iterator[Note]:
    """Yield the paths, commands and ids of a tool's result, and the numbers of a short one."""
    if kept.noted:
        return
    text = sound(kept.message.text)
    bulk = utf8_bytes(text) > BULK_BYTES
    yield from _refs(kept, text, bulk=bulk)
    if not bulk:
        yield from _numbers(kept, text)


def approval_prefix(approval_id: str) -> str:
    """Return how the note of an approval begins that has been asked for."""
    return f"{APPROVAL}{approval_id}: "


def note_of_entry(entry: Entry, asked: str = "") -> Note | None:
    """Return the note of an entry that is no message, if it is worth one.

    `asked` is the call that a decision is about, as its own note had it.
    """
    data = entry.data or {}
    kind: NoteKind = "prose"
    text = ""
    if entry.kind == Kind.ASKED:
        kind = "open"
        call = f"{data.get('tool', '')} {data.get('arguments', '')}".strip()
        text = f"{approval_prefix(data.get('id', ''))}{call}"
    elif entry.kind == Kind.DECIDED and not data.get("escalated"):
        kind = "decision"
        verb = "approved" if data.get("approve") else "denied"
        text = f"{data.get('by', '')} {verb} {asked or 'call'} ({data.get('id', '')})"
    elif entry.kind == Kind.LIMIT:
        text = f"limit {data.get('limit', '')} of {data.get('bound', '')}: {data.get('action', '')}"
    elif entry.kind == Kind.CONTROL:
        text = f"{data.get('action', '')} by {data.get('by', '')}"
    elif entry.kind == Kind.FORK:
        text = f"forked from {data.get('thread_id', '')} at {data.get('seq', '')}"
    if not text:
        return None
    reason = f": {data['reason']}" if data.get("reason") else ""
    return Note(
        seq=entry.seq,
        kind=kind,
        text=clipped(sound(text + reason), _DECISION_BYTES_MAX),
        source=entry.kind,
        time_ms=entry.time_ms,
    )


def _sentences(kept: Kept, text: str) -> Iterator[Note]:
    """Yield what a text says. What is decided in one breath, and why, stays in one note."""
    room = _SAID_BYTES_MAX
    for kind, said in _joined(kept, text):
        if kind not in _CUED:
            room -= utf8_bytes(said)
        yield _said(kept, kind if room >= 0 or kind in _CUED else "prose", said)


def _joined(kept: Kept, text: str) -> Iterator[tuple[NoteKind, str]]:
    kind: NoteKind = "prose"
    said = ""
    for sentence, heading in cues.sentences(text):
        now = _judged(kept, sentence, heading)
        fits = said and utf8_bytes(said) + utf8_bytes(sentence) < _SENTENCE_BYTES_MAX
        if fits and cues.answers(sentence, said):
            kind, said = now, f"{said} {sentence}"
        elif fits and (now == kind == "decision" or _goes_on(kind, now, sentence)):
            said = f"{said} {sentence}"
        else:
            if said:
                yield kind, said
            kind, said = now, sentence
    if said:
        yield kind, said


def _goes_on(before: NoteKind, kind: NoteKind, sentence: str) -> bool:
    return before in _CUED and kind not in _CUED and cues.goes_on(sentence)


def _said(kept: Kept, kind: NoteKind, text: str) -> Note:
    bytes_max = _PROSE_BYTES_MAX if kind == "prose" else _SENTENCE_BYTES_MAX
    return _note(kept, kind, clipped(text, bytes_max))


def _judged(kept: Kept, sentence: str, heading: str) -> NoteKind:
    by_user = kept.kind == Kind.MESSAGE
    if kept.kind != Kind.FAILURE:
        if cues.is_open(sentence, heading, by_user=by_user):
            return "open"
        if cues.is_decision(sentence, heading, by_user=by_user):
            return "decision"
    if by_user:
        return "asked"
    # A reply that ends a turn is an answer; one with calls mostly says what it is about to do.
    ends_turn = kept.kind == Kind.REPLY and not kept.message.tool_calls
    return "remark" if ends_turn or cues.may_matter(sentence) else "prose"


def _refs(kept: Kept, text: str, *, bulk: bool) -> Iterator[Note]:
    kind: NoteKind = "mention" if bulk else "ref"
    room = _REFS_BYTES_MAX
    commands = [f"`{each}`" for each in find_commands(text, bulk=bulk)]
    for ref in (*commands, *find_refs(text, bulk=bulk)):
        room -= utf8_bytes(ref) + 1
        if room < 0:
            return
        yield _note(kept, kind, ref)


def _numbers(kept: Kept, text: str) -> Iterator[Note]:
    for _, snippet in find_numbers(text)[:_NUMBERS_MAX]:
        yield _note(kept, "number", clipped(snippet, 80))


def _note(kept: Kept, kind: NoteKind, text: str) -> Note:
    return Note(seq=kept.seq, kind=kind, text=text, source=kept.kind, time_ms=kept.time_ms)
