"""The command `sweep`: frees stored objects that nothing references any more."""

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table

from everlong.cli.help import Commands
from everlong.cli.options import By, DryRun, Json, Reason, resolve_name
from everlong.cli.output import format_time, print_json, print_lines
from everlong.cli.values import word
from everlong.client.sweeps import (
    list_quarantined,
    restore_quarantined,
    schedule_sweeps,
    unschedule_sweeps,
)
from everlong.client.sweeps import sweep as sweep_namespace
from everlong.config import Settings, load_settings
from everlong.connection import connect, open_configured_packs
from everlong.console import err, out, sanitise, show_progress
from everlong.errors import ConfigError, SweepIncomplete
from everlong.format import format_bytes, format_count
from everlong.models import SweepOptions, SweepReport, Tally
from everlong.models.thread_ids import show_id
from everlong.policy import Retention, parse_retention, parse_seconds

commands = Commands()
# The bounds of `SweepOptions`.
_NAME_CHARS_MAX: Final = 64
_REASON_CHARS_MAX: Final = 300


@commands.command()
def sweep(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="With --quarantine restore: the keys to restore."),
    ] = None,
    dry_run: DryRun = False,
    every: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="Schedule sweeps on workers, as in 6h; off ends the schedule."
        ),
    ] = "",
    retention: Annotated[
        str,
        typer.Option(
            metavar="CLASS=DURATION,...",
            help="How long unneeded objects are kept: payload=1d,journal=1d,archive=never,quarantine=7d "
            "is the default. Or EVERLONG_RETENTION.",
        ),
    ] = "",
    whole_store: Annotated[
        bool,
        typer.Option(
            "--whole-store", help="No other namespace or cluster uses this store: sweep all of it."
        ),
    ] = False,
    encoding: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A plain-text encoding of your own payload converter."),
    ] = None,
    quarantine: Annotated[
        str,
        typer.Option(
            metavar="list|restore",
            parser=word("--quarantine", ("list", "restore")),
            help="list: show the quarantine. restore: put each KEY back.",
        ),
    ] = "",
    by: By = "",
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Free stored objects that no retained history needs.

    They go to quarantine first, and are deleted days later. Exits with 12 if something could not be
    read: then nothing is permanently deleted.

    Examples:
        everlong sweep --dry-run
        everlong sweep --every 6h --retention payload=1d,quarantine=14d
        everlong sweep --quarantine list

    """
    given = {"--dry-run": dry_run, "--every": every, "--retention": retention}
    given |= {"--whole-store": whole_store, "--encoding": encoding}
    _check_options(quarantine, keys or [], given)
    settings = load_settings()
    if quarantine:
        asyncio.run(_quarantine(settings, quarantine, keys or [], as_json))
        return
    options = SweepOptions(
        retention=read_retention(retention or settings.retention),
        dry_run=dry_run,
        whole_store=whole_store,
        encodings=tuple(encoding or ()),
        by=_resolve_operator(by),
        reason=reason[:_REASON_CHARS_MAX],
    )
    if every:
        asyncio.run(_schedule(settings, every, options, as_json))
        return
    report = asyncio.run(_sweep(settings, options, as_json))
    if report.incomplete:
        raise SweepIncomplete(
            "nothing was permanently deleted, because not everything could be read: "
            f"{report.incomplete[0]}"
        )


def _check_options(quarantine: str, keys: list[str], given: Mapping[str, object]) -> None:
    """Reject options that contradict each other, so that no option is silently ignored."""
    if keys and quarantine != "restore":
        raise ConfigError("KEYS need --quarantine: everlong sweep --quarantine restore KEY...")
    others = [name for name, value in given.items() if value]
    if quarantine and others:
        raise ConfigError(
            f"--quarantine does not sweep, so {others[0]} has no effect: leave one of them out"
        )
    if given["--every"] and given["--dry-run"]:
        raise ConfigError(
            "--every with --dry-run would schedule sweeps that free nothing: leave one of them out"
        )


def _resolve_operator(by: str) -> str:
    """Return the operator's name, or an empty one: a cron job in a container may have no user."""
    with contextlib.suppress(ConfigError):
        return resolve_name(by)[:_NAME_CHARS_MAX]
    return ""


