"""Queries: runs one SQL statement over journals and archives, read-only and within bounds.

The result lists the data that was left out.
"""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from temporalio.client import Client

from everlong.errors import QueryRefused
from everlong.queries import LIBRARY, Bounds, NamedQuery, Needs
from everlong.queries.scratch import clear_orphans, make_scratch_folder
from everlong.queries.sources import ReadBounds, SourceReader
from everlong.storage.pack_store import PackStore

if TYPE_CHECKING:
    from everlong.queries.view_files import ViewFiles

T = TypeVar("T")
_THREADS_NAMED_MAX: Final = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryRead:
    """Amount of data that a query read."""

    threads: int
    """Rows of the view `threads`."""
    journals: int
    entries: int
    message_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryResult:
    """Result of a query. Values are JSON types; times are UTC."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    seconds: float
    truncated: bool
    """Whether rows were left out."""
    read: QueryRead
    left_out: tuple[str, ...] = ()
    """Data that was not read, because of a bound or an error. The rows cover the rest."""


async def run_query(
    client: Client,
    packs: PackStore,
    sql: str,
    *,
    threads: Sequence[str] = (),
    bounds: Bounds | None = None,
    reach: ReadBounds | None = None,
) -> QueryResult:
    """Run one SELECT over the views `entries`, `threads` and `resumes`.

    Only the views and columns that it uses are read: for the named threads, or for all threads within
    `reach`. If the call is cancelled, the statement's process is killed and its files are removed.
    """
    if len(threads) > _THREADS_NAMED_MAX:
        raise QueryRefused(f"{len(threads)} threads are named; {_THREADS_NAMED_MAX} is the most")
    sources = SourceReader(client, packs, reach or ReadBounds(), threads)
    return await _run(sources, sql, bounds or Bounds())


async def _run(sources: SourceReader, sql: str, bounds: Bounds) -> QueryResult:
    started = time.monotonic()
    # Imported here: pyarrow comes with an extra, and only queries need it.
    from everlong.queries.engine import open_statement
    from everlong.queries.view_files import ViewFiles

    await asyncio.to_thread(clear_orphans)
    # The process ends before its folder is removed, so it cannot write there afterwards.
    with make_scratch_folder() as folder:
        async with open_statement(sql, folder, bounds) as statement:
            files = ViewFiles(folder, statement.needs)
            await _load_views(sources, files, statement.needs)
            found = await statement.run(await _in_thread(files.close))
    left_out = list(sources.left_out)
    if found.cut:
        left_out.append(
            f"of {found.cut} long values all but the first {bounds.value_chars:,} characters"
        )
    return QueryResult(
        columns=found.columns,
        rows=found.rows,
        seconds=time.monotonic() - started,
        truncated=found.truncated,
        read=QueryRead(
            threads=len(sources.threads),
            journals=sources.threads_read,
            entries=sources.entries_read,
            message_bytes=sources.bytes_read,
        ),
        left_out=tuple(left_out),
    )


async def _load_views(sources: SourceReader, files: "ViewFiles", needs: Needs) -> None:
    if needs.tables:
        await sources.list_threads()
    if "threads" in needs.tables:
        await _in_thread(files.add, "threads", sources.threads)
    if "entries" in needs.tables:
        async for rows in sources.entries(needs.messages):
            await _in_thread(files.add, "entries", rows)


async def _in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run a function in an OS thread. A cancelled query waits for it: it writes to its folder."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


def find_named_query(name: str) -> NamedQuery:
    """Return a query of the library."""
    for each in LIBRARY:
        if each.name == name:
            return each
    names = ", ".join(each.name for each in LIBRARY)
    raise QueryRefused(f"there is no query {name!r} in the library; there are: {names}")
