"""Options and arguments that several commands share."""

import asyncio
import getpass
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from everlong.cli.values import duration
from everlong.errors import ConfigError, suggest
from everlong.models.thread_ids import check_id, is_new_id

if TYPE_CHECKING:
    from temporalio.client import Client

# Shell completion offers ids of the newest threads only, since the shell blocks until it returns.
_COMPLETE_ROWS: Final = 500
_COMPLETE_SECONDS_MAX: Final = 2.0


def complete_thread_id(incomplete: str) -> list[str]:
    """Return the thread ids with this prefix, for shell completion; none if anything fails."""
    try:
        return asyncio.run(_list_ids(incomplete))
    except Exception:  # noqa: BLE001 - an error message would land in the line that the user types.
        return []


def suggest_thread(thread_id: str) -> str:
    """Return a line with the nearest id of a thread, and where to look; it asks the server once."""
    hint = suggest(thread_id, complete_thread_id(""))
    return f"{hint} List all with: everlong threads".strip()


async def _list_ids(incomplete: str) -> list[str]:
    # Imported here, like all of the client: the help and wrong options need none of it.
    from everlong.client.visibility import read_rows
    from everlong.config import load_settings
    from everlong.connection import connect

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
        metavar="THREAD",
        help="The thread's id, which is its workflow id.",
        autocompletion=complete_thread_id,
        callback=_check_thread_id,
    ),
]
OptionalThreadId = Annotated[
    str | None,
    typer.Argument(
        metavar="THREAD",
        help="Only this thread; all threads by default.",
        autocompletion=complete_thread_id,
        callback=_check_thread_id,
    ),
]
NewThreadId = Annotated[str, typer.Argument(metavar="NEW_THREAD", help="The id of the new thread.")]
Agent = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Another agent, with its own policy; by default the same."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
By = Annotated[
    str,
    typer.Option(metavar="NAME", help="Your name, for the journal; by default your user name."),
]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Your reason, for the journal.")]
Cursor = Annotated[
    str,
    typer.Option(metavar="CURSOR", help="Continue where the previous page ended, which names it."),
]
Timeout = Annotated[
    float,
    typer.Option(
        metavar="DURATION",
        parser=duration("--timeout"),
        help="How long to wait for the answer, as in 90s or 5m.",
    ),
]
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


def run_with_client(work: "Callable[[Client], Awaitable[None]]") -> None:
    """Connect to the configured server, and run `work` with the client."""
    from everlong.config import load_settings
    from everlong.connection import connect

    async def connect_and_work() -> None:
        await work(await connect(load_settings()))

    asyncio.run(connect_and_work())
