"""Template filters: format sizes, times, statuses, JSON and URLs for pages."""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from everlong import limits
from everlong.format import format_bytes
from everlong.models import Retry

Label = Callable[[float], str]

NONE: Final = "\N{EN DASH}"
"""Stands for a missing figure."""
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
# Ids that a path can hold unescaped: browsers normalise dots and slashes in others.
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.~-]*")
# Longer or deeper JSON is shown without indentation.
_PRETTY_CHARS_MAX: Final = 256 * limits.KIB
_PRETTY_DEPTH_MAX: Final = 32
_PART: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s"{}\[\],:]+')
# Invisible fillers, blanks and selectors that Unicode classifies as letters, symbols or marks.
_HIDDEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)

_CALL_NAMES: Final = {
    "model": "model call",
    "tool": "tool call",
    "agent": "sub-agent's call",
    "journal": "write to the journal",
}
LIMIT_NAMES: Final = {
    "steps_max": "Steps",
    "tokens_max": "Tokens",
    "cost_usd_max": "Cost",
    "thread_bytes_max": "Stored bytes",
    "step_bytes_max": "Bytes of one step",
    "context_bytes_max": "Context",
    "failed_turns_max": "Failed turns in a row",
    "same_failure_max": "Same failure in a row",
    "no_progress_steps_max": "Steps without progress",
    "compact_at_bytes": "Context, until compaction",
    "run_events_max": "Events of this run",
    "operational_state": "Operational state",
}


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Meaning of a status, and advice."""

    text: str
    advice: str = ""
    tone: str = ""
    """`warn` or `bad` if a user should act; otherwise empty."""


def format_size(size_bytes: float | None) -> str:
    """Return a size for people: `512 B`, `1.2 MiB`."""
    if size_bytes is None:
        return NONE
    return format_bytes(round(size_bytes))


def format_axis_size(size_bytes: float) -> str:
    """Return a size for an axis, without `.0`: its ticks are round."""
    return format_size(size_bytes).replace(".0 ", " ")


def format_number(value: float | None) -> str:
    """Return a number with thousands separators."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def format_ms(ms: float | None) -> str:
    """Return a duration: `84 ms`, `1.2 s`."""
    if not ms:
        return NONE
    if ms < 1000:
        return f"{ms:.0f} ms"
    return format_seconds(ms / 1000) if ms >= 60_000 else f"{ms / 1000:.1f} s"


def format_axis_ms(ms: float) -> str:
    """Return a duration for an axis."""
    return format_ms(ms) if ms else "0"


def format_seconds(seconds: float) -> str:
    """Return a duration in its largest unit: `3 min`, `2 days`."""
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    if seconds < 2 * _DAY:
        return f"{seconds / _HOUR:.0f} h"
    return f"{seconds / _DAY:.0f} days"


def format_growth(bytes_per_hour: float, none: str = NONE) -> str:
    """Return a growth rate: `1.2 MiB/h`."""
    return f"{format_size(bytes_per_hour)}/h" if bytes_per_hour else none


def format_iso_time(ms: float) -> str:
    """Return a time in ISO 8601, with milliseconds."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{ms:.0f} ms"


def format_utc_time(ms: float) -> str:
    """Return a time in UTC, which a page shows until its script localises it."""
    return format_iso_time(ms)[:16].replace("T", " ") + " UTC"


def format_axis_time(ms: float, span_ms: float) -> str:
    """Return a time in UTC for an axis of that length, with the precision that fits."""
    text = format_iso_time(ms)
    match choose_time_form(span_ms):
        case "date":
            return text[5:10]
        case "day":
            return f"{text[5:10]} {text[11:16]}"
        case "minute":
            return text[11:16]
    return text[11:19]


def choose_time_form(span_ms: float) -> str:
    """Return the precision of times on an axis of that length."""
    if span_ms > 3 * _DAY * 1000:
        return "date"
    if span_ms > 20 * _HOUR * 1000:
        return "day"
    return "minute" if span_ms > 10 * _MINUTE * 1000 else "second"


def format_gauge(value: float, unit: str) -> str:
    """Return a gauge's value in its unit."""
    if unit == "bytes":
        return format_size(value)
    if unit in ("usd", "USD", "$"):
        return f"${value:,.2f}"
    return format_number(value)


def format_cost(cost_usd: float) -> str:
    """Return a cost; one below a dollar with more digits, since a call costs a fraction of a cent."""
    return f"${cost_usd:,.4f}" if 0 < cost_usd < 1 else f"${cost_usd:,.2f}"


