"""Output of the commands: lines and tables for people, JSON for programs.

Text from agents, tools and users passes through `sanitise`, so that it cannot control the terminal.
"""

from __future__ import annotations  # The types below are imported by type checkers only.

import dataclasses
import datetime
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.markup import escape
from rich.table import Table

from everlong.console import out, sanitise
from everlong.format import (
    format_bytes,
    format_count,
    format_spark,
    shorten_line,
    summarise_message,
    summarise_note,
)
from everlong.models.status import ENDED
from everlong.models.thread_ids import show_id

if TYPE_CHECKING:
    from everlong.admin.fleet import FleetView, StoreHealth
    from everlong.archive import Manifest
    from everlong.client.fork_links import ForkLinks
    from everlong.client.lookup import ThreadSize
    from everlong.client.thread_list import ThreadPage
    from everlong.client.visibility import ThreadRow
    from everlong.models import (
        Approval,
        Counters,
        Entry,
        Fact,
        Grant,
        Message,
        Retry,
        Status,
        ThreadCard,
        ThreadStatus,
        Totals,
        UnknownOutcome,
    )

_ARGUMENTS_BYTES_MAX = 4096
_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR


def print_json(value: Any) -> None:
    """Print a value as JSON; dataclasses in it become objects."""
    typer.echo(json.dumps(value, indent=2, default=_convert_to_fields))


async def print_json_items(values: AsyncIterator[Any]) -> None:
    """Print a JSON array, each item as soon as it arrives."""
    before = "["
    async for value in values:
        typer.echo(before + json.dumps(value, indent=2, default=_convert_to_fields), nl=False)
        before = ",\n"
    typer.echo("[]" if before == "[" else "]")


