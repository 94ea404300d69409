"""How threads are printed: for people in short lines, for programs as JSON."""

import dataclasses
import datetime
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from everlong.admin.console import bytes_text, out, plain
from everlong.admin.service import ThreadSize, Totals
from everlong.models import Approval, Entry, Fact, Kind, Message, ThreadStatus

_LINE_CHARS_MAX = 160
_ARGUMENTS_BYTES_MAX = 4096


def print_json(value: Any) -> None:
    """Print a dataclass, or what consists of them, as JSON."""
    typer.echo(json.dumps(value, indent=2, default=_as_fields))


async def print_json_items(values: AsyncIterator[Any]) -> None:
    """Print an array, each item as soon as it is there."""
    before = "["
    async for value in values:
        typer.echo(before + json.dumps(value, indent=2, default=_as_fields), nl=False)
        before = ",\n"
    typer.echo("[]" if before == "[" else "]")


def _as_fields(value: Any) -> Any:
    return dataclasses.asdict(value)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines that others may have written parts of: nothing in them steers the terminal."""
    for line in lines:
        out.print(plain(line), markup=False, soft_wrap=True)


def one_line(text: str) -> str:
    """Return the beginning of a text on one line."""
    flat = " ".join(text[: 4 * _LINE_CHARS_MAX].split())
    cut = len(flat) > _LINE_CHARS_MAX or len(text) > 4 * _LINE_CHARS_MAX
    return f"{flat[: _LINE_CHARS_MAX - 1]}…" if cut else flat


def time_text(time_ms: int) -> str:
    """Return a time as it is here."""
    return (
        datetime.datetime.fromtimestamp(time_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    )


def show_table(
    thread_id: str, status: ThreadStatus, size: ThreadSize, approvals: Sequence[Approval]
) -> Table:
    """Return what `show` prints."""
    counters = status.counters
    view = Table(title=escape(plain(f"{thread_id} ({status.agent})")), show_header=False)
    rows = [
        ("status", status.status),
        ("paused", _pause_text(status)),
        ("ended by", status.ended.reason if status.ended else ""),
        ("held by", status.held_by),
        ("messages", f"{counters.answered} of {counters.messages} answered"),
        ("steps", f"{counters.steps} model calls, {counters.tool_calls} tool calls"),
        ("tokens", f"{counters.tokens:,}" if counters.tokens else ""),
        ("cost", f"{counters.cost_usd:.2f} USD" if counters.cost_usd else ""),
        ("approvals", "\n".join(map(approval_text, approvals))),
        ("context", _context_text(status)),
        ("state", f"{bytes_text(status.state_bytes)} of operational state"),
        ("history", _history_text(size)),
        ("blobs", f"{bytes_text(size.blob_bytes)} in {size.blobs} objects"),
        ("last failure", status.last_failure),
    ]
    for name, text in rows:
        if text:
            view.add_row(name, escape(plain(text)))
    return view


def _pause_text(status: ThreadStatus) -> str:
    pause = status.pause
    if pause is None:
        return ""
    by = f"by {pause.by}" if pause.by else "by somebody"
    reason = f": {pause.reason}" if pause.reason else ""
    hint = ". Raise the limit, then unpause" if pause.limit else ""
    return f"{by}{reason}{hint}"


def _history_text(size: ThreadSize) -> str:
    least, more = ("at least ", "+") if size.is_partial else ("", "")
    history = bytes_text(size.history_bytes)
    return f"{least}{history} in {size.events}{more} events, {size.runs}{more} runs"


def _context_text(status: ThreadStatus) -> str:
    text = bytes_text(status.context_bytes)
    if status.snapshot is not None:
        text += f", entries up to {status.snapshot.upto_seq} compacted"
    if status.compaction_due_ms is not None:
        lag = bytes_text(status.compaction_lag_bytes)
        text += f"; compaction due since {time_text(status.compaction_due_ms)}, {lag} over"
    return text


def approval_text(approval: Approval) -> str:
    """Return a line about a call that waits for a person."""
    text = (
        f"{approval.id}  {approval.tool} {approval.arguments}  since {time_text(approval.asked_ms)}"
    )
    if approval.deadline_ms is not None:
        what = "deny" if approval.escalated else approval.on_deadline
        text += f", {what} at {time_text(approval.deadline_ms)}"
    if approval.approvers:
        text += f", for {' or '.join(approval.approvers)}"
    return f"{text}, escalated" if approval.escalated else text


def arguments_text(arguments: str) -> str:
    """Return a call's arguments, indented: no line of theirs looks like one of ours."""
    data = arguments.encode(errors="replace")
    shown = plain(data[:_ARGUMENTS_BYTES_MAX].decode(errors="ignore"))
    left_bytes = len(data) - _ARGUMENTS_BYTES_MAX
    cut = f"… and {left_bytes} bytes more, which --json prints" if left_bytes > 0 else ""
    return "    " + f"{shown}{cut}".replace("\n", "\n    ")


