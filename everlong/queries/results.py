"""What a query may take, what it reads, and what it gave."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What one query may take."""

    memory_bytes: int = 256 * 1024 * 1024
    disk_bytes: int = 1024 * 1024 * 1024
    seconds: float = 30.0
    rows: int = 10_000
    result_bytes: int = 32 * 1024 * 1024
    """As JSON. In memory, here, it is some times that."""


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
