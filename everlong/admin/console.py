"""How things are printed for people."""

from rich.console import Console

from everlong import limits

out = Console(highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)


def plain(text: str) -> str:
    """Return a text that others wrote, without what could steer a terminal."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


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
