"""Routes for a thread's journal: entries, their bodies, and the state at any entry."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from everlong.admin.entries import (
    ENTRIES_MAX,
    SLICE_CHARS_MAX,
    BodySlice,
    EntryPage,
    Form,
    load_entry_body,
    load_entry_page,
    open_entry_body,
)
from everlong.admin.web.auth import requires
from everlong.admin.web.context import AppContext
from everlong.admin.web.parameters import (
    OptionalSeq,
    Seq,
    SeqQuery,
    ThreadId,
)
from everlong.client.time_travel import ThreadDiff, ThreadView

_DIFF_ENTRIES_MAX = 200


def create_journal_router(context: AppContext) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.get(
        "/threads/{thread_id}/entries",
        tags=["journal"],
        summary="A page of the journal, each entry on one line",
        **requires("read"),
    )
    async def entries(
        thread_id: ThreadId,
        before: OptionalSeq = None,
        after: Annotated[int | None, Query(ge=0, le=10_000_000)] = None,
        limit: Annotated[int, Query(ge=1, le=ENTRIES_MAX)] = 50,
    ) -> EntryPage:
        return await load_entry_page(
            await context.client(),
            context.packs,
            thread_id,
            before=before,
            after=after,
            limit=limit,
        )

    @router.get(
        "/threads/{thread_id}/entries/{seq}",
        tags=["journal"],
        summary="A part of one entry's body",
        **requires("read"),
    )
    async def body(
        thread_id: ThreadId,
        seq: Seq,
        start: Annotated[int, Query(ge=0, le=2**31)] = 0,
        length: Annotated[int, Query(ge=1, le=SLICE_CHARS_MAX)] = SLICE_CHARS_MAX,
        form: Form = "text",
    ) -> BodySlice:
        return await load_entry_body(
            await context.client(),
            context.packs,
            thread_id,
            seq,
            start=start,
            length=length,
            form=form,
        )

    @router.get(
        "/threads/{thread_id}/entries/{seq}/whole",
        tags=["journal"],
        summary="Download one entry's body",
        response_class=StreamingResponse,
        **requires("read"),
    )
    async def whole(thread_id: ThreadId, seq: Seq, form: Form = "text") -> Response:
        parts = await open_entry_body(await context.client(), context.packs, thread_id, seq, form)
        kind, ending = ("application/json", "json") if form == "json" else ("text/plain", "txt")
        # As an attachment: browsers must never render a tool's output as a page of this origin.
        name = f"attachment; filename=entry-{seq}.{ending}"
        return StreamingResponse(parts, media_type=kind, headers={"content-disposition": name})

    @router.get(
        "/threads/{thread_id}/at/{seq}",
        tags=["journal"],
        summary="The thread's state after an entry, with the model's context",
        **requires("read"),
    )
    async def at(thread_id: ThreadId, seq: Seq) -> ThreadView:
        return await (await context.thread(thread_id)).state_at(seq, totals=False)

    @router.get(
        "/threads/{thread_id}/diff",
        tags=["journal"],
        summary="Changes from one entry to another, or to now",
        **requires("read"),
    )
    async def diff(thread_id: ThreadId, first: SeqQuery, last: OptionalSeq = None) -> ThreadDiff:
        handle = await context.thread(thread_id)
        return await handle.diff(first, last, entries_max=_DIFF_ENTRIES_MAX)

    return router
