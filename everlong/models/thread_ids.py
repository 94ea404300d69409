r"""Thread ids: which ids are valid for new threads, and how any id is shown to people.

A thread's id is its workflow id, and Temporal accepts any text of 1 to 1,000 bytes. So the id of a
thread that another program has started may contain blanks, line breaks or control characters. Such a
thread can be opened and controlled like any other. Only the id of a *new* thread is checked, by
`check_new_id`, wherever Everlong starts one.

Characters are listed here instead of looked up in `unicodedata`: workflow code derives the ids of
sub-agents with `clean_id`, and a replay under another version of Python must derive the same ids.
"""

import re
import shlex
from typing import Final

from everlong.errors import ThreadIdRefused, ThreadNotFound

ID_BYTES_MAX: Final = 1_000
"""Longest id that Temporal accepts by default, in bytes of UTF-8 (`limit.maxIDLength`)."""
# Control characters, blanks other than the space, marks that turn or join text, fillers, variation
# selectors, private use, U+FFFD (the replacement for broken UTF-8), and code points that are not
# characters. A person cannot see or type these.
_UNSEEN: Final = re.compile(
    "["
    "\x00-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f"
    "\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ud800-\udfff\ue000-\uf8ff\ufdd0-\ufdef\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\uffff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U000f0000-\U0010ffff"
    "]"
)
_RULE: Final = (
    "An id has 1 to 1,000 bytes in UTF-8 and only visible characters; it does not begin or end with a "
    "blank. Choose one like ops-7."
)
_ESCAPES: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\\": r"\\", "'": r"\'"}
_SHOWN_CHARS_MAX: Final = 80


def check_new_id(text: str) -> None:
    """Raise `ThreadIdRefused` if an id is not valid for a new thread."""
    if problem := _find_new_id_problem(text):
        shown = show_id(text[:_SHOWN_CHARS_MAX]) + "…" * (len(text) > _SHOWN_CHARS_MAX)
        raise ThreadIdRefused(f"{shown} is not valid for a new thread: {problem}. {_RULE}")


def is_new_id(text: str) -> bool:
    """Return whether an id is valid for a new thread."""
    return not _find_new_id_problem(text)


def check_id(text: str) -> None:
    """Raise `ThreadNotFound` for a text that Temporal does not accept as an id."""
    if problem := find_id_problem(text):
        raise ThreadNotFound(f"no thread can have this id: {problem}")


def find_id_problem(text: str) -> str:
    """Return why no thread of any program can have this id; empty if one can."""
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
        return f"U+{ord(found[0]):04X} is not visible"
    if text != text.strip(" "):
        return "it begins or ends with a blank"
    if text in (".", ".."):
        return "browsers interpret it as a part of the address"
    return ""


def clean_id(text: str) -> str:
    """Return an id with a `-` in place of each character that is not valid in a new id; may be empty."""
    return _UNSEEN.sub("-", text).strip(" ")


def derive_id(thread_id: str, suffix: str, chars_max: int = 200) -> str:
    """Return a proposed id for a fork of a thread."""
    return f"{clean_id(thread_id)[: chars_max - len(suffix)]}{suffix}"


def show_id(text: str) -> str:
    r"""Return an id on one line with only visible characters: `ops-7`, or `$'two\nlines'`.

    The second form is the quoting of bash and zsh, so it can be pasted into a command.
    """
    if text and text == text.strip(" ") and not _UNSEEN.search(text):
        return text
    return "$'" + "".join(map(_escape, text)) + "'"


def quote_id(text: str) -> str:
    """Return an id quoted as an argument for a shell."""
    shown = show_id(text)
    return shlex.quote(text) if shown == text else shown


def _escape(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if not _UNSEEN.match(character):
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
