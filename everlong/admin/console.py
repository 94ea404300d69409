"""How things are printed for people."""

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
# As wide as any table of ours would like to be.
_PIPE_CHARS: Final = 1000


def plain(text: str) -> str:
    """Return a text that others wrote, without what could steer a terminal."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def print_table(table: Table) -> None:
    """Print a table: for a person as wide as their terminal is, for a pipe with nothing cut off."""
    wide = Console(file=out.file, width=_PIPE_CHARS, highlight=False, emoji=False)
    (out if out.is_terminal else wide).print(table)


@contextlib.contextmanager
def show_progress(is_silent: bool) -> Iterator[Status]:
    """Show a line that says what is being done, on a terminal and unless it is to be silent."""
    status = err.status("connecting …")
    if is_silent or not err.is_terminal:
        yield status
        return
    with status:
        yield status


def command() -> str:
    """Return how this program is called from here: not every shell has it on its PATH."""
    if shutil.which("everlong"):
        return "everlong"
    program = Path(sys.argv[0])
    return "python -m everlong" if program.name == "__main__.py" else str(program)
