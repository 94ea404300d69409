"""SQL over journals and archives: read-only, within bounds, and what was left out is said."""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from temporalio.client import Client

from everlong.errors import QueryRefused
from everlong.queries import LIBRARY, Bounds, NamedQuery, Needs
from everlong.queries.scratch import clear_orphans, make_scratch_folder
from everlong.queries.sources import Gathering, ReadBounds
from everlong.storage.pack_store import PackStore

if TYPE_CHECKING:
    from everlong.queries.view_files import ViewFiles

T = TypeVar("T")
_THREADS_NAMED_MAX: Final = 200


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

    Only what it uses is read: of all threads that the reach allows, or of those that are named. If the
    call is cancelled, the statement's process is killed and its files are removed.
    """
    if len(threads) > _THREADS_NAMED_MAX:
        raise QueryRefused(f"{len(threads)} threads are named; {_THREADS_NAMED_MAX} is the most")
    gathering = Gathering(client, packs, reach or ReadBounds(), threads)
    return await _run(gathering, sql, bounds or Bounds())


async def _run(gathering: Gathering, sql: str, bounds: Bounds) -> QueryResult:
    started = time.monotonic()
    # Imported here: pyarrow comes with an extra, and only queries need it.
    from everlong.queries.engine import open_statement
    from everlong.queries.view_files import ViewFiles

    await asyncio.to_thread(clear_orphans)
    # The process ends before its folder is removed, so that it writes nothing there afterwards.
    with make_scratch_folder() as folder:
        async with open_statement(sql, folder, bounds) as statement:
            files = ViewFiles(folder, statement.needs)
            await _gather(gathering, files, statement.needs)
            found = await statement.run(await _in_thread(files.close))
    left_out = list(gathering.left_out)
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
            threads=len(gathering.threads),
            journals=gathering.threads_read,
            entries=gathering.entries_read,
            message_bytes=gathering.bytes_read,
        ),
        left_out=tuple(left_out),
    )


async def _gather(gathering: Gathering, files: "ViewFiles", needs: Needs) -> None:
    if needs.tables:
        await gathering.list_threads()
    if "threads" in needs.tables:
        await _in_thread(files.add, "threads", gathering.threads)
    if "entries" in needs.tables:
        async for rows in gathering.entries(needs.messages):
            await _in_thread(files.add, "entries", rows)


async def _in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run a function in a thread. A cancelled query waits for it: it writes to the query's folder."""
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
