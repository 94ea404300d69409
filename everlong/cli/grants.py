"""Commands for grants: list what needs no approval any more, and revoke it.

A grant is given with an approval: `everlong approve --always`.
"""

import time
from typing import Annotated

import typer
from temporalio.client import Client

from everlong.cli.help import Commands
from everlong.cli.options import (
    By,
    Json,
    OptionalThreadId,
    Reason,
    resolve_name,
    run_with_client,
)
from everlong.cli.output import format_grant, print_json, print_lines
from everlong.client.grants import list_agent_grants, revoke_agent_grant
from everlong.client.thread import ThreadHandle
from everlong.config import load_settings
from everlong.connection import open_configured_packs
from everlong.errors import ConfigError
from everlong.models.grants import is_thread_grant

commands = Commands()


@commands.command()
def grants(thread_id: OptionalThreadId = None, as_json: Json = False) -> None:
    """List what needs no approval any more.

    Without a thread: the grants of all agents. With one: its own, and those of its agent.

    Examples:
        everlong grants
        everlong grants ops-7

    """
    packs = open_configured_packs(load_settings())

    async def work(client: Client) -> None:
        if thread_id is None:
            found = await list_agent_grants(client, packs, time.time_ns() // 1_000_000)
        else:
            found = await ThreadHandle(client, thread_id, packs=packs).grants()
        if as_json:
            print_json(found)
            return
        print_lines([format_grant(each) for each in found] or ["there are no grants"])

    run_with_client(work)


@commands.command(name="revoke-grant")
def revoke_grant(
    grant_id: Annotated[
        str, typer.Argument(metavar="GRANT", help="An id that `everlong grants` lists.")
    ],
    thread_id: OptionalThreadId = None,
    by: By = "",
    reason: Reason = "",
) -> None:
    """Revoke a grant: its calls need an approval again.

    That holds for calls that have not begun to run. Name the thread for a grant of a thread, whose id
    begins with t-.

    Examples:
        everlong revoke-grant a-5f0c1d2e3b4a5968
        everlong revoke-grant t-5f0c1d2e3b4a5968 ops-7

    """
    name = resolve_name(by)
    if thread_id is None and is_thread_grant(grant_id):
        raise ConfigError(
            f"{grant_id} is a grant of a thread. Name it: everlong revoke-grant {grant_id} THREAD"
        )
    packs = open_configured_packs(load_settings())

    async def work(client: Client) -> None:
        if thread_id is None:
            await revoke_agent_grant(client, packs, grant_id, by=name, reason=reason)
        else:
            thread = ThreadHandle(client, thread_id, packs=packs)
            await thread.revoke_grant(grant_id, by=name, reason=reason)
        print_lines([f"{grant_id} is revoked, by {name}"])

    run_with_client(work)
