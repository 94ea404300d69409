"""The command that says whether the plugin may go: drain."""

import asyncio
import dataclasses
from typing import Annotated, Final

import typer

from everlong.admin import service
from everlong.admin.console import show_progress
from everlong.admin.service import DrainReport, HoldingCount
from everlong.cli.app import Json
from everlong.cli.views import print_json, print_lines
from everlong.config import Settings, load_settings
from everlong.connection import connect
from everlong.thread_ids import show_id

commands = typer.Typer()

NOT_DRAINED: Final = 13


@commands.command()
def drain(
    query: Annotated[
        str, typer.Option(help="A visibility query, as WorkflowType = 'Loop'; then no schedules.")
    ] = "",
    only_open: Annotated[
        bool, typer.Option("--open", help="Only open runs: closed ones may be many.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Count the runs that hold Everlong payloads: those cannot be read without the plugin.

    It reads histories and changes nothing. Exits with 0 if no open run and no schedule holds any, and
    with 13 otherwise. Example: everlong drain --json
    """
    report = asyncio.run(_drain(load_settings(), query, only_open, as_json))
    if not report.is_drained:
        raise typer.Exit(NOT_DRAINED)


async def _drain(settings: Settings, query: str, only_open: bool, as_json: bool) -> DrainReport:
    # Payloads are only looked at as they are stored, so neither the store nor the keys are needed. An
    # outer codec is: refs are inside it, and the plugin takes one only with keys.
    keys = settings.keys if settings.outer_codec else ""
    client = await connect(dataclasses.replace(settings, store="memory:", keys=keys, cache_dir=""))
    with show_progress(as_json) as status:
        report = await service.count_holdings(
            client,
            query=query,
            only_open=only_open,
            tell=lambda text: status.update(f"looked at {text} …"),
        )
    if as_json:
        print_json({**dataclasses.asdict(report), "is_drained": report.is_drained})
    else:
        _print(report, only_open=only_open, with_schedules=not query and not only_open)
    return report


def _print(report: DrainReport, *, only_open: bool, with_schedules: bool) -> None:
    print_lines([_line("open runs", report.open_runs)])
    if not only_open:
        print_lines([_line("closed runs", report.closed_runs)])
    if with_schedules:
        print_lines([_line("schedules", report.schedules)])
    if report.is_drained:
        print_lines(["Drained: no open run needs the plugin."])
        if report.closed_runs.holding:
            print_lines(
                ["Closed runs that hold payloads are readable with it only, until they expire."]
            )
        return
    if report.examples:
        print_lines(
            ["Open runs that hold payloads:", *(f"  {show_id(each)}" for each in report.examples)]
        )
    if report.schedules.holding:
        print_lines(
            ["A schedule hands its payloads to each run: update it by a client in mode read."]
        )
    print_lines(["Not drained: keep the plugin, with mode='read', and ask again later."])


def _line(name: str, count: HoldingCount) -> str:
    return (
        f"{name:<12} {count.looked_at:>7} looked at: {count.refs} with refs to the store, "
        f"{count.inline} with compressed or sealed payloads only"
    )
