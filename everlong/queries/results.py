"""What a query may take, what it reads, and what it gave."""

import dataclasses
from typing import Any, Final

PARSE_SECONDS: Final = 5.0
"""Time to parse and check a statement. The longest ones take 2 s."""
FILL_SECONDS: Final = 120.0
"""Time to make tables of what a statement reads: 316 MB at most, which take 5 s on a quiet machine."""


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What one query may take."""

    memory_bytes: int = 256 * 1024 * 1024
    disk_bytes: int = 1024 * 1024 * 1024
    seconds: float = 30.0
    rows: int = 10_000
    result_bytes: int = 32 * 1024 * 1024
    """Bytes of the result, as JSON or as objects in this process, whichever is more."""
    value_chars: int = 0
    """Characters of one value; longer ones are cut. 0 for any number."""


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a statement reads."""

    tables: frozenset[str]
    messages: bool
    """Whether it names what only messages hold."""


@dataclasses.dataclass(frozen=True)
class Table:
    """What a statement gave. Values are what JSON has."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    truncated: bool
    """Whether there are more rows than these."""
    cut: int = 0
    """Number of values that were cut."""
