"""Routes for threads: the list, one thread with its sizes and runs, and messages to it."""

import dataclasses
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from pydantic import Field

from everlong import limits
from everlong.admin.overview import ThreadOverview, load_overview
from everlong.admin.series import Series, load_series
from everlong.admin.web.auth import CurrentUser, requires
from everlong.admin.web.context import AppContext
from everlong.admin.web.parameters import (
    AGE,
    RUN_ID,
    By,
    LabelTexts,
    Text,
    ThreadId,
)
from everlong.client.lookup import RUNS_MAX, RunPage, ThreadSize
from everlong.client.status import WORKER_SECONDS_MAX
from everlong.client.stored_bytes import StoredBytes
from everlong.client.thread_list import (
    CURSOR_CHARS_MAX,
    PAGE_LIMIT_MAX,
    TEXT_CHARS_MAX,
    Sort,
    ThreadPage,
)
from everlong.models.labels import LABEL_CHARS_MAX

_OFFSET_MAX = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class MessageRequest:
    """A message to a thread. With an agent, the thread is started if it does not exist."""

    text: Annotated[str, Field(min_length=1, max_length=4 * limits.MIB)]
    agent: Annotated[Text, Field(max_length=64)] = ""
    message_id: Annotated[str, Field(pattern=r"^[ -~]{0,64}$")] = ""
    labels: LabelTexts = ()
    """Labels of a thread that is started."""
    by: By = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MessageReceipt:
    """Number of a queued message."""

    thread_id: str
    number: int


def create_threads_router(context: AppContext) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.get(
        "/threads",
        tags=["threads"],
        summary="List threads, sorted and filtered",
        response_model=ThreadPage,
        responses={304: {"description": "Unchanged since the version in If-None-Match"}},
        **requires("read"),
    )
    async def threads(
        response: Response,
        text: Annotated[str, Query(max_length=TEXT_CHARS_MAX)] = "",
        status: Annotated[str, Query(max_length=64)] = "",
        agent: Annotated[str, Query(max_length=64)] = "",
        label: Annotated[str, Query(max_length=LABEL_CHARS_MAX)] = "",
        age: Annotated[str, Query(pattern=AGE)] = "",
        sort: Sort = "-started",
        offset: Annotated[int, Query(ge=0, le=_OFFSET_MAX)] = 0,
        limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT_MAX)] = 50,
        cursor: Annotated[str, Query(max_length=CURSOR_CHARS_MAX)] = "",
        if_none_match: Annotated[str, Header()] = "",
    ) -> ThreadPage | Response:
        page = await context.thread_list.page(
            text, status, agent, sort, offset, limit, cursor, label, age
        )
        etag = f'"{page.version}"'
        if etag in if_none_match:
            return Response(status_code=304, headers={"etag": etag})
        response.headers["etag"] = etag
        return page

    @router.get(
        "/threads/{thread_id}",
        tags=["threads"],
        summary="One thread: status, sizes by class, limits as gauges, approvals",
        **requires("read"),
    )
    async def thread(thread_id: ThreadId) -> ThreadOverview:
        return await load_overview(await context.client(), context.packs, thread_id)

    @router.get(
        "/threads/{thread_id}/size",
        tags=["threads"],
        summary="Count a thread's runs and stored objects; takes longer for large threads",
        **requires("read"),
    )
    async def size(thread_id: ThreadId) -> ThreadSize:
        return await (await context.thread(thread_id)).size()

    @router.get(
        "/threads/{thread_id}/stored-bytes",
        tags=["threads"],
        summary="Stored bytes by cause, now, since a time, and over time; lists the thread's objects",
        **requires("read"),
    )
    async def stored_bytes(
        thread_id: ThreadId, since_ms: Annotated[int | None, Query(ge=0, le=2**53)] = None
    ) -> StoredBytes:
        return await (await context.thread(thread_id)).stored_bytes(since_ms=since_ms)

    @router.get(
        "/threads/{thread_id}/series",
        tags=["threads"],
        summary="Growth of the thread and durations of its resumes, sampled from the journal",
        **requires("read"),
    )
    async def series(
        thread_id: ThreadId, points_max: Annotated[int, Query(ge=2, le=500)] = 120
    ) -> Series:
        return await load_series(
            await context.client(), context.packs, thread_id, points_max=points_max
        )

    @router.get(
        "/threads/{thread_id}/runs",
        tags=["threads"],
        summary="The thread's runs, newest first, with links into the Temporal UI",
        **requires("read"),
    )
    async def runs(
        thread_id: ThreadId,
        from_run_id: Annotated[str, Query(pattern=RUN_ID)] = "",
        limit: Annotated[int, Query(ge=1, le=RUNS_MAX)] = 20,
    ) -> RunPage:
        handle = await context.thread(thread_id)
        return await handle.runs(
            from_run_id=from_run_id, limit=limit, temporal_ui=context.temporal_ui
        )

    @router.post(
        "/threads/{thread_id}/messages",
        tags=["threads"],
        summary="Send a message to a thread, or start one",
        **requires("send"),
    )
    async def send(thread_id: ThreadId, body: MessageRequest, user: CurrentUser) -> MessageReceipt:
        handle = await context.thread(thread_id)
        number = await handle.send(
            body.text,
            agent=body.agent or None,
            message_id=body.message_id,
            labels=body.labels,
            by=user.resolve_author(body.by),
            seconds_max=WORKER_SECONDS_MAX,
        )
        return MessageReceipt(thread_id=thread_id, number=number)

    return router
