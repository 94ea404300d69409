"""Options and arguments that several commands share."""

import asyncio
import getpass
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

import typer
from temporalio.client import Client

from everlong.client.visibility import read_rows
from everlong.config import load_settings
from everlong.connection import connect
from everlong.errors import ConfigError
from everlong.models.thread_ids import check_id, is_new_id

# Shell completion offers ids of the newest threads only, since the shell blocks until it returns.
_COMPLETE_ROWS: Final = 500
_COMPLETE_SECONDS_MAX: Final = 2.0


def complete_thread_id(incomplete: str) -> list[str]:
    """Return the thread ids with this prefix, for shell completion; none if anything fails."""
    try:
        return asyncio.run(_list_ids(incomplete))
    except Exception:  # noqa: BLE001 - an error message would land in the line that the user types.
        return []


async def _list_ids(incomplete: str) -> list[str]:
    async with asyncio.timeout(_COMPLETE_SECONDS_MAX):
        client = await connect(load_settings())
        page = await read_rows(client, size=_COMPLETE_ROWS)
    ids = {row.thread_id for row in page.rows if row.thread_id.startswith(incomplete)}
    # Other ids are left out: a shell would split them at spaces, and a line break looks like two ids.
    return sorted(filter(is_new_id, ids))


def _check_thread_id(thread_id: str | None) -> str | None:
    """Reject ids that no thread can have: not UTF-8, or too long."""
    if thread_id is not None:
        check_id(thread_id)
    return thread_id


ThreadId = Annotated[
    str,
    typer.Argument(
        help="The thread's id, which is its workflow id.",
        autocompletion=complete_thread_id,
        callback=_check_thread_id,
    ),
]
OptionalThreadId = Annotated[
    str | None,
    typer.Argument(help="Only this thread; all threads by default.", callback=_check_thread_id),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
By = Annotated[str, typer.Option(help="Your name, for the journal; by default your user name.")]
Reason = Annotated[str, typer.Option(help="Your reason, for the journal.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would happen; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def resolve_name(by: str) -> str:
    """Return the name given with `--by`, or else the name of the system's user."""
    if by:
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise ConfigError("the system has no user name for this process. Add --by NAME") from None


def confirm(what: str, *, yes: bool) -> None:
    """Ask for confirmation of a final action, unless `yes` is set or there is no terminal."""
    if yes or not sys.stdin.isatty():
        return
    typer.confirm(f"{what} Continue?", abort=True)


def run_with_client(work: Callable[[Client], Awaitable[None]]) -> None:
    """Connect to the configured server, and run `work` with the client."""

    async def connect_and_work() -> None:
        await work(await connect(load_settings()))

    asyncio.run(connect_and_work())
