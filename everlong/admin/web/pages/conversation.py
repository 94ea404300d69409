"""Fragments of a thread's conversation: its pages, and the calls that are opened."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from everlong.admin.approvals import (
    WaitingApproval,
    WaitingOutcome,
    list_thread_approvals,
    list_thread_outcomes,
)
from everlong.admin.conversation import (
    ConversationPage,
    Turn,
    find_place,
    load_call_arguments,
    load_conversation,
)
from everlong.admin.entries import load_entry_body
from everlong.admin.web.context import AppContext
from everlong.admin.web.pages import filters
from everlong.admin.web.pages.journal import Seq, build_body_values
from everlong.admin.web.pages.layout import Layout
from everlong.admin.web.pages.markdown import render_markdown
from everlong.admin.web.parameters import QueryId
from everlong.errors import EverlongError
from everlong.models import Kind


async def build_conversation(
    context: AppContext,
    thread_id: str,
    *,
    before: int | None = None,
    after: int | None = None,
    first: int | None = None,
    is_nested: bool = False,
) -> dict[str, Any]:
    """Return the template values of a page of the conversation."""
    client = await context.client()
    talk = await load_conversation(
        client,
        context.packs,
        thread_id,
        before=before,
        after=after,
        first=first,
        runs=context.run_starts,
    )
    texts = [
        item.body.text for item in talk.items if isinstance(item, Turn) and item.kind == Kind.REPLY
    ]
    # Not in the event loop: a page of long replies takes a second.
    await asyncio.to_thread(lambda: [render_markdown(text) for text in texts])
    waiting = await _load_waiting(context, talk)
    quoted = filters.quote_query(thread_id)
    return {
        "talk": talk,
        "thread_id": thread_id,
        "is_nested": is_nested,
        **waiting,
        "talk_url": f"/fragments/conversation?id={quoted}",
        "body_url": f"/fragments/body?id={quoted}",
        "call_url": f"/fragments/call?id={quoted}",
        **_find_again(talk, is_nested=is_nested),
    }


async def _load_waiting(context: AppContext, talk: ConversationPage) -> dict[str, Any]:
    """Return the approvals and the unknown outcomes of the page's calls, by the place of the call."""
    client, packs = await context.client(), context.packs
    approvals: Sequence[WaitingApproval] = ()
    outcomes: Sequence[WaitingOutcome] = ()
    problem = ""
    try:
        if talk.approvals:
            approvals = await list_thread_approvals(client, packs, talk.thread_id)
        if talk.outcomes:
            outcomes = await list_thread_outcomes(client, packs, talk.thread_id)
    except EverlongError as error:
        problem = f"The calls that wait for a person cannot be shown: {error}"
    by_place = {find_place(each.approval.id): each for each in approvals}
    outcomes_by_place = {find_place(each.outcome.id): each for each in outcomes}
    shown = {call.place for item in talk.items if isinstance(item, Turn) for call in item.calls}
    return {
        "approvals": by_place,
        "outcomes": outcomes_by_place,
        # Their reply is not on the page: they follow the newest entry.
        "unplaced_approvals": [each for at, each in by_place.items() if at not in shown],
        "unplaced_outcomes": [each for at, each in outcomes_by_place.items() if at not in shown],
        "waiting_problem": problem,
    }


def _find_again(talk: ConversationPage, *, is_nested: bool) -> dict[str, Any]:
    """Return the failure that ends a conversation, and the seq of the message whose turn failed."""
    turns = [item for item in talk.items if isinstance(item, Turn)]
    messages = [turn.seq for turn in turns if turn.kind == Kind.MESSAGE and turn.is_journalled]
    is_failed = talk.is_newest and turns and turns[-1].kind == Kind.FAILURE
    if is_nested or not is_failed or not messages:
        return {"again_seq": None, "again_key": ""}
    return {"again_seq": messages[-1], "again_key": turns[-1].key}


def create_conversation_router(layout: Layout) -> APIRouter:
    """Return the routes."""
    router = APIRouter()
    context = layout.context

    @router.get("/fragments/conversation")
    async def conversation(
        request: Request,
        thread_id: QueryId,
        before: Seq | None = None,
        after: Seq | None = None,
        first: Seq | None = None,
        nested: bool = False,
    ) -> Response:
        values = await layout.build_values(request, "thread") | await build_conversation(
            context, thread_id, before=before, after=after, first=first, is_nested=nested
        )
        return layout.renderer.render_fragment(request, "conversation.html", values)

    @router.get("/fragments/call")
    async def call(
        thread_id: QueryId,
        seq: Seq,
        number: Annotated[int, Query(ge=1, le=1_000)],
        result: Seq | None = None,
    ) -> Response:
        client = await context.client()
        values: dict[str, Any] = {
            "seq": seq,
            "number": number,
            "download_json_url": filters.build_download_url(thread_id, seq, "json"),
            "arguments": await load_call_arguments(client, context.packs, thread_id, seq, number),
            "slice": None,
        }
        if result is not None:
            found = await load_entry_body(client, context.packs, thread_id, result)
            values |= build_body_values(thread_id, found, "text")
        return layout.renderer.render_page("call.html", values)

    return router
