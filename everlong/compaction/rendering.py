"""Rendering of a snapshot: the text that the model reads in place of compacted entries.

Sizes are exact: `Page.cost` returns how much a note would add to the text, before it is added.
"""

from collections.abc import Sequence
from typing import Final

from everlong.compaction.facts import fact_bytes
from everlong.compaction.snapshot import Note, NoteKind, Snapshot
from everlong.compaction.text import utf8_bytes
from everlong.models import Fact, Kind

_SECTIONS: Final[dict[NoteKind, str]] = {"open": "Open:\n", "decision": "Decided:\n"}
_LOG: Final = "Log:\n"
_FACTS: Final = "Facts:\n"
_FACTS_LEFT: Final = "- (facts that do not fit: {})\n"
_SUMMARY: Final = "Summary, up to entry {}:\n"
# Size of the frame with a seq of 12 digits and a final line break.
SUMMARY_FRAME_BYTES_MAX: Final = len(_SUMMARY) - len("{}") + 13
# Segments of a log line, in order, with the separator between notes of one kind.
_SEGMENTS: Final[dict[NoteKind, str]] = {
    "pair": "; ",
    "asked": " ",
    "remark": " ",
    "prose": " ",
    "ref": " ",
    "mention": " ",
    "number": "; ",
}
_SPEAKERS: Final = {Kind.MESSAGE: "user: ", Kind.REPLY: "said: ", Kind.FAILURE: "failed: "}
_BETWEEN: Final = " | "
_DROPPED: Final[dict[NoteKind, str]] = {
    "open": "asks",
    "decision": "decisions",
    "asked": "the user's words",
    "pair": "tool calls",
    "remark": "remarks",
    "ref": "paths, commands, ids",
    "mention": "those in long outputs",
    "number": "numbers",
    "prose": "prose",
}
# Size of the first and the last line, with all kinds and seqs of 12 digits.
FRAME_BYTES_MAX: Final = 330


class Page:
    """Collects notes and renders them as text."""

    def __init__(self) -> None:
        self._sections: dict[NoteKind, dict[int, list[Note]]] = {"open": {}, "decision": {}}
        self._lines: dict[int, dict[NoteKind, list[Note]]] = {}

    def cost(self, note: Note) -> int:
        """Return how many bytes a note would add to the text."""
        if note.kind in _SECTIONS:
            section = self._sections[note.kind]
            title = "" if section else _SECTIONS[note.kind]
            if note.seq in section:
                return utf8_bytes(f" {note.text}")
            return utf8_bytes(title + _section_line([note]))
        segments = self._lines.get(note.seq)
        if segments is None:
            title = "" if self._lines else _LOG
            return utf8_bytes(f"{title}{_seqs(note)} {_speaker(note)}{note.text}\n")
        if note.kind in segments:
            return utf8_bytes(_SEGMENTS[note.kind] + note.text)
        # The seqs of older equal pairs come before the line.
        return utf8_bytes(_BETWEEN + _speaker(note) + note.text + _seqs(note)) - len(str(note.seq))

    def add(self, note: Note) -> None:
        """Add a note."""
        if note.kind in _SECTIONS:
            self._sections[note.kind].setdefault(note.seq, []).append(note)
        else:
            self._lines.setdefault(note.seq, {}).setdefault(note.kind, []).append(note)

    def text(self) -> str:
        """Return the sections and the log, each by seq."""
        parts = []
        for kind, title in _SECTIONS.items():
            if section := self._sections[kind]:
                parts.append(title)
                parts.extend(_section_line(section[seq]) for seq in sorted(section))
        if self._lines:
            parts.append(_LOG)
            parts.extend(_log_line(seq, self._lines[seq]) for seq in sorted(self._lines))
        return "".join(parts)


def page_of(notes: Sequence[Note]) -> Page:
    """Return a page of notes."""
    page = Page()
    for note in notes:
        page.add(note)
    return page


