"""Rendering of a snapshot: the text that the model reads in place of compacted entries.

Sizes are exact: `Page.cost` returns how much a note would add to the text, before it is added. The
functions at the end render a tool call and its outcome as one line, which is the text of its note.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from everlong.compaction.agent_memory import measure_fact
from everlong.compaction.extraction import find_refs
from everlong.compaction.snapshot import Note, NoteKind, Snapshot
from everlong.compaction.terms import Term
from everlong.compaction.text import clip, replace_surrogates, shorten, take_head, utf8_bytes
from everlong.models import Fact, Kind, ToolCall

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
    "command": " ",
    "term": " ",
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
    "term": "paths, ids, names",
    "command": "commands",
    "number": "numbers",
    "prose": "prose",
}
# Size of the first and the last line, with all kinds and seqs of 12 digits.
FRAME_BYTES_MAX: Final = 330


class Page:
    """Collects notes and renders them as text."""

    def __init__(self) -> None:
        self._sections: dict[NoteKind, dict[int, list[Note]]] = {"open": {}, "decision": {}}
        self._lines: dict[int, dict[NoteKind, list[Note | Term]]] = {}

    def cost(self, note: Note) -> int:
        """Return how many bytes a note would add to the text."""
        if note.kind in _SECTIONS:
            section = self._sections[note.kind]
            title = "" if section else _SECTIONS[note.kind]
            if note.seq in section:
                return utf8_bytes(f" {note.text}")
            return utf8_bytes(title + _render_section_line([note]))
        segments = self._lines.get(note.seq)
        if segments is None:
            title = "" if self._lines else _LOG
            return utf8_bytes(f"{title}{_format_seqs(note)} {_get_speaker(note)}{note.text}\n")
        if note.kind in segments:
            return utf8_bytes(_SEGMENTS[note.kind] + note.text)
        # The seqs of older equal pairs come before the line.
        return utf8_bytes(_BETWEEN + _get_speaker(note) + note.text + _format_seqs(note)) - len(
            str(note.seq)
        )

    def add(self, note: Note) -> None:
        """Add a note."""
        if note.kind in _SECTIONS:
            self._sections[note.kind].setdefault(note.seq, []).append(note)
        else:
            self._lines.setdefault(note.seq, {}).setdefault(note.kind, []).append(note)

    def measure_term(self, term: Term) -> int:
        """Return how many bytes a term would add to the text."""
        size_bytes = utf8_bytes(term.text)
        segments = self._lines.get(term.seq)
        if segments is None:
            return size_bytes + len(str(term.seq)) + 2 + (0 if self._lines else len(_LOG))
        return size_bytes + (1 if "term" in segments else len(_BETWEEN))

    def add_term(self, term: Term) -> None:
        """Add a term."""
        self._lines.setdefault(term.seq, {}).setdefault("term", []).append(term)

    def text(self) -> str:
        """Return the sections and the log, each by seq."""
        parts = []
        for kind, title in _SECTIONS.items():
            if section := self._sections[kind]:
                parts.append(title)
                parts.extend(_render_section_line(section[seq]) for seq in sorted(section))
        if self._lines:
            parts.append(_LOG)
            parts.extend(_render_log_line(seq, self._lines[seq]) for seq in sorted(self._lines))
        return "".join(parts)


def build_page(notes: Sequence[Note], terms: Sequence[Term] = ()) -> Page:
    """Return a page of notes and terms."""
    page = Page()
    for note in notes:
        page.add(note)
    for term in terms:
        page.add_term(term)
    return page


def render_summary(
    base: Snapshot | None,
    facts: Sequence[Fact],
    notes: Sequence[Note],
    terms: Sequence[Term] = (),
) -> str:
    """Return the text of the summary message; empty without facts and a snapshot."""
    if base is None:
        return _render_facts(facts, None)
    parts = [
        _render_first_line(base.upto_seq),
        _render_facts(facts, get_facts_bytes_max(base.budget_bytes)),
    ]
    if base.summary:
        parts.append(f"{_SUMMARY.format(base.summary_seq)}{base.summary}\n")
    parts.append(build_page(notes, terms).text())
    if base.dropped:
        kinds = ", ".join(_DROPPED[kind] for kind in _DROPPED if kind in base.dropped)
        upto_seq = max(base.dropped.values())
        parts.append(f"[Left out for space, up to entry {upto_seq}: {kinds}. See recall.]\n")
    return "".join(parts)


def measure_notes(notes: Sequence[Note], terms: Sequence[Term] = ()) -> int:
    """Return the size of notes and terms in the text."""
    return utf8_bytes(build_page(notes, terms).text())


def measure_summary(summary: str) -> int:
    """Return the size of a model's summary in the text."""
    return SUMMARY_FRAME_BYTES_MAX + utf8_bytes(summary) if summary else 0


