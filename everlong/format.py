"""Formatting of sizes, counts and journal entries, the same on a terminal and on a page."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from everlong import limits
from everlong.models import Entry, Kind, Message

_LINE_CHARS_MAX: Final = 160
_BARS: Final = "▁▂▃▄▅▆▇█"
_DAY: Final = 24 * 3600.0
# Larger numbers are printed with an exponent.
_PLAIN_MAX: Final = 1e12
_NUMBER: Final = re.compile(r"(?P<number>\d[\d,]{0,20}(\.\d{1,6})?) ?(?P<unit>[A-Za-z]{0,7})")
_SECONDS: Final = {
    "": 1.0,
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), _DAY),
}
# As in the rest of Everlong, K, M and G are powers of 1024; KB, MB and GB are powers of 1000.
_BYTES: Final = {
    "": 1,
    **dict.fromkeys(("b", "byte", "bytes"), 1),
    **{
        f"{letter}{suffix}": base**power
        for power, letter in enumerate("kmgt", 1)
        for suffix, base in (("", limits.KIB), ("ib", limits.KIB), ("b", 1000))
    },
}


def format_bytes(size_bytes: int) -> str:
    """Return a size with its unit: `512 B`, `1.2 MiB`."""
    if size_bytes < limits.KIB:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= limits.KIB
        if size < limits.KIB:
            return f"{size:.1f} {unit}"
    return f"{size / limits.KIB:.1f} TiB"


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun: `1 run`, `2,000 runs`, `0 entries`."""
    if count != 1:
        ends_in_y = noun.endswith("y") and noun[-2] not in "aeiou"  # An entry, but not a day.
        noun = f"{noun[:-1]}ies" if ends_in_y else f"{noun}s"
    return f"{count:,} {noun}"


def join_words(words: Iterable[str], last: str = "or") -> str:
    """Return words as a list in a sentence: `keep, close or free`."""
    listed = list(words)
    if len(listed) < 2:
        return "".join(listed)
    return f"{', '.join(listed[:-1])} {last} {listed[-1]}"


def format_duration(seconds: float) -> str:
    """Return a duration in its largest whole unit: `5 min`, `90 s`, `7 days`."""
    for unit, unit_seconds in (("day", _DAY), ("h", 3600.0), ("min", 60.0)):
        count, rest = divmod(seconds, unit_seconds)
        if count and not rest:
            return format_count(int(count), unit) if unit == "day" else f"{int(count):,} {unit}"
    return f"{seconds:,.12g} s"


def parse_duration(text: str) -> float:
    """Return seconds from `90s`, `5m`, `6h`, `7d` or a number of seconds. Raises `ValueError`."""
    found = _NUMBER.fullmatch(text.strip())
    unit_seconds = _SECONDS.get(found["unit"].lower()) if found else None
    if found is None or unit_seconds is None:
        raise ValueError(f"'{text[:40]}' is not a duration. Write 90s, 5m, 6h or 7d")
    return float(found["number"].replace(",", "")) * unit_seconds


def parse_bytes(text: str) -> int:
    """Return bytes from `512KiB`, `4MiB`, `1GiB` or a number of bytes. Raises `ValueError`."""
    found = _NUMBER.fullmatch(text.strip())
    unit_bytes = _BYTES.get(found["unit"].lower()) if found else None
    if found is None or unit_bytes is None:
        raise ValueError(f"'{text[:40]}' is not a size. Write 512KiB, 4MiB or 1GiB")
    return int(float(found["number"].replace(",", "")) * unit_bytes)


