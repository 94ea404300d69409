"""All pages."""

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from everlong.admin.web.desk import Desk
from everlong.admin.web.needs import checking
from everlong.admin.web.pages import approvals, archives, fleet, journal, query, thread, threads
from everlong.admin.web.pages.frame import Frame, visitor
from everlong.admin.web.pages.rendering import Renderer
from everlong.admin.web.pages.words import local_path


def pages_router(desk: Desk) -> APIRouter:
    """Return the routes of all pages, `/login` among them."""
    frame = Frame(desk, Renderer())
    router = APIRouter(include_in_schema=False)
    # Beside the door, which has let them in: no page is for somebody whom nobody knows.
    known = [Depends(checking("read"))]
    for part in (threads, thread, journal, archives, approvals, fleet, query):
        router.include_router(part.routes(frame), dependencies=known)

    @router.get("/login")
    async def login(request: Request) -> Response:
        wanted = local_path(request.query_params.get("next", "/"))
        if visitor(request) is not None:
            return RedirectResponse(wanted, 303)
        values = {"page": "login", "who": None, "next": wanted, "problem": ""}
        return frame.renderer.page("login.html", values)

    return router
