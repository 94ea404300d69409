"""How sizes, times and statuses read on a page, and what a person can do about them."""

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
from everlong.admin.format import bytes_text

Label = Callable[[float], str]

NONE: Final = "\N{EN DASH}"
"""Where there is no figure."""
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
# Ids that a path holds as they are: browsers change dots and slashes on their way.
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.~-]*")
# What of a JSON text is laid out for reading; beyond that it is shown as it is.
_PRETTY_CHARS_MAX: Final = 256 * limits.KIB
_PRETTY_DEPTH_MAX: Final = 32
_PART: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s"{}\[\],:]+')
# Fillers, blanks and selectors: Unicode calls them letters, symbols or marks, and nobody sees them.
_HIDDEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)

TONES: Final = {
    "working": "works",
    "active": "works",
    "running": "works",
    "ok": "rests",
    "warning": "asks",
    "stopping": "works",
    "waiting": "rests",
    "approval": "asks",
    "paused": "asks",
    "held": "stuck",
    "failed": "stuck",
    "terminated": "stuck",
    "timed_out": "stuck",
}
STATUSES: Final = (
    "working",
    "waiting",
    "approval",
    "paused",
    "held",
    "stopping",
    "stopped",
    "archived",
)
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
class Explained:
    """A status in words: what it means, and what to do."""

    text: str
    advice: str = ""
    tone: str = ""
    """`warn` or `bad`, where somebody should look."""


def size(size_bytes: float | None) -> str:
    """Return a size as people read it: `512 B`, `1.2 MiB`."""
    if size_bytes is None:
        return NONE
    return bytes_text(round(size_bytes))


def axis_size(size_bytes: float) -> str:
    """Return a size for an axis: short, since its ticks are round."""
    return size(size_bytes).replace(".0 ", " ")


def number(value: float | None) -> str:
    """Return a number with its thousands apart."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def took(ms: float | None) -> str:
    """Return how long something took: `84 ms`, `1.2 s`."""
    if not ms:
        return NONE
    if ms < 1000:
        return f"{ms:.0f} ms"
    return span(ms / 1000) if ms >= 60_000 else f"{ms / 1000:.1f} s"


def took_or_zero(ms: float) -> str:
    """Return a length of time for an axis."""
    return took(ms) if ms else "0"


def span(seconds: float) -> str:
    """Return a length of time in its largest unit: `3 min`, `2.5 days`."""
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    if seconds < 2 * _DAY:
        return f"{seconds / _HOUR:.0f} h"
    return f"{seconds / _DAY:.0f} days"


def growth(bytes_per_hour: float, none: str = NONE) -> str:
    """Return how fast something grows: `1.2 MiB/h`."""
    return f"{size(bytes_per_hour)}/h" if bytes_per_hour else none


def exact(ms: float) -> str:
    """Return a time for machines, and for those who want it exactly."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{ms:.0f} ms"


def clock(ms: float) -> str:
    """Return a time that a page shows until its script has made a local one of it."""
    return exact(ms)[:16].replace("T", " ") + " UTC"


def short_clock(ms: float, span_ms: float) -> str:
    """Return a time for an axis of that length, in UTC: its day, its minute or its second."""
    text = exact(ms)
    match time_form(span_ms):
        case "date":
            return text[5:10]
        case "day":
            return f"{text[5:10]} {text[11:16]}"
        case "minute":
            return text[11:16]
    return text[11:19]


def time_form(span_ms: float) -> str:
    """Return how exact the times of an axis of that length are."""
    if span_ms > 3 * _DAY * 1000:
        return "date"
    if span_ms > 20 * _HOUR * 1000:
        return "day"
    return "minute" if span_ms > 10 * _MINUTE * 1000 else "second"


def gauge_value(value: float, unit: str) -> str:
    """Return what a gauge shows, in its unit."""
    if unit == "bytes":
        return size(value)
    if unit in ("usd", "USD", "$"):
        return f"${value:,.2f}"
    return number(value)


def days(left: float | None) -> str:
    """Return when a limit will be reached, as far as one can tell."""
    if left is None or not math.isfinite(left):
        return ""
    if left < 1:
        return f"reached in about {span(left * _DAY)}"
    return f"{left:,.0f} days left" if left < 3650 else "more than 10 years left"


def limit_name(field: str) -> str:
    """Return a limit's name in words."""
    return LIMIT_NAMES.get(field) or LIMIT_NAMES.get(f"{field}_max") or field.replace("_", " ")


def tone(status: str) -> str:
    """Return the class that colours a status."""
    return TONES.get(status, "over")


def pretty(text: str) -> str:
    """Return JSON laid out for reading, or the text as it is if it is none.

    Only blanks between its parts change: each key and number stands there as the text has it, also
    those that a parser would drop or round. What nobody could see is escaped.
    """
    if len(text) > _PRETTY_CHARS_MAX:
        return visible(text)
    try:
        json.loads(text)
        return "".join(_laid_out(_PART.findall(text)))
    except (ValueError, RecursionError):
        return visible(text)


def _laid_out(parts: Sequence[str]) -> Iterator[str]:
    depth, last = 0, ""
    for part in parts:
        ends = part in ("}", "]")
        depth -= ends
        is_empty = ends and last in ("{", "[")
        if (ends or last in ("{", "[", ",")) and not is_empty:
            yield f"\n{depth * '  '}"
        yield _part(part)
        depth += part in ("{", "[")
        if depth > _PRETTY_DEPTH_MAX:
            raise ValueError("nobody reads what is nested so often")
        last = part


def _part(part: str) -> str:
    if part.startswith('"'):
        return visible(json.dumps(json.loads(part), ensure_ascii=False))
    return ": " if part == ":" else part


def visible(text: str) -> str:
    """Return a text in which all can be seen: what turns or hides characters is escaped."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)
    return _HIDDEN.sub(lambda found: _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1]


def mark(*parts: str) -> str:
    """Return a short name for these, which is the same in each page that shows them."""
    name = "\0".join(parts).encode(errors="replace")
    return hashlib.blake2b(name, digest_size=8).hexdigest()


def thread_url(thread_id: str) -> str:
    """Return the address of a thread's page, whatever its id looks like."""
    if _PLAIN_ID.fullmatch(thread_id):
        return f"/threads/{thread_id}"
    return f"/threads/?id={query(thread_id)}"


def query(text: str) -> str:
    """Return a text as a part of a query string."""
    return quote(text, safe="", errors="replace")


def api_url(thread_id: str, place: str, parameters: str = "") -> str:
    """Return the address of a place of a thread in the API, whatever the thread's id looks like."""
    segment = thread_id
    if not _PLAIN_ID.fullmatch(thread_id):
        segment, parameters = "-", f"id={query(thread_id)}&{parameters}".rstrip("&")
    path = f"/api/v1/threads/{segment}/{place}"
    return f"{path}?{parameters}" if parameters else path


def download_url(thread_id: str, seq: int, form: str) -> str:
    """Return where the whole body of an entry can be had."""
    return api_url(thread_id, f"entries/{seq}/whole", f"form={form}")


def local_path(wanted: str) -> str:
    """Return a path of this server to go on to; never another server's."""
    is_local = wanted.startswith("/") and not wanted.startswith(("//", "/\\"))
    return wanted if is_local and wanted.isprintable() else "/"
