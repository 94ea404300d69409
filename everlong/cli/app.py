"""The command itself, and what its parts share: arguments, and how it ends."""

import contextlib
import getpass
import os
import sys
from typing import Annotated, NoReturn

import typer

import everlong
from everlong.admin.console import err, out, plain
from everlong.errors import ConfigError, EverlongError

app = typer.Typer(
    help="Long-running AI agents on Temporal whose state stays small.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    epilog="Begin with: everlong demo. Then: everlong dev, and in a second terminal everlong send.",
)

ThreadId = Annotated[str, typer.Argument(help="The thread's id, which is its workflow id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
By = Annotated[str, typer.Option(help="Who asks for it; by default your user name.")]
Reason = Annotated[str, typer.Option(help="Why, for those who read the journal.")]


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
