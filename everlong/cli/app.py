"""Root of the `everlong` command: its commands by name, errors and exit codes.

Every command raises errors of `everlong.errors`; `execute` alone turns them into a message and an exit
code. A command's module is imported when the command runs: all of them take over a second of CPU.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final, NoReturn

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

import everlong
from everlong.cli.help import describe_param, format_rows
from everlong.cli.usage import USAGE_ERROR, explain_usage
from everlong.errors import ConfigError, EverlongError, ThreadNotFound, quote, suggest

GROUPS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "START HERE": {
        "demo": (
            "dev",
            "Run an agent for 60 steps, kill its worker, resume it, and print the figures.",
        ),
        "init": ("init", "Make a project that runs: an agent, its test, settings, containers."),
        "dev": ("dev", "Start Temporal, a blob store and a worker on this machine, until Ctrl-C."),
    },
    "RUN": {
        "worker": ("worker", "Run agents on the configured Temporal server, until Ctrl-C."),
        "serve": (
            "serve",
            "Serve the dashboard, its JSON API, and the Temporal UI's codec endpoints.",
        ),
        "setup": (
            "doctor",
            "Add Everlong's search attributes to the namespace.",
        ),
        "notify": (
            "notify",
            "Send a test message to each sink of notifications, or list the sinks.",
        ),
        "doctor": ("doctor", "Check the server, the store, the keys, the clocks and the workers."),
        "drain": ("doctor", "Count the runs that need the plugin, before you remove it."),
    },
    "TALK AND LOOK": {
        "send": ("thread", "Send a message to a thread and print the answer."),
        "chat": ("chat", "Talk to a thread at the terminal, and decide on approvals there."),
        "threads": ("threads", "List threads: status, sizes, growth, costs, approvals."),
        "show": ("thread", "Show a thread's status, counters and sizes, now or in the past."),
        "journal": ("thread", "List the entries of a thread's journal."),
        "runs": ("thread", "List a thread's runs: events, bytes, links to the Temporal UI."),
        "fleet": ("fleet", "Show totals of all threads, and what needs attention."),
        "bytes": (
            "stored_bytes",
            "Show what stored bytes are for: messages, replies, tools, snapshots, leftovers.",
        ),
        "query": ("query", "Query journals and archives in SQL; read-only."),
    },
    "CONTROL": {
        "approvals": ("approvals", "List the tool calls that wait for approval."),
        "approve": ("approvals", "Approve a tool call, so that it runs."),
        "deny": ("approvals", "Deny a tool call; the model reads the denial and the reason."),
        "grants": ("grants", "List what needs no approval any more."),
        "revoke-grant": ("grants", "Revoke a grant: its calls need an approval again."),
        "outcomes": (
            "outcomes",
            "List the calls of which it is not known whether they took effect.",
        ),
        "resolve": ("outcomes", "Say what became of a call: done, not done, or try again."),
        "limits": ("control", "Show the limits of a thread, or change them while it runs."),
        "label": ("control", "Show the labels of a thread, or change them."),
        "pause": ("control", "Pause a thread: it takes no more steps until it is unpaused."),
        "unpause": ("control", "Let a paused thread continue."),
        "compact": ("control", "Compact a thread's context at its next safe point."),
        "stop": ("control", "Stop a thread for ever, at its next safe point."),
    },
    "PAST AND STORAGE": {
        "diff": ("time_travel", "Show what changed in a thread from one entry to a later one."),
        "fork": ("time_travel", "Start a new thread from another thread's state after an entry."),
        "rerun": (
            "time_travel",
            "Undo a misstep: change a message, and run again from there in a fork.",
        ),
        "archive": (
            "archives",
            "Write a thread's journal to one Parquet file, and verify it.",
        ),
        "archives": ("archives", "List archives, the newest first."),
        "revive": ("archives", "Start a new thread from an archive."),
        "sweep": ("sweep", "Free stored objects that no retained history needs."),
    },
}
"""Module in `everlong.cli` and summary of each command, by group, in the order of the help."""
COMMANDS: Final = {name: each for group in GROUPS.values() for name, each in group.items()}

# Set in a context for shell completion: it needs summaries only, so no module is imported.
_SUMMARIES_ONLY: Final = "everlong.summaries_only"
_ABOUT: Final = "Long-running AI agents on Temporal whose state stays small."
_EXAMPLES: Final = """EXAMPLES
  everlong demo
  everlong dev
  everlong send hello-1 'Hello' --agent demo
