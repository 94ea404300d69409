"""The `everlong` command. It reads arguments and prints; the work is done elsewhere."""

from everlong.cli import checking, governing, past, stack, threads
from everlong.cli.app import app, run

for part in (stack, checking, threads, governing, past):  # As the help lists them.
    app.add_typer(part.commands)

__all__ = ["app", "run"]
