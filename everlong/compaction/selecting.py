"""Which notes a snapshot keeps when not all of them fit.

By rank, the newest first; what a line shows is not noted again by itself.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from everlong.compaction import cues
from everlong.compaction.pairs import brief_pair
from everlong.compaction.refs import find_numbers, find_refs
from everlong.compaction.rendering import Page, notes_bytes
from everlong.compaction.shortening import utf8_bytes
from everlong.compaction.snapshot import Note, NoteKind

# In order; and which share of the room a kind may take, before the rest of it comes last.
_RANKS: Final[dict[NoteKind, float]] = {
    "open": 0.2,
    "decision": 0.2,
    "asked": 0.2,
    "pair": 0.7,
    "remark": 0.2,
    "ref": 0.5,
    "mention": 0.5,
    "number": 0.5,
    "prose": 1.0,
}
_SENTENCES: Final = ("open", "decision", "asked", "remark", "prose")
# The share that lines of calls may take before older ones have to be brief.
_WHOLE_PAIRS: Final = 0.1
# Of equal calls that one line stands for, the newest that it names.
_SEQS_MAX: Final = 12
# Open asks that a sentence may be about: more than are ever shown, and it may be one of thousands.
_OPEN_HEARD_MAX: Final = 256


class Ledger:
    """All notes that there are, each once."""

    def __init__(self, notes: Iterable[Note] = ()) -> None:
        self._notes: dict[tuple[str, str], Note] = {}
        self._open: dict[tuple[str, str], frozenset[str]] = {}
        for note in notes:
            self.add(note)

    def add(self, note: Note) -> None:
        """Take up a note, after all that are older."""
        key = _key(note)
        known = self._notes.pop(key, None)
        if known is not None and known.seq != note.seq:
            note = _merged(known, note)
        self._notes[key] = note
        self._open.pop(key, None)
        if note.kind == "open":
            # What is said after it is about it, but need not come again when it is done.
            first = next((sentence for sentence, _ in cues.sentences(note.text)), "")
            self._open[key] = cues.stems(first)
        if note.kind in _SENTENCES:
            self.hear(note.text, note.seq)

    def hear(self, text: str, seq: int) -> None:
        """Take what a sentence says to be done for a thing that was asked, and is no longer open."""
        if not self._open:
            return
        for sentence, _ in cues.sentences(text):
            if not cues.is_done(sentence):
                continue
            said = cues.stems(sentence)
            for key in list(itertools.islice(reversed(self._open), _OPEN_HEARD_MAX)):
                if self._notes[key].seq < seq and cues.closes(said, self._open[key]):
                    self._close(key, "asked")

    def void(self, prefix: str, seq: int) -> None:
        """Take for no longer open what begins like this and was asked before an entry."""
        for key in list(self._open):
            if self._notes[key].seq < seq and self._notes[key].text.startswith(prefix):
                self._close(key, "prose")

    def _close(self, key: tuple[str, str], kind: NoteKind) -> None:
        self._notes[key] = dataclasses.replace(self._notes[key], kind=kind)
        del self._open[key]

    def settle(self, prefix: str) -> str:
        """Remove the open ask that begins like this; return the rest of it."""
        for key in self._open:
            if self._notes[key].text.startswith(prefix):
                del self._open[key]
                return self._notes.pop(key).text.removeprefix(prefix)
        return ""

    def notes(self) -> list[Note]:
        """Return the notes by seq; those of one entry in the order of its text."""
        return sorted(self._notes.values(), key=lambda note: note.seq)


def select(
    notes: Sequence[Note], room: int, live: Callable[[Note], bool]
) -> tuple[list[Note], dict[str, int]]:
    """Return the notes that fit, by seq; and of those that do not, the newest seq of each kind.

    A line may outlive what it shows, so `live` is asked again for the parts of lines.
    """
    lines = [note for note in notes if note.kind not in ("ref", "mention", "number")]
    pieces = Ledger(
        [
            *(part for note in lines for part in _parts(note) if live(part)),
            *(note for note in notes if note.kind in ("ref", "mention", "number")),
        ]
    ).notes()
    choice = _Choice(room)
    for kind, share in _RANKS.items():
        found = _newest_first([note for note in (*lines, *pieces) if note.kind == kind])
        if kind == "pair":
            found = _brief_when_old(found, int(room * _WHOLE_PAIRS))
        choice.take(found, int(room * share))
    choice.take(choice.take_back(), room)
    chosen = _in_order(choice.fitted(), [*lines, *pieces])
    dropped: dict[str, int] = {}
    for note in choice.take_back():
        dropped[note.kind] = max(dropped.get(note.kind, 0), note.seq)
    return chosen, dropped


def _parts(note: Note) -> Iterator[Note]:
    """Yield the refs and numbers that a line shows: what is left of it should it be dropped."""
    for ref in _refs_in(note.text):
        yield dataclasses.replace(note, kind="ref", text=ref, seqs=())
    if note.kind != "pair":
        for _, snippet in _numbers_in(note.text):
            yield dataclasses.replace(note, kind="number", text=snippet, seqs=())


# A line is looked at several times in one compaction, and again in the next.
@functools.lru_cache(maxsize=8192)
def _refs_in(text: str) -> tuple[str, ...]:
    return tuple(find_refs(text, bulk=False))


@functools.lru_cache(maxsize=8192)
def _numbers_in(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(find_numbers(text))


class _Choice:
    """What has been chosen so far, and what it takes."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._left = room
        self._page = Page()
        self._chosen: list[Note] = []
        self._skipped: list[Note] = []
        self._refs: set[str] = set()
        self._numbers: set[tuple[int, str]] = set()
        self._lines = ""

    def take(self, notes: Sequence[Note], bytes_max: int) -> None:
        """Choose of these what fits, in order."""
        for note in notes:
            if self._shown(note):
                continue
            cost = self._page.cost(note)
            if cost > min(bytes_max, self._left):
                self._skipped.append(note)
                continue
            bytes_max -= cost
            self._left -= cost
            self._add(note)

    def take_back(self) -> list[Note]:
        """Return what was passed over, which is then no longer passed over."""
        skipped, self._skipped = self._skipped, []
        return skipped

    def fitted(self) -> list[Note]:
        """Return what was chosen; the last of it goes if the text is longer than it may be."""
        chosen = self._chosen
        while chosen and notes_bytes(chosen) > self._room:
            fewer = len(chosen) * 7 // 8
            self._skipped += chosen[fewer:]
            chosen = chosen[:fewer]
        return chosen

    def _add(self, note: Note) -> None:
        self._page.add(note)
        self._chosen.append(note)
        if note.kind in ("ref", "mention"):
            # Of a command, what it names.
            if note.text.startswith("`"):
                self._refs.update(_refs_in(note.text))
            return
        self._refs.update(_refs_in(note.text))
        self._numbers.update((note.seq, value) for value, _ in _numbers_in(note.text))
        self._lines += f"{note.text}\n"

    def _shown(self, note: Note) -> bool:
        """Tell whether what is chosen shows it already."""
        if note.kind in ("ref", "mention"):
            return note.text in self._refs or (
                note.text.startswith("`") and note.text.strip("`") in self._lines
            )
        if note.kind == "number":
            return all((note.seq, value) in self._numbers for value, _ in _numbers_in(note.text))
        return False


