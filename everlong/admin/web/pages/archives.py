"""The archives page: archives of all threads, or of one, including threads that Temporal has deleted."""

import re
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from everlong.admin.web.pages import filters
from everlong.admin.web.pages.layout import Layout
from everlong.admin.web.parameters import OptionalQueryId, QueryId, TypedId
from everlong.client.archives import list_archives

# Each archive costs the read of its manifest, so a page is short.
PAGE_ARCHIVES: Final = 50
_THREAD_ARCHIVES_MAX: Final = 20
_ARCHIVE_ID: Final = re.compile(r"[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}")


def create_router(layout: Layout) -> APIRouter:
    """Return the routes of the archives page."""
    router = APIRouter()
    context = layout.context

    async def read_archives(thread_id: str | None, before: str, count_max: int) -> dict[str, Any]:
        page = await list_archives(
            await context.client(),
            context.packs,
            thread_id=thread_id,
            before=before if _ARCHIVE_ID.fullmatch(before) else "",
            count_max=count_max,
        )
        return {"found": page}

    @router.get("/archives")
    async def archives(
        request: Request, named: OptionalQueryId = "", typed: TypedId = ""
    ) -> Response:
        wanted = request.query_params
        thread_id = named or typed
        values = await layout.build_values(request, "archives")
        values |= await read_archives(thread_id or None, wanted.get("before", ""), PAGE_ARCHIVES)
        older = values["found"].next
        place = f"/archives?id={filters.quote_query(thread_id)}&" if thread_id else "/archives?"
        values |= {
            "thread_id": thread_id,
            # A form field holds one line: an id with other characters is kept in the URL only.
            "typed": thread_id if thread_id.isprintable() else "",
            "is_first": not wanted.get("before"),
            "older_url": f"{place}before={older}" if older else "",
        }
        return layout.renderer.render_page("archives.html", values)

    @router.get("/fragments/archives")
    async def thread_archives(request: Request, thread_id: QueryId) -> Response:
        values = await read_archives(thread_id, "", _THREAD_ARCHIVES_MAX)
        values |= {
            "who": (await layout.build_values(request, "thread"))["who"],
            "thread_id": thread_id,
        }
        return layout.renderer.render_fragment(request, "thread_archives.html", values)

    return router
