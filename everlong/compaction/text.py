"""Texts cut to a size in bytes, at characters and, where one is near, at lines.

A lone surrogate, which UTF-8 cannot carry, counts and is cut as a question mark.
"""

import dataclasses
import re
from typing import Final

# The longest that `mark` returns: a seq and a size of 12 digits each.
MARK_BYTES_MAX: Final = 76
_MARK: Final = re.compile(
    r"\[\.\.\. ([0-9]{1,12}) bytes left out; recall\(seq=([0-9]{1,12})\) shows them \.\.\.\]"
)
# A text up to this is not cut: with the mark it would be longer.
CUT_BYTES_MIN: Final = 128


def mark(left_out: int, seq: int) -> str:
    """Return what stands where a text was cut: how much is missing, and how to see it."""
    return f"[... {left_out} bytes left out; recall(seq={seq}) shows them ...]"


def utf8_bytes(text: str) -> int:
    """Return the size of a text as UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def head_of(text: str, bytes_max: int) -> str:
    """Return the beginning of a text, whole characters of at most so many bytes."""
    if bytes_max <= 0:
        return ""
    return text[:bytes_max].encode(errors="replace")[:bytes_max].decode(errors="ignore")


def tail_of(text: str, bytes_max: int) -> str:
    """Return the end of a text, whole characters of at most so many bytes."""
    if bytes_max <= 0:
        return ""
    return text[-bytes_max:].encode(errors="replace")[-bytes_max:].decode(errors="ignore")


def replace_surrogates(text: str) -> str:
    """Return a text without lone surrogates, so that it can be stored."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def clip(text: str, bytes_max: int) -> str:
    """Return a text on one line, its end left out if it is too long."""
    flat = " ".join(text[: 2 * bytes_max + 64].split())
    if utf8_bytes(flat) <= bytes_max and len(text) <= 2 * bytes_max + 64:
        return flat
    return head_of(flat, bytes_max - 3).rstrip() + "…"


@dataclasses.dataclass(frozen=True)
class Cut:
    """A text of which the middle may be missing."""

    head: str
    left_out: int = 0
    tail: str = ""

    @classmethod
    def of(cls, text: str, seq: int) -> "Cut":
        """Return a text, which may have been cut before: then it has the mark of its own entry."""
        if f"recall(seq={seq})" not in text:
            return cls(text)
        found = _MARK.search(text)
        if found is None or int(found[2]) != seq:
            return cls(text)
        return cls(text[: found.start()], int(found[1]), text[found.end() :])

    def shown(self, seq: int) -> str:
        """Return it as a model reads it, with a mark where something is missing."""
        if not self.left_out:
            return self.head
        return f"{self.head}{mark(self.left_out, seq)}{self.tail}"

    def to(self, bytes_max: int) -> "Cut":
        """Return it cut so that it is shown in at most so many bytes, or as the mark alone."""
        bytes_max = max(bytes_max, CUT_BYTES_MIN)
        head_bytes, tail_bytes = utf8_bytes(self.head), utf8_bytes(self.tail)
        marked = MARK_BYTES_MAX
        if head_bytes + tail_bytes + (marked if self.left_out else 0) <= bytes_max:
            return self
        room = max(0, bytes_max - marked)
        if not self.left_out:
            head = _to_a_line(head_of(self.head, room * 2 // 3))
            tail = _from_a_line(tail_of(self.head, room - room * 2 // 3))
        else:
            keep_head = max(room * 2 // 3, room - tail_bytes)
            head = _to_a_line(head_of(self.head, keep_head))
            tail = _from_a_line(tail_of(self.tail, room - min(keep_head, head_bytes)))
        left_out = head_bytes + tail_bytes + self.left_out - utf8_bytes(head) - utf8_bytes(tail)
        return Cut(head, left_out, tail)


def shorten(text: str, bytes_max: int, seq: int) -> str:
    """Return the head and the tail of a text that is too long, with a mark between them."""
    return Cut(text).to(bytes_max).shown(seq)


def _to_a_line(head: str) -> str:
    """Return it up to its last line break, and that too, if it is in the second half."""
    at = head.rfind("\n") + 1
    return head[:at] if at > len(head) // 2 else head


def _from_a_line(tail: str) -> str:
    """Return it from its first line break on, if that is in the first half."""
    at = tail.find("\n")
    return tail[at:] if 0 <= at <= len(tail) // 2 else tail
