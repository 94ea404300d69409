"""The login page."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from everlong.admin.web.pages.filters import local_path
from everlong.admin.web.pages.layout import Frame, visitor


def routes(frame: Frame) -> APIRouter:
    """Return the routes of the login page."""
    router = APIRouter()

    @router.get("/login")
    async def login(request: Request) -> Response:
        wanted = local_path(request.query_params.get("next", "/"))
        if visitor(request) is not None:
            return RedirectResponse(wanted, 303)
        values = {"page": "login", "who": None, "next": wanted, "problem": ""}
        return frame.renderer.page("login.html", values)

    return router
