"""Routes for queries: SQL over journals and archives, and the library of useful ones."""

import dataclasses
from typing import Annotated, Final

from fastapi import APIRouter, Request
from pydantic import FailFast, Field

from everlong import limits
from everlong.admin import service
from everlong.admin.web.api.bodies import Text, at_most
from everlong.admin.web.clients import while_connected
from everlong.admin.web.desk import Desk
from everlong.admin.web.ids import BodyId
from everlong.admin.web.needs import CurrentUser, needs

_ROWS_MAX: Final = 10_000
_SQL_CHARS_MAX: Final = 20_000
_THREADS_MAX: Final = 200
# An entry's whole body has a route of its own.
_VALUE_CHARS_MAX: Final = 16 * limits.KIB
_RESULT_BYTES_MAX: Final = 8 * limits.MIB


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryAsk:
    """One SELECT over the views `entries`, `threads` and `resumes`."""

    sql: Annotated[Text, Field(min_length=1, max_length=_SQL_CHARS_MAX)]
    threads: Annotated[
        tuple[BodyId, ...],
        Field(max_length=_THREADS_MAX, description="Only these; all, if none is named."),
        FailFast(),
        at_most(_THREADS_MAX),
    ] = ()
    rows_max: Annotated[int, Field(ge=1, le=_ROWS_MAX)] = 1_000


def querying_router(desk: Desk) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.get("/query", tags=["queries"], summary="The library of queries", **needs("query"))
    async def library() -> tuple[service.NamedQuery, ...]:
        return tuple(service.LIBRARY)

    @router.post(
        "/query",
        tags=["queries"],
        summary="Run one SELECT over journals and archives, within bounds",
        **needs("query"),
    )
    async def query(ask: QueryAsk, request: Request, user: CurrentUser) -> service.QueryResult:
        bounds = service.Bounds(
            rows=ask.rows_max, result_bytes=_RESULT_BYTES_MAX, value_chars=_VALUE_CHARS_MAX
        )

        async def run() -> service.QueryResult:
            async with desk.queries.hold(user.name):
                return await service.query(
                    await desk.client(), desk.packs, ask.sql, threads=ask.threads, bounds=bounds
                )

        return await while_connected(request, run())

    return router
