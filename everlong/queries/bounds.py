"""Bounds of a query: memory, disk, time and size of the result."""

import dataclasses
from typing import Final

PARSE_SECONDS: Final = 5.0
"""Time to parse and check a statement. The longest ones take 2 s."""
FILL_SECONDS: Final = 120.0
"""Time to load the tables that a statement reads: 316 MB at most, which take 5 s on a quiet machine."""


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Bounds of one query."""

    memory_bytes: int = 256 * 1024 * 1024
    disk_bytes: int = 1024 * 1024 * 1024
    seconds: float = 30.0
    rows: int = 10_000
    result_bytes: int = 32 * 1024 * 1024
    """Bytes of the result, as JSON or as objects in this process, whichever is more."""
    value_chars: int = 0
    """Characters of one value; longer values are cut. 0 for no bound."""
