"""SQL over journals and archives: read-only, within bounds, and what was left out is said."""

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from typing import Any, Final

from temporalio.client import Client

from everlong.admin.service.gathering import Gathering, Reach
from everlong.errors import QueryRefused
from everlong.queries import LIBRARY, Bounds, NamedQuery
from everlong.queries.folders import clear_left_behind, own_folder
from everlong.storage.packstore import PackStore

_THREADS_NAMED_MAX: Final = 200
# In one process. Each has 256 MiB here for what it reads, and three times that where it runs.
_AT_ONCE_MAX: Final = 4
_running: list[str] = []


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryRead:
    """What a query has read."""

    threads: int
    """Listed in the view `threads`."""
    journals: int
    entries: int
    message_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryResult:
    """What a query gave. Values are what JSON has; times are UTC."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    seconds: float
    truncated: bool
    """Whether there are more rows than these."""
    read: QueryRead
    left_out: tuple[str, ...] = ()
    """What was not read: it would have been too much, or could not be. Rows tell of the rest."""


async def query(
    client: Client,
    packs: PackStore,
    sql: str,
    *,
    threads: Sequence[str] = (),
    bounds: Bounds | None = None,
    reach: Reach | None = None,
) -> QueryResult:
    """Run one SELECT over the views `entries`, `threads` and `resumes`.

    Only what it uses is read: of all threads that the reach allows, or of those that are named.
    """
    if len(threads) > _THREADS_NAMED_MAX:
        raise QueryRefused(f"{len(threads)} threads are named; {_THREADS_NAMED_MAX} is the most")
    if len(_running) >= _AT_ONCE_MAX:
        raise QueryRefused(f"{_AT_ONCE_MAX} queries run already; try again when one has ended")
    _running.append(sql)
    try:
        gathering = Gathering(client, packs, reach or Reach(), threads)
        return await _run(gathering, sql, bounds or Bounds())
    finally:
        _running.remove(sql)


async def _run(gathering: Gathering, sql: str, bounds: Bounds) -> QueryResult:
    started = time.monotonic()
    # Here, since DuckDB comes with an extra, and only queries need it.
    from everlong.queries.engine import Database, needs_of

    needs = await asyncio.to_thread(needs_of, sql)
    await asyncio.to_thread(clear_left_behind)
    with own_folder() as folder:
        database = await asyncio.to_thread(Database, folder, needs, bounds)
        try:
            if needs.tables:
                await gathering.list_threads()
            if "threads" in needs.tables:
                await asyncio.to_thread(database.add, "threads", gathering.threads)
            if "entries" in needs.tables:
                async for rows in gathering.entries(needs.messages):
                    await asyncio.to_thread(database.add, "entries", rows)
            found = await asyncio.to_thread(database.run, sql)
        finally:
            database.close()
    return QueryResult(
        columns=found.columns,
        rows=found.rows,
        seconds=time.monotonic() - started,
        truncated=found.truncated,
        read=QueryRead(
            threads=len(gathering.threads),
            journals=gathering.threads_read,
            entries=gathering.entries_read,
            message_bytes=gathering.bytes_read,
        ),
        left_out=tuple(gathering.left_out),
    )


def named_query(name: str) -> NamedQuery:
    """Return a query of the library."""
    for each in LIBRARY:
        if each.name == name:
            return each
    names = ", ".join(each.name for each in LIBRARY)
    raise QueryRefused(f"there is no query {name!r} in the library; there are: {names}")