def format_spark(values: Sequence[int]) -> str:
    """Return values as a sparkline; empty for fewer than two values."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    top = len(_BARS) - 1
    return "".join(_BARS[top * (each - low) // max(1, high - low)] for each in values)


def shorten_line(text: str) -> str:
    """Return the beginning of a text, on one line."""
    flat = " ".join(text[: 4 * _LINE_CHARS_MAX].split())
    cut = len(flat) > _LINE_CHARS_MAX or len(text) > 4 * _LINE_CHARS_MAX
    return f"{flat[: _LINE_CHARS_MAX - 1]}…" if cut else flat


def summarise_message(message: Message) -> str:
    """Return a short form of a message: its text and its tool calls."""
    calls = [f"-> {call.tool} {call.arguments[:_LINE_CHARS_MAX]}" for call in message.tool_calls]
    name = f"{message.tool}: " if message.tool else ""
    return f"{name}{message.text[: 4 * _LINE_CHARS_MAX]} {' '.join(calls)}"


def summarise_note(entry: Entry) -> str:
    """Return the text of an entry that is not a message."""
    data = entry.data or {}
    match entry.kind:
        case Kind.ASKED | Kind.VOTED | Kind.DECIDED | Kind.OUTCOME_UNKNOWN | Kind.OUTCOME_RESOLVED:
            return _summarise_decision(entry.kind, data)
        case Kind.MEMORY:
            return _format_memory(data)
        case Kind.COMPACTION:
            before, after = format_bytes(data["before_bytes"]), format_bytes(data["after_bytes"])
            return f"context {before} -> {after} ({data['reason']})"
        case Kind.LIMIT:
            name = data["limit"]
            value, bound = (format_setting(name, data[each]) for each in ("value", "bound"))
            return f"{name}: {value} of {bound}, {data['action']}"
        case Kind.CONTROL:
            changes = _format_grant(data) or _format_changes(data)
            return f"{data['action']}{changes} {_format_author(data)}"
        case Kind.FORK:
            return f"of thread {data['thread_id']} at {data['seq']} {_format_author(data)}"
    return json.dumps(data)


def format_setting(name: str, value: Any) -> str:
    """Return the value of a policy field as people write it: `256 KiB`, `5 min`, `$20`, `none`."""
    if value is None:
        return "none"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if "_bytes" in name:
            return _format_exact_bytes(value)
        if name.endswith(("_seconds", "_seconds_max")):
            return format_duration(value)
        dollars = "$" if "_usd" in name else ""
        return f"{dollars}{value:,.12g}" if abs(value) < _PLAIN_MAX else f"{dollars}{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def _format_exact_bytes(size_bytes: float) -> str:
    """Return a size in the largest unit that does not round it."""
    for unit, unit_bytes in (("GiB", limits.KIB**3), ("MiB", limits.MIB), ("KiB", limits.KIB)):
        if size_bytes >= unit_bytes and not size_bytes % unit_bytes:
            return f"{size_bytes // unit_bytes:,.0f} {unit}"
    return f"{size_bytes:,.0f} B"


def _format_grant(data: dict[str, Any]) -> str:
    """Return the grant that was given or revoked; empty for other actions."""
    grant = data.get("changes", {})
    if data["action"] not in ("grant", "revoke_grant") or "tool" not in grant:
        return ""
    lasting = f" for {format_duration(grant['seconds'])}" if "seconds" in grant else ""
    calls = grant.get("arguments") or "(any arguments)"
    return (
        f" {grant.get('id', '')} {grant['tool']} {calls} in this {grant.get('scope', '')}{lasting}"
    )


def _format_changes(data: dict[str, Any]) -> str:
    changes = sorted(data.get("changes", {}).items())
    return "".join(f" {name}={format_setting(name, value)}" for name, value in changes)


def _format_author(data: dict[str, Any]) -> str:
    by = f"by {data['by']}" if data.get("by") else ""
    return f"{by}: {data['reason']}" if data.get("reason") else by


def _summarise_decision(kind: Kind, data: dict[str, Any]) -> str:
    """Return the text of an entry about a call that waits for people."""
    match kind:
        case Kind.ASKED:
            return f"{data['id']} {data['tool']} {data['arguments']}"
        case Kind.DECIDED:
            verdict = "approved" if data["approve"] else "denied"
            verdict = "escalated" if data.get("escalated") else verdict
            return f"{data['id']} {verdict}{_format_how(data)} {_format_author(data)}"
        case Kind.VOTED:
            votes = f"{data['votes']} of {data['needed']}"
            return f"{data['id']} approved, {votes}{_format_how(data)} {_format_author(data)}"
        case Kind.OUTCOME_UNKNOWN:
            return f"{data['id']} {data['tool']} {data['arguments']}: {data['cause']}"
        case _:
            said = "escalated" if data.get("escalated") else data["outcome"].replace("_", " ")
            result = f" {data['result']}" if data.get("result") else ""
            return f"{data['id']} {said}{result} {_format_author(data)}"


def _format_how(data: dict[str, Any]) -> str:
    """Return how a call was approved: by a grant, by several people, with changed arguments."""
    edit = f" with {data['arguments']}" if data.get("edit") else ""
    grant = f" by grant {data['grant']}" if data.get("grant") else ""
    names = data["votes"] if isinstance(data.get("votes"), list | tuple) else ()
    others = f" after {', '.join(names[:-1])}" if len(names) > 1 else ""
    return f"{edit}{grant}{others}"


def _format_memory(data: dict[str, Any]) -> str:
    parts = []
    if fact := data.get("remembered"):
        parts.append(f"remembered {fact['key']}: {fact['text']}")
    if data.get("forgotten"):
        parts.append(f"forgot {data['forgotten']}")
    if data.get("evicted"):
        parts.append(f"evicted {', '.join(data['evicted'])}")
    return "; ".join(parts)
