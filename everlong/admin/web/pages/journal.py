"""Fragments of a thread's journal: pages of entries, slices of bodies, the state at an entry."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from everlong.admin.entries import BodySlice, Form, load_entry_body, load_entry_page
from everlong.admin.web.context import AppContext
from everlong.admin.web.pages import filters
from everlong.admin.web.pages.layout import Layout
from everlong.admin.web.parameters import QueryId

PAGE_ENTRIES: Final = 20
"""Entries of a page: two screens of a phone."""
# The newest messages of a context or a difference that are shown.
_LISTED_MAX: Final = 30
_SEQ_MAX: Final = 2**53
Seq = Annotated[int, Query(ge=0, le=_SEQ_MAX)]


async def build_journal(
    context: AppContext, thread_id: str, before: int | None = None, after: int | None = None
) -> dict[str, Any]:
    """Return the template values of a page of the journal."""
    found = await load_entry_page(
        await context.client(),
        context.packs,
        thread_id,
        before=before,
        after=after,
        limit=PAGE_ENTRIES,
    )
    quoted = filters.quote_query(thread_id)
    return {
        "journal": found,
        "is_newest": not found.entries or found.entries[-1].seq >= found.last_seq,
        "journal_url": f"/fragments/journal?id={quoted}",
        "body_url": f"/fragments/body?id={quoted}",
    }


def build_body_values(thread_id: str, found: BodySlice, form: Form) -> dict[str, Any]:
    """Return the template values of a slice of a body."""
    place = f"id={filters.quote_query(thread_id)}&seq={found.seq}"
    other = "text" if form == "json" else "json"
    return {
        "slice": found,
        "other_form": other,
        "form_url": f"/fragments/body?{place}&form={other}",
        "more_url": f"/fragments/body?{place}&form={form}&start={found.next_start}",
        "download_url": filters.build_download_url(thread_id, found.seq, form),
    }


async def build_scene(context: AppContext, thread_id: str, seq: int) -> dict[str, Any]:
    """Return the template values of the state at an entry, and of the changes since."""
    handle = await context.thread(thread_id)
    view = await handle.state_at(seq, totals=False)
    return {
        "view": view,
        "shown": view.context[-_LISTED_MAX:],
        "skipped": max(0, len(view.context) - _LISTED_MAX),
        "change": await handle.diff(seq, entries_max=0),
        "listed_max": _LISTED_MAX,
    }


def create_journal_router(layout: Layout) -> APIRouter:
    """Return the routes."""
    router = APIRouter()
    context = layout.context

    @router.get("/fragments/journal")
    async def journal(
        request: Request,
        thread_id: QueryId,
        before: Seq | None = None,
        after: Seq | None = None,
    ) -> Response:
        values = await build_journal(context, thread_id, before, after)
        return layout.renderer.render_fragment(request, "journal.html", values)

    @router.get("/fragments/body")
    async def body(thread_id: QueryId, seq: Seq, start: Seq = 0, form: str = "text") -> Response:
        wanted: Form = "json" if form == "json" else "text"
        found = await load_entry_body(
            await context.client(),
            context.packs,
            thread_id,
            seq,
            start=start,
            form=wanted,
        )
        return layout.renderer.render_page("body.html", build_body_values(thread_id, found, wanted))

    @router.get("/fragments/past")
    async def past(thread_id: QueryId, seq: Seq) -> Response:
        values = await build_scene(context, thread_id, seq)
        return layout.renderer.render_page("past.html", values)

    return router