def get_facts_bytes_max(budget_bytes: int) -> int:
    """Return the part of a budget that facts may take."""
    return budget_bytes // 2


def measure_facts(facts: Sequence[Fact], budget_bytes: int) -> int:
    """Return the largest size of facts in the text, whichever of them expire."""
    if not facts:
        return 0
    whole = len(_FACTS) + sum(map(measure_fact, facts))
    bound = get_facts_bytes_max(budget_bytes)
    return min(whole, bound)


def _render_facts(facts: Sequence[Fact], bytes_max: int | None) -> str:
    if not facts:
        return ""
    shown, left = list(facts), 0
    if bytes_max is not None and len(_FACTS) + sum(map(measure_fact, facts)) > bytes_max:
        room = bytes_max - len(_FACTS) - len(_FACTS_LEFT) - 6
        shown = []
        # The facts that would be evicted last come first.
        for fact in sorted(facts, key=lambda each: (-each.importance, -each.time_ms, each.key)):
            if measure_fact(fact) <= room:
                room -= measure_fact(fact)
                shown.append(fact)
        shown.sort(key=lambda each: (each.time_ms, each.key))
        left = len(facts) - len(shown)
    lines = [f"- {fact.key}: {fact.text}\n" for fact in shown]
    if left:
        lines.append(_FACTS_LEFT.format(left))
    return _FACTS + "".join(lines)


def _render_first_line(upto_seq: int) -> str:
    return (
        f"[Entries 1 to {upto_seq}, compacted. Lines begin with their seq: recall(seq=12) shows "
        'entry 12 whole, recall(pattern="words") searches.]\n'
    )


def _render_section_line(notes: Sequence[Note]) -> str:
    """Return the line of one entry, with its speaker: an agent's words are not an approval."""
    speaker = _SPEAKERS.get(notes[0].source, "")
    return f"{notes[0].seq} {speaker}{' '.join(note.text for note in notes)}\n"


def _render_log_line(seq: int, segments: dict[NoteKind, list[Note | Term]]) -> str:
    texts = []
    for kind, between in _SEGMENTS.items():
        if notes := segments.get(kind):
            texts.append(_get_speaker(notes[0]) + between.join(note.text for note in notes))
    older = [
        _format_seqs(note).removeprefix(str(seq))
        for note in segments.get("pair", ())
        if isinstance(note, Note)
    ]
    return f"{seq}{''.join(older)} {_BETWEEN.join(texts)}\n"


def _get_speaker(note: Note | Term) -> str:
    spoken = isinstance(note, Note) and note.kind in ("asked", "remark", "prose")
    return _SPEAKERS.get(note.source, "") if spoken else ""


def _format_seqs(note: Note) -> str:
    more = [f"+{note.more}"] if note.more else []
    return ",".join([*map(str, (note.seq, *note.seqs)), *more])


