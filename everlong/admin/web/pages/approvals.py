"""The approvals page: calls that wait for a person, oldest first, with the context for a decision."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from everlong.admin.approvals import list_approvals, list_outcomes
from everlong.admin.web.pages import filters
from everlong.admin.web.pages.layout import Layout, make_etag


def create_router(layout: Layout) -> APIRouter:
    """Return the routes of the approvals page."""
    router = APIRouter()
    context = layout.context

    async def build_values(request: Request) -> dict[str, Any]:
        thread_id = request.query_params.get("thread", "")
        client = await context.client()
        found, unknown = await asyncio.gather(
            list_approvals(client, context.packs), list_outcomes(client, context.packs)
        )
        values = await layout.build_values(request, "approvals")
        return values | {
            "found": found,
            "unknown": unknown,
            # A link to a thread's calls lists them first.
            "waiting_list": sorted(found.waiting, key=lambda each: each.thread_id != thread_id),
            "outcomes_list": sorted(unknown.waiting, key=lambda each: each.thread_id != thread_id),
            # The cards name their thread in the title, and an id would not be unique.
            "is_nested": True,
        }

    @router.get("/approvals")
    async def approvals(request: Request) -> Response:
        values = await build_values(request)
        text = layout.renderer.render("approvals_list.html", values)
        thread_id = request.query_params.get("thread", "")
        values["live_url"] = f"/fragments/approvals?thread={filters.quote_query(thread_id)}"
        return layout.renderer.render_page("approvals.html", values | {"etag": make_etag(text)})

    @router.get("/fragments/approvals")
    async def fragment(request: Request) -> Response:
        return layout.renderer.render_fragment(
            request, "approvals_list.html", await build_values(request)
        )

    return router
