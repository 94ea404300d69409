"""Routes for queries: SQL over journals and archives, and the library of useful ones."""

import dataclasses
from typing import Annotated, Any, Final

from fastapi import APIRouter, HTTPException
from pydantic import FailFast, Field

from everlong import limits
from everlong.admin import service
from everlong.admin.web.api.bodies import Text, at_most
from everlong.admin.web.desk import QUERIES_MAX, Desk
from everlong.admin.web.ids import BodyId
from everlong.admin.web.needs import needs

_ROWS_MAX: Final = 10_000
_SQL_CHARS_MAX: Final = 20_000
_THREADS_MAX: Final = 200
# An entry's whole body has a route of its own.
_VALUE_CHARS_MAX: Final = 16 * limits.KIB
_RESULT_CHARS_MAX: Final = 8 * limits.MIB


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
    async def query(ask: QueryAsk) -> service.QueryResult:
        if desk.queries.locked():
            raise HTTPException(429, f"{QUERIES_MAX} queries run already. Try again in a moment.")
        async with desk.queries:
            found = await service.query(
                await desk.client(),
                desk.packs,
                ask.sql,
                threads=ask.threads,
                bounds=service.Bounds(rows=ask.rows_max),
            )
        return fitting(found)

    return router


def fitting(found: service.QueryResult) -> service.QueryResult:
    """Return a result that a browser can show: long values cut, and rows up to a bound of bytes."""
    cut, room = 0, _RESULT_CHARS_MAX
    rows: list[tuple[Any, ...]] = []
    for row in found.rows:
        values = []
        for value in row:
            text = value if isinstance(value, str) else str(value)
            is_long = len(text) > _VALUE_CHARS_MAX
            cut += is_long
            values.append(text[:_VALUE_CHARS_MAX] if is_long else value)
            room -= min(len(text), _VALUE_CHARS_MAX)
        if room < 0:
            break
        rows.append(tuple(values))
    left_out = list(found.left_out)
    if cut:
        left_out.append(f"of {cut} long values all but the first {_VALUE_CHARS_MAX:,} characters")
    return dataclasses.replace(
        found,
        rows=tuple(rows),
        truncated=found.truncated or len(rows) < len(found.rows),
        left_out=tuple(left_out),
    )
