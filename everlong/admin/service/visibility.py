"""Lists of threads from the server's visibility: by id, status and agent, in pages, and counted.

Servers list in one order: open executions first, by their start, the newest first; then closed ones, by
their end. SQL stores refuse ORDER BY, and Elasticsearch refuses it unless its operator allows it. So a
page in any other order is not asked of the server.
"""

import dataclasses
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, TypeVar

from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.service import RPCError, RPCStatusCode

from everlong.admin.service.rows import (
    QUERY,
    RowsPage,
    ThreadRow,
    cards_of,
    count_rows,
    quoted,
    read_rows,
    row_of,
)
from everlong.admin.service.translating import translated_rpc
from everlong.models import AGENT_WORKFLOW, CARD_MEMO
from everlong.search_attributes import has_attributes

T = TypeVar("T")

# Pages refresh themselves every two seconds. All viewers of one list share an answer of that age.
_PAGE_SECONDS: Final = 2.0
# To count, a SQL store reads an index over all executions that fit.
_COUNT_SECONDS: Final = 15.0
# 64 pages of up to 200 rows, 4 KiB each: 50 MiB if all of them are in use, and 2 s after that fewer.
_ANSWERS_MAX: Final = 64
# How Temporal ended an execution, and its name in queries.
_ENDS: Final = {
    "failed": "Failed",
    "canceled": "Canceled",
    "terminated": "Terminated",
    "timed_out": "TimedOut",
}
_NOTHING: Final = RowsPage((), {}, b"")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Which threads a list is asked for; empty fields fit all of them."""

    text: str = ""
    """Part of an id, in any case; in a query of the server, its beginning."""
    status: str = ""
    agent: str = ""

    def fits(self, row: ThreadRow) -> bool:
        """Tell whether a thread is one of them."""
        return (
            (not self.text or self.text.casefold() in row.thread_id.casefold())
            and (not self.status or row.status == self.status)
            and (not self.agent or row.agent == self.agent)
        )


def query_of(wanted: Wanted, *, attributes: bool) -> str | None:
    """Return the query that lists these threads; None if no thread can fit.

    A thread with the id `wanted.text` itself is not among them: it is looked up by its id. Without
    search `attributes` a namespace knows neither agents nor what open threads are doing. SQL stores
    refuse a query with a NUL in it, which an id may have.
    """
    if "\0" in f"{wanted.text}{wanted.status}{wanted.agent}":
        return None
    parts: list[str] = [QUERY]
    if wanted.status:
        status = _status_query(wanted.status, attributes=attributes)
        if status is None:
            return None
        parts.append(status)
    if wanted.agent:
        if not attributes:
            return None
        parts.append(f"EverlongAgent = {quoted(wanted.agent)}")
    if wanted.text:
        text = quoted(wanted.text)
        parts.append(f"WorkflowId STARTS_WITH {text} AND WorkflowId != {text}")
    return " AND ".join(parts)


def _status_query(status: str, *, attributes: bool) -> str | None:
    """Return the condition for a status as `row_of` words it."""
    if status in _ENDS:
        return f"ExecutionStatus = '{_ENDS[status]}'"
    if status == "running":
        unsaid = " AND EverlongStatus IS NULL" if attributes else ""
        return f"ExecutionStatus = 'Running'{unsaid}"
    if status == "stopped":
        # A thread that ended before it could say so was stopped.
        unless = (
            " AND (EverlongStatus != 'archived' OR EverlongStatus IS NULL)" if attributes else ""
        )
        return f"ExecutionStatus = 'Completed'{unless}"
    if not attributes:
        return None
    execution = "Completed" if status == "archived" else "Running"
    return f"ExecutionStatus = '{execution}' AND EverlongStatus = {quoted(status)}"


class Visibility:
    """What a server lists, for all who look at lists: an answer is shared while it is new."""

    def __init__(self, connect: Callable[[], Awaitable[Client]]) -> None:
        self._connect = connect
        self._pages = _Answers(_PAGE_SECONDS)
        self._counts = _Answers(_COUNT_SECONDS)

    async def rows(self, wanted: Wanted, token: bytes, limit: int) -> RowsPage:
        """Return a page of threads: one row for each id, of its newest run."""
        query = await self._query(wanted)
        if query is None:
            return _NOTHING
        return await self._pages.get(
            ("rows", query, token, limit), lambda: self._read(query, token, limit)
        )

    async def count(self, wanted: Wanted) -> int:
        """Return how many threads fit. An id that was reset or used again may count more than once."""
        query = await self._query(wanted)
        if query is None:
            return 0

        async def count() -> int:
            return await count_rows(await self._connect(), query)

        return await self._counts.get(query, count)

    async def thread(self, wanted: Wanted) -> ThreadRow | None:
        """Return the thread whose id is the text that is wanted, if the other filters fit it."""
        row = await self._pages.get(("id", wanted.text), lambda: self._describe(wanted.text))
        return row if row is not None and wanted.fits(row) else None

    async def by_ids(self, thread_ids: Sequence[str]) -> dict[str, ThreadRow]:
        """Return the threads with these ids, by id, as they are now."""
        if not thread_ids:
            return {}
        return await self._pages.get(
            ("ids", *thread_ids), lambda: self._read_ids(sorted(thread_ids))
        )

    async def _query(self, wanted: Wanted) -> str | None:
        attributes = bool(wanted.status or wanted.agent) and await has_attributes(
            await self._connect()
        )
        return query_of(wanted, attributes=attributes)

    async def _read(self, query: str, token: bytes, limit: int) -> RowsPage:
        client = await self._connect()
        page = await read_rows(client, query, token, size=limit)
        rows = _newest(page.rows)
        # An id may have been reset or used again: a closed run is not the thread if it has a newer one.
        closed = sorted(thread_id for thread_id, row in rows.items() if not row.is_open)
        newest = await self._read_ids(closed)
        kept = [
            row
            for row in rows.values()
            if newest.get(row.thread_id, row).started_ms <= row.started_ms
        ]
        return RowsPage(kept, {}, page.next_token)

    async def _read_ids(self, thread_ids: Sequence[str]) -> dict[str, ThreadRow]:
        listed = ", ".join(quoted(each) for each in thread_ids if "\0" not in each)
        if not listed:
            return {}
        page = await read_rows(await self._connect(), f"{QUERY} AND WorkflowId IN ({listed})")
        return _newest(page.rows)

    async def _describe(self, thread_id: str) -> ThreadRow | None:
        client = await self._connect()
        try:
            found = await client.get_workflow_handle(thread_id).describe()
        except RPCError as error:
            if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                return None
            raise translated_rpc(error, thread_id) from error
        return await _described(client, found) if found.workflow_type == AGENT_WORKFLOW else None


async def _described(client: Client, found: WorkflowExecutionDescription) -> ThreadRow:
    info = found.raw_description.workflow_execution_info
    payload = info.memo.fields.get(CARD_MEMO)
    cards = {} if payload is None else await cards_of(client, {"": payload})
    return row_of(info, cards.get(""))


def _newest(rows: Sequence[ThreadRow]) -> dict[str, ThreadRow]:
    found: dict[str, ThreadRow] = {}
    for row in rows:
        before = found.get(row.thread_id)
        if before is None or before.started_ms < row.started_ms:
            found[row.thread_id] = row
    return found


class _Answers:
    """Answers of the server, each kept for some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._kept: dict[Hashable, tuple[float, object]] = {}

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        now = time.monotonic()
        self._kept = {
            each: kept for each, kept in self._kept.items() if now - kept[0] < self._seconds
        }
        if key in self._kept:
            return self._kept[key][1]  # type: ignore[return-value] # what `ask` of this key gave
        answer = await ask()
        while len(self._kept) >= _ANSWERS_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = (time.monotonic(), answer)
        return answer
