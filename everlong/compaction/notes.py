"""Notes: what a snapshot keeps of entries whose messages are no longer shown.

A note is in the entry's own words. If not all notes fit, they are chosen by rank, the newest first.
Terms (paths, ids, names, numbers) are chosen by their worth for each byte. What a line or a kept message
shows already gets no note of its own.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from everlong.compaction.context import Group, get_cut
from everlong.compaction.extraction import (
    find_commands,
    find_numbers,
    find_stems,
    is_about,
    is_answer,
    is_continuation,
    is_decision,
    is_done,
    is_open,
    may_matter,
    split_sentences,
)
from everlong.compaction.renderer import (
    BULK_BYTES,
    Page,
    list_texts,
    measure_notes,
    render_call,
    render_outcome,
    shorten_pair,
)
from everlong.compaction.snapshot import KeptMessage, Note, NoteKind
from everlong.compaction.terms import NUMBER, Term, list_endings, list_shown
from everlong.compaction.text import clip, replace_surrogates, utf8_bytes
from everlong.models import Entry, Kind

_SENTENCE_BYTES_MAX: Final = 400
_PROSE_BYTES_MAX: Final = 260
_DECISION_BYTES_MAX: Final = 600
# Bytes of one entry's sentences before the rest counts as prose: a user may paste a whole log.
_SENTENCES_BYTES_MAX: Final = 2048
# Bytes of one entry's commands: a long log must not displace all earlier ones.
_COMMANDS_BYTES_MAX: Final = 2048
_NUMBERS_MAX: Final = 64
_NOT_RUN: Final = "not run"
APPROVAL: Final = "approval "
"""Prefix of an approval's note."""
_CUED: Final = ("open", "decision")


def build_group_lines(group: Group) -> Iterator[Note]:
    """Yield the sentences of a message, and the lines of its calls and results."""
    head = group.head
    if not head.noted:
        yield from _build_sentence_notes(head, replace_surrogates(head.message.text))
    for call, result in zip(get_call_lines(head), group.results, strict=True):
        where = head if result is None else result
        outcome = _NOT_RUN if result is None else get_outcome_line(result)
        yield _build_note(where, "pair", f"{call} -> {outcome}")


def build_group_pieces(group: Group) -> Iterator[Note]:
    """Yield the commands and numbers of a message with its calls and results.

    Long texts have no numbers of their own, and commands only after a prompt.
    """
    for each in group.members:
        if each.noted:
            continue
        text = replace_surrogates(each.message.text)
        bulk = each.kind == Kind.TOOL_RESULT and utf8_bytes(text) > BULK_BYTES
        yield from _build_command_notes(each, text, bulk=bulk)
        if not bulk:
            yield from _build_number_notes(each, text)
        for call in each.message.tool_calls:
            for value in list_texts(call.arguments):
                yield from _build_command_notes(each, value, bulk=utf8_bytes(value) > BULK_BYTES)


def get_call_lines(reply: KeptMessage) -> tuple[str, ...]:
    """Return the line of each call of a reply, also if its arguments were shortened since."""
    return reply.calls or tuple(map(render_call, reply.message.tool_calls))


def get_outcome_line(result: KeptMessage) -> str:
    """Return the line of a result, also if it was shortened since."""
    return result.outcome or render_outcome(result.message.text, get_cut(result).left_out)


def format_approval_prefix(approval_id: str) -> str:
    """Return the prefix of the note of a pending approval."""
    return f"{APPROVAL}{approval_id}: "


def build_entry_note(entry: Entry, asked: str = "") -> Note | None:
    """Return the note of an entry without a message, or None if it needs no note.

    `asked` is the call that a decision is about, from the approval's note.
    """
    data = entry.data or {}
    kind: NoteKind = "prose"
    text = ""
    if entry.kind == Kind.ASKED:
        kind = "open"
        call = f"{data.get('tool', '')} {data.get('arguments', '')}".strip()
        text = f"{format_approval_prefix(data.get('id', ''))}{call}"
    elif entry.kind == Kind.DECIDED and not data.get("escalated"):
        kind = "decision"
        verb = "approved" if data.get("approve") else "denied"
        called = asked or f"{data.get('tool', '')} {data.get('arguments', '')}".strip() or "call"
        if asked and data.get("edit"):
            called = f"{asked}, changed to {data.get('arguments', '')}"
        text = f"{data.get('by', '')} {verb} {called} ({data.get('id', '')})"
    elif entry.kind == Kind.OUTCOME_RESOLVED and not data.get("escalated"):
        kind = "decision"
        said = str(data.get("outcome", "")).replace("_", " ")
        text = (
            f"{data.get('by', '')} found {data.get('tool', 'call')} {said} ({data.get('id', '')})"
        )
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
        text=clip(replace_surrogates(text + reason), _DECISION_BYTES_MAX),
        source=entry.kind,
        time_ms=entry.time_ms,
    )


