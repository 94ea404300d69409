"""Archives: of all threads, also of those that Temporal has forgotten, and of one."""

import re
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from everlong.admin.web.pages import filters
from everlong.admin.web.pages.layout import Frame
from everlong.admin.web.parameters import OptionalQueryId, QueryId, TypedId
from everlong.client.archives import list_archives

# Of each a manifest is read, so a page is short.
PAGE_ARCHIVES: Final = 50
_OF_THREAD: Final = 20
_ARCHIVE_ID: Final = re.compile(r"[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}")


def routes(frame: Frame) -> APIRouter:
    """Return the routes of archives."""
    router = APIRouter()
    context = frame.context

    async def look(thread_id: str | None, before: str, count_max: int) -> dict[str, Any]:
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
        values = await frame.values(request, "archives")
        values |= await look(thread_id or None, wanted.get("before", ""), PAGE_ARCHIVES)
        older = values["found"].next
        place = f"/archives?id={filters.query(thread_id)}&" if thread_id else "/archives?"
        values |= {
            "thread_id": thread_id,
            # A field of a form has one line: other ids stand in the address alone.
            "typed": thread_id if thread_id.isprintable() else "",
            "is_first": not wanted.get("before"),
            "older_url": f"{place}before={older}" if older else "",
        }
        return frame.renderer.page("archives.html", values)

    @router.get("/fragments/archives")
    async def of_thread(request: Request, thread_id: QueryId) -> Response:
        values = await look(thread_id, "", _OF_THREAD)
        values |= {"who": (await frame.values(request, "thread"))["who"], "thread_id": thread_id}
        return frame.renderer.fragment(request, "thread_archives.html", values)

    return router
