"""The page for queries: an editor, the library, results."""

from typing import Final

from fastapi import APIRouter, HTTPException, Request, Response

from everlong.admin.web.pages.layout import Frame
from everlong.queries import LIBRARY

_FIRST: Final = """\
select kind, count(*) as entries, sum(size_bytes) as bytes
from entries
group by kind
order by bytes desc"""


def routes(frame: Frame) -> APIRouter:
    """Return the routes of queries."""
    router = APIRouter()

    @router.get("/query")
    async def query(request: Request) -> Response:
        values = await frame.values(request, "query")
        who = values["who"]
        if who is None or not who.may("query"):
            raise HTTPException(403, "Your role may not query.")
        values |= {
            "library": LIBRARY,
            "sql": _FIRST,
            "api_query": "/api/v1/query",
        }
        return frame.renderer.page("query.html", values)

    return router
