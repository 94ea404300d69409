"""The dashboard's pages, one module per page. Pages only read; changes go through the API."""

from fastapi import APIRouter, Depends

from everlong.admin.web.auth import make_permission_check
from everlong.admin.web.context import AppContext
from everlong.admin.web.pages import (
    approvals,
    archives,
    fleet,
    query,
    thread,
    threads,
)
from everlong.admin.web.pages.layout import Layout, Renderer, error_page, login_routes

__all__ = ["error_page", "pages_router"]


def pages_router(context: AppContext) -> APIRouter:
    """Return the routes of all pages, `/login` among them."""
    layout = Layout(context, Renderer())
    router = APIRouter(include_in_schema=False)
    # A second check after the guard: no page is shown without a user.
    checks = [Depends(make_permission_check("read"))]
    for page in (threads, thread, archives, approvals, fleet, query):
        router.include_router(page.routes(layout), dependencies=checks)
    router.include_router(login_routes(layout))
    return router
