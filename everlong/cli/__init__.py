"""The `everlong` command: parses arguments, calls the layers below, prints the results.

Each module holds the commands of one subject, as a Typer app called `commands`. `app.COMMANDS` lists
them all.
"""

from everlong.cli.app import app, run

__all__ = ["app", "run"]
