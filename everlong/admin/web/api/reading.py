"""Routes that show something. None of them changes a thread."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse

from everlong.admin import service
from everlong.admin.web.api.parameters import OptionalSeq, Seq, SeqQuery
from everlong.admin.web.desk import Desk
from everlong.admin.web.ids import RUN_ID, ThreadId
from everlong.admin.web.needs import needs

_DIFF_ENTRIES_MAX = 200
_OFFSET_MAX = 1_000_000


def reading_router(desk: Desk) -> APIRouter:
    """Return the routes that show something."""
    router = APIRouter()
    _lists(router, desk)
    _thread(router, desk)
    _journal(router, desk)
    return router


def _lists(router: APIRouter, desk: Desk) -> None:
    @router.get(
        "/threads",
        tags=["threads"],
        summary="List threads, sorted and filtered",
        response_model=service.ThreadPage,
        responses={304: {"description": "Nothing has changed since the version in If-None-Match"}},
        **needs("read"),
    )
    async def threads(
        response: Response,
        text: Annotated[str, Query(max_length=service.TEXT_CHARS_MAX)] = "",
        status: Annotated[str, Query(max_length=64)] = "",
        agent: Annotated[str, Query(max_length=64)] = "",
        sort: service.Sort = "-started",
        offset: Annotated[int, Query(ge=0, le=_OFFSET_MAX)] = 0,
        limit: Annotated[int, Query(ge=1, le=service.PAGE_LIMIT_MAX)] = 50,
        cursor: Annotated[str, Query(max_length=service.CURSOR_CHARS_MAX)] = "",
        if_none_match: Annotated[str, Header()] = "",
    ) -> service.ThreadPage | Response:
        page = await desk.directory.page(text, status, agent, sort, offset, limit, cursor)
        etag = f'"{page.version}"'
        if etag in if_none_match:
            return Response(status_code=304, headers={"etag": etag})
        response.headers["etag"] = etag
        return page

    @router.get(
        "/fleet",
        tags=["fleet"],
        summary="All threads together: bytes, growth, resumes, failure loops, the last sweep",
        **needs("read"),
    )
    async def fleet() -> service.FleetView:
        return await service.fleet(desk.directory, await desk.last_sweep())

    @router.get(
        "/store",
        tags=["fleet"],
        summary="Whether the store takes and gives bytes, and how fast",
        **needs("read"),
    )
    async def store() -> service.StoreHealth:
        return await desk.store_health()

    @router.get(
        "/approvals",
        tags=["approvals"],
        summary="All calls that wait for a person, oldest first",
        **needs("read"),
    )
    async def approvals() -> service.WaitingPage:
        return await service.waiting(await desk.client(), desk.packs)


def _thread(router: APIRouter, desk: Desk) -> None:
    @router.get(
        "/threads/{thread_id}",
        tags=["threads"],
        summary="One thread: status, sizes by class, limits as gauges, approvals",
        **needs("read"),
    )
    async def thread(thread_id: ThreadId) -> service.ThreadOverview:
        return await service.overview(await desk.client(), desk.packs, thread_id)

    @router.get(
        "/threads/{thread_id}/size",
        tags=["threads"],
        summary="Count a thread's runs and stored objects; takes longer the more there are",
        **needs("read"),
    )
    async def size(thread_id: ThreadId) -> service.ThreadSize:
        return await service.size(await desk.client(), desk.packs.store, thread_id)

    @router.get(
        "/threads/{thread_id}/series",
        tags=["threads"],
        summary="How the thread has grown, and what its resumes took, by samples of its journal",
        **needs("read"),
    )
    async def series(
        thread_id: ThreadId, points_max: Annotated[int, Query(ge=2, le=500)] = 120
    ) -> service.Series:
        return await service.series(
            await desk.client(), desk.packs, thread_id, points_max=points_max
        )

    @router.get(
        "/threads/{thread_id}/runs",
        tags=["threads"],
        summary="The thread's runs, newest first, with links into the Temporal UI",
        **needs("read"),
    )
    async def runs(
        thread_id: ThreadId,
        from_run_id: Annotated[str, Query(pattern=RUN_ID)] = "",
        limit: Annotated[int, Query(ge=1, le=service.RUNS_MAX)] = 20,
    ) -> service.RunPage:
        return await service.runs(
            await desk.client(),
            thread_id,
            from_run_id=from_run_id,
            limit=limit,
            temporal_ui=desk.temporal_ui,
        )

    @router.get(
        "/threads/{thread_id}/approvals",
        tags=["approvals"],
        summary="The thread's calls that wait for a person",
        **needs("read"),
    )
    async def approvals(thread_id: ThreadId) -> tuple[service.Waiting, ...]:
        return await service.waiting_in(await desk.client(), desk.packs, thread_id)


def _journal(router: APIRouter, desk: Desk) -> None:
    @router.get(
        "/threads/{thread_id}/entries",
        tags=["journal"],
        summary="A page of the journal, each entry on one line",
        **needs("read"),
    )
    async def entries(
        thread_id: ThreadId,
        before: OptionalSeq = None,
        after: Annotated[int | None, Query(ge=0, le=10_000_000)] = None,
        limit: Annotated[int, Query(ge=1, le=service.ENTRIES_MAX)] = 50,
    ) -> service.EntryPage:
        return await service.entry_page(
            await desk.client(), desk.packs, thread_id, before=before, after=after, limit=limit
        )

    @router.get(
        "/threads/{thread_id}/entries/{seq}",
        tags=["journal"],
        summary="A part of one entry's body",
        **needs("read"),
    )
    async def body(
        thread_id: ThreadId,
        seq: Seq,
        start: Annotated[int, Query(ge=0, le=2**31)] = 0,
        length: Annotated[int, Query(ge=1, le=service.SLICE_CHARS_MAX)] = service.SLICE_CHARS_MAX,
        form: service.Form = "text",
    ) -> service.BodySlice:
        return await service.entry_body(
            await desk.client(),
            desk.packs,
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
        **needs("read"),
    )
    async def whole(thread_id: ThreadId, seq: Seq, form: service.Form = "text") -> Response:
        parts = await service.entry_download(await desk.client(), desk.packs, thread_id, seq, form)
        kind, ending = ("application/json", "json") if form == "json" else ("text/plain", "txt")
        # As a file: what a tool returned is never shown as a page of ours.
        name = f"attachment; filename=entry-{seq}.{ending}"
        return StreamingResponse(parts, media_type=kind, headers={"content-disposition": name})

    @router.get(
        "/threads/{thread_id}/at/{seq}",
        tags=["journal"],
        summary="The thread as it was after an entry, and what its model would have read",
        **needs("read"),
    )
    async def at(thread_id: ThreadId, seq: Seq) -> service.ThreadView:
        return await service.state_at(await desk.client(), desk.packs, thread_id, seq, totals=False)

    @router.get(
        "/threads/{thread_id}/diff",
        tags=["journal"],
        summary="What changed from one entry to another, or to now",
        **needs("read"),
    )
    async def diff(
        thread_id: ThreadId, first: SeqQuery, last: OptionalSeq = None
    ) -> service.ThreadDiff:
        return await service.diff(
            await desk.client(),
            desk.packs,
            thread_id,
            first,
            last,
            entries_max=_DIFF_ENTRIES_MAX,
        )
