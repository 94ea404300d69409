"""Commands for threads: list them, talk to one, look at one."""

import asyncio
import contextlib
import dataclasses
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Final, NamedTuple, get_args

import typer
from rich.markup import escape
from rich.table import Table
from temporalio.client import Client

from everlong.admin.fleet import check_store_health, load_fleet
from everlong.cli.options import By, Json, ThreadId, resolve_name
from everlong.cli.output import (
    build_archive_table,
    build_fleet_rows,
    build_status_table,
    build_threads_table,
    describe_page,
    format_approval,
    format_entry,
    format_fact,
    format_time,
    format_totals,
    print_json,
    print_json_items,
    print_lines,
)
from everlong.client.lookup import RUNS_MAX
from everlong.client.progress import ThreadProgress
from everlong.client.sweeps import read_last_sweep
from everlong.client.thread import ThreadHandle
from everlong.client.thread_list import PAGE_LIMIT_MAX, Sort, ThreadList
from everlong.client.wait import SCAN_ENTRIES
from everlong.config import Settings, load_settings
from everlong.connection import connect, open_configured_packs
from everlong.console import err, out, print_table, sanitise
from everlong.errors import ConfigError, EntryNotFound, StoreError
from everlong.format import format_bytes, shorten_line, summarise_message
from everlong.models import Entry, Message, SegmentRef, Totals, seq_after
from everlong.models.thread_ids import quote_id, show_id
from everlong.storage.journal import JournalReader
from everlong.storage.segments import MESSAGE_KINDS

commands = typer.Typer(add_completion=False)

_SORTS: Final[tuple[str, ...]] = get_args(Sort)
# Width of the full table of `threads`, with ids of 24 characters.
_WIDE_CHARS: Final = 140
_JOURNAL_ENTRIES = 50
# Entries read at a time with complete messages: one message may have 64 MiB.
_WHOLE_ENTRIES = 64


@commands.command()
def threads(
    text: Annotated[str, typer.Argument(help="Part of an id; all threads by default.")] = "",
    status: Annotated[
        str, typer.Option(help="Only this status: active, approval, paused, stopped, ...")
    ] = "",
    agent: Annotated[str, typer.Option(help="Only threads of this agent.")] = "",
    sort: Annotated[
        str, typer.Option(help="stored, growth, steps, resume, lag, pending, ...; - is descending.")
    ] = "-started",
    limit: Annotated[int, typer.Option(min=1, max=PAGE_LIMIT_MAX)] = 50,
    offset: Annotated[int, typer.Option(min=0)] = 0,
    cursor: Annotated[str, typer.Option(help="Continue at the cursor of the previous page.")] = "",
    as_json: Json = False,
) -> None:
    """List threads: status, sizes, growth, approvals. It queries no thread, so none resumes.

    Beyond 20,000 threads, TEXT matches only the beginning of ids, and one page is read from the server.
    Any order but the newest first reads all threads, and TEXT then matches anywhere in an id.

    Example: everlong threads --status paused --sort=-stored
    """
    if sort not in _SORTS:
        raise ConfigError(f"--sort cannot be {sort[:20]!r}; use one of {', '.join(_SORTS)}")
    request = _PageRequest(text, status, agent, sort, offset, limit, cursor)
    asyncio.run(_threads(load_settings(), request, as_json))


@commands.command()
def fleet(as_json: Json = False) -> None:
    """Show totals of all threads: bytes, growth, resumes, failure loops, store, last sweep.

    Example: everlong fleet --json
    """
    asyncio.run(_fleet(load_settings(), as_json))


@commands.command()
def runs(
    thread_id: ThreadId,
    limit: Annotated[int, typer.Option(min=1, max=RUNS_MAX)] = 20,
    from_run: Annotated[
        str, typer.Option("--from", help="Start at this run; older runs follow.")
    ] = "",
    as_json: Json = False,
) -> None:
    """List a thread's runs, newest first: events, bytes, and links to the Temporal UI.

    Example: everlong runs ops-7
    """
    asyncio.run(_runs(load_settings(), thread_id, from_run, limit, as_json))


class _PageRequest(NamedTuple):
    """Arguments of `ThreadList.page`."""

    text: str
    status: str
    agent: str
    sort: str
    offset: int
    limit: int
    cursor: str

    @property
    def needs_index(self) -> bool:
        """Whether a large fleet has to be read whole: the server can only list the newest first."""
        return self.sort != "-started" or bool(self.offset)


async def _threads(settings: Settings, request: _PageRequest, as_json: bool) -> None:
    client = await connect(settings)
    thread_list = await _read_thread_list(client, index=request.needs_index)
    page = await thread_list.page(*request)  # type: ignore[arg-type] # `sort` is one of Sort
    if page.source == "index" and not page.read_ms:  # No id begins with the text.
        with err.status("reading threads"):
            await thread_list.read()
        page = await thread_list.page(*request)  # type: ignore[arg-type] # `sort` is one of Sort
    if as_json:
        print_json(page)
        return
    is_wide = not out.is_terminal or out.width >= _WIDE_CHARS
    print_table(build_threads_table(page, is_wide=is_wide))
    for line in describe_page(page, is_search=bool(request.text)):
        err.print(sanitise(line), markup=False)


