"""The dashboard's pages, one module per page. Pages only read; changes go through the API."""

from fastapi import APIRouter, Depends

from everlong.admin.web.auth import make_permission_check
from everlong.admin.web.context import AppContext
from everlong.admin.web.pages import (
    api_docs,
    approvals,
    archives,
    fleet,
    query,
    thread,
    threads,
)
from everlong.admin.web.pages.layout import Layout, Renderer, create_login_router

__all__ = ["create_pages_router"]


def create_pages_router(context: AppContext) -> APIRouter:
    """Return the routes of all pages, `/login` among them."""
    layout = Layout(context, Renderer())
    router = APIRouter(include_in_schema=False)
    # A second check after the guard: no page is shown without a user.
    checks = [Depends(make_permission_check("read"))]
    for page in (threads, thread, archives, approvals, fleet, query, api_docs):
        router.include_router(page.create_router(layout), dependencies=checks)
    router.include_router(create_login_router(layout))
    return router