def _build_sentence_notes(kept: KeptMessage, text: str) -> Iterator[Note]:
    """Yield the sentences of a text as notes. A decision and its reason stay in one note."""
    room = _SENTENCES_BYTES_MAX
    for kind, joined in _join_sentences(kept, text):
        if kind not in _CUED:
            room -= utf8_bytes(joined)
        yield _build_sentence_note(kept, kind if room >= 0 or kind in _CUED else "prose", joined)


def _join_sentences(kept: KeptMessage, text: str) -> Iterator[tuple[NoteKind, str]]:
    kind: NoteKind = "prose"
    joined = ""
    for sentence, heading in split_sentences(text):
        now = _classify(kept, sentence, heading)
        fits = joined and utf8_bytes(joined) + utf8_bytes(sentence) < _SENTENCE_BYTES_MAX
        if fits and is_answer(sentence, joined):
            kind, joined = now, f"{joined} {sentence}"
        elif fits and (now == kind == "decision" or _continues(kind, now, sentence)):
            joined = f"{joined} {sentence}"
        else:
            if joined:
                yield kind, joined
            kind, joined = now, sentence
    if joined:
        yield kind, joined


def _continues(before: NoteKind, kind: NoteKind, sentence: str) -> bool:
    return before in _CUED and kind not in _CUED and is_continuation(sentence)


def _build_sentence_note(kept: KeptMessage, kind: NoteKind, text: str) -> Note:
    bytes_max = _PROSE_BYTES_MAX if kind == "prose" else _SENTENCE_BYTES_MAX
    return _build_note(kept, kind, clip(text, bytes_max))


def _classify(kept: KeptMessage, sentence: str, heading: str) -> NoteKind:
    by_user = kept.kind == Kind.MESSAGE
    if kept.kind != Kind.FAILURE:
        if is_open(sentence, heading, by_user=by_user):
            return "open"
        if is_decision(sentence, heading, by_user=by_user):
            return "decision"
    if by_user:
        return "asked"
    # A reply that ends a turn is an answer; a reply with calls mostly announces them.
    ends_turn = kept.kind == Kind.REPLY and not kept.message.tool_calls
    return "remark" if ends_turn or may_matter(sentence) else "prose"


def _build_command_notes(kept: KeptMessage, text: str, *, bulk: bool) -> Iterator[Note]:
    room = _COMMANDS_BYTES_MAX
    for command in find_commands(text, bulk=bulk):
        room -= utf8_bytes(command) + 3
        if room < 0:
            return
        yield _build_note(kept, "command", f"`{command}`")


def _build_number_notes(kept: KeptMessage, text: str) -> Iterator[Note]:
    for _, snippet in find_numbers(text)[:_NUMBERS_MAX]:
        yield _build_note(kept, "number", clip(snippet, 80))


def _build_note(kept: KeptMessage, kind: NoteKind, text: str) -> Note:
    return Note(seq=kept.seq, kind=kind, text=text, source=kept.kind, time_ms=kept.time_ms)


# Kinds by rank, with the share of the room that each may take before the rest of it comes last. Terms
# come four times: the best before the lines of calls, which would fill a small budget alone; the rest of
# those that are not rare; rare names; rare numbers, of which a tokenizer makes the most tokens.
_RANKS: Final[tuple[tuple[NoteKind, float], ...]] = (
    ("open", 0.2),
    ("decision", 0.2),
    ("asked", 0.2),
    ("term", 0.12),
    ("pair", 0.7),
    ("remark", 0.15),
    ("term", 0.5),
    ("term", 0.2),
    ("term", 0.05),
    ("command", 0.3),
    ("number", 0.3),
    ("prose", 1.0),
)
# The same if the lines of all calls do not fit: then paths and names in short form say more than lines.
_TIGHT_RANKS: Final[tuple[tuple[NoteKind, float], ...]] = (
    ("open", 0.2),
    ("decision", 0.2),
    ("asked", 0.2),
    ("term", 0.35),
    ("pair", 0.4),
    *_RANKS[5:],
)
_SENTENCES: Final = ("open", "decision", "asked", "remark", "prose")
# Share that the lines of calls may take before older lines are made brief.
_WHOLE_PAIRS: Final = 0.1
_PAIRS_MOST: Final = 0.7
# Overhead of a line: its seq, a blank and a line break.
_SEQ_BYTES: Final = 6
# Number of seqs that the line of equal calls names, the newest ones.
_SEQS_MAX: Final = 12
# Open requests that a sentence is compared with: more than are ever shown, of maybe thousands.
_OPEN_COMPARED_MAX: Final = 256