# A result up to this size is whole in its line.
RESULT_BYTES_MAX: Final = 140
# A larger result is bulk output: its numbers are not kept one by one.
BULK_BYTES: Final = 800
_VALUE_BYTES_MAX: Final = 72
_COMMAND_BYTES_MAX: Final = 260
_ARGUMENTS_BYTES_MAX: Final = 320
_LINE_BYTES_MAX: Final = 90
# Arguments with more values, or nested deeper, are treated as plain text.
_VALUES_MAX: Final = 64
_DEPTH_MAX: Final = 64
_DECODER: Final = json.JSONDecoder()
_AS_WRITTEN: Final = json.JSONDecoder(parse_int=str, parse_float=str)
_BRACKET: Final = re.compile(r"[\[\]{}]")
# Names of arguments that hold a command, which gets more room.
_COMMAND_KEYS: Final = frozenset(
    ["command", "cmd", "script", "shell", "argv", "args", "bash", "run"]
)

_FAILED: Final = re.compile(
    r"(?ai)^\W{0,3}(?:(?:error|fatal|panic|exception|failed|failure|aborted|\w+(?:error|exception))"
    r"\s?[:(!\[]"
    r"|traceback \(|npm err|bash: |sh: |permission denied|no such file|command not found|not run:)"
)
_LETTER: Final = re.compile(r"[A-Za-z\x80-\U0010ffff]")
_SIZE: Final = re.compile(r"(?a)\d+k?B")
# Failures that a line must show, however short it is.
_BAD_NEWS: Final = re.compile(
    r"(?ai)\b[1-9]\d*\s(?:failed|failures?|errors?|broken|unhealthy|skipped)\b"
    r"|\b(?:build|tests?|job|deploy\w*|rollout|migration) (?:has |have )?failed\b"
)
_EXIT: Final = re.compile(
    r"(?ai)\b(?:exit(?:ed)?(?: with)?(?: code| status)?[ :=]*[1-9]\d*\b|returned non-zero)"
)
_TOTALS: Final = re.compile(
    r"(?ai)\b(?:\d+ (?:passed|failed|errors?|rows?|matches|files?|results?|warnings?|tests?|records?)"
    r"|total|summary|succeeded|completed|finished|exit|error|failed|result|conclusion)\b"
)


def render_call(call: ToolCall) -> str:
    """Return the line of a call: its tool and its arguments."""
    return f"{clip(call.tool, 64)} {render_arguments(call.arguments)}".rstrip()


def render_outcome(text: str, left_out: int = 0) -> str:
    """Return the outcome of a call for its line: the whole result, if it is short."""
    size_bytes = utf8_bytes(text) + left_out
    if size_bytes <= RESULT_BYTES_MAX:
        return " ".join(replace_surrogates(text).split()) or "ok, empty"
    lines = _list_end_lines(text)
    failed = _FAILED.search(lines[0]) or any(map(_EXIT.search, lines))
    line = clip(_find_main_line(lines, failed), _LINE_BYTES_MAX)
    # A long output is never called a success: its reader decides that.
    return f"{'failed ' if failed else ''}{_format_size(size_bytes)}: {line}"


def shorten_pair(text: str) -> str:
    """Return the line of a call without the excerpt of a long output."""
    call, arrow, outcome = text.rpartition(" -> ")
    size, _, detail = outcome.partition(": ")
    if not _SIZE.fullmatch(size) or _BAD_NEWS.search(detail):
        return text
    return f"{call}{arrow}{size}"


def render_arguments(arguments: str) -> str:
    """Return the arguments of a call in short: the values, and all names but the first."""
    values = _parse_object(arguments, as_written=True)
    if values is None:
        return clip(replace_surrogates(arguments), _ARGUMENTS_BYTES_MAX)
    parts: list[str] = []
    for name, value in values.items():
        text = _render_value(name, value, alone=len(values) == 1)
        # The first argument is mostly the subject of the call, so it needs no name.
        parts.append(f"{clip(name, 40)}={text}" if parts else text)
    shown = " ".join(parts)
    if utf8_bytes(shown) <= _ARGUMENTS_BYTES_MAX:
        return shown
    return clip(shown, _ARGUMENTS_BYTES_MAX)


