r"""Thread ids: which id a new thread may be given, and how any id is shown to people.

A thread's id is its workflow id, and Temporal takes any text of 1 to 1,000 bytes for one. So a thread
that another program has started may be called by a blank, a line break or a control character. Such a
thread is opened and governed like any other. Only the id of a *new* thread is checked, by
`check_new_id`, at every door of Everlong.

Characters are listed here and not looked up in `unicodedata`: workflow code derives the ids of
sub-agents with `clean_id`, and a replay under another version of Python has to derive the same ones.
"""

import re
import shlex
from typing import Final

from everlong.errors import ThreadIdRefused, ThreadNotFound

ID_BYTES_MAX: Final = 1_000
"""As many bytes of UTF-8 as Temporal takes by default (`limit.maxIDLength`)."""
# Control characters, blanks other than the space, marks that turn or join text, fillers, variation
# selectors, private use, U+FFFD (what broken UTF-8 becomes), and code points that are no characters. A
# person cannot see or type these.
_UNSEEN: Final = re.compile(
    "["
    "\x00-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f"
    "\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ud800-\udfff\ue000-\uf8ff\ufdd0-\ufdef\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\uffff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U000f0000-\U0010ffff"
    "]"
)
_RULE: Final = (
    "An id has 1 to 1,000 bytes in UTF-8 and only characters that can be seen; blanks stand inside of "
    "it, not at its ends. Choose one like ops-7."
)
_ESCAPES: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\\": r"\\", "'": r"\'"}
_SHOWN_CHARS_MAX: Final = 80


def check_new_id(text: str) -> None:
    """Raise `ThreadIdRefused` unless a new thread may be given this id."""
    if problem := _find_new_id_problem(text):
        shown = show_id(text[:_SHOWN_CHARS_MAX]) + "…" * (len(text) > _SHOWN_CHARS_MAX)
        raise ThreadIdRefused(f"a new thread cannot be called {shown}: {problem}. {_RULE}")


def is_new_id(text: str) -> bool:
    """Whether a new thread may be given this id."""
    return not _find_new_id_problem(text)


def check_id(text: str) -> None:
    """Raise `ThreadNotFound` for a text that Temporal takes for no id at all."""
    if problem := find_id_problem(text):
        raise ThreadNotFound(f"no thread can be called that: {problem}")


def find_id_problem(text: str) -> str:
    """Return why no thread has this id, whichever program started it; empty if one may have it."""
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        return "it is not valid UTF-8"
    if not 0 < size_bytes <= ID_BYTES_MAX:
        return f"an id has 1 to {ID_BYTES_MAX:,} bytes, and this has {size_bytes:,}"
    return ""


def _find_new_id_problem(text: str) -> str:
    if problem := find_id_problem(text):
        return problem
    if found := _UNSEEN.search(text):
        return f"U+{ord(found[0]):04X} cannot be seen"
    if text != text.strip(" "):
        return "it begins or ends with a blank"
    if text in (".", ".."):
        return "browsers take it for a part of the address"
    return ""


def clean_id(text: str) -> str:
    """Return an id with a `-` for each character that a new id may not have; it may be empty."""
    return _UNSEEN.sub("-", text).strip(" ")


def derive_id(thread_id: str, suffix: str, chars_max: int = 200) -> str:
    """Return a proposal for the id of a thread that begins as another one."""
    return f"{clean_id(thread_id)[: chars_max - len(suffix)]}{suffix}"


def show_id(text: str) -> str:
    r"""Return an id on one line in which every character can be seen: `ops-7`, or `$'two\nlines'`.

    The second form is how bash and zsh take such a text, so it can be pasted into a command.
    """
    if text and text == text.strip(" ") and not _UNSEEN.search(text):
        return text
    return "$'" + "".join(map(_escape, text)) + "'"


def quote_id(text: str) -> str:
    """Return an id as an argument of a command that a person may paste into a shell."""
    shown = show_id(text)
    return shlex.quote(text) if shown == text else shown


def _escape(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if not _UNSEEN.match(character):
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
