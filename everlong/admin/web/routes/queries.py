"""Routes for queries: SQL over journals and archives, and a library of useful queries.

Query slots bound how many queries run at once, in all and per user: a user may run two, so that no user
blocks the others. A query without a slot waits a short time. A free slot goes to the waiting user who
runs the fewest queries. A query is cancelled when its client disconnects.
"""

import asyncio
import collections
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Coroutine
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, HTTPException, Request
from pydantic import FailFast, Field

from everlong import limits
from everlong.admin.web.auth import CurrentUser, requires
from everlong.admin.web.context import AppContext
from everlong.admin.web.parameters import BodyId, Text, limit_items
from everlong.queries import LIBRARY, Bounds, NamedQuery
from everlong.queries.engine import QueryResult, run_query

_ROWS_MAX: Final = 10_000
_SQL_CHARS_MAX: Final = 20_000
_THREADS_MAX: Final = 200
# The route `entries/{seq}/whole` returns whole bodies.
_VALUE_CHARS_MAX: Final = 16 * limits.KIB
_RESULT_BYTES_MAX: Final = 8 * limits.MIB


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryRequest:
    """One SELECT over the views `entries`, `threads` and `resumes`."""

    sql: Annotated[Text, Field(min_length=1, max_length=_SQL_CHARS_MAX)]
    threads: Annotated[
        tuple[BodyId, ...],
        Field(max_length=_THREADS_MAX, description="Ids of the threads to read; by default all."),
        FailFast(),
        limit_items(_THREADS_MAX),
    ] = ()
    rows_max: Annotated[int, Field(ge=1, le=_ROWS_MAX)] = 1_000


def create_queries_router(context: AppContext) -> APIRouter:
    """Return the routes."""
    router = APIRouter()
    slots = QuerySlots()

    @router.get(
        "/query", tags=["queries"], summary="List the library of queries", **requires("query")
    )
    async def library() -> tuple[NamedQuery, ...]:
        return tuple(LIBRARY)

    @router.post(
        "/query",
        tags=["queries"],
        summary="Run one SELECT over journals and archives, within bounds",
        **requires("query"),
    )
    async def query(body: QueryRequest, request: Request, user: CurrentUser) -> QueryResult:
        bounds = Bounds(
            rows=body.rows_max, result_bytes=_RESULT_BYTES_MAX, value_chars=_VALUE_CHARS_MAX
        )

        async def run() -> QueryResult:
            async with slots.hold(user.name):
                return await run_query(
                    await context.client(),
                    context.packs,
                    body.sql,
                    threads=body.threads,
                    bounds=bounds,
                )

        return await run_while_connected(request, run())

    return router


RUNNING_MAX: Final = 4
"""Each query takes up to 768 MiB of memory and a core for 30 s, in a separate process."""
RUNNING_PER_USER_MAX: Final = 2
WAITING_PER_USER_MAX: Final = 4
WAIT_SECONDS: Final = 5.0


class QuerySlots:
    """The slots of one server."""

    def __init__(self, wait_seconds: float = WAIT_SECONDS) -> None:
        self._wait_seconds = wait_seconds
        self._running: collections.Counter[str] = collections.Counter()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    @contextlib.asynccontextmanager
    async def hold(self, user: str) -> AsyncIterator[None]:
        """Hold a slot; answer 429 if none becomes free in time."""
        await self._take(user)
        try:
            yield
        finally:
            self._release(user)

    async def _take(self, user: str) -> None:
        if sum(each == user for each, _ in self._waiting) >= WAITING_PER_USER_MAX:
            raise self._refusal(user)
        waiter = (user, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._grant_slots()
        try:
            async with asyncio.timeout(self._wait_seconds):
                await waiter[1]
        except BaseException as error:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:  # It got a slot at the moment of its timeout.
                self._release(user)
            if isinstance(error, TimeoutError):
                raise self._refusal(user) from None
            raise

    def _release(self, user: str) -> None:
        self._running[user] -= 1
        if not self._running[user]:
            del self._running[user]
        self._grant_slots()

    def _grant_slots(self) -> None:
        """Give free slots to waiting queries: first of the user with the fewest, then in order."""
        while self._running.total() < RUNNING_MAX:
            able = [
                (user, future)
                for user, future in self._waiting
                # A future that is done belongs to a request that is being cancelled.
                if self._running[user] < RUNNING_PER_USER_MAX and not future.done()
            ]
            if not able:
                return
            first = min(able, key=lambda each: self._running[each[0]])
            self._waiting.remove(first)
            self._running[first[0]] += 1
            first[1].set_result(None)

    def _refusal(self, user: str) -> HTTPException:
        if self._running[user] >= RUNNING_PER_USER_MAX:
            text = (
                f"You are running {RUNNING_PER_USER_MAX} queries already. Cancel one, or try again."
            )
        else:
            text = f"Too many queries are running ({RUNNING_MAX} in all). Try again in a moment."
        return HTTPException(429, text, {"retry-after": "5"})


CLIENT_GONE: Final = 499
"""Status in the log of a request whose client disconnected. nginx uses the same."""
T = TypeVar("T")


async def run_while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. Cancels it when the client disconnects.

    The request's body must have been read: the next ASGI message is then the disconnect.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_wait_for_disconnect(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise HTTPException(
            CLIENT_GONE, "The client has disconnected, so its request was cancelled."
        )
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
