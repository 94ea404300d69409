"""How threads are printed: for people in short lines, for programs as JSON."""

import dataclasses
import datetime
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from everlong.admin.console import out, plain
from everlong.admin.service import Manifest, ThreadSize, Totals
from everlong.admin.wording import bytes_text, counted, message_text, note_text, one_line
from everlong.models import Approval, Entry, Fact, Message, ThreadStatus
from everlong.thread_ids import show_id

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
    view = Table(title=escape(plain(f"{show_id(thread_id)} ({status.agent})")), show_header=False)
    rows = [
        ("status", status.status),
        ("paused", _pause_text(status)),
        ("ended by", status.ended.reason if status.ended else ""),
        ("held by", status.held_by),
        ("messages", f"{counters.answered} of {counters.messages} answered"),
        (
            "steps",
            f"{counted(counters.steps, 'model call')}, {counted(counters.tool_calls, 'tool call')}",
        ),
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


def archive_table(
    manifest: Manifest, status: ThreadStatus, passed_over: Sequence[str] = ()
) -> Table:
    """Return what `show` prints of a thread that is only in its archive."""
    counters = status.counters
    view = Table(
        title=escape(plain(f"{show_id(manifest.thread_id)} ({status.agent})")), show_header=False
    )
    rows = [
        ("status", f"{status.status}; the server has no history of it any more"),
        ("ended by", status.ended.reason if status.ended else ""),
        ("archive", f"{manifest.archive_id}, {bytes_text(manifest.size_bytes)}"),
        ("not readable", "\n".join(passed_over)),
        ("entries", f"{manifest.entries:,}"),
        ("from", time_text(manifest.first_ms) if manifest.first_ms else ""),
        ("until", time_text(manifest.last_ms) if manifest.last_ms else ""),
        ("messages", f"{counters.answered} of {counters.messages} answered"),
        (
            "steps",
            f"{counted(counters.steps, 'model call')}, {counted(counters.tool_calls, 'tool call')}",
        ),
        ("tokens", f"{counters.tokens:,}" if counters.tokens else ""),
        ("cost", f"{counters.cost_usd:.2f} USD" if counters.cost_usd else ""),
        ("context", _context_text(status)),
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


def fact_text(fact: Fact) -> str:
    """Return a line about a fact."""
    until = "" if fact.expires_ms is None else f" (until {time_text(fact.expires_ms)})"
    return f"{fact.key}: {one_line(fact.text)}{until}"


def totals_text(totals: Totals) -> str:
    """Return what a thread has done, on one line."""
    parts = [
        f"{totals.messages} messages",
        f"{totals.steps} model calls",
        counted(totals.tool_calls, "tool call"),
        f"{totals.failures} failed turns" if totals.failures else "",
        f"{totals.compactions} compactions" if totals.compactions else "",
        f"{totals.tokens:,} tokens" if totals.tokens else "",
        f"{totals.cost_usd:.2f} USD" if totals.cost_usd else "",
        bytes_text(totals.body_bytes),
    ]
    return ", ".join(part for part in parts if part)
