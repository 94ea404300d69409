"""The `everlong` command: parses arguments, calls the layers below, prints the results.

Each module holds the commands of one subject, as a Typer app called `commands`.
"""

from everlong.cli import (
    approvals,
    archives,
    control,
    dev,
    doctor,
    history,
    query,
    sweep,
    threads,
)
from everlong.cli.app import app, run

# The order of the help.
for part in (dev, doctor, threads, approvals, control, history, archives, sweep, query):
    app.add_typer(part.commands)

__all__ = ["app", "run"]
