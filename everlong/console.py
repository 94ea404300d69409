"""Terminal output: consoles, tables, progress."""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.status import Status
from rich.table import Table

out = Console(highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)
# Wider than any table.
_PIPE_CHARS: Final = 1000


def sanitise(text: str) -> str:
    """Replace control characters in untrusted text, so that it cannot control the terminal."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def print_table(table: Table) -> None:
    """Print a table, fitted to a terminal; into a pipe, without truncation."""
    wide = Console(file=out.file, width=_PIPE_CHARS, highlight=False, emoji=False)
    (out if out.is_terminal else wide).print(table)


@contextlib.contextmanager
def show_progress(is_silent: bool) -> Iterator[Status]:
    """Show a status line on a terminal, unless silent."""
    status = err.status("connecting …")
    if is_silent or not err.is_terminal:
        yield status
        return
    with status:
        yield status


def find_command() -> str:
    """Return the command that runs this program here: it may not be on the PATH."""
    if shutil.which("everlong"):
        return "everlong"
    program = Path(sys.argv[0])
    return "python -m everlong" if program.name == "__main__.py" else str(program)
