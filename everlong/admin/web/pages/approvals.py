"""All calls that wait for a person, oldest first, with what one has to know to decide."""

from typing import Any

from fastapi import APIRouter, Request, Response

from everlong.admin.approvals import list_approvals
from everlong.admin.web.pages import filters
from everlong.admin.web.pages.layout import Frame
from everlong.admin.web.pages.renderer import etag_of


def routes(frame: Frame) -> APIRouter:
    """Return the routes of approvals."""
    router = APIRouter()
    context = frame.context

    async def values_of(request: Request) -> dict[str, Any]:
        thread_id = request.query_params.get("thread", "")
        found = await list_approvals(await context.client(), context.packs)
        # One thread's come first: somebody came from there.
        chosen = sorted(found.waiting, key=lambda each: each.thread_id != thread_id)
        values = await frame.values(request, "approvals")
        return values | {"found": found, "waiting_list": chosen}

    @router.get("/approvals")
    async def approvals(request: Request) -> Response:
        values = await values_of(request)
        text = frame.renderer.text("approvals_list.html", values)
        thread_id = request.query_params.get("thread", "")
        values["live_url"] = f"/fragments/approvals?thread={filters.query(thread_id)}"
        return frame.renderer.page("approvals.html", values | {"etag": etag_of(text)})

    @router.get("/fragments/approvals")
    async def listed(request: Request) -> Response:
        return frame.renderer.fragment(request, "approvals_list.html", await values_of(request))

    return router
