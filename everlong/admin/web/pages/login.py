"""The login page."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from everlong.admin.web.pages.filters import check_local_path
from everlong.admin.web.pages.layout import Layout, find_visitor


def routes(layout: Layout) -> APIRouter:
    """Return the routes of the login page."""
    router = APIRouter()

    @router.get("/login")
    async def login(request: Request) -> Response:
        wanted = check_local_path(request.query_params.get("next", "/"))
        if find_visitor(request) is not None:
            return RedirectResponse(wanted, 303)
        values = {"page": "login", "who": None, "next": wanted, "problem": ""}
        return layout.renderer.render_page("login.html", values)

    return router
