"""The command itself, and what its parts share: arguments, and how it ends."""

import asyncio
import contextlib
import getpass
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Final, NoReturn

import typer
from temporalio.client import Client

import everlong
from everlong.admin.console import err, out, plain
from everlong.client.visibility import read_rows
from everlong.config import load_settings
from everlong.connection import connect
from everlong.errors import ConfigError, EverlongError
from everlong.models.thread_ids import check_id, is_new_id

# Of the newest threads, those that fit: a shell waits for it.
_COMPLETE_ROWS: Final = 500
_COMPLETE_SECONDS_MAX: Final = 2.0

app = typer.Typer(
    help="Long-running AI agents on Temporal whose state stays small.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    epilog="Begin with: everlong demo. Then: everlong dev, and in a second terminal everlong send.",
)


def complete_thread_id(incomplete: str) -> list[str]:
    """Return ids that begin like this, for the shell. Whatever fails, it completes nothing."""
    try:
        return asyncio.run(_ids(incomplete))
    except Exception:  # noqa: BLE001 - somebody is typing.
        return []


async def _ids(incomplete: str) -> list[str]:
    async with asyncio.timeout(_COMPLETE_SECONDS_MAX):
        client = await connect(load_settings())
        page = await read_rows(client, size=_COMPLETE_ROWS)
    ids = {row.thread_id for row in page.rows if row.thread_id.startswith(incomplete)}
    # A shell would break others up, and a line break would look like two ids.
    return sorted(filter(is_new_id, ids))


def _existing(thread_id: str | None) -> str | None:
    """Refuse what no thread can be called: an argument that is not UTF-8, or that is too long."""
    if thread_id is not None:
        check_id(thread_id)
    return thread_id


ThreadId = Annotated[
    str,
    typer.Argument(
        help="The thread's id, which is its workflow id.",
        autocompletion=complete_thread_id,
        callback=_existing,
    ),
]
OptionalThreadId = Annotated[
    str | None,
    typer.Argument(help="Only those of this thread; all if left out.", callback=_existing),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
By = Annotated[str, typer.Option(help="Who asks for it; by default your user name.")]
Reason = Annotated[str, typer.Option(help="Why, for those who read the journal.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it would do, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask first.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"everlong {everlong.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Run agents for months, and see what they take up."""


def name_of(by: str) -> str:
    """Return who does something: the name that was given, or the one that the system knows."""
    if by:
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise ConfigError("the system does not know your name here. Give it: --by NAME") from None


def confirm(what: str, *, yes: bool) -> None:
    """Ask whether to go on with what cannot be undone. Programs, which have no terminal, know."""
    if yes or not sys.stdin.isatty():
        return
    typer.confirm(f"{what} Go on?", abort=True)


def run_with_client(work: Callable[[Client], Awaitable[None]]) -> None:
    """Connect to the server of the environment, and run `work` with the client."""

    async def connected() -> None:
        await work(await connect(load_settings()))

    asyncio.run(connected())


def run() -> NoReturn:
    """Run the command; an error of our own is a message and an exit code, not a stack trace."""
    try:
        app()
        code = 0
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    except EverlongError as error:
        err.print(f"error: {plain(str(error))}", markup=False, soft_wrap=True)
        code = error.exit_code
    with contextlib.suppress(BrokenPipeError):  # Whoever read our output has had enough.
        sys.stdout.flush()
        sys.stderr.flush()
    # All is closed by now. What is left is the SDK's native threads, which have crashed the
    # interpreter while it was taking itself apart, and tools that hang, which would hold it up.
    os._exit(code)
