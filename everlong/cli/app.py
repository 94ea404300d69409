"""Root of the `everlong` command: its commands by name, errors and exit codes.

Every command raises errors of `everlong.errors`; `run` alone turns them into a message and an exit code.
A command's module is imported when the command runs: all of them take over a second of CPU.
"""

import contextlib
import importlib
import os
import sys
from typing import Annotated, Any, Final, NoReturn

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

import everlong
from everlong.console import err, out, sanitise
from everlong.errors import EverlongError

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "demo": (
        "dev",
        "Run an agent for 60 steps, kill its worker, resume it, and print the figures.",
    ),
    "dev": ("dev", "Start Temporal, a blob store and a worker on this machine, until Ctrl-C."),
    "worker": ("dev", "Run agents on the configured Temporal server, until Ctrl-C."),
    "serve": (
        "dev",
        "Serve the dashboard, its JSON API, and the codec endpoints of the Temporal UI and CLI.",
    ),
    "setup": (
        "doctor",
        "Add Everlong's search attributes to the namespace, so that threads can be listed.",
    ),
    "doctor": (
        "doctor",
        "Check the server, the store, the keys, the clocks and the workers, and suggest fixes.",
    ),
    "drain": (
        "doctor",
        "Count the runs with Everlong payloads, which cannot be read once the plugin is removed.",
    ),
    "threads": (
        "threads",
        "List threads: status, sizes, growth, approvals. It queries no thread, so none resumes.",
    ),
    "fleet": (
        "threads",
        "Show totals of all threads: bytes, growth, resumes, failure loops, store, last sweep.",
    ),
    "runs": (
        "threads",
        "List a thread's runs, newest first: events, bytes, and links to the Temporal UI.",
    ),
    "send": ("threads", "Send a message to a thread and print the answer."),
    "show": (
        "threads",
        "Show a thread's status, counters and sizes, now or after an entry of its journal.",
    ),
    "journal": (
        "threads",
        "List the entries of a thread's journal. With --json, messages are complete.",
    ),
    "approvals": ("approvals", "List the tool calls that wait for approval."),
    "approve": ("approvals", "Approve a tool call, so that it runs."),
    "deny": (
        "approvals",
        "Deny a tool call. The model sees the denial and the reason, and continues without the result.",
    ),
    "limits": ("control", "Show the policy of a thread, or change it while the thread runs."),
    "pause": (
        "control",
        "Pause a thread: it takes no more steps. The step under way finishes; messages are queued.",
    ),
    "unpause": (
        "control",
        "Let a paused thread continue. If a limit paused it, raise the limit first.",
    ),
    "compact": (
        "control",
        "Compact a thread's context at its next safe point. The journal keeps every entry.",
    ),
    "stop": (
        "control",
        "Stop a thread at its next safe point. It takes no more messages; its journal stays.",
    ),
    "diff": ("time_travel", "Show what changed in a thread from one entry to a later one."),
    "fork": (
        "time_travel",
        "Start a new thread from another thread's state after an entry. The other thread is unchanged.",
    ),
    "archive": (
        "archives",
        "Write a thread's journal to one Parquet file, and verify it by reading it back.",
    ),
    "archives": ("archives", "List archives, the newest first."),
    "revive": (
        "archives",
        "Start a new thread from an archive. It shares no packs with the archived thread.",
    ),
    "sweep": (
        "sweep",
        "Free stored objects that no retained history references. They go to quarantine first.",
    ),
    "query": ("query", "Query journals and archives in SQL. Read-only."),
}
"""Module in `everlong.cli` and summary of each command, in the order of the help."""

# Set in a context for help and shell completion: they need summaries only, so no module is imported.
_SUMMARIES_ONLY: Final = "everlong.summaries_only"


class LazyGroup(TyperGroup):
    """Commands that are imported when they are used."""

    def __init__(self, **arguments: Any) -> None:
        summaries = {
            name: TyperCommand(name, help=summary) for name, (_, summary) in COMMANDS.items()
        }
        super().__init__(**{**arguments, "commands": summaries})

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, from the summaries."""
        ctx.meta[_SUMMARIES_ONLY] = True
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete the name of a command, from the summaries."""
        ctx.meta[_SUMMARIES_ONLY] = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            ctx.meta[_SUMMARIES_ONLY] = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; import its module unless only its summary is needed."""
        if cmd_name not in COMMANDS or ctx.meta.get(_SUMMARIES_ONLY):
            return super().get_command(ctx, cmd_name)
        return load_command(cmd_name)


def load_command(name: str) -> Any:
    """Import the module of a command, and return the command."""
    module = importlib.import_module(f"everlong.cli.{COMMANDS[name][0]}")
    found = typer.main.get_command(module.commands)
    # An app with a single command is that command.
    return found.commands[name] if isinstance(found, TyperGroup) else found


app = typer.Typer(
    cls=LazyGroup,
    help="Long-running AI agents on Temporal whose state stays small.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    epilog="Begin with: everlong demo. Then: everlong dev, and in a second terminal everlong send.",
)


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
    """Run agents for months, and see how much state they use."""


def run() -> NoReturn:
    """Run the command and exit. An `EverlongError` becomes a message and its exit code."""
    try:
        app()
        code = 0
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    except EverlongError as error:
        err.print(f"error: {sanitise(str(error))}", markup=False, soft_wrap=True)
        code = error.exit_code
    with contextlib.suppress(BrokenPipeError):  # The reader of our output has closed the pipe.
        sys.stdout.flush()
        sys.stderr.flush()
    # Everything is closed by now. Skip the interpreter's shutdown: the SDK's native threads have
    # crashed it, and tools that hang would block it.
    os._exit(code)
