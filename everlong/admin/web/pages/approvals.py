"""The approvals page: calls that wait for a person, oldest first, with the context for a decision."""

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Request, Response

from everlong.admin.approvals import list_approvals, list_outcomes
from everlong.admin.web.pages import filters
from everlong.admin.web.pages.layout import Layout, find_visitor, make_etag
from everlong.client.grants import list_agent_grants
from everlong.errors import EverlongError
from everlong.models import Grant


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

    async def build_grants(request: Request) -> dict[str, Any]:
        """Return the grants of all agents, and of the thread that the URL names."""
        thread_id = request.query_params.get("thread", "")
        grants: list[Grant] = []
        problem = ""
        try:
            now_ms = time.time_ns() // 1_000_000
            grants = await list_agent_grants(await context.client(), context.packs, now_ms)
            if thread_id:
                own = await (await context.thread(thread_id)).grants()
                grants = [*(each for each in own if each.scope == "thread"), *grants]
        except EverlongError as error:  # Calls can be decided without the list.
            problem = str(error)
        return {
            "grants": grants,
            "grants_thread": thread_id,
            "grants_problem": problem,
            "who": find_visitor(request),
        }

    @router.get("/approvals")
    async def approvals(request: Request) -> Response:
        values = await build_values(request)
        text = layout.renderer.render("approvals_list.html", values)
        thread_id = request.query_params.get("thread", "")
        query = f"thread={filters.quote_query(thread_id)}"
        values |= await build_grants(request)
        values |= {
            "live_url": f"/fragments/approvals?{query}",
            "grants_url": f"/fragments/grants?{query}",
        }
        return layout.renderer.render_page("approvals.html", values | {"etag": make_etag(text)})

    @router.get("/fragments/approvals")
    async def fragment(request: Request) -> Response:
        return layout.renderer.render_fragment(
            request, "approvals_list.html", await build_values(request)
        )

    @router.get("/fragments/grants")
    async def grants(request: Request) -> Response:
        return layout.renderer.render_fragment(request, "grants.html", await build_grants(request))

    return router
