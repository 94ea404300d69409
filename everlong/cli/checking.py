"""Commands that prepare a server and look for what is wrong: setup, doctor."""

import asyncio
import dataclasses
from collections import Counter
from typing import Final

import typer
from rich.text import Text
from temporalio.client import Client

from everlong.admin import service
from everlong.admin.console import out, plain
from everlong.admin.service import Finding
from everlong.cli.app import Json
from everlong.cli.views import print_json, print_lines
from everlong.config import Settings, load_settings
from everlong.connection import connect, open_configured_packs
from everlong.errors import EverlongError, ServerUnreachable
from everlong.models import SEARCH_ATTRIBUTES
from everlong.storage.packstore import PackStore

commands = typer.Typer()

# A server that is there takes the connection within a second; one behind a firewall never answers.
_CONNECT_SECONDS_MAX: Final = 10.0
_COLOURS: Final = {"ok": "green", "skipped": "dim", "warning": "yellow", "failed": "red"}


@commands.command()
def setup(as_json: Json = False) -> None:
    """Add Everlong's search attributes to the namespace, so that threads can be found.

    Those that are there stay. It takes an administrator of the server. Example: everlong setup
    """
    asyncio.run(_setup(load_settings(), as_json))


@commands.command()
def doctor(as_json: Json = False) -> None:
    """Check the server, the store, the keys, the clocks and the workers, and say what to mend.

    Exits with 1 if a check failed. What it writes, it deletes. Example: everlong doctor --json
    """
    findings = asyncio.run(_doctor(load_settings(), as_json))
    if any(each.status == "failed" for each in findings):
        raise typer.Exit(1)


async def _setup(settings: Settings, as_json: bool) -> None:
    client = await _connect_alone(settings)
    done = await service.set_up(client)
    if as_json:
        print_json(
            [
                {"name": name, "type": SEARCH_ATTRIBUTES[name], "status": status}
                for name, status in done.items()
            ]
        )
        return
    for name, status in done.items():
        word = "added" if status == "added" else "already there"
        print_lines([f"{name:<27} {SEARCH_ATTRIBUTES[name]:<9} {word}"])
    if "added" in done.values():
        print_lines(["Workers that run already look for them when they start: start them again."])


async def _doctor(settings: Settings, as_json: bool) -> list[Finding]:
    packs: PackStore | EverlongError
    client: Client | EverlongError
    try:
        packs = open_configured_packs(settings)
    except EverlongError as error:
        packs = error
    try:
        if isinstance(packs, EverlongError):
            client = await _connect_alone(settings)
        else:
            async with asyncio.timeout(_CONNECT_SECONDS_MAX):
                client = await connect(settings)
    except TimeoutError:
        client = _no_answer(settings)
    except EverlongError as error:
        client = error
    findings = []
    async for each in service.examine(
        client,
        packs,
        task_queue=settings.task_queue,
        inline_bytes_max=settings.inline_bytes_max,
    ):
        findings.append(each)
        if not as_json:
            _print(each)
    if as_json:
        print_json(findings)
    else:
        counts = Counter(each.status for each in findings)
        said = ", ".join(f"{count} {status}" for status, count in counts.items())
        print_lines([f"{len(findings)} checks: {said}"])
    return findings


def _print(finding: Finding) -> None:
    status = Text(f"{finding.status:<8}", style=_COLOURS[finding.status])
    line = Text(plain(f" {finding.check}: {finding.text}"))
    out.print(status + line, soft_wrap=True)
    if finding.fix:
        out.print(Text(plain(f"{'':<8} fix: {finding.fix}")), soft_wrap=True)


async def _connect_alone(settings: Settings) -> Client:
    """Connect without the store and its keys, for what needs neither."""
    alone = dataclasses.replace(
        settings, store="memory:", keys="", outer_codec="", codec="", cache_dir=""
    )
    try:
        async with asyncio.timeout(_CONNECT_SECONDS_MAX):
            return await connect(alone)
    except TimeoutError:
        raise _no_answer(settings) from None


def _no_answer(settings: Settings) -> ServerUnreachable:
    return ServerUnreachable(
        f"no Temporal server answers at {settings.temporal.get('target_host')} within "
        f"{_CONNECT_SECONDS_MAX:.0f} s. Check TEMPORAL_ADDRESS, and the network between here and there."
    )