class Ledger:
    """All notes, each once."""

    def __init__(self, notes: Iterable[Note] = ()) -> None:
        self._notes: dict[tuple[str, str], Note] = {}
        self._open: dict[tuple[str, str], frozenset[str]] = {}
        for note in notes:
            self.add(note)

    def add(self, note: Note) -> None:
        """Add a note. Notes must come in the order of their entries."""
        key = _get_key(note)
        known = self._notes.pop(key, None)
        if known is not None and known.seq != note.seq:
            note = _merge(known, note)
        self._notes[key] = note
        self._open.pop(key, None)
        if note.kind == "open":
            # Only the first sentence identifies the request; the sentences after it merely explain it.
            first = next((sentence for sentence, _ in split_sentences(note.text)), "")
            self._open[key] = find_stems(first)
        if note.kind in _SENTENCES:
            self.close_done(note.text, note.seq)

    def close_done(self, text: str, seq: int) -> None:
        """Close the open requests before an entry that a sentence of its text reports as done."""
        if not self._open:
            return
        for sentence, _ in split_sentences(text):
            if not is_done(sentence):
                continue
            report = find_stems(sentence)
            for key in list(itertools.islice(reversed(self._open), _OPEN_COMPARED_MAX)):
                if self._notes[key].seq < seq and is_about(report, self._open[key]):
                    self._close(key, "asked")

    def close_stale(self, prefix: str, seq: int) -> None:
        """Close the open requests with a prefix that come before an entry."""
        for key in list(self._open):
            if self._notes[key].seq < seq and self._notes[key].text.startswith(prefix):
                self._close(key, "prose")

    def _close(self, key: tuple[str, str], kind: NoteKind) -> None:
        self._notes[key] = dataclasses.replace(self._notes[key], kind=kind)
        del self._open[key]

    def settle(self, prefix: str) -> str:
        """Remove the open request with a prefix; return the rest of its text."""
        for key in self._open:
            if self._notes[key].text.startswith(prefix):
                del self._open[key]
                return self._notes.pop(key).text.removeprefix(prefix)
        return ""

    def notes(self) -> list[Note]:
        """Return the notes by seq, and within an entry in the order of its text."""
        return sorted(self._notes.values(), key=lambda note: note.seq)


@dataclasses.dataclass(frozen=True)
class Selection:
    """The notes and terms that fit."""

    notes: list[Note]
    """Notes by seq."""
    terms: list[Term]
    """Terms by worth."""
    dropped: dict[str, int]
    """Newest seq of each kind of which some do not fit."""
    shown: set[str]
    """Texts of all terms that the messages, notes and terms show."""


def select(
    notes: Sequence[Note],
    terms: Sequence[Term],
    shown: Iterable[str],
    room: int,
    live: Callable[[Note], bool],
) -> Selection:
    """Return the notes and terms that fit.

    `terms` are in the order of their worth, and `shown` are the texts of the messages that stay. A line
    may stay longer than the numbers in it, so `live` also checks the parts of lines.
    """
    by_kind: dict[NoteKind, list[Note]] = {kind: [] for kind, _ in _RANKS}
    for note in notes:
        by_kind[note.kind].append(note)
    found = {kind: _sort_newest_first(notes) for kind, notes in by_kind.items()}
    found["pair"] = _shorten_old_pairs(found["pair"], int(room * _WHOLE_PAIRS))
    pairs_bytes = sum(utf8_bytes(note.text) + _SEQ_BYTES for note in found["pair"])
    choice = _Choice(room, shown)
    common = [term for term in terms if not term.is_rare]
    names = [term for term in terms if term.is_rare and term.kind != NUMBER]
    numbers_alone = [term for term in terms if term.is_rare and term.kind == NUMBER]
    waiting = iter((common, common, names, numbers_alone))
    for kind, share in _RANKS if pairs_bytes < room * _PAIRS_MOST else _TIGHT_RANKS:
        if kind == "term":
            choice.take_terms(next(waiting), int(room * share))
            continue
        if kind == "number":
            # The numbers in a line remain if the line itself is dropped.
            dropped = sorted((*choice.skipped, *found["prose"]), key=lambda note: note.seq)
            parts = [part for note in dropped for part in _split_parts(note) if live(part)]
            numbers = Ledger([*parts, *by_kind["number"]]).notes()
            found["number"] = _sort_newest_first(numbers)
        choice.take(found[kind], int(room * share))
    choice.take(choice.take_back(), room)
    return choice.finish([*notes, *found["number"]])


def _split_parts(note: Note) -> Iterator[Note]:
    """Yield the numbers in a line."""
    if note.kind not in ("pair", "command"):
        for _, snippet in find_numbers(note.text):
            yield dataclasses.replace(note, kind="number", text=snippet, seqs=())


