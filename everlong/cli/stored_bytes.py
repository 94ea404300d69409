"""The command `bytes`: stored bytes by cause, of one thread or of the largest."""

import datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from everlong.cli.help import Commands
from everlong.cli.options import Json, OptionalThreadId, run_with_client
from everlong.cli.values import past_time, whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from temporalio.client import Client

    from everlong.client.stored_bytes import CauseBytes, StoredBytes

commands = Commands()

# Each thread is listed and its journal is read: a second or so for a large one.
_THREADS_MAX: Final = 200


@commands.command("bytes")
def stored_bytes(
    thread_id: OptionalThreadId = None,
    since: Annotated[
        float,
        typer.Option(
            metavar="TIME",
            parser=past_time("--since"),
            help="Count what is new since then: 2h, 3d, monday, 2026-11-16 or 2026-11-16T09:30.",
        ),
    ] = "1d",  # type: ignore[assignment] # typer parses the default like any value.
    agent: Annotated[str, typer.Option(metavar="NAME", help="Only threads of this agent.")] = "",
    limit: Annotated[
        int,
        typer.Option(
            metavar="N",
            parser=whole_number("--limit", 1, _THREADS_MAX),
            help="Threads to measure, those that store the most first.",
        ),
    ] = 20,
    as_json: Json = False,
) -> None:
    """Show what stored bytes are for: messages, replies, tools, snapshots, leftovers.

    It says why a thread has grown: the bytes of each cause, and those that are new since a time. Without
    THREAD, it adds up the threads that store the most.

    Examples:
        everlong bytes ops-7 --since monday
        everlong bytes ops-7 --since 3d --json
        everlong bytes --agent ops --limit 50

    """
    since_ms = int(since * 1000)
    if thread_id is None:
        run_with_client(lambda client: _show_largest(client, agent, since_ms, limit, as_json))
    else:
        run_with_client(lambda client: _show_thread(client, thread_id, since_ms, as_json))


async def _show_thread(client: "Client", thread_id: str, since_ms: int, as_json: bool) -> None:
    from everlong.cli.output import print_json, print_lines
    from everlong.client.thread import ThreadHandle
    from everlong.config import load_settings
    from everlong.connection import open_configured_packs
    from everlong.console import err
    from everlong.format import format_bytes, format_count
    from everlong.models.thread_ids import show_id

    thread = ThreadHandle(client, thread_id, packs=open_configured_packs(load_settings()))
    with err.status("reading the journal"):
        found = await thread.stored_bytes(since_ms=since_ms)
    if as_json:
        print_json(found)
        return
    objects = format_count(found.objects, "object")
    print_lines(
        [
            f"{show_id(thread_id)} stores {format_bytes(found.stored_bytes)} in {objects}, "
            f"{format_bytes(found.recent_bytes)} of it since {_format_since(since_ms)}",
        ]
    )
    _print_causes(found.causes, since_ms)
    _print_notes(found)


async def _show_largest(
    client: "Client", agent: str, since_ms: int, limit: int, as_json: bool
) -> None:
    from everlong.cli.output import print_json, print_lines
    from everlong.cli.threads import read_thread_list
    from everlong.client.stored_bytes import add_up_causes
    from everlong.client.thread import ThreadHandle
    from everlong.config import load_settings
    from everlong.connection import open_configured_packs
    from everlong.console import err
    from everlong.errors import ThreadNotFound
    from everlong.format import format_bytes, format_count
    from everlong.models.thread_ids import show_id

    packs = open_configured_packs(load_settings())
    page = await (await read_thread_list(client)).page("", "", agent, "-stored", 0, limit, "")
    found: list[StoredBytes] = []
    with err.status("measuring threads") as line:
        for number, row in enumerate(page.rows, 1):
            line.update(f"measuring thread {number} of {len(page.rows)}")
            try:
                thread = ThreadHandle(client, row.thread_id, packs=packs)
                found.append(await thread.stored_bytes(since_ms=since_ms))
            except ThreadNotFound:  # Deleted since it was listed.
                continue
    causes = add_up_causes(found)
    if as_json:
        print_json({"causes": causes, "threads": found, "since_ms": since_ms, "known": page.total})
        return
    total = sum(each.stored_bytes for each in found)
    recent = sum(each.recent_bytes for each in found)
    what = f" of agent {agent}" if agent else ""
    print_lines(
        [
            f"the {format_count(len(found), 'thread')}{what} with the most, of {page.total:,}: "
            f"{format_bytes(total)}, {format_bytes(recent)} of it since {_format_since(since_ms)}"
        ]
    )
    _print_causes(causes, since_ms)
    for each in sorted(found, key=lambda each: -each.recent_bytes)[:5]:
        if each.recent_bytes:
            first = max(each.causes, key=lambda cause: cause.recent_bytes)
            print_lines(
                [
                    f"{show_id(each.thread_id)}: {format_bytes(each.recent_bytes)} new, most of it "
                    f"{_name_cause(first)}"
                ]
            )
    for each in found:
        _print_notes(each)


def _print_causes(causes: "Sequence[CauseBytes]", since_ms: int) -> None:
    from rich.markup import escape
    from rich.table import Table

    from everlong.console import print_table, sanitise
    from everlong.format import format_bytes

    total = sum(each.stored_bytes for each in causes) or 1
    view = Table()
    view.add_column("cause")
    for name in ("stored", "share", f"since {_format_since(since_ms)}"):
        view.add_column(name, justify="right")
    for each in causes:
        view.add_row(
            escape(sanitise(_name_cause(each))),
            format_bytes(each.stored_bytes),
            f"{100 * each.stored_bytes / total:.1f}%",
            f"+{format_bytes(each.recent_bytes)}" if each.recent_bytes else "",
        )
    print_table(view)


def _print_notes(found: "StoredBytes") -> None:
    from everlong.client.stored_bytes import OBJECTS_MAX
    from everlong.console import err, sanitise
    from everlong.format import format_bytes
    from everlong.models.thread_ids import show_id

    name = show_id(found.thread_id)
    if found.is_partial:
        err.print(f"{name} has more than {OBJECTS_MAX:,} objects; the rest is not counted")
    if found.undated_bytes:
        size = format_bytes(found.undated_bytes)
        err.print(
            f"{name}: the store does not report the time of {size}, so they are not in `since`"
        )
    if found.problem:
        err.print(sanitise(f"{name}: {found.problem}"), markup=False)


def _name_cause(each: "CauseBytes") -> str:
    name = each.cause.replace("_", " ")
    return f"{name}: {each.tool}" if each.tool else name


def _format_since(since_ms: int) -> str:
    local = datetime.datetime.fromtimestamp(since_ms / 1000).astimezone()
    return local.strftime("%a %Y-%m-%d %H:%M")
