"""Commands for one thread: talk to it, look at it, read its journal and its runs."""

import asyncio
import dataclasses
import functools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Final

import typer
from rich.markup import escape

from everlong.cli.conversation import (
    AnswerFollower,
    ConversationPrinter,
    find_last_seq,
    follow_live,
)
from everlong.cli.help import Commands
from everlong.cli.options import By, Cursor, Json, ThreadId, Timeout, resolve_name
from everlong.cli.output import (
    build_archive_table,
    build_status_table,
    format_approval,
    format_entry,
    format_fact,
    format_time,
    format_totals,
    print_json,
    print_json_items,
    print_lines,
)
from everlong.cli.values import whole_number
from everlong.client.errors import explain_unreadable
from everlong.client.lookup import RUNS_MAX
from everlong.client.progress import ThreadProgress
from everlong.client.thread import ThreadHandle
from everlong.client.wait import SCAN_ENTRIES
from everlong.config import Settings, load_settings
from everlong.connection import connect, find_live_server, open_configured_packs
from everlong.console import err, out, print_table, sanitise
from everlong.errors import ConfigError, EntryNotFound
from everlong.format import format_bytes, format_count, shorten_line, summarise_message
from everlong.models import Entry, Message, SegmentRef, Status, Totals, seq_after
from everlong.models.thread_ids import quote_id, show_id
from everlong.storage.journal import JournalReader
from everlong.storage.segments import MESSAGE_KINDS

commands = Commands()

_JOURNAL_ENTRIES: Final = 50
# Entries read at a time with complete messages: one message may have 64 MiB.
_WHOLE_ENTRIES: Final = 64


@commands.command()
def send(
    thread_id: ThreadId,
    text: Annotated[
        str,
        typer.Argument(metavar="TEXT", help="The message; - reads it from standard input."),
    ],
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Start the thread with this agent, if it does not exist."
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL",
            help="A label of a thread that is started, as in urgent or team=payments; may be repeated.",
        ),
    ] = None,
    by: By = "",
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Return once the message is queued.")
    ] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Print the conversation until the answer, live if there is live output. Into a pipe, "
            "standard output gets the answer alone.",
        ),
    ] = False,
    timeout: Timeout = 300,
) -> None:
    """Send a message to a thread and print the answer.

    With --agent, the thread is started if it does not exist. --label gives it labels then; those of a
    thread that exists are changed with: everlong label

    Examples:
        everlong send ops-7 'Why is checkout slow?' --agent ops
        everlong send ops-7 'Why is checkout slow?' --agent ops --label team=payments
        everlong send ops-7 'And now?' --timeout 10m
        everlong send ops-7 'And now?' --follow
        everlong send ops-7 - --no-wait < report.txt

    """
    if text == "-":
        text = sys.stdin.buffer.read().decode(errors="replace")
    if follow and no_wait:
        raise ConfigError(
            "--follow waits for the answer, and --no-wait does not. Give one of them."
        )
    seconds_max = 0.0 if no_wait else timeout
    if label and not agent:
        raise ConfigError(
            f"--label is for a thread that is started. Add --agent NAME, or label the thread with: "
            f"everlong label {quote_id(thread_id)} {' '.join(label)}"
        )
    sender = _resolve_sender(by)
    asyncio.run(
        _send(load_settings(), thread_id, text, agent, sender, seconds_max, label or [], follow)
    )


@commands.command()
def show(
    thread_id: ThreadId,
    at: Annotated[
        int | None,
        typer.Option(
            metavar="ENTRY",
            parser=whole_number("--at", 1),
            help="The state after this entry, with the model's context.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a thread's status, counters and sizes, now or in the past.

    With --at, it shows the state after an entry of the journal.

    Examples:
        everlong show ops-7
        everlong show ops-7 --at 120

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
        int | None,
        typer.Option(
            "--from",
            metavar="ENTRY",
            parser=whole_number("--from", 1),
            help="First entry; by default the last 50 are listed.",
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option("--to", metavar="ENTRY", parser=whole_number("--to", 1), help="Last entry."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the entries of a thread's journal.

    Messages are cut to one line; with --json they are complete.

    Examples:
        everlong journal ops-7
        everlong journal ops-7 --from 100 --to 120 --json

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
    labels: Sequence[str],
    follows: bool,
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

    send = functools.partial(
        thread.send, text, agent=agent, by=by, on_wait=print_wait, labels=labels
    )
    if follows:
        await _follow(settings, thread, text, send, seconds_max)
        return
    number = await send()
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


async def _follow(
    settings: Settings,
    thread: ThreadHandle,
    text: str,
    send: Callable[[], Awaitable[int]],
    seconds_max: float,
) -> None:
    """Send a message, and print the conversation from there until the answer."""
    # A program that reads a pipe gets the answer alone.
    console = out if out.is_terminal else err
    # Before the message is sent: its reply may begin, and end, at once.
    printer = ConversationPrinter(console, await find_last_seq(thread))
    printer.expect(text)
    async with follow_live(find_live_server(settings), thread, printer):
        answer = await AnswerFollower(thread, printer).wait(await send(), seconds_max)
    if console is not out:
        out.print(sanitise(answer), markup=False, soft_wrap=True)


def _describe_progress(thread_id: str, progress: ThreadProgress) -> str:
    if progress.held_by:
        return f"held by {progress.held_by}"
    if progress.status == Status.APPROVAL:
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
    size, links = await asyncio.gather(thread.size(), thread.fork_links())
    if as_json:
        found = {"size": size, "approvals": approvals, "links": links}
        print_json(dataclasses.asdict(status) | found)
    else:
        print_table(build_status_table(thread_id, status, size, approvals, links))


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
            f"context   {format_bytes(view.context_bytes)} in "
            + format_count(len(view.context), "message")
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
            f"the journal of thread {thread_id!r} has no entries from {first} on"
            f"{f' to {last}' if last else ''}: its last entry is {last_seq}"
        )
    found = _read_entries(past.journal, status.head, since, upto, whole=as_json)
    with explain_unreadable(thread_id):
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


@commands.command()
def runs(
    thread_id: ThreadId,
    limit: Annotated[
        int,
        typer.Option(
            metavar="N", parser=whole_number("--limit", 1, RUNS_MAX), help="Runs to list."
        ),
    ] = 20,
    cursor: Cursor = "",
    as_json: Json = False,
) -> None:
    """List a thread's runs: events, bytes, links to the Temporal UI.

    The newest run is first. Links need EVERLONG_TEMPORAL_UI.

    Examples:
        everlong runs ops-7

    """
    asyncio.run(_runs(load_settings(), thread_id, cursor, limit, as_json))


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
        err.print(f"older runs: --cursor {page.next_run_id}", markup=False)
