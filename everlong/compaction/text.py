r"""Texts within a size in bytes: cut to it, read in parts, searched line by line.

Texts are cut at characters and, where a line break is near, at lines. A lone surrogate, which UTF-8
cannot encode, counts as a question mark.

A search pattern is plain text, and case is ignored. `*` matches anything within a line, `\*` a star.
Regular expressions are not supported: one that a model wrote could take forever, while this search
takes one pass.
"""

import dataclasses
import re
from typing import Final

# Longest result of `format_mark`: a seq and a size of 12 digits each.
MARK_BYTES_MAX: Final = 76
_MARK: Final = re.compile(
    r"\[\.\.\. ([0-9]{1,12}) bytes left out; recall\(seq=([0-9]{1,12})\) shows them \.\.\.\]"
)
# Texts up to this size are not cut: with the mark they would be longer.
CUT_BYTES_MIN: Final = 128
PATTERN_CHARS_MAX: Final = 200
# Matching lines that are counted beyond those that are shown.
_MORE_LINES_MAX: Final = 1000
# Size of the excerpt around a match, and the part of it before the match.
_LINE_BYTES_MAX: Final = 400
_LEAD_CHARS: Final = 100
# The line that says how to see more.
_MORE_BYTES_MAX: Final = 96


def format_mark(left_out: int, seq: int) -> str:
    """Return the mark for a cut: the number of missing bytes, and how to read them."""
    return f"[... {left_out} bytes left out; recall(seq={seq}) shows them ...]"


def utf8_bytes(text: str) -> int:
    """Return the size of a text as UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def take_head(text: str, bytes_max: int) -> str:
    """Return the beginning of a text: whole characters of at most `bytes_max`."""
    if bytes_max <= 0:
        return ""
    return text[:bytes_max].encode(errors="replace")[:bytes_max].decode(errors="ignore")


def take_tail(text: str, bytes_max: int) -> str:
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
    return take_head(flat, bytes_max - 3).rstrip() + "…"


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
        return f"{self.head}{format_mark(self.left_out, seq)}{self.tail}"

    def fit(self, bytes_max: int) -> "Cut":
        """Return the text cut so that it renders in at most `bytes_max`, or as the mark alone."""
        bytes_max = max(bytes_max, CUT_BYTES_MIN)
        head_bytes, tail_bytes = utf8_bytes(self.head), utf8_bytes(self.tail)
        marked = MARK_BYTES_MAX
        if head_bytes + tail_bytes + (marked if self.left_out else 0) <= bytes_max:
            return self
        room = max(0, bytes_max - marked)
        if not self.left_out:
            head = _cut_after_line(take_head(self.head, room * 2 // 3))
            tail = _cut_before_line(take_tail(self.head, room - room * 2 // 3))
        else:
            keep_head = max(room * 2 // 3, room - tail_bytes)
            head = _cut_after_line(take_head(self.head, keep_head))
            tail = _cut_before_line(take_tail(self.tail, room - min(keep_head, head_bytes)))
        left_out = head_bytes + tail_bytes + self.left_out - utf8_bytes(head) - utf8_bytes(tail)
        return Cut(head, left_out, tail)


def shorten(text: str, bytes_max: int, seq: int) -> str:
    """Return a text, or its head and tail with a mark between them if it is too long."""
    return Cut(text).fit(bytes_max).render(seq)


def excerpt(text: str, *, offset: int, bytes_max: int) -> str:
    """Return whole characters of a text from a byte offset on, and how to read on."""
    data = text.encode(errors="replace")
    start = min(max(0, offset), len(data))
    while 0 < start < len(data) and data[start] & 0xC0 == 0x80:
        start -= 1
    if len(data) - start <= bytes_max:
        return data[start:].decode()
    room = max(4, bytes_max - _MORE_BYTES_MAX)
    piece = data[start : start + room].decode(errors="ignore")
    end = start + len(piece.encode())
    return f"{piece}\n[bytes {start} to {end} of {len(data)}; offset={end} shows more]"


def grep(text: str, pattern: str, *, bytes_max: int) -> str:
    """Return the matching lines with their byte offsets; empty without a match."""
    parts = _parse_pattern(pattern)
    folded = _fold_case(text)
    lines: list[str] = []
    room = bytes_max - _MORE_BYTES_MAX
    known = offset = more = 0
    at = folded.find(parts[0])
    while at >= 0:
        start, end = folded.rfind("\n", 0, at) + 1, folded.find("\n", at)
        end = len(text) if end < 0 else end
        if _rest_matches(folded, parts, at, end) and not more:
            first = max(start, at - _LEAD_CHARS)
            offset, known = offset + utf8_bytes(text[known:first]), first
            shown = clip(text[first : min(end, first + 2 * _LINE_BYTES_MAX)], _LINE_BYTES_MAX)
            lines.append(f"offset {offset}: {'…' if first > start else ''}{shown}")
            room -= utf8_bytes(lines[-1]) + 1
            more = 1 if room < 0 else 0
        elif _rest_matches(folded, parts, at, end):
            more += 1
            if more == _MORE_LINES_MAX:
                break
        at = folded.find(parts[0], end)
    if more:
        many = f"{more} or more" if more == _MORE_LINES_MAX else more
        lines[-1] = f"[{many} more lines match; a longer pattern leaves fewer]"
    return "\n".join(lines)


def _cut_after_line(head: str) -> str:
    """Return the text through its last line break, if that is in the second half."""
    at = head.rfind("\n") + 1
    return head[:at] if at > len(head) // 2 else head


def _cut_before_line(tail: str) -> str:
    """Return the text from its first line break on, if that is in the first half."""
    at = tail.find("\n")
    return tail[at:] if 0 <= at <= len(tail) // 2 else tail


def _parse_pattern(pattern: str) -> list[str]:
    """Return the texts that a matching line contains, one after the other."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise ValueError(
            f"a pattern may have at most {PATTERN_CHARS_MAX} characters; search for a part of it"
        )
    if "\n" in pattern:
        raise ValueError("a pattern matches within single lines; leave line breaks out of it")
    pieces = pattern.replace("\\*", "\0").split("*")
    parts = [_fold_case(piece.replace("\0", "*")) for piece in pieces if piece]
    if not parts:
        raise ValueError("a pattern needs some characters besides '*'")
    return parts


def _fold_case(text: str) -> str:
    """Return a text in lower case, with the same length."""
    return text.replace("\u0130", "I").lower().replace("\u03c2", "\u03c3")


def _rest_matches(folded: str, parts: list[str], at: int, end: int) -> bool:
    at += len(parts[0])
    for part in parts[1:]:
        at = folded.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True