def _newest_first(notes: Sequence[Note]) -> list[Note]:
    """Return the newest entries first, and of one entry what it says first."""
    return sorted(notes, key=lambda note: -note.seq)


def _brief_when_old(pairs: Sequence[Note], bytes_max: int) -> list[Note]:
    found = []
    for note in pairs:
        bytes_max -= utf8_bytes(note.text)
        text = note.text if bytes_max > 0 else brief_pair(note.text)
        found.append(dataclasses.replace(note, text=text))
    return found


def _in_order(chosen: Sequence[Note], notes: Sequence[Note]) -> list[Note]:
    """Return what was chosen by seq, and as it stood in its entry."""
    places = {_key(note): place for place, note in enumerate(notes)}
    return sorted(chosen, key=lambda note: (note.seq, places.get(_key(note), 0)))


def _key(note: Note) -> tuple[str, str]:
    if note.kind in ("ref", "mention"):
        return "ref", note.text
    return ("sentence" if note.kind in _SENTENCES else note.kind), note.text


def _merged(known: Note, note: Note) -> Note:
    """Return one note for two that say the same: the newer one, a pair with the seqs of both."""
    newer, older = (note, known) if note.seq >= known.seq else (known, note)
    if note.kind == "pair":
        seqs = (*newer.seqs, older.seq, *older.seqs)
        more = newer.more + older.more + len(seqs[_SEQS_MAX:])
        return dataclasses.replace(newer, seqs=seqs[:_SEQS_MAX], more=more)
    kind: NoteKind = "ref" if "ref" in (known.kind, note.kind) else newer.kind
    return dataclasses.replace(newer, kind=kind)