async def _fleet(settings: Settings, as_json: bool) -> None:
    client = await connect(settings)
    packs = open_configured_packs(settings)
    thread_list = await _read_thread_list(client)
    last_sweep = None
    with contextlib.suppress(StoreError):  # `check_store_health` below reports it.
        last_sweep = await read_last_sweep(client, packs)
    view = await load_fleet(thread_list, last_sweep)
    health = await check_store_health(packs)
    if as_json:
        print_json({"fleet": view, "store": health})
        return
    table = Table(show_header=False)
    for name, text in build_fleet_rows(view, health):
        if text:
            table.add_row(name, escape(sanitise(text)))
    print_table(table)


async def _runs(
    settings: Settings, thread_id: str, from_run: str, limit: int, as_json: bool
) -> None:
    thread = ThreadHandle(await connect(settings), thread_id)
    page = await thread.runs(from_run_id=from_run, limit=limit, temporal_ui=settings.temporal_ui)
    if as_json:
        print_json(page)
        return
    for row in page.runs:
        closed = f" to {format_time(row.closed_ms)}" if row.closed_ms else ""
        print_lines(
            [
                f"{row.run_id}  {row.status:<16}  {format_time(row.started_ms)}{closed}  {row.events} "
                f"events, {format_bytes(row.history_bytes)}  {row.ui_url}".rstrip()
            ]
        )
    if page.next_run_id:
        err.print(f"older runs: --from {page.next_run_id}", markup=False)


async def _read_thread_list(client: Client, *, index: bool = True) -> ThreadList:
    async def get_client() -> Client:
        return client

    thread_list = ThreadList(get_client)
    with err.status("reading threads"):
        await thread_list.read(index=index)
    return thread_list


@commands.command()
def send(
    thread_id: ThreadId,
    text: Annotated[str, typer.Argument(help="The message; - reads it from standard input.")],
    agent: Annotated[
        str | None, typer.Option(help="Start the thread with this agent, if it does not exist.")
    ] = None,
    by: By = "",
    wait: Annotated[bool, typer.Option(help="Wait for the answer and print it.")] = True,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the answer.")] = 300.0,
) -> None:
    """Send a message to a thread and print the answer.

    Examples: everlong send ops-7 'Why is checkout slow?' --agent ops. From a file: everlong send ops-7
    - --no-wait < report.txt
    """
    if text == "-":
        text = sys.stdin.buffer.read().decode(errors="replace")
    seconds_max = timeout if wait else 0.0
    asyncio.run(_send(load_settings(), thread_id, text, agent, _resolve_sender(by), seconds_max))


