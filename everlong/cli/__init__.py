"""The `everlong` command. It reads arguments and prints; the work is done elsewhere."""

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

# As the help lists them.
for part in (dev, doctor, threads, approvals, control, history, archives, sweep, query):
    app.add_typer(part.commands)

__all__ = ["app", "run"]
