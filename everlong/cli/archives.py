"""Commands for archives: write one, list them, start a thread from one."""

import asyncio
import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.status import Status
from rich.table import Column, Table

from everlong.admin.preview import describe_plan
from everlong.cli.help import Commands
from everlong.cli.options import (
    Agent,
    By,
    Cursor,
    DryRun,
    Json,
    NewThreadId,
    OptionalThreadId,
    Reason,
    ThreadId,
    Yes,
    confirm,
    resolve_name,
)
from everlong.cli.output import format_time, print_json, print_lines
from everlong.cli.values import whole_number, word
from everlong.client.archives import (
    ArchivePage,
    ArchiveResult,
    check_export,
    export_archive,
    list_archives,
    plan_archive,
)
from everlong.client.fork import revive as revive_thread
from everlong.client.thread import ThreadHandle
from everlong.config import Settings, load_settings
from everlong.connection import connect, open_configured_packs
from everlong.console import err, find_command, print_table, sanitise
from everlong.format import format_bytes, format_count
from everlong.models.thread_ids import quote_id, show_id

commands = Commands()


class Then(StrEnum):
    """Action on the thread after it was archived."""

    keep = "keep"
    close = "close"
    free = "free"


def _parse_then(value: object) -> Then:
    return Then(word("--then", [each.value for each in Then])(value))


_FINAL: Final = {
    Then.close: "will end, unless it has already, and cannot be started again.",
    Then.free: "will end, unless it has already, and its histories will be deleted.",
}


@dataclasses.dataclass(frozen=True)
class _ArchiveRequest:
    thread_id: str
    then: Then
    by: str
    reason: str
    export: Path | None
    dry_run: bool
    as_json: bool


@commands.command()
def archive(
    thread_id: ThreadId,
    then: Annotated[
        Then,
        typer.Option(
            metavar="keep|close|free",
            parser=_parse_then,
            help="keep: the thread continues. close: it ends first. free: it ends, and its histories "
            "are deleted, so that a sweep can free its packs.",
        ),
    ] = Then.keep,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write a plain Parquet file for other tools. The file must not exist yet.",
        ),
    ] = None,
    dry_run: DryRun = False,
    by: By = "",
    reason: Reason = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Write a thread's journal to one Parquet file, and verify it.

    The file is read back and compared with the journal.
    With --then close or free, it asks for confirmation at a terminal.

    Examples:
        everlong archive ops-7 --dry-run
        everlong archive ops-7 --then close --reason 'the incident is over'
        everlong archive ops-7 --export ops-7.parquet

    """
    request = _ArchiveRequest(thread_id, then, resolve_name(by), reason, export, dry_run, as_json)
    if export is not None:
        check_export(export)
    if then in _FINAL and not dry_run:
        confirm(f"Thread {show_id(thread_id)} {_FINAL[then]}", yes=yes)
    asyncio.run(_archive(load_settings(), request))


@commands.command()
def archives(
    thread_id: OptionalThreadId = None,
    cursor: Cursor = "",
    as_json: Json = False,
) -> None:
    """List archives, the newest first.

    Examples:
        everlong archives
        everlong archives ops-7

    """
    asyncio.run(_archives(load_settings(), thread_id, cursor, as_json))


@commands.command()
def revive(
    thread_id: ThreadId,
    new_id: NewThreadId,
    archive_id: Annotated[
        str | None,
        typer.Option(
            "--archive",
            metavar="ARCHIVE",
            help="An id that `everlong archives` lists; by default the newest.",
        ),
    ] = None,
    at: Annotated[
        int | None,
        typer.Option(
            metavar="ENTRY", parser=whole_number("--at", 1), help="Only up to this entry."
        ),
    ] = None,
    agent: Agent = None,
    by: By = "",
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Start a new thread from an archive.

    It shares no packs with the archived thread.

    Examples:
        everlong revive ops-7 ops-7-again --reason 'it is back'

    """
    settings = load_settings()

    async def work() -> None:
        client = await connect(settings)
        with err.status("reading the archive") as line:
            start = await revive_thread(
                client,
                open_configured_packs(settings),
                thread_id,
                new_id,
                task_queue=settings.task_queue,
                archive_id=archive_id,
                seq=at,
                agent=agent,
                by=resolve_name(by),
                reason=reason,
                on_progress=lambda *each: _show_progress(line, *each),
                on_warning=_warn,
            )
        if as_json:
            print_json(start)
            return
        print_lines(
            [
                f"thread {new_id} ({start.agent}) continues from the archive of {show_id(thread_id)}. "
                "Send it a message:",
                f"  {find_command()} send {quote_id(new_id)} 'Where were we?'",
            ]
        )

    asyncio.run(work())


