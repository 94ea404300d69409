"""Terms: the paths, ids, names and numbers of a thread, with the statistics that rank them.

A term's score estimates how likely a later tool call uses it: from the age of its last occurrence, from
how many messages hold it, and from how often and how recently tool calls named it. Scores are integers,
so they are the same on every machine.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from everlong.compaction.extraction import find_in_word, is_id, is_path
from everlong.compaction.text import replace_surrogates
from everlong.models import Kind

PATH: Final = 0
ID: Final = 1
NAME: Final = 2
NUMBER: Final = 3
KINDS: Final = ("path", "id", "name", "number")

# Hard separators: no term contains one. ASCII text is split by a table, which is faster.
_SPLIT: Final = re.compile("[\\s\"'`<>|,;()\\[\\]{}\u2018-\u201f\u00ab\u00bb\u2026]+")
_BLANKS: Final = str.maketrans(dict.fromkeys("\"'`<>|,;()[]{}", " "))
# Separators within a word that is no address.
_PIECES: Final = re.compile(r"[=:&?!*^%+\\#$]+|(?<=[A-Za-z0-9])\.\.+")
_EDGES: Final = ".-~+/@"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*")
_NUMBER: Final = re.compile(r"[0-9]{3,12}")
_DIGIT: Final = re.compile("[0-9]")
_WORD_CHARS_MAX: Final = 300
_TERM_CHARS_MIN: Final = 3
# Shortest id without a separator, as `is_id` has it.
_ID_CHARS_MIN: Final = 7
# Words that a process remembers with their terms: some megabytes.
_CACHE_MAX: Final = 32_768
# Text of this many characters is split in one call, which holds the interpreter's lock: a millisecond.
_STRETCH_CHARS: Final = 64 * 1024


class Term(NamedTuple):
    """A path, an id, a name or a number, and where it stood."""

    text: str
    kind: int
    seq: int
    """The newest entry that holds it."""
    source: Kind
    """Kind of that entry, which determines when the term expires."""
    time_ms: int
    """Time of that entry."""
    seen: int = 1
    """Number of messages that hold it."""
    used: int = 0
    """Number of tool calls that name it."""
    used_seq: int = 0
    """The newest entry with such a call."""
    asked: bool = False
    """Whether a message of the user holds it."""
    listed: bool = True
    """Whether the snapshot shows it as a term. Of others, it keeps the statistics only."""

    @property
    def is_rare(self) -> bool:
        """Whether it is a name or a number that one message holds, and no call nor the user."""
        return self.kind in (NAME, NUMBER) and self.seen < 2 and not self.used and not self.asked


def find_terms(text: str) -> dict[str, int]:
    """Return the terms of a text with their kinds, in no particular order."""
    found: dict[str, int] = {}
    for words in _split_words(text):
        for word in words:
            if word.isalpha():
                continue
            known = _known.get(word)
            if known is None:
                known = _remember(word)
            if known:
                found.update(known)
    return found


def _split_words(text: str) -> Iterator[set[str]]:
    """Yield the words of each stretch of a text."""
    if text.isascii():
        for first, last in _cut_stretches(text):
            yield set(text[first:last].translate(_BLANKS).split())
        return
    text = replace_surrogates(text)
    for first, last in _cut_stretches(text):
        yield set(_SPLIT.split(text[first:last]))


def _cut_stretches(text: str) -> Iterator[tuple[int, int]]:
    """Yield the bounds of stretches of a text, cut at line breaks where there are any."""
    start = 0
    while len(text) - start > _STRETCH_CHARS:
        end = text.rfind("\n", start, start + _STRETCH_CHARS) + 1 or start + _STRETCH_CHARS
        yield start, end
        start = end
    yield start, len(text)


# Cached: words repeat within a text and from one text to the next. Several OS threads may fill it at
# once, which does no harm: equal words have equal terms.
_known: dict[str, tuple[tuple[str, int], ...]] = {}


def clear_cache() -> None:
    """Forget all words, so that a benchmark measures the first compaction of a process."""
    _known.clear()


def _remember(word: str) -> tuple[tuple[str, int], ...]:
    found: tuple[tuple[str, int], ...]
    if word.isalnum():  # Most words with a digit: no need to look for pieces.
        kind = _classify(word)
        found = () if kind is None else ((word, kind),)
    else:
        found = tuple(_find_in_word(word))
    if len(_known) >= _CACHE_MAX:
        _known.clear()
    if len(word) <= _WORD_CHARS_MAX:
        _known[word] = found
    return found


def _find_in_word(word: str) -> Iterator[tuple[str, int]]:
    if not _TERM_CHARS_MIN <= len(word) <= _WORD_CHARS_MAX:
        return
    if "://" in word:
        for ref in find_in_word(word, False):
            yield ref, PATH
        return
    for piece in _PIECES.split(word):
        piece = piece.rstrip(_EDGES)
        if piece[:1] in _EDGES:
            # Some paths and names begin with such a character: `./a`, `.env`, `/etc/hosts`.
            kind = _classify(piece)
            if kind is not None:
                yield piece, kind
                continue
            piece = piece.lstrip(_EDGES)
        elif piece[1:2] == "/" and piece[0] in "ab" and "/" in piece[2:]:
            piece = piece[2:]  # Names of files in a diff.
        kind = _classify(piece)
        if kind is not None:
            yield piece, kind


def _classify(term: str) -> int | None:
    if term.isalnum():
        if term.isdigit():
            return NUMBER if _NUMBER.fullmatch(term) else None
        coded = len(term) >= _ID_CHARS_MIN and not term.isalpha()
        return ID if coded and is_id(term, True) else None
    if len(term) < _TERM_CHARS_MIN:
        return None
    if "/" in term:
        return PATH if is_path(term, False) else None
    if "." in term and is_path(term, False):
        return PATH
    coded = _DIGIT.search(term) is not None
    if (coded or "@" in term) and is_id(term, True):
        return ID
    if _NAME.fullmatch(term):
        return NAME
    # What is an id in a short text only, like `node-12`, is as likely a name.
    return NAME if coded and is_id(term, False) else None


class TermIndex:
    """All terms of a thread's past, each once, with their statistics."""

    def __init__(self, terms: Iterable[Term] = ()) -> None:
        self._terms = {term.text: _Count(*term[:9]) for term in terms}

    def add_text(
        self, text: str, seq: int, source: Kind, time_ms: int, *, asked: bool = False
    ) -> None:
        """Count the terms of a message. Messages must come in the order of their entries."""
        for term, kind in find_terms(text).items():
            self._get(term, kind).see(seq, source, time_ms, asked=asked)

    def add_calls(self, texts: Iterable[str], seq: int, source: Kind, time_ms: int) -> None:
        """Count the terms in the arguments of a reply's calls."""
        found: dict[str, int] = {}
        for text in texts:
            found.update(find_terms(text))
        for term, kind in found.items():
            known = self._get(term, kind)
            known.see(seq, source, time_ms, asked=False)
            known.use(seq)

    def _get(self, text: str, kind: int) -> "_Count":
        known = self._terms.get(text)
        if known is None:
            known = self._terms[text] = _Count(text, kind)
        return known

    def list_terms(self) -> list[Term]:
        """Return all terms."""
        return [known.build() for known in self._terms.values()]