async def _sweep(settings: Settings, options: SweepOptions, as_json: bool) -> SweepReport:
    client = await connect(settings)
    with show_progress(as_json) as status:
        report = await sweep_namespace(
            client,
            open_configured_packs(settings),
            options,
            index_dir=choose_index_dir(settings),
            on_progress=lambda text: status.update(f"{text} …"),
        )
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    return report


async def _schedule(settings: Settings, every: str, options: SweepOptions, as_json: bool) -> None:
    seconds = None if every == "off" else _read_interval(every)
    client = await connect(settings)
    if seconds is None:
        was_there = await unschedule_sweeps(client)
        text = "the schedule was removed" if was_there else "there was no schedule"
    else:
        await schedule_sweeps(client, seconds, options, task_queue=settings.task_queue)
        text = f"workers on task queue {settings.task_queue} sweep every {every}"
    if as_json:
        print_json({"every_seconds": seconds, "task_queue": settings.task_queue, "text": text})
    else:
        print_lines([text])


async def _quarantine(settings: Settings, action: str, keys: list[str], as_json: bool) -> None:
    packs = open_configured_packs(settings)
    if action == "list":
        copies = [each async for each in list_quarantined(packs)]
        if as_json:
            print_json(copies)
            return
        for each in copies:
            size = format_bytes(each.size_bytes)
            print_lines([f"{format_time(each.quarantined_ms)}  {size:>10}  {each.original}"])
        print_lines([f"{format_count(len(copies), 'object')} in quarantine"])
    elif action == "restore" and keys:
        restored = await restore_quarantined(packs, keys)
        if as_json:
            print_json(restored)
        else:
            print_lines([f"{each.original} is restored" for each in restored])
    else:
        raise ConfigError(
            "--quarantine takes list, or restore with KEYS: --quarantine restore KEY..."
        )


def _print_report(report: SweepReport) -> None:
    would = "would be " if report.dry_run else ""
    rows: list[tuple[str, Tally]] = [
        ("stored", report.stored),
        ("reachable", report.reachable),
        ("archives", report.archives),
        ("unreachable, but too young", report.young),
        ("of threads not listed here", report.foreign),
        (f"{would}quarantined", report.quarantined),
        *((f"  of class {name}", tally) for name, tally in report.classes.items()),
        (f"{would}restored", report.restored),
        (f"{would}permanently deleted", report.purged),
        ("in quarantine now", report.in_quarantine),
    ]
    table = Table("", "objects", "bytes", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, tally in rows:
        table.add_row(name, str(tally.objects), format_bytes(tally.bytes))
    out.print(table)
    for thread in report.threads if report.dry_run else ():
        named = show_id(thread.workflow_id) if thread.workflow_id else thread.thread
        print_lines([f"  {format_bytes(thread.quarantined.bytes):>10}  {named}"])
    runs, packs = format_count(report.runs, "run"), format_count(report.packs_read, "pack")
    read = f"read {report.runs_read} of {runs} and {packs}"
    print_lines([f"{read} in {report.seconds:.1f} s"])
    if report.clock_ahead_seconds:
        ahead = f"this clock is {report.clock_ahead_seconds:.0f} s ahead of the store's"
        text = f"{ahead}; ages were taken by the store's clock. Correct this machine's clock"
        err.print(sanitise(text), markup=False, soft_wrap=True)
    if report.archived:
        print_lines(
            [
                f"archived {format_count(report.archived, 'thread')} that a limit with "
                "on_limit=archive ended"
            ]
        )
    for reason in report.not_archived:
        err.print(sanitise(f"not archived: {reason}"), markup=False, soft_wrap=True)
    for reason in report.incomplete[1:]:
        err.print(sanitise(f"also: {reason}"), markup=False, soft_wrap=True)


def choose_index_dir(settings: Settings) -> Path | None:
    """Return where the sweep keeps its index: the cache, or a data directory that exists already."""
    if settings.cache_dir:
        return Path(settings.cache_dir)
    return settings.data_dir if settings.data_dir.is_dir() else None


def read_retention(text: str) -> Retention:
    """Parse a retention setting; raise `ConfigError` if it is malformed."""
    try:
        return parse_retention(text)
    except ValueError as error:
        raise ConfigError(f"the retention is malformed: {error}") from None


def _read_interval(text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise ConfigError(f"--every: {error}, or off to remove the schedule") from None