def summary_text(base: Snapshot | None, facts: Sequence[Fact], notes: Sequence[Note]) -> str:
    """Return the text of the summary message; empty without facts and a snapshot."""
    if base is None:
        return _facts_text(facts, None)
    parts = [_first_line(base.upto_seq), _facts_text(facts, facts_bytes_max(base.budget_bytes))]
    if base.summary:
        parts.append(f"{_SUMMARY.format(base.summary_seq)}{base.summary}\n")
    parts.append(page_of(notes).text())
    if base.dropped:
        kinds = ", ".join(_DROPPED[kind] for kind in _DROPPED if kind in base.dropped)
        upto_seq = max(base.dropped.values())
        parts.append(f"[Left out for space, up to entry {upto_seq}: {kinds}. See recall.]\n")
    return "".join(parts)


def notes_bytes(notes: Sequence[Note]) -> int:
    """Return the size of notes in the text."""
    return utf8_bytes(page_of(notes).text())


def summary_bytes(summary: str) -> int:
    """Return the size of a model's summary in the text."""
    return SUMMARY_FRAME_BYTES_MAX + utf8_bytes(summary) if summary else 0


def facts_bytes_max(budget_bytes: int) -> int:
    """Return the part of a budget that facts may take."""
    return budget_bytes // 2


def facts_bytes(facts: Sequence[Fact], budget_bytes: int) -> int:
    """Return the largest size of facts in the text, whichever of them expire."""
    if not facts:
        return 0
    whole = len(_FACTS) + sum(map(fact_bytes, facts))
    bound = facts_bytes_max(budget_bytes)
    return min(whole, bound)


def _facts_text(facts: Sequence[Fact], bytes_max: int | None) -> str:
    if not facts:
        return ""
    shown, left = list(facts), 0
    if bytes_max is not None and len(_FACTS) + sum(map(fact_bytes, facts)) > bytes_max:
        room = bytes_max - len(_FACTS) - len(_FACTS_LEFT) - 6
        shown = []
        # The facts that would be evicted last come first.
        for fact in sorted(facts, key=lambda each: (-each.importance, -each.time_ms, each.key)):
            if fact_bytes(fact) <= room:
                room -= fact_bytes(fact)
                shown.append(fact)
        shown.sort(key=lambda each: (each.time_ms, each.key))
        left = len(facts) - len(shown)
    lines = [f"- {fact.key}: {fact.text}\n" for fact in shown]
    if left:
        lines.append(_FACTS_LEFT.format(left))
    return _FACTS + "".join(lines)


def _first_line(upto_seq: int) -> str:
    return (
        f"[Entries 1 to {upto_seq}, compacted. Lines begin with their seq: recall(seq=12) shows "
        'entry 12 whole, recall(pattern="words") searches.]\n'
    )


def _section_line(notes: Sequence[Note]) -> str:
    """Return the line of one entry, with its speaker: an agent's words are not an approval."""
    speaker = _SPEAKERS.get(notes[0].source, "")
    return f"{notes[0].seq} {speaker}{' '.join(note.text for note in notes)}\n"


def _log_line(seq: int, segments: dict[NoteKind, list[Note]]) -> str:
    texts = []
    for kind, between in _SEGMENTS.items():
        if notes := segments.get(kind):
            texts.append(_speaker(notes[0]) + between.join(note.text for note in notes))
    older = [_seqs(note).removeprefix(str(seq)) for note in segments.get("pair", ())]
    return f"{seq}{''.join(older)} {_BETWEEN.join(texts)}\n"


def _speaker(note: Note) -> str:
    return _SPEAKERS.get(note.source, "") if note.kind in ("asked", "remark", "prose") else ""


def _seqs(note: Note) -> str:
    more = [f"+{note.more}"] if note.more else []
    return ",".join([*map(str, (note.seq, *note.seqs)), *more])