"""
_MORE: Final = """Settings are environment variables: TEMPORAL_ADDRESS, EVERLONG_STORE and others.
More about a command: everlong COMMAND --help
"""


class LazyGroup(TyperGroup):
    """Commands that are imported when they are used."""

    def __init__(self, **arguments: Any) -> None:
        summaries = {
            name: TyperCommand(name, help=summary) for name, (_, summary) in COMMANDS.items()
        }
        super().__init__(**{**arguments, "commands": summaries})

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, from the summaries."""
        lines = [_ABOUT, "", "USAGE", "  everlong COMMAND [ARGUMENTS] [OPTIONS]"]
        for title, commands in GROUPS.items():
            rows = [(name, summary) for name, (_, summary) in commands.items()]
            lines += ["", title, *format_rows(rows)]
        params: list[Any] = self.get_params(ctx)
        options = [each for each in params if not each.hidden]
        lines += ["", "OPTIONS", *format_rows(map(describe_param, options)), "", _EXAMPLES, _MORE]
        formatter.write("\n".join(lines))

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

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is asked for; name the nearest one if there is none."""
        name = args[0]
        if name not in COMMANDS and not ctx.resilient_parsing and not name.startswith("-"):
            raise ConfigError(
                f"there is no command {quote(name)}.{suggest(name, COMMANDS)} List the commands: "
                "everlong --help"
            )
        return super().resolve_command(ctx, args)


def load_command(name: str) -> Any:
    """Import the module of a command, and return the command."""
    module = importlib.import_module(f"everlong.cli.{COMMANDS[name][0]}")
    found = typer.main.get_command(module.commands)
    # An app with a single command is that command.
    return found.commands[name] if isinstance(found, TyperGroup) else found


app = typer.Typer(
    cls=LazyGroup,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"everlong {everlong.__version__}")  # noqa: T201
        raise typer.Exit


@app.callback(invoke_without_command=True)
def main(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Run agents for months, and see how much state they use."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def execute(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. Errors are printed: what happened, and what to do."""
    try:
        result = app(list(arguments), prog_name="everlong", standalone_mode=False)
    except typer.Abort:
        _print_error("the command was not confirmed; nothing was changed")
        return 1
    except EverlongError as error:
        _print_error(_explain(error))
        return error.exit_code
    except Exception as error:
        if not isinstance(error, USAGE_ERROR):
            raise
        _print_error(explain_usage(error, arguments))
        return ConfigError.exit_code
    return result if isinstance(result, int) else 0


def run() -> NoReturn:
    """Run the command of this process, and exit with its code."""
    try:
        code = execute(sys.argv[1:])
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    with contextlib.suppress(BrokenPipeError):  # The reader of our output has closed the pipe.
        sys.stdout.flush()
        sys.stderr.flush()
    # Everything is closed by now. Skip the interpreter's shutdown: the SDK's native threads have
    # crashed it, and tools that hang would block it.
    os._exit(code)


def _explain(error: EverlongError) -> str:
    """Return the message of an error; below that of an unknown thread, the nearest one that exists."""
    if not isinstance(error, ThreadNotFound) or not error.thread_id:
        return str(error)
    # Imported here: no other error needs the options.
    from everlong.cli.options import suggest_thread

    return f"{error}\n{suggest_thread(error.thread_id)}"


def _print_error(text: str) -> None:
    # Imported here: `--version` and `--help` print no error.
    from everlong.console import err, sanitise

    err.print(f"error: {sanitise(text)}", markup=False, soft_wrap=True)
