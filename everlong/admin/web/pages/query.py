"""The query page: an editor, the library of queries, and results."""

from typing import Final

from fastapi import APIRouter, HTTPException, Request, Response

from everlong.admin.web.pages.layout import Layout
from everlong.queries import LIBRARY

_FIRST: Final = """\
select kind, count(*) as entries, sum(size_bytes) as bytes
from entries
group by kind
order by bytes desc"""


def create_router(layout: Layout) -> APIRouter:
    """Return the routes of the query page."""
    router = APIRouter()

    @router.get("/query")
    async def query(request: Request) -> Response:
        values = await layout.build_values(request, "query")
        who = values["who"]
        if who is None or not who.may("query"):
            raise HTTPException(403, "Your role may not query. Ask for another role.")
        values |= {
            "library": LIBRARY,
            "sql": _FIRST,
            "api_query": "/api/v1/query",
        }
        return layout.renderer.render_page("query.html", values)

    return router
