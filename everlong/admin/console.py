"""How things are printed for people."""

import shutil
import sys
from pathlib import Path

from rich.console import Console

from everlong import limits

out = Console(highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)


def plain(text: str) -> str:
    """Return a text that others wrote, without what could steer a terminal."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def command() -> str:
    """Return how this program is called from here: not every shell has it on its PATH."""
    if shutil.which("everlong"):
        return "everlong"
    program = Path(sys.argv[0])
    return "python -m everlong" if program.name == "__main__.py" else str(program)


def bytes_text(size_bytes: int) -> str:
    """Return a size as people read it: `512 B`, `1.2 MiB`."""
    if size_bytes < limits.KIB:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= limits.KIB
        if size < limits.KIB:
            return f"{size:.1f} {unit}"
    return f"{size / limits.KIB:.1f} TiB"
