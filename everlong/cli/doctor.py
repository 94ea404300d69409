"""Commands for an installation: setup prepares a server, doctor checks it, drain precedes removal."""

import asyncio
import dataclasses
from collections import Counter
from typing import Annotated, Final

import typer
from rich.text import Text
from temporalio.client import Client

from everlong.cli.help import Commands
from everlong.cli.options import Json
from everlong.cli.output import print_json, print_lines
from everlong.client.search_attributes import set_up
from everlong.config import Settings, load_settings
from everlong.connection import connect, open_configured_packs
from everlong.console import out, sanitise, show_progress
from everlong.doctor.checks import run_checks
from everlong.doctor.findings import Finding
from everlong.doctor.remaining_payloads import DrainReport, HoldingCount, count_holdings
from everlong.errors import EverlongError, ServerUnreachable
from everlong.models.search_attributes import OPTIONAL_ATTRIBUTES, SEARCH_ATTRIBUTES
from everlong.models.thread_ids import show_id
from everlong.storage.pack_store import PackStore

commands = Commands()

# A reachable server accepts the connection within a second; one behind a firewall never answers.
_CONNECT_SECONDS_MAX: Final = 10.0
NOT_DRAINED: Final = 13
_COLOURS: Final = {"ok": "green", "skipped": "dim", "warning": "yellow", "failed": "red"}


@commands.command()
def setup(as_json: Json = False) -> None:
    """Add Everlong's search attributes to the namespace.

    With them, threads can be listed by status and agent. Existing ones are kept. It needs administrator
    rights on the server.

    Examples:
        everlong setup

    """
    asyncio.run(_setup(load_settings(), as_json))


@commands.command()
def doctor(as_json: Json = False) -> None:
    """Check the server, the store, the keys, the clocks and the workers.

    Each problem is printed with a fix. Exits with 1 if a check failed. It deletes what it writes.

    Examples:
        everlong doctor
        everlong doctor --json

    """
    findings = asyncio.run(_doctor(load_settings(), as_json))
    if any(each.status == "failed" for each in findings):
        raise typer.Exit(1)


_SETUP_WORDS: Final = {
    "added": "added",
    "present": "exists",
    "refused": "refused by the server",
}


async def _setup(settings: Settings, as_json: bool) -> None:
    client = await _connect_without_store(settings)
    done = await set_up(client)
    if as_json:
        print_json(
            [
                {"name": name, "type": SEARCH_ATTRIBUTES[name], "status": status}
                for name, status in done.items()
            ]
        )
        return
    for name, status in done.items():
        lost = f": {OPTIONAL_ATTRIBUTES[name]}" if status == "refused" else ""
        print_lines([f"{name:<27} {SEARCH_ATTRIBUTES[name]:<11} {_SETUP_WORDS[status]}{lost}"])
    if "added" in done.values():
        print_lines(["Running workers notice within a minute. They need no restart."])


async def _doctor(settings: Settings, as_json: bool) -> list[Finding]:
    packs: PackStore | EverlongError
    client: Client | EverlongError
    try:
        packs = open_configured_packs(settings)
    except EverlongError as error:
        packs = error
    try:
        if isinstance(packs, EverlongError):
            client = await _connect_without_store(settings)
        else:
            async with asyncio.timeout(_CONNECT_SECONDS_MAX):
                client = await connect(settings)
    except TimeoutError:
        client = _make_unreachable_error(settings)
    except EverlongError as error:
        client = error
    findings = []
    async for each in run_checks(
        client,
        packs,
        task_queue=settings.task_queue,
        inline_bytes_max=settings.inline_bytes_max,
    ):
        findings.append(each)
        if not as_json:
            _print_finding(each)
    if as_json:
        print_json(findings)
    else:
        counts = Counter(each.status for each in findings)
        summary = ", ".join(f"{count} {status}" for status, count in counts.items())
        print_lines([f"{len(findings)} checks: {summary}"])
    return findings