def entry_text(entry: Entry, message: Message | None) -> str:
    """Return a line about an entry."""
    said = note_text(entry) if message is None else message_text(message)
    size_bytes = entry.size_bytes if entry.original is None else entry.original.size_bytes
    return (
        f"{entry.seq:>6}  {time_text(entry.time_ms)}  {entry.kind:<11}  {bytes_text(size_bytes):>9}  "
        f"{one_line(said)}"
    )


def message_text(message: Message) -> str:
    """Return a message in short: what it says and what it calls."""
    calls = [f"-> {call.tool} {call.arguments[:_LINE_CHARS_MAX]}" for call in message.tool_calls]
    name = f"{message.tool}: " if message.tool else ""
    return f"{name}{message.text[: 4 * _LINE_CHARS_MAX]} {' '.join(calls)}"


def note_text(entry: Entry) -> str:
    """Return in words what an entry that is no message holds."""
    data = entry.data or {}
    match entry.kind:
        case Kind.ASKED:
            return f"{data['id']} {data['tool']} {data['arguments']}"
        case Kind.DECIDED:
            verdict = "approved" if data["approve"] else "denied"
            verdict = "escalated" if data.get("escalated") else verdict
            return f"{data['id']} {verdict} {_by(data)}"
        case Kind.MEMORY:
            return _memory_text(data)
        case Kind.COMPACTION:
            before, after = bytes_text(data["before_bytes"]), bytes_text(data["after_bytes"])
            return f"context {before} -> {after} ({data['reason']})"
        case Kind.LIMIT:
            return f"{data['limit']}: {data['value']:g} of {data['bound']:g}, {data['action']}"
        case Kind.CONTROL:
            return f"{data['action']}{_changes_text(data)} {_by(data)}"
        case Kind.FORK:
            return f"of thread {data['thread_id']} at {data['seq']} {_by(data)}"
    return json.dumps(data)


def _changes_text(data: dict[str, Any]) -> str:
    changes = sorted(data.get("changes", {}).items())
    return "".join(f" {name}={setting_text(value)}" for name, value in changes)


def setting_text(value: object) -> str:
    """Return the value of a policy's field as `limits` takes it."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def _by(data: dict[str, Any]) -> str:
    by = f"by {data['by']}" if data.get("by") else ""
    return f"{by}: {data['reason']}" if data.get("reason") else by


def _memory_text(data: dict[str, Any]) -> str:
    parts = []
    if fact := data.get("remembered"):
        parts.append(f"remembered {fact['key']}: {fact['text']}")
    if data.get("forgotten"):
        parts.append(f"forgot {data['forgotten']}")
    if data.get("evicted"):
        parts.append(f"evicted {', '.join(data['evicted'])}")
    return "; ".join(parts)


def fact_text(fact: Fact) -> str:
    """Return a line about a fact."""
    until = "" if fact.expires_ms is None else f" (until {time_text(fact.expires_ms)})"
    return f"{fact.key}: {one_line(fact.text)}{until}"


def totals_text(totals: Totals) -> str:
    """Return what a thread has done, on one line."""
    parts = [
        f"{totals.messages} messages",
        f"{totals.steps} model calls",
        f"{totals.tool_calls} tool calls",
        f"{totals.failures} failed turns" if totals.failures else "",
        f"{totals.compactions} compactions" if totals.compactions else "",
        f"{totals.tokens:,} tokens" if totals.tokens else "",
        f"{totals.cost_usd:.2f} USD" if totals.cost_usd else "",
        bytes_text(totals.body_bytes),
    ]
    return ", ".join(part for part in parts if part)