def describe_retry(retry: Retry) -> str:
    """Return a sentence about a call that is tried again, without the time of its next attempt."""
    bound = f" of {retry.attempts_max}" if retry.attempts_max else ""
    now = "runs now" if retry.next_ms is None else "is next"
    return f"Attempt {retry.attempt}{bound} of the {_CALL_NAMES.get(retry.call, retry.call)} {now}."


def format_days_left(left: float | None) -> str:
    """Return when a limit will be reached at the present rate; empty if that is unknown."""
    if left is None or not math.isfinite(left):
        return ""
    if left < 1:
        return f"reached in about {format_seconds(left * _DAY)}"
    return f"{left:,.0f} days left" if left < 3650 else "more than 10 years left"


def name_limit(field: str) -> str:
    """Return a limit's name for people."""
    return LIMIT_NAMES.get(field) or LIMIT_NAMES.get(f"{field}_max") or field.replace("_", " ")


def indent_json(text: str) -> str:
    """Return JSON with indentation; other text unchanged.

    Only the blanks between tokens change: keys and numbers stay as they are, even those that a parser
    would drop or round. Invisible characters are escaped.
    """
    if len(text) > _PRETTY_CHARS_MAX:
        return escape_hidden(text)
    try:
        json.loads(text)
        return "".join(_indent_parts(_PART.findall(text)))
    except (ValueError, RecursionError):
        return escape_hidden(text)


def _indent_parts(parts: Sequence[str]) -> Iterator[str]:
    depth, last = 0, ""
    for part in parts:
        ends = part in ("}", "]")
        depth -= ends
        is_empty = ends and last in ("{", "[")
        if (ends or last in ("{", "[", ",")) and not is_empty:
            yield f"\n{depth * '  '}"
        yield _format_part(part)
        depth += part in ("{", "[")
        if depth > _PRETTY_DEPTH_MAX:
            raise ValueError("nested too deeply to indent")
        last = part


def _format_part(part: str) -> str:
    if part.startswith('"'):
        return escape_hidden(json.dumps(json.loads(part), ensure_ascii=False))
    return ": " if part == ":" else part


def escape_hidden(text: str) -> str:
    """Return a text with its invisible and direction-changing characters escaped."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c in "\n\t" else _escape(c) for c in text)
    return _HIDDEN.sub(lambda found: _escape(found[0]), text)


def _escape(character: str) -> str:
    return json.dumps(character)[1:-1]


def split_code(text: str) -> list[tuple[str, bool]]:
    """Return the parts of a text; True for one that stands in backticks, which are left out."""
    parts = re.split(r"`([^`]+)`", text)
    return [(part, at % 2 == 1) for at, part in enumerate(parts) if part]


def make_mark(*parts: str) -> str:
    """Return a short digest of the parts, for ids of HTML elements."""
    name = "\0".join(parts).encode(errors="replace")
    return hashlib.blake2b(name, digest_size=8).hexdigest()


def build_thread_url(thread_id: str) -> str:
    """Return the URL of a thread's page, for any id."""
    if _PLAIN_ID.fullmatch(thread_id):
        return f"/threads/{thread_id}"
    return f"/threads/?id={quote_query(thread_id)}"


def build_tab_url(thread_id: str, tab: str, parameters: str = "") -> str:
    """Return the URL of a tab of a thread's page. The first tab, the conversation, has no name."""
    name = "" if tab == "conversation" else f"tab={tab}"
    found = "&".join(filter(None, (name, parameters)))
    url = build_thread_url(thread_id)
    return f"{url}{'&' if '?' in url else '?'}{found}" if found else url


def quote_query(text: str) -> str:
    """Return a text escaped for a query string."""
    return quote(text, safe="", errors="replace")


def build_api_url(thread_id: str, place: str, parameters: str = "") -> str:
    """Return the URL of a thread's resource in the API, for any id."""
    segment = thread_id
    if not _PLAIN_ID.fullmatch(thread_id):
        segment, parameters = "-", f"id={quote_query(thread_id)}&{parameters}".rstrip("&")
    path = f"/api/v1/threads/{segment}/{place}"
    return f"{path}?{parameters}" if parameters else path


def build_download_url(thread_id: str, seq: int, form: str = "text") -> str:
    """Return the URL of an entry's whole body."""
    return build_api_url(thread_id, f"entries/{seq}/whole", f"form={form}")


def check_local_path(wanted: str) -> str:
    """Return a path for a redirect within this server; `/` for any other URL."""
    is_local = wanted.startswith("/") and not wanted.startswith(("//", "/\\"))
    return wanted if is_local and wanted.isprintable() else "/"
