"""The command `fleet`: totals of all threads."""

import contextlib

from rich.markup import escape
from rich.table import Table
from temporalio.client import Client

from everlong.admin.fleet import check_store_health, load_fleet
from everlong.cli.help import Commands
from everlong.cli.options import Json, run_with_client
from everlong.cli.output import build_fleet_rows, print_json
from everlong.cli.threads import read_thread_list
from everlong.client.sweeps import read_last_sweep
from everlong.config import load_settings
from everlong.connection import open_configured_packs
from everlong.console import print_table, sanitise
from everlong.errors import StoreError

commands = Commands()


@commands.command()
def fleet(as_json: Json = False) -> None:
    """Show totals of all threads, and what needs attention.

    Bytes, growth, resumes, failure loops, the store, the last sweep.

    Examples:
        everlong fleet
        everlong fleet --json

    """
    run_with_client(lambda client: _fleet(client, as_json))


async def _fleet(client: Client, as_json: bool) -> None:
    packs = open_configured_packs(load_settings())
    thread_list = await read_thread_list(client)
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
