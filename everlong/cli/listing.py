"""Commands that list: threads, all of them together, the runs of one."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Final, NamedTuple, get_args

import typer
from rich.markup import escape
from rich.table import Table
from temporalio.client import Client

from everlong.admin import service
from everlong.admin.console import err, out, plain, print_table
from everlong.admin.wording import bytes_text, spark_text
from everlong.cli.app import Json, ThreadId
from everlong.cli.views import print_json, print_lines, time_text
from everlong.config import Settings, load_settings
from everlong.connection import connect, open_configured_packs
from everlong.errors import ConfigError, StoreError
from everlong.models import ThreadCard
from everlong.thread_ids import show_id

commands = typer.Typer()

_SORTS: Final[tuple[str, ...]] = get_args(service.Sort)
_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR
# What all columns of `threads` need, with ids of 24 characters.
_WIDE_CHARS: Final = 140


@commands.command()
def threads(
    text: Annotated[str, typer.Argument(help="Part of an id; all threads if left out.")] = "",
    status: Annotated[
        str, typer.Option(help="Only those: active, approval, paused, stopped, ...")
    ] = "",
    agent: Annotated[str, typer.Option(help="Only this agent's.")] = "",
    sort: Annotated[
        str, typer.Option(help="stored, growth, steps, resume, lag, pending, ...; - is descending.")
    ] = "-started",
    limit: Annotated[int, typer.Option(min=1, max=service.PAGE_LIMIT_MAX)] = 50,
    offset: Annotated[int, typer.Option(min=0)] = 0,
    cursor: Annotated[str, typer.Option(help="Go on where the page before says.")] = "",
    as_json: Json = False,
) -> None:
    """List threads: status, sizes, growth, approvals. No thread is asked, so none resumes.

    Beyond 20,000 threads, TEXT is the beginning of an id, and the server is asked for one page. Any
    order but the newest first reads all threads, and looks inside ids too.

    Example: everlong threads --status paused --sort=-stored
    """
    if sort not in _SORTS:
        raise ConfigError(f"{sort[:20]!r} is no order; give one of {', '.join(_SORTS)}")
    wanted = _Wanted(text, status, agent, sort, offset, limit, cursor)
    asyncio.run(_threads(load_settings(), wanted, as_json))


@commands.command()
def fleet(as_json: Json = False) -> None:
    """Show all threads together: bytes, growth, resumes, failure loops, the store, the last sweep.

    Example: everlong fleet --json
    """
    asyncio.run(_fleet(load_settings(), as_json))


@commands.command()
def runs(
    thread_id: ThreadId,
    limit: Annotated[int, typer.Option(min=1, max=service.RUNS_MAX)] = 20,
    from_run: Annotated[
        str, typer.Option("--from", help="Begin with this run, to page on to older ones.")
    ] = "",
    as_json: Json = False,
) -> None:
    """List a thread's runs, newest first: events, bytes, and where the Temporal UI shows them.

    Example: everlong runs ops-7
    """
    asyncio.run(_runs(load_settings(), thread_id, from_run, limit, as_json))


class _Wanted(NamedTuple):
    """Arguments of `Directory.page`."""

    text: str
    status: str
    agent: str
    sort: str
    offset: int
    limit: int
    cursor: str

    @property
    def needs_index(self) -> bool:
        """Whether the server cannot list a page of a large fleet."""
        return self.sort != "-started" or bool(self.offset)


async def _threads(settings: Settings, wanted: _Wanted, as_json: bool) -> None:
    client = await connect(settings)
    directory = await _directory(client, index=wanted.needs_index)
    page = await directory.page(*wanted)  # type: ignore[arg-type] # `sort` is one of Sort
    if page.source == "index" and not page.read_ms:  # No id begins with the text.
        with err.status("reading threads"):
            await directory.read()
        page = await directory.page(*wanted)  # type: ignore[arg-type] # `sort` is one of Sort
    if as_json:
        print_json(page)
        return
    is_wide = not out.is_terminal or out.width >= _WIDE_CHARS
    print_table(threads_table(page, is_wide=is_wide))
    for line in page_lines(page, is_search=bool(wanted.text)):
        err.print(plain(line), markup=False)


def page_lines(page: service.ThreadPage, *, is_search: bool = False) -> list[str]:
    """Return what `threads` says of a page: which threads it has, and how to see others."""
    first, last = page.offset + 1, page.offset + len(page.rows)
    shown = f"{first} to {last} of {page.total}" if page.rows else "none"
    if page.source == "memory":
        counts = ", ".join(f"{count} {name}" for name, count in page.by_status.items())
        more = "" if page.is_complete else "; there are more than are listed"
        return [f"threads {shown}; in all: {counts or 'none'}{more}"]
    lines = [f"threads {shown}; in all: {page.all_threads:,}", f"listed: {page.order}"]
    if page.source == "index" and not page.is_complete:
        lines[-1] += f" of {page.all_threads:,}"
    if page.source == "server" and is_search:
        lines.append("ids that contain it elsewhere: add --sort=id, which reads all threads")
    if page.next_cursor:
        lines.append(f"more: --cursor {page.next_cursor}")
    if page.problem:
        lines.append(page.problem)
    return lines


def threads_table(page: service.ThreadPage, *, is_wide: bool = True) -> Table:
    """Return what `threads` prints; where there is little room, less of it."""
    table = Table()
    for name in ("thread", "agent", "status") if is_wide else ("thread", "status"):
        table.add_column(name, no_wrap=name == "thread", overflow="fold")
    columns = _COLUMNS if is_wide else [each for each in _COLUMNS if each[0] in _NARROW]
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in page.rows:
        status = f"{row.status} ({row.reason})" if row.reason else row.status
        name = show_id(row.thread_id)
        words = (name, row.agent, status) if is_wide else (name, status)
        table.add_row(*(escape(plain(each)) for each in words), *(text(row) for _, text in columns))
    return table


def _of_card(text: Callable[[ThreadCard], str]) -> Callable[[service.ThreadRow], str]:
    return lambda row: "" if row.card is None else text(row.card)


def _bytes_or_none(size_bytes: float) -> str:
    return bytes_text(int(size_bytes)) if size_bytes else ""


_COLUMNS: Final[Sequence[tuple[str, Callable[[service.ThreadRow], str]]]] = (
    ("operational", _of_card(lambda card: bytes_text(card.operational_bytes))),
    ("context", _of_card(lambda card: bytes_text(card.context_bytes))),
    ("stored", lambda row: bytes_text(row.stored_bytes)),
    ("trend", _of_card(lambda card: spark_text([size for _, size in card.trend]))),
    ("growth/h", lambda row: _bytes_or_none(row.growth_bytes_per_hour)),
    ("steps", _of_card(lambda card: f"{card.steps:,}")),
    ("resume", lambda row: f"{row.last_resume_ms:,.0f} ms" if row.last_resume_ms else ""),
    ("lag", _of_card(lambda card: _bytes_or_none(card.lag_bytes))),
    ("waits", lambda row: str(row.pending) if row.pending else ""),
)
_NARROW: Final = frozenset({"stored", "growth/h", "steps", "waits"})


async def _fleet(settings: Settings, as_json: bool) -> None:
    client = await connect(settings)
    packs = open_configured_packs(settings)
    directory = await _directory(client)
    last_sweep = None
    with contextlib.suppress(StoreError):  # What is wrong with the store is said below.
        last_sweep = await service.last_sweep(client, packs)
    view = await service.fleet(directory, last_sweep)
    health = await service.store_health(packs)
    if as_json:
        print_json({"fleet": view, "store": health})
        return
    table = Table(show_header=False)
    for name, text in fleet_rows(view, health):
        if text:
            table.add_row(name, escape(plain(text)))
    print_table(table)


def fleet_rows(view: service.FleetView, health: service.StoreHealth) -> list[tuple[str, str]]:
    """Return what `fleet` prints."""
    counts = ", ".join(f"{count} {name}" for name, count in view.by_status.items())
    resume = ""
    if view.resume_p50_ms is not None:
        resume = f"p50 {view.resume_p50_ms:,.0f} ms, p95 {view.resume_p95_ms or 0:,.0f} ms"
    return [
        ("threads", f"{view.threads:,}: {counts}" + _more_text(view)),
        (
            "stored",
            f"{bytes_text(view.stored_bytes)}, {bytes_text(int(view.growth_bytes_per_hour))} an hour",
        ),
        ("saved", _saved_text(view)),
        ("steps", f"{view.steps:,}, {view.tokens:,} tokens, {view.cost_usd:,.2f} USD"),
        ("resumes", resume),
        ("approvals", _approvals_text(view)),
        ("failure loops", _loops_text(view)),
        ("grow fastest", _names(view.growing, lambda row: row.growth_bytes_per_hour, "/h")),
        ("largest", _names(view.largest, lambda row: row.stored_bytes, "")),
        ("store", f"{health.status}: {health.text}"),
        ("last sweep", _sweep_text(view)),
    ]


def _more_text(view: service.FleetView) -> str:
    if view.is_complete:
        return ""
    if view.all_threads <= view.threads:
        return ", and more"
    return f"; the newest of {view.all_threads:,}, and all figures are about these"


def _sweep_text(view: service.FleetView) -> str:
    report = view.last_sweep
    if report is None:
        return "none"
    if report.incomplete:
        took = f"incomplete: {report.incomplete[0]}"
    else:
        took = f"{bytes_text(report.quarantined.bytes)} quarantined"
        took += f", {bytes_text(report.purged.bytes)} deleted"
    kind = " (a dry run)" if report.dry_run else ""
    return f"{time_text(report.started_ms)}{kind}: {took}; {bytes_text(report.stored.bytes)} stored"


def _saved_text(view: service.FleetView) -> str:
    if not view.naive_bytes:
        return ""
    share = view.saved_bytes / view.naive_bytes
    read = bytes_text(view.naive_bytes)
    return f"{bytes_text(view.saved_bytes)} ({share:.0%}) of {read} that model calls have read"


def _approvals_text(view: service.FleetView) -> str:
    if not view.pending:
        return "none wait"
    since = "" if view.oldest_asked_ms is None else f", oldest {_age(view.oldest_asked_ms)}"
    return f"{view.pending} wait{since}"


def _loops_text(view: service.FleetView) -> str:
    return ", ".join(f"{show_id(row.thread_id)} ({row.reason})" for row in view.loops[:5]) or "none"


def _names(
    rows: Sequence[service.ThreadRow], key: Callable[[service.ThreadRow], float], per: str
) -> str:
    return ", ".join(
        f"{show_id(row.thread_id)} {bytes_text(int(key(row)))}{per}" for row in rows[:5]
    )


def _age(since_ms: int) -> str:
    seconds = max(0.0, time.time() - since_ms / 1000)
    if seconds < _HOUR:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / _HOUR:.1f} h" if seconds < _DAY else f"{seconds / _DAY:.1f} days"


async def _runs(
    settings: Settings, thread_id: str, from_run: str, limit: int, as_json: bool
) -> None:
    client = await connect(settings)
    page = await service.runs(
        client, thread_id, from_run_id=from_run, limit=limit, temporal_ui=settings.temporal_ui
    )
    if as_json:
        print_json(page)
        return
    for row in page.runs:
        closed = f" to {time_text(row.closed_ms)}" if row.closed_ms else ""
        print_lines(
            [
                f"{row.run_id}  {row.status:<16}  {time_text(row.started_ms)}{closed}  {row.events} "
                f"events, {bytes_text(row.history_bytes)}  {row.ui_url}".rstrip()
            ]
        )
    if page.next_run_id:
        err.print(f"older ones: --from {page.next_run_id}", markup=False)


async def _directory(client: Client, *, index: bool = True) -> service.Directory:
    async def connected() -> Client:
        return client

    directory = service.Directory(connected)
    with err.status("reading threads"):
        await directory.read(index=index)
    return directory