def cut_arguments(arguments: str, bytes_max: int, seq: int) -> str:
    """Return arguments cut to `bytes_max`: still a JSON object, with its long texts cut."""
    if utf8_bytes(arguments) <= bytes_max:
        return arguments
    values = _parse_object(arguments) or {}
    share = bytes_max
    while values and share > 32:
        share //= 2
        cut = {name: _cut_value(value, share, seq) for name, value in values.items()}
        found = replace_surrogates(json.dumps(cut, ensure_ascii=False, separators=(",", ":")))
        if utf8_bytes(found) <= bytes_max:
            return found
    return json.dumps({"left_out": f"recall(seq={seq})"})


def list_texts(arguments: str) -> list[str]:
    """Return the texts among the arguments of a call, nested ones too."""
    values = _parse_object(arguments)
    if values is None:
        return [replace_surrogates(arguments)]
    found: list[str] = []
    waiting: list[Any] = [values]
    # Each value is visited once, so the loop is bounded by the arguments.
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            found.append(replace_surrogates(value))
        elif isinstance(value, dict):
            waiting.extend(reversed(value.values()))
        elif isinstance(value, list):
            waiting.extend(reversed(value))
    return found


def _parse_object(arguments: str, *, as_written: bool = False) -> dict[str, Any] | None:
    """Parse arguments that are a plain JSON object. `as_written` keeps its numbers as text."""
    if _measure_depth(arguments) > _DEPTH_MAX:
        return None
    try:
        values = (_AS_WRITTEN if as_written else _DECODER).decode(arguments)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) and len(values) <= _VALUES_MAX else None


def _measure_depth(arguments: str) -> int:
    """Return an upper bound of the nesting depth. Brackets within texts count too.

    The JSON parser's own limit differs between versions of Python.
    """
    if arguments.count("{") + arguments.count("[") <= _DEPTH_MAX:
        return _DEPTH_MAX
    depth = deepest = 0
    for bracket in _BRACKET.findall(arguments):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def _render_value(name: str, value: Any, *, alone: bool) -> str:
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        value = " ".join(value)
    if not isinstance(value, str):
        return clip(_dump_json(value), _VALUE_BYTES_MAX)
    bytes_max = _COMMAND_BYTES_MAX if name.lower() in _COMMAND_KEYS else _VALUE_BYTES_MAX
    text = replace_surrogates(str(value))
    if utf8_bytes(text) > bytes_max:
        # A path, an address or an id is useless without its end.
        if len(text) <= _COMMAND_BYTES_MAX and find_refs(text, bulk=False) == [text]:
            return text
        return f"{clip(text, bytes_max) if alone else ''}({_format_size(utf8_bytes(text))})"
    return text if len(text.splitlines()) <= 1 else " ".join(text.split())


def _cut_value(value: Any, bytes_max: int, seq: int) -> Any:
    text = value if isinstance(value, str) else _dump_json(value)
    if utf8_bytes(text) <= bytes_max:
        return value
    return (
        shorten(replace_surrogates(text), bytes_max, seq)
        if bytes_max > 128
        else take_head(text, bytes_max)
    )


def _dump_json(value: Any) -> str:
    return replace_surrogates(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _list_end_lines(text: str) -> list[str]:
    """Return the first and the last lines that are not empty."""
    head = [line.strip() for line in text[:4000].splitlines() if line.strip()]
    tail = [line.strip() for line in text[-4000:].splitlines() if line.strip()]
    found = [replace_surrogates(line) for line in [*head[:3], *tail[-4:]]]
    return [line for line in found if _LETTER.search(line)] or [""]


def _find_main_line(lines: list[str], failed: object) -> str:
    """Return the most informative line of a result."""
    if lines[0].startswith("Traceback"):
        return lines[-1]
    if failed:
        return next(
            (line for line in lines if _FAILED.search(line) or _EXIT.search(line)), lines[0]
        )
    for sign in (_BAD_NEWS, _TOTALS):
        if found := next((line for line in reversed(lines) if sign.search(line)), ""):
            return found
    return lines[0]


def _format_size(size_bytes: int) -> str:
    return f"{size_bytes}B" if size_bytes < 1000 else f"{(size_bytes + 500) // 1000}kB"