@commands.command()
def show(
    thread_id: ThreadId,
    at: Annotated[
        int | None, typer.Option(help="The state after this entry, with the model's context.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a thread's status, counters and sizes, now or after an entry of its journal.

    Example: everlong show ops-7 --at 120
    """
    settings = load_settings()
    if at is None:
        asyncio.run(_show(settings, thread_id, as_json))
    else:
        asyncio.run(_show_at(settings, thread_id, at, as_json))


@commands.command()
def journal(
    thread_id: ThreadId,
    first: Annotated[
        int | None, typer.Option("--from", min=1, help="First entry; by default the last 50.")
    ] = None,
    last: Annotated[int | None, typer.Option("--to", min=1, help="Last entry.")] = None,
    as_json: Json = False,
) -> None:
    """List the entries of a thread's journal. With --json, messages are complete.

    Example: everlong journal ops-7 --from 100 --to 120 --json
    """
    asyncio.run(_journal(load_settings(), thread_id, first, last, as_json))


def _resolve_sender(by: str) -> str:
    """Return the sender's name, or an empty one: messages may be anonymous."""
    try:
        return resolve_name(by)
    except ConfigError:
        return ""


async def _send(
    settings: Settings,
    thread_id: str,
    text: str,
    agent: str | None,
    by: str,
    seconds_max: float,
) -> None:
    thread = ThreadHandle(
        await connect(settings),
        thread_id,
        packs=open_configured_packs(settings),
        task_queue=settings.task_queue,
    )
    printed: list[str] = []

    def print_wait(text: str) -> None:
        """Print the reason for the wait when it changes."""
        if printed[-1:] != [text]:
            err.print(sanitise(f"{show_id(thread_id)} waits: {text}"), markup=False, soft_wrap=True)
        printed[:] = [text]

    number = await thread.send(text, agent=agent, by=by, on_wait=print_wait)
    queued = f"message {number} is queued"
    if not seconds_max:
        print_lines([f"{queued} on thread {show_id(thread_id)}"])
        return
    with err.status(queued) as line:
        answer = await thread.wait(
            number,
            seconds_max=seconds_max,
            on_progress=lambda progress: line.update(
                escape(sanitise(f"{queued}; {_describe_progress(thread_id, progress)}"))
            ),
            on_wait=print_wait,
        )
    out.print(sanitise(answer), markup=False, soft_wrap=True)


def _describe_progress(thread_id: str, progress: ThreadProgress) -> str:
    if progress.held_by:
        return f"held by {progress.held_by}"
    if progress.status == "approval":
        return f"waiting for approval: everlong approvals {quote_id(thread_id)}"
    return "waiting for the answer"


async def _show(settings: Settings, thread_id: str, as_json: bool) -> None:
    packs = open_configured_packs(settings)
    thread = ThreadHandle(await connect(settings), thread_id, packs=packs)
    past = await thread.timeline()
    status = past.status
    if past.archive is not None:
        if as_json:
            archive = {"archive": past.archive, "unreadable_archives": past.passed_over}
            print_json(dataclasses.asdict(status) | archive)
        else:
            print_table(build_archive_table(past.archive, status, past.passed_over))
        return
    approvals = await thread.approvals() if status.pending else []
    size = await thread.size()
    if as_json:
        print_json(dataclasses.asdict(status) | {"size": size, "approvals": approvals})
    else:
        print_table(build_status_table(thread_id, status, size, approvals))


async def _show_at(settings: Settings, thread_id: str, seq: int, as_json: bool) -> None:
    packs = open_configured_packs(settings)
    view = await ThreadHandle(await connect(settings), thread_id, packs=packs).state_at(seq)
    if as_json:
        print_json(view)
        return
    print_lines(
        [
            f"{show_id(thread_id)} ({view.agent}) after entry {seq}, {format_time(view.time_ms)}",
            f"done      {format_totals(view.totals or Totals())}",
            *(f"approval  {format_approval(each)}" for each in view.pending),
            *(f"fact      {format_fact(each)}" for each in view.facts),
            f"context   {format_bytes(view.context_bytes)} in {len(view.context)} messages"
            + (f", entries up to {view.snapshot.upto_seq} compacted" if view.snapshot else ""),
            *(
                f"  {each.role:<9}  {shorten_line(summarise_message(each))}"
                for each in view.context
            ),
        ]
    )


async def _journal(
    settings: Settings, thread_id: str, first: int | None, last: int | None, as_json: bool
) -> None:
    packs = open_configured_packs(settings)
    past = await ThreadHandle(await connect(settings), thread_id, packs=packs).timeline()
    status = past.status
    last_seq = seq_after(status.head) - 1
    upto = last_seq if last is None else min(last, last_seq)
    since = max(1, upto - _JOURNAL_ENTRIES + 1) if first is None else first
    if first is not None and first > upto:
        raise EntryNotFound(
            f"the journal of thread {thread_id!r} has no entries from {first} to {last or last_seq}: "
            f"its last entry is {last_seq}"
        )
    found = _read_entries(past.journal, status.head, since, upto, whole=as_json)
    if as_json:
        await print_json_items(_list_entry_fields(*each) async for each in found)
        return
    async for each in found:
        print_lines([format_entry(*each)])
    more = f", {status.tail_entries} more are not journalled yet" if status.tail_entries else ""
    if past.archive is not None:
        more = f", from archive {past.archive.archive_id}"
    err.print(f"entries {since} to {upto} of {last_seq}{more}; --from and --to show others")


async def _read_entries(
    thread: JournalReader, head: SegmentRef | None, first_seq: int, last_seq: int, *, whole: bool
) -> AsyncIterator[tuple[Entry, Message | None]]:
    """Yield entries with their messages, reading a bounded number of them at a time."""
    step = _WHOLE_ENTRIES if whole else SCAN_ENTRIES
    for from_seq in range(first_seq, last_seq + 1, step):
        entries = await thread.read(head, from_seq, min(last_seq, from_seq + step - 1))
        with_message = [each for each in entries if each.kind in MESSAGE_KINDS]
        messages = await thread.messages(with_message, whole=whole)
        by_seq = {each.seq: message for each, message in zip(with_message, messages, strict=True)}
        for entry in entries:
            yield entry, by_seq.get(entry.seq)


def _list_entry_fields(entry: Entry, message: Message | None) -> dict[str, object]:
    fields: dict[str, object] = {
        "seq": entry.seq,
        "kind": entry.kind,
        "time_ms": entry.time_ms,
        "size_bytes": entry.size_bytes,
        "tokens": entry.tokens,
        "cost_usd": entry.cost_usd,
    }
    if message is not None:
        return fields | {"message": message, **(entry.data or {})}
    return fields | {"data": entry.data}
