"""The dashboard's pages. They show what the service says, and leave changes to the API."""

from fastapi import APIRouter, Depends

from everlong.admin.web.auth import checking
from everlong.admin.web.context import AppContext
from everlong.admin.web.pages import (
    approvals,
    archives,
    fleet,
    journal,
    login,
    query,
    thread,
    threads,
)
from everlong.admin.web.pages.error import error_page
from everlong.admin.web.pages.layout import Frame
from everlong.admin.web.pages.renderer import Renderer

__all__ = ["error_page", "pages_router"]


def pages_router(context: AppContext) -> APIRouter:
    """Return the routes of all pages, `/login` among them."""
    frame = Frame(context, Renderer())
    router = APIRouter(include_in_schema=False)
    # The guard has let them in; this dependency is the second check.
    known = [Depends(checking("read"))]
    for page in (threads, thread, journal, archives, approvals, fleet, query):
        router.include_router(page.routes(frame), dependencies=known)
    router.include_router(login.routes(frame))
    return router
