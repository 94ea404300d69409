"""The `everlong` command. It reads arguments and prints; the work is done elsewhere."""

from everlong.cli import (
    archiving,
    checking,
    drain,
    governing,
    listing,
    past,
    querying,
    stack,
    sweeping,
    threads,
)
from everlong.cli.app import app, run

# As the help lists them.
for part in (
    stack,
    checking,
    listing,
    threads,
    governing,
    past,
    archiving,
    sweeping,
    querying,
    drain,
):
    app.add_typer(part.commands)

__all__ = ["app", "run"]
