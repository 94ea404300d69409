"""Tool calls in short: the line of a call with its outcome, and arguments cut to a size."""

import json
import re
from typing import Any, Final

from everlong.compaction.extraction import find_refs
from everlong.compaction.text import clip, head_of, replace_surrogates, shorten, utf8_bytes
from everlong.models import ToolCall

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


def call_text(call: ToolCall) -> str:
    """Return the line of a call: its tool and its arguments."""
    return f"{clip(call.tool, 64)} {arguments_text(call.arguments)}".rstrip()


def outcome_of(text: str, left_out: int = 0) -> str:
    """Return the outcome of a call for its line: the whole result, if it is short."""
    size_bytes = utf8_bytes(text) + left_out
    if size_bytes <= RESULT_BYTES_MAX:
        return " ".join(replace_surrogates(text).split()) or "ok, empty"
    lines = _ends_of(text)
    failed = _FAILED.search(lines[0]) or any(map(_EXIT.search, lines))
    line = clip(_main_line(lines, failed), _LINE_BYTES_MAX)
    # A long output is never called a success: its reader decides that.
    return f"{'failed ' if failed else ''}{_short_size(size_bytes)}: {line}"


def brief_pair(text: str) -> str:
    """Return the line of a call without the excerpt of a long output."""
    call, arrow, outcome = text.rpartition(" -> ")
    size, _, detail = outcome.partition(": ")
    if not _SIZE.fullmatch(size) or _BAD_NEWS.search(detail):
        return text
    return f"{call}{arrow}{size}"


def arguments_text(arguments: str) -> str:
    """Return the arguments of a call in short: the values, and all names but the first."""
    values = _object(arguments, as_written=True)
    if values is None:
        return clip(replace_surrogates(arguments), _ARGUMENTS_BYTES_MAX)
    parts: list[str] = []
    for name, value in values.items():
        text = _value_text(name, value, alone=len(values) == 1)
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
    values = _object(arguments) or {}
    share = bytes_max
    while values and share > 32:
        share //= 2
        cut = {name: _cut_value(value, share, seq) for name, value in values.items()}
        found = replace_surrogates(json.dumps(cut, ensure_ascii=False, separators=(",", ":")))
        if utf8_bytes(found) <= bytes_max:
            return found
    return json.dumps({"left_out": f"recall(seq={seq})"})


def texts_of(arguments: str) -> list[str]:
    """Return the texts among the arguments of a call, nested ones too."""
    values = _object(arguments)
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


def _object(arguments: str, *, as_written: bool = False) -> dict[str, Any] | None:
    """Parse arguments that are a plain JSON object. `as_written` keeps its numbers as text."""
    if _depth(arguments) > _DEPTH_MAX:
        return None
    number = str if as_written else None
    try:
        values = json.loads(arguments, parse_int=number, parse_float=number)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) and len(values) <= _VALUES_MAX else None


def _depth(arguments: str) -> int:
    """Return an upper bound of the nesting depth. Brackets within texts count too.

    The JSON parser's own limit differs between versions of Python.
    """
    depth = deepest = 0
    for bracket in _BRACKET.findall(arguments):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def _value_text(name: str, value: Any, *, alone: bool) -> str:
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        value = " ".join(value)
    if not isinstance(value, str):
        return clip(_json(value), _VALUE_BYTES_MAX)
    bytes_max = _COMMAND_BYTES_MAX if name.lower() in _COMMAND_KEYS else _VALUE_BYTES_MAX
    text = replace_surrogates(str(value))
    if utf8_bytes(text) > bytes_max:
        # A path, an address or an id is useless without its end.
        if len(text) <= _COMMAND_BYTES_MAX and find_refs(text, bulk=False) == [text]:
            return text
        return f"{clip(text, bytes_max) if alone else ''}({_short_size(utf8_bytes(text))})"
    return text if len(text.splitlines()) <= 1 else " ".join(text.split())


def _cut_value(value: Any, bytes_max: int, seq: int) -> Any:
    text = value if isinstance(value, str) else _json(value)
    if utf8_bytes(text) <= bytes_max:
        return value
    return (
        shorten(replace_surrogates(text), bytes_max, seq)
        if bytes_max > 128
        else head_of(text, bytes_max)
    )


def _json(value: Any) -> str:
    return replace_surrogates(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _ends_of(text: str) -> list[str]:
    """Return the first and the last lines that are not empty."""
    head = [line.strip() for line in text[:4000].splitlines() if line.strip()]
    tail = [line.strip() for line in text[-4000:].splitlines() if line.strip()]
    found = [replace_surrogates(line) for line in [*head[:3], *tail[-4:]]]
    return [line for line in found if _LETTER.search(line)] or [""]


def _main_line(lines: list[str], failed: object) -> str:
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


def _short_size(size_bytes: int) -> str:
    return f"{size_bytes}B" if size_bytes < 1000 else f"{(size_bytes + 500) // 1000}kB"