async def _archive(settings: Settings, request: _ArchiveRequest) -> None:
    client = await connect(settings)
    packs = open_configured_packs(settings)
    if request.dry_run:
        plan = await plan_archive(client, packs, request.thread_id, request.then.value)
        if request.as_json:
            print_json(plan)
        else:
            print_lines(describe_plan(plan))
        return
    with err.status(f"archiving {escape(sanitise(show_id(request.thread_id)))}") as line:
        done = await ThreadHandle(client, request.thread_id, packs=packs).archive(
            then=request.then.value,
            by=request.by,
            reason=request.reason,
            on_progress=lambda *each: _show_progress(line, *each),
        )
        if request.export is not None:
            await export_archive(packs, done.manifest, request.export)
    if request.as_json:
        print_json(done)
    else:
        print_lines(describe_archive(done, request.export))


def _warn(text: str) -> None:
    err.print(sanitise(f"warning: {text}"), markup=False, soft_wrap=True)


def _show_progress(line: Status, what: str, done: int, total: int) -> None:
    line.update(f"{done:,} of {total:,} entries are {what}")


def describe_archive(done: ArchiveResult, export: Path | None) -> list[str]:
    """Return the lines that report an archive."""
    manifest = done.manifest
    size = format_bytes(manifest.size_bytes)
    how = "written and verified" if done.is_new else "existed already, and verified"
    lines = [
        f"archive {manifest.archive_id} of thread {show_id(manifest.thread_id)}: "
        f"{format_count(manifest.entries, 'entry')} in {size}, {how} in {done.seconds:.1f} s"
    ]
    if done.left_out:
        lines.append(
            f"{done.left_out} entries and messages were never journalled; the archive lacks them"
        )
    if done.runs_deleted:
        runs = format_count(done.runs_deleted, "run")
        lines.append(f"deleted: {runs}; a sweep frees the thread's packs")
    else:
        lines.append("the thread has ended" if done.is_closed else "the thread continues")
    if export is not None:
        lines.append(f"a plain copy is in {export}")
    lines += [f"skipped an archive that cannot be read: {each}" for each in done.passed_over]
    return lines


async def _archives(settings: Settings, thread_id: str | None, before: str, as_json: bool) -> None:
    client = await connect(settings)
    page = await list_archives(
        client, open_configured_packs(settings), thread_id=thread_id, before=before
    )
    if as_json:
        print_json(page)
        return
    table = Table(
        Column("archive", no_wrap=True),
        "thread",
        "agent",
        "status",
        "entries",
        "size",
        "until",
        "by",
    )
    freed = {each.archive_id: each.by or "an unknown user" for each in page.freed}
    for each in page.archives:
        table.add_row(
            each.archive_id,
            escape(sanitise(show_id(each.thread_id))),
            escape(sanitise(each.agent)),
            each.status,
            f"{each.entries:,}",
            format_bytes(each.size_bytes),
            format_time(each.last_ms) if each.last_ms else "",
            escape(sanitise(_format_authors(each.by, freed.get(each.archive_id, "")))),
        )
    if page.archives:
        print_table(table)
    else:
        print_lines([_describe_none(page, thread_id)])
    for line in page.unreadable:
        err.print(sanitise(line), markup=False, soft_wrap=True)
    if page.next:
        err.print(f"older archives: --cursor {page.next}", markup=False)


def _format_authors(by: str, freed_by: str) -> str:
    """Return who archived a thread and, if it was freed, who freed it."""
    return "; ".join(filter(None, [by, freed_by and f"freed by {freed_by}"]))


def _describe_none(page: ArchivePage, thread_id: str | None) -> str:
    whose = f" of thread {show_id(thread_id)}" if thread_id else ""
    if page.next:
        return f"no archive{whose} among the newest; there are older ones"
    return f"no archive{whose}"