class _Choice:
    """The notes and terms chosen so far, and the room left."""

    def __init__(self, room: int, shown: Iterable[str]) -> None:
        self._room = room
        self._left = room
        self._page = Page()
        self._chosen: list[Note] = []
        self._terms: list[Term] = []
        self.skipped: list[Note] = []
        self._shown = list_shown(shown)
        self._missing: dict[str, int] = {}
        self._lines: dict[int, list[str]] = {}
        self._new: list[str] = []
        self._text = ""

    def take(self, notes: Sequence[Note], bytes_max: int) -> None:
        """Choose the notes that fit, in order."""
        self._text = "\n".join(text for texts in self._lines.values() for text in texts)
        for note in notes:
            if self._is_shown(note):
                continue
            cost = self._page.cost(note)
            if cost > min(bytes_max, self._left):
                self.skipped.append(note)
                continue
            bytes_max -= cost
            self._left -= cost
            self._add(note)

    def take_terms(self, terms: Sequence[Term], bytes_max: int) -> None:
        """Choose the terms that fit, in order."""
        self._shown |= list_shown(self._new)
        self._new.clear()
        bytes_max = min(bytes_max, self._left)
        for term in terms:
            if term.text in self._shown:
                continue
            cost = self._page.measure_term(term)
            if cost > bytes_max:
                self._missing[term.text] = term.seq
                continue
            bytes_max -= cost
            self._left -= cost
            self._page.add_term(term)
            self._terms.append(term)
            self._shown.add(term.text)
            if "/" in term.text:
                self._shown.update(list_endings(term.text))

    def take_back(self) -> list[Note]:
        """Return the notes that did not fit, and clear their list."""
        skipped, self.skipped = self.skipped, []
        return skipped

    def finish(self, notes: Sequence[Note]) -> Selection:
        """Return the selection, without the last notes if its text exceeds the room."""
        chosen = self._chosen
        while chosen and measure_notes(chosen, self._terms) > self._room:
            fewer = len(chosen) * 7 // 8
            self.skipped += chosen[fewer:]
            chosen = chosen[:fewer]
        terms = self._terms if measure_notes(chosen, self._terms) <= self._room else []
        dropped: dict[str, int] = {}
        for note in self.skipped:
            dropped[note.kind] = max(dropped.get(note.kind, 0), note.seq)
        missing = [seq for text, seq in self._missing.items() if text not in self._shown]
        if missing or len(terms) < len(self._terms):
            dropped["term"] = max((*missing, *(term.seq for term in self._terms)))
        self._shown |= list_shown(self._new)
        return Selection(_sort_by_seq(chosen, notes), terms, dropped, self._shown)

    def _add(self, note: Note) -> None:
        self._page.add(note)
        self._chosen.append(note)
        self._new.append(note.text)
        if note.kind != "command":
            self._lines.setdefault(note.seq, []).append(note.text)

    def _is_shown(self, note: Note) -> bool:
        """Return whether the chosen notes show it already."""
        if note.kind == "command":
            return note.text.strip("`") in self._text
        if note.kind == "number":
            line = " ".join(self._lines.get(note.seq, ()))
            return bool(line) and all(value in line for value, _ in find_numbers(note.text))
        return False


def _sort_newest_first(notes: Sequence[Note]) -> list[Note]:
    """Sort notes by entry, newest first; the notes of one entry keep their order."""
    return sorted(notes, key=lambda note: -note.seq)


def _shorten_old_pairs(pairs: Sequence[Note], bytes_max: int) -> list[Note]:
    found = []
    for note in pairs:
        bytes_max -= utf8_bytes(note.text)
        text = note.text if bytes_max > 0 else shorten_pair(note.text)
        found.append(dataclasses.replace(note, text=text))
    return found


def _sort_by_seq(chosen: Sequence[Note], notes: Sequence[Note]) -> list[Note]:
    """Sort the chosen notes by seq, and within an entry as in its text."""
    places = {_get_key(note): place for place, note in enumerate(notes)}
    return sorted(chosen, key=lambda note: (note.seq, places.get(_get_key(note), 0)))


def _get_key(note: Note) -> tuple[str, str]:
    return ("sentence" if note.kind in _SENTENCES else note.kind), note.text


def _merge(known: Note, note: Note) -> Note:
    """Merge two notes with the same text: keep the newer one, and for pairs the seqs of both."""
    newer, older = (note, known) if note.seq >= known.seq else (known, note)
    if note.kind == "pair":
        seqs = (*newer.seqs, older.seq, *older.seqs)
        more = newer.more + older.more + len(seqs[_SEQS_MAX:])
        return dataclasses.replace(newer, seqs=seqs[:_SEQS_MAX], more=more)
    return newer
