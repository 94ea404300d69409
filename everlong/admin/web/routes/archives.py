"""Routes for archives: list them, write one, and revive a thread from one."""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from pydantic import Field

from everlong.admin.format import bytes_text, counted
from everlong.admin.web.auth import ARCHIVE_THEN, CurrentUser, check_may, needs
from everlong.admin.web.context import AppContext
from everlong.admin.web.jobs import Job, Outcome, Tell
from everlong.admin.web.parameters import (
    ARCHIVE_ID,
    SEQ_MAX,
    Ask,
    NewId,
    Text,
    ThreadId,
)
from everlong.admin.web.routes.jobs import JOB_RESPONSES, run_job
from everlong.client.archives import ArchivePage, ArchiveResult, Then, list_archives
from everlong.client.restore import revive as revive_thread

_ARCHIVES_PAGE: Final = 100
ArchiveId = Annotated[str, Field(pattern=ARCHIVE_ID)]
Before = Annotated[str, Query(pattern=ARCHIVE_ID, description="Only those before this one.")]
Limit = Annotated[int, Query(ge=1, le=_ARCHIVES_PAGE)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArchiveAsk(Ask):
    """What becomes of the thread that is archived."""

    then: Then = "keep"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReviveAsk(Ask):
    """The new thread, and what it begins with: the newest archive, all of it."""

    new_id: NewId
    archive_id: ArchiveId = ""
    seq: Annotated[int, Field(ge=1, le=SEQ_MAX)] | None = None
    agent: Annotated[Text, Field(max_length=64)] = ""


def archives_router(context: AppContext) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    permission = needs("archive")
    permission["openapi_extra"]["x-permission-then"] = dict(ARCHIVE_THEN)

    @router.get(
        "/archives",
        tags=["archives"],
        summary="Archives of all threads, the newest first",
        **needs("read"),
    )
    async def archives(before: Before = "", limit: Limit = 50) -> ArchivePage:
        return await list_archives(
            await context.client(), context.packs, before=before, count_max=limit
        )

    @router.get(
        "/threads/{thread_id}/archives",
        tags=["archives"],
        summary="Archives of one thread, the newest first",
        **needs("read"),
    )
    async def archives_of(
        thread_id: ThreadId, before: Before = "", limit: Limit = 50
    ) -> ArchivePage:
        return await list_archives(
            await context.client(),
            context.packs,
            thread_id=thread_id,
            before=before,
            count_max=limit,
        )

    @router.post(
        "/threads/{thread_id}/archive",
        tags=["archives"],
        summary="Write the journal as one Parquet file; then keep the thread, close it, or free it",
        responses=JOB_RESPONSES,
        **permission,
    )
    async def archive(
        thread_id: ThreadId, ask: ArchiveAsk, user: CurrentUser, response: Response
    ) -> Job:
        check_may(user, ARCHIVE_THEN[ask.then])
        by = user.acts_as(ask.by)

        async def work(tell: Tell) -> Outcome:
            handle = await context.thread(thread_id)
            done = await handle.archive(
                then=ask.then,
                by=by,
                reason=ask.reason,
                on_progress=_entries(tell),
            )
            return Outcome(text=archived_text(done), archived=done)

        return await run_job(context, response, "archive", thread_id, by, work)

    @router.post(
        "/threads/{thread_id}/revive",
        tags=["archives"],
        summary="Begin a new thread as an archive has it",
        responses=JOB_RESPONSES,
        **needs("revive"),
    )
    async def revive(
        thread_id: ThreadId, ask: ReviveAsk, user: CurrentUser, response: Response
    ) -> Job:
        by = user.acts_as(ask.by)
        return await run_job(
            context, response, "revive", thread_id, by, _revival(context, thread_id, ask, by)
        )

    return router


def _revival(
    context: AppContext, thread_id: str, ask: ReviveAsk, by: str
) -> Callable[[Tell], Awaitable[Outcome]]:
    async def work(tell: Tell) -> Outcome:
        warnings: list[str] = []
        await revive_thread(
            await context.client(),
            context.packs,
            thread_id,
            ask.new_id,
            task_queue=context.task_queue,
            archive_id=ask.archive_id or None,
            seq=ask.seq,
            agent=ask.agent or None,
            by=by,
            reason=ask.reason,
            on_progress=_entries(tell),
            on_warning=warnings.append,
        )
        begins = f"Thread {ask.new_id} begins as the archive has it."
        return Outcome(text=" ".join([begins, *(f"Warning: {each}" for each in warnings)]))

    return work


def _entries(tell: Tell) -> Callable[[str, int, int], None]:
    return lambda what, done, total: tell(f"{done:,} of {total:,} entries are {what}")


def archived_text(done: ArchiveResult) -> str:
    """Return what was archived, in words."""
    manifest = done.manifest
    how = "written and read back" if done.is_new else "there already, and was read back"
    text = f"Archived: {manifest.entries:,} entries in {bytes_text(manifest.size_bytes)}, {how}."
    if done.left_out:
        text += f" {done.left_out} entries and messages were never journalled, and are not in it."
    if done.runs_deleted:
        text += f" Deleted: {counted(done.runs_deleted, 'run')}."
    for each in done.passed_over:
        text += f" An archive cannot be read, and is passed over: {each}"
    return text
