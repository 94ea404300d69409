"""Text cut to a size in bytes: at characters and, where a line break is near, at lines.

A lone surrogate, which UTF-8 cannot encode, counts as a question mark.
"""

import dataclasses
import re
from typing import Final

# Longest result of `mark`: a seq and a size of 12 digits each.
MARK_BYTES_MAX: Final = 76
_MARK: Final = re.compile(
    r"\[\.\.\. ([0-9]{1,12}) bytes left out; recall\(seq=([0-9]{1,12})\) shows them \.\.\.\]"
)
# Texts up to this size are not cut: with the mark they would be longer.
CUT_BYTES_MIN: Final = 128


def mark(left_out: int, seq: int) -> str:
    """Return the mark for a cut: the number of missing bytes, and how to read them."""
    return f"[... {left_out} bytes left out; recall(seq={seq}) shows them ...]"


def utf8_bytes(text: str) -> int:
    """Return the size of a text as UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def head_of(text: str, bytes_max: int) -> str:
    """Return the beginning of a text: whole characters of at most `bytes_max`."""
    if bytes_max <= 0:
        return ""
    return text[:bytes_max].encode(errors="replace")[:bytes_max].decode(errors="ignore")


def tail_of(text: str, bytes_max: int) -> str:
    """Return the end of a text: whole characters of at most `bytes_max`."""
    if bytes_max <= 0:
        return ""
    return text[-bytes_max:].encode(errors="replace")[-bytes_max:].decode(errors="ignore")


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates with question marks, so that a text can be stored."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def clip(text: str, bytes_max: int) -> str:
    """Return a text on one line, cut at its end if it is too long."""
    flat = " ".join(text[: 2 * bytes_max + 64].split())
    if utf8_bytes(flat) <= bytes_max and len(text) <= 2 * bytes_max + 64:
        return flat
    return head_of(flat, bytes_max - 3).rstrip() + "…"


@dataclasses.dataclass(frozen=True)
class Cut:
    """A text whose middle may be missing."""

    head: str
    left_out: int = 0
    tail: str = ""

    @classmethod
    def of(cls, text: str, seq: int) -> "Cut":
        """Parse a text. If it was cut before, it contains the mark of its own entry."""
        if f"recall(seq={seq})" not in text:
            return cls(text)
        found = _MARK.search(text)
        if found is None or int(found[2]) != seq:
            return cls(text)
        return cls(text[: found.start()], int(found[1]), text[found.end() :])

    def render(self, seq: int) -> str:
        """Return the text for a model, with a mark where bytes are missing."""
        if not self.left_out:
            return self.head
        return f"{self.head}{mark(self.left_out, seq)}{self.tail}"

    def fit(self, bytes_max: int) -> "Cut":
        """Return the text cut so that it renders in at most `bytes_max`, or as the mark alone."""
        bytes_max = max(bytes_max, CUT_BYTES_MIN)
        head_bytes, tail_bytes = utf8_bytes(self.head), utf8_bytes(self.tail)
        marked = MARK_BYTES_MAX
        if head_bytes + tail_bytes + (marked if self.left_out else 0) <= bytes_max:
            return self
        room = max(0, bytes_max - marked)
        if not self.left_out:
            head = _cut_after_line(head_of(self.head, room * 2 // 3))
            tail = _cut_before_line(tail_of(self.head, room - room * 2 // 3))
        else:
            keep_head = max(room * 2 // 3, room - tail_bytes)
            head = _cut_after_line(head_of(self.head, keep_head))
            tail = _cut_before_line(tail_of(self.tail, room - min(keep_head, head_bytes)))
        left_out = head_bytes + tail_bytes + self.left_out - utf8_bytes(head) - utf8_bytes(tail)
        return Cut(head, left_out, tail)


def shorten(text: str, bytes_max: int, seq: int) -> str:
    """Return a text, or its head and tail with a mark between them if it is too long."""
    return Cut(text).fit(bytes_max).render(seq)


def _cut_after_line(head: str) -> str:
    """Return the text through its last line break, if that is in the second half."""
    at = head.rfind("\n") + 1
    return head[:at] if at > len(head) // 2 else head


def _cut_before_line(tail: str) -> str:
    """Return the text from its first line break on, if that is in the first half."""
    at = tail.find("\n")
    return tail[at:] if 0 <= at <= len(tail) // 2 else tail