def _convert_to_fields(value: Any) -> Any:
    return dataclasses.asdict(value)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines, without the control characters that text from outside may contain."""
    for line in lines:
        out.print(sanitise(line), markup=False, soft_wrap=True)


def format_time(time_ms: int) -> str:
    """Return a time in the local time zone."""
    return (
        datetime.datetime.fromtimestamp(time_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    )


def build_status_table(
    thread_id: str,
    status: ThreadStatus,
    size: ThreadSize,
    approvals: Sequence[Approval],
    links: ForkLinks,
) -> Table:
    """Return the table of `everlong show`."""
    counters = status.counters
    view = Table(
        title=escape(sanitise(f"{show_id(thread_id)} ({status.agent})")), show_header=False
    )
    rows = [
        ("status", _format_status(status.status, status.reason)),
        ("stopping", "at its next safe point" if _is_stopping(status) else ""),
        ("retries", "\n".join(map(_format_retry, status.retries))),
        ("paused", _format_pause(status)),
        ("ended by", status.ended.reason if status.ended else ""),
        ("held by", status.held_by.removeprefix("held by ")),
        ("messages", f"{counters.answered} of {counters.messages} answered"),
        ("steps", _format_steps(counters)),
        ("tokens", f"{counters.tokens:,}" if counters.tokens else ""),
        ("cost", f"{counters.cost_usd:.2f} USD" if counters.cost_usd else ""),
        ("approvals", "\n".join(map(format_approval, approvals))),
        ("context", _format_context(status)),
        ("state", f"{format_bytes(status.state_bytes)} of operational state"),
        ("history", _format_history(size)),
        ("blobs", f"{format_bytes(size.blob_bytes)} in {format_count(size.blobs, 'object')}"),
        ("last failure", status.last_failure),
        ("forked from", _format_origin(links)),
        ("forks", "\n".join(_format_forks(links))),
    ]
    for name, text in rows:
        if text:
            view.add_row(name, escape(sanitise(text)))
    return view


def _format_origin(links: ForkLinks) -> str:
    if links.origin is None:
        return ""
    after = f" after entry {links.origin.seq}" if links.origin.seq else ", before its first message"
    return f"{show_id(links.origin.thread_id)}{after}"


def _format_forks(links: ForkLinks) -> Iterator[str]:
    for fork in links.forks:
        after = f"after entry {fork.seq}" if fork.seq else "from its beginning"
        yield f"{show_id(fork.thread_id)} {after} ({fork.status})"
    if links.has_more:
        yield f"and more than these {len(links.forks)}"
    if links.problem:
        yield links.problem


def build_archive_table(
    manifest: Manifest, status: ThreadStatus, passed_over: Sequence[str] = ()
) -> Table:
    """Return the table of `everlong show` for a thread that exists only as an archive."""
    counters = status.counters
    view = Table(
        title=escape(sanitise(f"{show_id(manifest.thread_id)} ({status.agent})")), show_header=False
    )
    rows = [
        ("status", f"{status.status}; the server no longer has its history"),
        ("ended by", status.ended.reason if status.ended else ""),
        ("archive", f"{manifest.archive_id}, {format_bytes(manifest.size_bytes)}"),
        ("not readable", "\n".join(passed_over)),
        ("entries", f"{manifest.entries:,}"),
        ("from", format_time(manifest.first_ms) if manifest.first_ms else ""),
        ("until", format_time(manifest.last_ms) if manifest.last_ms else ""),
        ("messages", f"{counters.answered} of {counters.messages} answered"),
        ("steps", _format_steps(counters)),
        ("tokens", f"{counters.tokens:,}" if counters.tokens else ""),
        ("cost", f"{counters.cost_usd:.2f} USD" if counters.cost_usd else ""),
        ("context", _format_context(status)),
    ]
    for name, text in rows:
        if text:
            view.add_row(name, escape(sanitise(text)))
    return view


def _format_steps(counters: Counters) -> str:
    calls = format_count(counters.tool_calls, "tool call")
    return f"{format_count(counters.steps, 'model call')}, {calls}"


def _format_status(status: Status, reason: str) -> str:
    return f"{status} ({reason})" if reason else status.value


def _is_stopping(status: ThreadStatus) -> bool:
    return status.stopping and status.status not in ENDED


def _format_retry(retry: Retry) -> str:
    bound = f" of {retry.attempts_max}" if retry.attempts_max else ""
    when = "runs now" if retry.next_ms is None else f"at {format_time(retry.next_ms)}"
    return f"{retry.call}: attempt {retry.attempt}{bound} {when}; last error: {retry.error}"


def _format_pause(status: ThreadStatus) -> str:
    pause = status.pause
    if pause is None:
        return ""
    by = f"by {pause.by}" if pause.by else "by an unknown user"
    reason = f": {pause.reason}" if pause.reason else ""
    hint = ". Raise the limit, then unpause" if pause.limit else ""
    return f"{by}{reason}{hint}"


def _format_history(size: ThreadSize) -> str:
    history = format_bytes(size.history_bytes)
    if size.is_partial:
        return f"at least {history} in {size.events:,}+ events, {size.runs:,}+ runs"
    return f"{history} in {format_count(size.events, 'event')}, {format_count(size.runs, 'run')}"


def _format_context(status: ThreadStatus) -> str:
    text = format_bytes(status.context_bytes)
    if status.snapshot is not None:
        text += f", entries up to {status.snapshot.upto_seq} compacted"
    if status.compaction_due_ms is not None:
        lag = format_bytes(status.compaction_lag_bytes)
        text += f"; compaction due since {format_time(status.compaction_due_ms)}, {lag} over"
    return text


def format_approval(approval: Approval) -> str:
    """Return a line about a tool call that waits for approval."""
    text = f"{approval.id}  {approval.tool} {approval.arguments}  since {format_time(approval.asked_ms)}"
    if approval.deadline_ms is not None:
        what = "deny" if approval.escalated else approval.on_deadline
        text += f", {what} at {format_time(approval.deadline_ms)}"
    if approval.approvers:
        text += f", for {' or '.join(approval.approvers)}"
    if approval.needed > 1:
        given = f" ({', '.join(each.by for each in approval.votes)})" if approval.votes else ""
        text += f", {len(approval.votes)} of {approval.needed} approvals{given}"
    return f"{text}, escalated" if approval.escalated else text


def format_outcome(outcome: UnknownOutcome) -> str:
    """Return a line about a call whose outcome is unknown."""
    text = f"{outcome.id}  {outcome.tool} {outcome.arguments}  {_CAUSES[outcome.cause]}"
    text += f", since {format_time(outcome.asked_ms)}, idempotency key {outcome.idempotency_key}"
    if outcome.deadline_ms is not None:
        text += f", until {format_time(outcome.deadline_ms)}"
    return f"{text}, for {' or '.join(outcome.approvers)}" if outcome.approvers else text


_CAUSES: Final[Mapping[str, str]] = {
    "lost": "worker lost",
    "timeout": "timed out",
    "unsaved": "result lost",
    "unclear": "the tool did not know",
}


def format_grant(grant: Grant) -> str:
    """Return a line about a grant."""
    calls = (
        f"{grant.tool} {grant.arguments}" if grant.arguments else f"{grant.tool} (any arguments)"
    )
    place = f"agent {grant.agent}" if grant.agent else f"thread {show_id(grant.thread_id)}"
    until = "" if grant.expires_ms is None else f", until {format_time(grant.expires_ms)}"
    since = format_time(grant.granted_ms)
    return f"{grant.id}  {calls}  in {place}, by {grant.by} at {since}{until}"


def format_arguments(arguments: str) -> str:
    """Return a call's arguments, indented, so that no line looks like the command's own output."""
    data = arguments.encode(errors="replace")
    shown = sanitise(data[:_ARGUMENTS_BYTES_MAX].decode(errors="ignore"))
    left_bytes = len(data) - _ARGUMENTS_BYTES_MAX
    cut = f"… and {left_bytes} more bytes; --json prints them" if left_bytes > 0 else ""
    return "    " + f"{shown}{cut}".replace("\n", "\n    ")


def format_entry(entry: Entry, message: Message | None) -> str:
    """Return a line about an entry."""
    text = summarise_note(entry) if message is None else summarise_message(message)
    size_bytes = entry.size_bytes if entry.original is None else entry.original.size_bytes
    return (
        f"{entry.seq:>6}  {format_time(entry.time_ms)}  {entry.kind:<16}  "
        f"{format_bytes(size_bytes):>9}  {shorten_line(text)}"
    )


def format_fact(fact: Fact) -> str:
    """Return a line about a fact."""
    until = "" if fact.expires_ms is None else f" (until {format_time(fact.expires_ms)})"
    return f"{fact.key}: {shorten_line(fact.text)}{until}"


def format_totals(totals: Totals) -> str:
    """Return a thread's counters on one line."""
    parts = [
        format_count(totals.messages, "message"),
        format_count(totals.steps, "model call"),
        format_count(totals.tool_calls, "tool call"),
        format_count(totals.failures, "failed turn") if totals.failures else "",
        format_count(totals.compactions, "compaction") if totals.compactions else "",
        f"{totals.tokens:,} tokens" if totals.tokens else "",
        f"{totals.cost_usd:.2f} USD" if totals.cost_usd else "",
        format_bytes(totals.body_bytes),
    ]
    return ", ".join(part for part in parts if part)


