"""Commands for time travel: the difference between two entries of a thread, forks and reruns."""

import asyncio
import sys
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import typer

from everlong.cli.help import Commands
from everlong.cli.options import (
    Agent,
    By,
    Json,
    NewThreadId,
    Reason,
    ThreadId,
    Timeout,
    resolve_name,
)
from everlong.cli.output import (
    format_approval,
    format_fact,
    format_totals,
    print_json,
    print_lines,
)
from everlong.cli.values import whole_number
from everlong.client.thread import ThreadHandle
from everlong.client.time_travel import ThreadDiff
from everlong.config import Settings, load_settings
from everlong.connection import connect, open_configured_packs
from everlong.console import err, find_command, out, sanitise
from everlong.format import format_bytes, shorten_line, summarise_message, summarise_note
from everlong.models import Kind
from everlong.models.thread_ids import quote_id, show_id

commands = Commands()


def _make_seq_argument(name: str, text: str) -> Any:
    return typer.Argument(metavar=name, parser=whole_number(name, 1), help=text)


Seq = Annotated[
    int, _make_seq_argument("ENTRY", "An entry's number, as `everlong journal` lists it.")
]
FirstSeq = Annotated[int, _make_seq_argument("FIRST", "The number of the earlier entry.")]
LastSeq = Annotated[int, _make_seq_argument("LAST", "The number of the later entry.")]


@commands.command()
def diff(thread_id: ThreadId, first: FirstSeq, last: LastSeq, as_json: Json = False) -> None:
    """Show what changed in a thread from one entry to a later one.

    Examples:
        everlong diff ops-7 100 140

    """
    asyncio.run(_diff(load_settings(), thread_id, first, last, as_json))


@commands.command()
def fork(
    thread_id: ThreadId,
    seq: Seq,
    new_id: NewThreadId,
    agent: Agent = None,
    by: By = "",
    as_json: Json = False,
) -> None:
    """Start a new thread from another thread's state after an entry.

    The other thread is unchanged. Counters start at zero, so a thread that a limit has ended can be
    continued as a fork.

    Examples:
        everlong fork ops-7 120 ops-7-retry

    """
    asyncio.run(_fork(load_settings(), thread_id, seq, new_id, agent, resolve_name(by), as_json))


@commands.command()
def rerun(
    thread_id: ThreadId,
    seq: Seq,
    text: Annotated[
        str,
        typer.Argument(metavar="TEXT", help="The changed message; - reads it from standard input."),
    ],
    new_id: Annotated[
        str,
        typer.Option(
            "--as",
            metavar="NEW_THREAD",
            help="The id of the fork; by default one like ops-7-rerun-12.",
        ),
    ] = "",
    by: By = "",
    reason: Reason = "",
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Return once the fork has started.")
    ] = False,
    timeout: Timeout = 300,
) -> None:
    """Undo a misstep: change a message, and run again from there in a fork.

    ENTRY is the message, or any entry of the turn that answers it. The fork begins before the message
    and works on the changed one. The other thread is unchanged, and what its tools did is not undone.

    Examples:
        everlong rerun ops-7 12 'Restart the staging cluster, not production'
        everlong rerun ops-7 12 - --as ops-7-again --no-wait < message.txt

    """
    if text == "-":
        text = sys.stdin.buffer.read().decode(errors="replace")
    change = _Change(seq, text, new_id, resolve_name(by), reason)
    asyncio.run(_rerun(load_settings(), thread_id, change, 0.0 if no_wait else timeout))


class _Change(NamedTuple):
    """Arguments of `ThreadHandle.rerun`."""

    seq: int
    text: str
    new_id: str
    by: str
    reason: str


async def _rerun(settings: Settings, thread_id: str, change: _Change, seconds_max: float) -> None:
    thread = ThreadHandle(
        await connect(settings),
        thread_id,
        packs=open_configured_packs(settings),
        task_queue=settings.task_queue,
    )
    forked = await thread.rerun(
        change.seq, change.text, change.new_id, by=change.by, reason=change.reason
    )
    err.print(
        f"thread {show_id(forked.id)} begins before that message of {show_id(thread_id)}",
        markup=False,
        soft_wrap=True,
    )
    if seconds_max and forked.start is not None:
        number = forked.start.state.counters.messages
        answer = await forked.wait(number, seconds_max=seconds_max)
        out.print(sanitise(answer), markup=False, soft_wrap=True)


async def _diff(settings: Settings, thread_id: str, first: int, last: int, as_json: bool) -> None:
    packs = open_configured_packs(settings)
    found = await ThreadHandle(await connect(settings), thread_id, packs=packs).diff(first, last)
    if as_json:
        print_json(found)
    else:
        print_lines(format_diff(found))


def format_diff(diff: ThreadDiff) -> Iterator[str]:
    """Yield the changes as lines, with a plus for additions and a minus for removals."""
    before, after = map(format_bytes, diff.context_bytes)
    yield f"{show_id(diff.thread_id)}, entries {diff.first_seq} to {diff.last_seq}"
    yield f"done      {format_totals(diff.totals)}"
    yield f"context   {before} -> {after}"
    yield from (
        f"  - {each.role:<9}  {shorten_line(summarise_message(each))}"
        for each in diff.context_removed
    )
    yield from (
        f"  + {each.role:<9}  {shorten_line(summarise_message(each))}"
        for each in diff.context_added
    )
    yield from (f"- fact    {format_fact(each)}" for each in diff.facts_removed)
    yield from (f"+ fact    {format_fact(each)}" for each in diff.facts_added)
    yield from (f"asked     {format_approval(each)}" for each in diff.asked)
    for entry in diff.entries:
        if entry.kind in (Kind.DECIDED, Kind.LIMIT, Kind.CONTROL, Kind.FORK):
            yield f"{entry.kind:<8}  {summarise_note(entry)}"


async def _fork(
    settings: Settings,
    thread_id: str,
    seq: int,
    new_id: str,
    agent: str | None,
    by: str,
    as_json: bool,
) -> None:
    thread = ThreadHandle(
        await connect(settings),
        thread_id,
        packs=open_configured_packs(settings),
        task_queue=settings.task_queue,
    )
    start = (await thread.fork(seq, new_id, agent=agent, by=by)).start
    if as_json:
        print_json(start)
        return
    agent_name = start.agent if start is not None else agent
    out.print(
        f"thread {new_id} ({agent_name}) continues from {show_id(thread_id)} after entry {seq}. Send "
        "it a message:\n"
        f"  {find_command()} send {quote_id(new_id)} 'What if we try it the other way?'",
        markup=False,
        soft_wrap=True,
    )