class _Count:
    """The statistics of one term."""

    __slots__ = ("asked", "kind", "seen", "seq", "source", "text", "time_ms", "used", "used_seq")

    def __init__(
        self,
        text: str,
        kind: int,
        seq: int = 0,
        source: Kind = Kind.REPLY,
        time_ms: int = 0,
        seen: int = 0,
        used: int = 0,
        used_seq: int = 0,
        asked: bool = False,
    ) -> None:
        self.text, self.kind, self.seq, self.source, self.time_ms = text, kind, seq, source, time_ms
        self.seen, self.used, self.used_seq, self.asked = seen, used, used_seq, asked

    def see(self, seq: int, source: Kind, time_ms: int, *, asked: bool) -> None:
        # A message that stays in the window is read by each compaction, and counted by the first.
        if seq > self.seq:
            self.seq, self.source, self.time_ms = seq, source, time_ms
            self.seen += 1
            self.asked |= asked

    def use(self, seq: int) -> None:
        if seq > self.used_seq:
            self.used += 1
            self.used_seq = seq

    def build(self) -> Term:
        return Term(
            self.text,
            self.kind,
            self.seq,
            self.source,
            self.time_ms,
            self.seen,
            self.used,
            self.used_seq,
            self.asked,
        )


# Weights in hundredths of the natural logarithm of the odds that a later tool call uses a term. They are
# rounded means of logistic regressions over recorded sessions (docs/how-to/compaction.md).
_AGE: Final = -30
"""For each doubling of the entries since the term's last occurrence."""
_SEEN: Final = 40
"""For each doubling of the messages that hold it."""
_USED: Final = 30
"""For each doubling of the calls that name it."""
_USED_AGE: Final = -15
"""For each doubling of the entries since the last such call, from `_NEVER_USED` on."""
_NEVER_USED: Final = 12
_ASKED: Final = 100
_SEEN_BITS_MAX: Final = 6
_USED_BITS_MAX: Final = 5


