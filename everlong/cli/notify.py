"""The command `notify`: tries the sinks of notifications."""

import asyncio
import time
from typing import Annotated

import typer

from everlong.cli.help import Commands
from everlong.cli.options import Json
from everlong.cli.output import print_json, print_lines
from everlong.cli.values import word
from everlong.config import load_settings
from everlong.connection import load_configured_notify
from everlong.errors import ConfigError, SinkUnreachable, quote
from everlong.models.notices import Event, Notification
from everlong.notify import Notify, SinkFailed
from everlong.notify.sinks import Outgoing, Sink, list_names

commands = Commands()


@commands.command()
def notify(
    action: Annotated[
        str,
        typer.Argument(
            metavar="test|show",
            parser=word("ACTION", ("test", "show")),
            help="test: send a message to each sink. show: list the sinks.",
        ),
    ],
    sink: Annotated[str, typer.Option(metavar="NAME", help="Only this sink, instead of all.")] = "",
    as_json: Json = False,
) -> None:
    """Send a test message to each sink of notifications, or list the sinks.

    Reads the file that EVERLONG_NOTIFY names. Exits with 14 if a sink did not take the message.

    Examples:
        everlong notify test
        everlong notify test --sink team
        everlong notify show

    """
    configured = load_configured_notify(load_settings())
    if configured is None:
        raise ConfigError("there are no sinks: set EVERLONG_NOTIFY to a file that configures some")
    sinks = [each for each in configured.sinks if not sink or each.name == sink]
    if not sinks:
        raise ConfigError(
            f"there is no sink {quote(sink)}; configured: {list_names(configured.sinks)}"
        )
    if action == "show":
        _print([(each, "") for each in sinks], as_json, tested=False)
        return
    found = asyncio.run(_test(configured, sinks))
    _print(found, as_json, tested=True)
    failed = [each.name for each, error in found if error]
    if failed:
        raise SinkUnreachable(f"these sinks did not take the message: {', '.join(failed)}")


async def _test(configured: Notify, sinks: list[Sink]) -> list[tuple[Sink, str]]:
    """Return the error of each sink; empty for one that took the message."""
    now_ms = time.time_ns() // 1_000_000
    key = f"n-test-{now_ms}"
    item = Notification(key=key, event=Event.TEST, ms=now_ms)
    message = Outgoing(key=key, items=(item,), base_url=configured.url)

    async def send(sink: Sink) -> tuple[Sink, str]:
        try:
            await sink.send(message)
        except SinkFailed as error:
            return sink, str(error)
        return sink, ""

    return list(await asyncio.gather(*map(send, sinks)))


def _print(found: list[tuple[Sink, str]], as_json: bool, *, tested: bool) -> None:
    if as_json:
        rows = [
            {"name": sink.name, "kind": sink.kind, "where": sink.describe()}
            | ({"error": error or None} if tested else {"events": sorted(sink.wanted_events)})
            for sink, error in found
        ]
        print_json(rows)
        return
    for sink, error in found:
        outcome = f": {error or 'sent'}" if tested else ""
        print_lines([f"{sink.name} ({sink.describe()}){outcome}"])
