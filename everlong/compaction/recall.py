r"""Recall: reads and searches entries that are no longer in the context.

A pattern is plain text, and case is ignored. `*` matches anything within a line, `\*` a star. Regular
expressions are not supported: a model's own could take forever, while this takes one pass.
"""

from typing import Final

from everlong.compaction.text import clip, utf8_bytes

PATTERN_CHARS_MAX: Final = 200
# Matching lines that are counted beyond those that are shown.
_MORE_LINES_MAX: Final = 1000
# Size of the excerpt around a match, and the part of it before the match.
_LINE_BYTES_MAX: Final = 400
_LEAD_CHARS: Final = 100
# The line that says how to see more.
_MORE_BYTES_MAX: Final = 96


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
    parts = _parts(pattern)
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


def _parts(pattern: str) -> list[str]:
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