def score_term(term: Term, seq: int) -> int:
    """Return the score of a term at an entry, in hundredths of the logarithm of the odds."""
    score = _AGE * max(0, seq - term.seq).bit_length()
    score += _SEEN * (min(term.seen.bit_length(), _SEEN_BITS_MAX) - 1)
    if term.used:
        age = min(max(0, seq - term.used_seq).bit_length(), _NEVER_USED)
        score += _USED * min(term.used.bit_length(), _USED_BITS_MAX)
        score += _USED_AGE * (age - _NEVER_USED)
    return score + (_ASKED if term.asked else 0)


def _build_values() -> tuple[int, ...]:
    """Return a value for each score from -600 to 600: the exponential function, in integers."""
    values = [1 << 20]
    for _ in range(1200):
        values.append(values[-1] * 101 // 100)
    return tuple(values)


_VALUES: Final = _build_values()
_SCORE_MAX: Final = 600


def weigh_term(term: Term, seq: int) -> int:
    """Return the odds that a later call uses a term, as an integer on a scale of its own."""
    score = max(-_SCORE_MAX, min(_SCORE_MAX, score_term(term, seq)))
    return _VALUES[score + _SCORE_MAX]


def sort_by_worth(terms: Iterable[Term], seq: int) -> list[Term]:
    """Sort terms by their odds for each byte, the best first."""

    def rank(term: Term) -> tuple[int, int, str]:
        # Ties go to the newer term, then to the order of the texts.
        return -weigh_term(term, seq) // (len(term.text) + _OVERHEAD), -term.seq, term.text

    return sorted(terms, key=rank)


# Bytes of a term in the text besides its own: a separator, and its part of a line's seq.
_OVERHEAD: Final = 3


def list_shown(texts: Iterable[str]) -> set[str]:
    """Return the terms that texts show. A path also shows the paths that it ends with."""
    shown: set[str] = set()
    for text in texts:
        shown.update(find_terms(text))
    for path in [each for each in shown if "/" in each]:
        shown.update(list_endings(path))
    return shown


def list_endings(path: str) -> list[str]:
    """Return the paths that a path ends with: `b/c.py` and `c.py` of `a/b/c.py`."""
    parts = path.split("/", _ENDINGS_MAX)
    return ["/".join(parts[at:]) for at in range(1, len(parts))]


_ENDINGS_MAX: Final = 12