def _print_finding(finding: Finding) -> None:
    status = Text(f"{finding.status:<8}", style=_COLOURS[finding.status])
    line = Text(sanitise(f" {finding.check}: {finding.text}"))
    out.print(status + line, soft_wrap=True)
    if finding.fix:
        out.print(Text(sanitise(f"{'':<8} fix: {finding.fix}")), soft_wrap=True)


async def _connect_without_store(settings: Settings) -> Client:
    """Connect without the store and its keys, for commands that need neither."""
    reduced = dataclasses.replace(
        settings, store="memory:", keys="", outer_codec="", codec="", cache_dir=""
    )
    try:
        async with asyncio.timeout(_CONNECT_SECONDS_MAX):
            return await connect(reduced)
    except TimeoutError:
        raise _make_unreachable_error(settings) from None


def _make_unreachable_error(settings: Settings) -> ServerUnreachable:
    return ServerUnreachable(
        f"no Temporal server answers at {settings.temporal.get('target_host')} within "
        f"{_CONNECT_SECONDS_MAX:.0f} s. Check TEMPORAL_ADDRESS, and the network to that address."
    )


@commands.command()
def drain(
    query: Annotated[
        str,
        typer.Option(
            metavar="QUERY", help="Only these runs, by a visibility query; it skips schedules."
        ),
    ] = "",
    only_open: Annotated[
        bool, typer.Option("--open", help="Only open runs; there may be many closed ones.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Count the runs that need the plugin, before you remove it.

    These are runs with Everlong payloads, which nothing else can read. It reads histories and changes
    nothing. Exits with 0 if no open run and no schedule has any, and with 13 otherwise.

    Examples:
        everlong drain
        everlong drain --open --query "WorkflowType = 'Loop'"

    """
    report = asyncio.run(_drain(load_settings(), query, only_open, as_json))
    if not report.is_drained:
        raise typer.Exit(NOT_DRAINED)


async def _drain(settings: Settings, query: str, only_open: bool, as_json: bool) -> DrainReport:
    # Payloads are inspected without decoding, so neither the store nor the keys are needed. An outer
    # codec is, because it wraps the refs; and the plugin takes an outer codec only with keys.
    keys = settings.keys if settings.outer_codec else ""
    client = await connect(dataclasses.replace(settings, store="memory:", keys=keys, cache_dir=""))
    with show_progress(as_json) as status:
        report = await count_holdings(
            client,
            query=query,
            only_open=only_open,
            on_progress=lambda text: status.update(f"read {text} …"),
        )
    if as_json:
        print_json({**dataclasses.asdict(report), "is_drained": report.is_drained})
    else:
        _print_drain(report, only_open=only_open, with_schedules=not query and not only_open)
    return report


def _print_drain(report: DrainReport, *, only_open: bool, with_schedules: bool) -> None:
    print_lines([_format_holdings("open runs", report.open_runs)])
    if not only_open:
        print_lines([_format_holdings("closed runs", report.closed_runs)])
    if with_schedules:
        print_lines([_format_holdings("schedules", report.schedules)])
    if report.is_drained:
        print_lines(["Drained: no open run needs the plugin."])
        if report.closed_runs.holding:
            print_lines(
                ["Closed runs with payloads stay readable only with the plugin, until they expire."]
            )
        return
    if report.examples:
        print_lines(
            ["Open runs with payloads:", *(f"  {show_id(each)}" for each in report.examples)]
        )
    if report.schedules.holding:
        print_lines(
            [
                "A schedule passes its payloads to each run: update it from a client with mode='read'."
            ]
        )
    print_lines(["Not drained: keep the plugin, with mode='read', and run this again later."])


def _format_holdings(name: str, count: HoldingCount) -> str:
    return (
        f"{name:<12} {count.looked_at:>7} read: {count.refs} with refs to the store, "
        f"{count.inline} with compressed or sealed payloads only"
    )