def describe_page(page: ThreadPage, *, is_search: bool = False) -> list[str]:
    """Return the lines below the table of `everlong threads`: the position, and options to see more."""
    first, last = page.offset + 1, page.offset + len(page.rows)
    shown = f"{first} to {last} of {page.total}" if page.rows else "none"
    if page.source == "memory":
        counts = ", ".join(f"{count} {name}" for name, count in page.by_status.items())
        more = "" if page.is_complete else "; not all threads are listed"
        return [f"threads {shown}; in all: {counts or 'none'}{more}"]
    lines = [f"threads {shown}; in all: {page.all_threads:,}", f"listed: {page.order}"]
    if page.source == "index" and not page.is_complete:
        lines[-1] += f" of {page.all_threads:,}"
    if page.source == "server" and is_search:
        lines.append(
            "only ids that begin with the text; --sort=id finds it anywhere, reading all ids"
        )
    if page.next_cursor:
        lines.append(f"more: --cursor {page.next_cursor}")
    if page.problem:
        lines.append(page.problem)
    return lines


def build_threads_table(
    page: ThreadPage, *, is_wide: bool = True, columns: Sequence[str] = ()
) -> Table:
    """Return the table of `everlong threads`; by default, a narrow terminal gets fewer columns."""
    table = Table()
    for name in ("thread", "agent", "status") if is_wide else ("thread", "status"):
        table.add_column(name, no_wrap=name == "thread", overflow="fold")
    names = columns or (_WIDE if is_wide else _NARROW)
    shown = [each for each in _COLUMNS if each[0] in names]
    for name, _ in shown:
        is_text = name == "labels"
        table.add_column(
            _TITLES.get(name, name), justify="left" if is_text else "right", no_wrap=not is_text
        )
    for row in page.rows:
        status = _format_status(row.status, row.reason)
        name = show_id(row.thread_id)
        words = (name, row.agent, status) if is_wide else (name, status)
        table.add_row(
            *(escape(sanitise(each)) for each in words),
            *(escape(sanitise(text(row))) for _, text in shown),
        )
    return table


def _make_card_column(text: Callable[[ThreadCard], str]) -> Callable[[ThreadRow], str]:
    return lambda row: "" if row.card is None else text(row.card)


def _format_nonzero_bytes(size_bytes: float) -> str:
    return format_bytes(int(size_bytes)) if size_bytes else ""


# In the order of the table; `everlong threads --columns` takes these names.
_COLUMNS: Final[Sequence[tuple[str, Callable[[ThreadRow], str]]]] = (
    ("operational", _make_card_column(lambda card: format_bytes(card.operational_bytes))),
    ("context", _make_card_column(lambda card: format_bytes(card.context_bytes))),
    ("stored", lambda row: format_bytes(row.stored_bytes)),
    ("trend", _make_card_column(lambda card: format_spark([size for _, size in card.trend]))),
    ("growth", lambda row: _format_nonzero_bytes(row.growth_bytes_per_hour)),
    ("steps", _make_card_column(lambda card: f"{card.steps:,}")),
    ("tokens", _make_card_column(lambda card: f"{card.tokens:,}" if card.tokens else "")),
    ("cost", _make_card_column(lambda card: f"${card.cost_usd:,.2f}" if card.cost_usd else "")),
    ("resume", lambda row: f"{row.last_resume_ms:,.0f} ms" if row.last_resume_ms else ""),
    ("lag", _make_card_column(lambda card: _format_nonzero_bytes(card.lag_bytes))),
    ("waits", lambda row: str(row.pending) if row.pending else ""),
    ("active", lambda row: f"{_format_age(row.active_ms)} ago" if row.active_ms else ""),
    ("labels", lambda row: " ".join(row.labels)),
)
THREAD_COLUMNS: Final = tuple(name for name, _ in _COLUMNS)
_TITLES: Final = {"growth": "growth/h"}
_WIDE: Final = frozenset(THREAD_COLUMNS) - {"active", "labels"}
_NARROW: Final = frozenset({"stored", "growth", "steps", "waits"})


def build_fleet_rows(view: FleetView, health: StoreHealth) -> list[tuple[str, str]]:
    """Return the rows of `everlong fleet`: a name and its text each."""
    counts = ", ".join(f"{count} {name}" for name, count in view.by_status.items())
    resume = ""
    if view.resume_p50_ms is not None:
        resume = f"p50 {view.resume_p50_ms:,.0f} ms, p95 {view.resume_p95_ms or 0:,.0f} ms"
    return [
        ("threads", f"{view.threads:,}: {counts}" + _describe_missing(view)),
        (
            "stored",
            f"{format_bytes(view.stored_bytes)}, "
            f"{format_bytes(int(view.growth_bytes_per_hour))} an hour",
        ),
        ("saved", _format_saved(view)),
        ("steps", f"{view.steps:,}, {view.tokens:,} tokens, {view.cost_usd:,.2f} USD"),
        ("resumes", resume),
        ("approvals", _format_pending(view)),
        ("failure loops", _format_loops(view)),
        ("grow fastest", _format_top(view.growing, lambda row: row.growth_bytes_per_hour, "/h")),
        ("largest", _format_top(view.largest, lambda row: row.stored_bytes, "")),
        ("store", f"{health.status}: {health.text}"),
        ("last sweep", _format_sweep(view)),
    ]


def _describe_missing(view: FleetView) -> str:
    if view.is_complete:
        return ""
    if view.all_threads <= view.threads:
        return ", and more"
    return f"; the newest of {view.all_threads:,}. All figures cover these only"


def _format_sweep(view: FleetView) -> str:
    report = view.last_sweep
    if report is None:
        return "none"
    if report.incomplete:
        took = f"incomplete: {report.incomplete[0]}"
    else:
        took = f"{format_bytes(report.quarantined.bytes)} quarantined"
        took += f", {format_bytes(report.purged.bytes)} deleted"
    kind = " (a dry run)" if report.dry_run else ""
    return f"{format_time(report.started_ms)}{kind}: {took}; {format_bytes(report.stored.bytes)} stored"


def _format_saved(view: FleetView) -> str:
    if not view.naive_bytes:
        return ""
    share = view.saved_bytes / view.naive_bytes
    read = format_bytes(view.naive_bytes)
    return f"{format_bytes(view.saved_bytes)} ({share:.0%}) of {read} read by model calls"


def _format_pending(view: FleetView) -> str:
    if not view.pending:
        return "none pending"
    since = "" if view.oldest_asked_ms is None else f", oldest {_format_age(view.oldest_asked_ms)}"
    return f"{view.pending} pending{since}"


def _format_loops(view: FleetView) -> str:
    return ", ".join(f"{show_id(row.thread_id)} ({row.reason})" for row in view.loops[:5]) or "none"


def _format_top(rows: Sequence[ThreadRow], key: Callable[[ThreadRow], float], per: str) -> str:
    return ", ".join(
        f"{show_id(row.thread_id)} {format_bytes(int(key(row)))}{per}" for row in rows[:5]
    )


def _format_age(since_ms: int) -> str:
    seconds = max(0.0, time.time() - since_ms / 1000)
    if seconds < _HOUR:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / _HOUR:.1f} h" if seconds < _DAY else f"{seconds / _DAY:.1f} days"
