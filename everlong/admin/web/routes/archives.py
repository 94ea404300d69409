"""Routes for archives: list them, archive a thread, and revive a thread from an archive."""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from pydantic import Field

from everlong.admin.web.auth import ARCHIVE_THEN, CurrentUser, check_permission, requires
from everlong.admin.web.context import AppContext
from everlong.admin.web.jobs import Job, OnProgress, Outcome
from everlong.admin.web.parameters import (
    ARCHIVE_ID,
    SEQ_MAX,
    ChangeRequest,
    NewId,
    Text,
    ThreadId,
)
from everlong.admin.web.routes.jobs import JOB_RESPONSES, run_job
from everlong.client.archives import ArchivePage, ArchiveResult, Then, list_archives
from everlong.client.fork import revive as revive_thread
from everlong.format import format_bytes, format_count

_ARCHIVES_PAGE: Final = 100
ArchiveId = Annotated[str, Field(pattern=ARCHIVE_ID)]
Before = Annotated[str, Query(pattern=ARCHIVE_ID, description="Only archives older than this one.")]
Limit = Annotated[int, Query(ge=1, le=_ARCHIVES_PAGE)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArchiveRequest(ChangeRequest):
    """Action on the thread after it is archived: keep, close or free it."""

    then: Then = "keep"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReviveRequest(ChangeRequest):
    """Id of the new thread, and its source: by default all of the newest archive."""

    new_id: NewId
    archive_id: ArchiveId = ""
    seq: Annotated[int, Field(ge=1, le=SEQ_MAX)] | None = None
    agent: Annotated[Text, Field(max_length=64)] = ""


def create_archives_router(context: AppContext) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    permission = requires("archive")
    permission["openapi_extra"]["x-permission-then"] = dict(ARCHIVE_THEN)

    @router.get(
        "/archives",
        tags=["archives"],
        summary="List archives of all threads, newest first",
        **requires("read"),
    )
    async def archives(before: Before = "", limit: Limit = 50) -> ArchivePage:
        return await list_archives(
            await context.client(), context.packs, before=before, count_max=limit
        )

    @router.get(
        "/threads/{thread_id}/archives",
        tags=["archives"],
        summary="List archives of one thread, newest first",
        **requires("read"),
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
        summary="Write the journal to one Parquet file; then keep, close or free the thread",
        responses=JOB_RESPONSES,
        **permission,
    )
    async def archive(
        thread_id: ThreadId, body: ArchiveRequest, user: CurrentUser, response: Response
    ) -> Job:
        check_permission(user, ARCHIVE_THEN[body.then])
        by = user.resolve_author(body.by)

        async def work(on_progress: OnProgress) -> Outcome:
            handle = await context.thread(thread_id)
            done = await handle.archive(
                then=body.then,
                by=by,
                reason=body.reason,
                on_progress=_report_entries(on_progress),
            )
            return Outcome(text=describe_archive(done), archived=done)

        return await run_job(context, response, "archive", thread_id, by, work)

    @router.post(
        "/threads/{thread_id}/revive",
        tags=["archives"],
        summary="Start a new thread from an archive",
        responses=JOB_RESPONSES,
        **requires("revive"),
    )
    async def revive(
        thread_id: ThreadId, body: ReviveRequest, user: CurrentUser, response: Response
    ) -> Job:
        by = user.resolve_author(body.by)
        return await run_job(
            context, response, "revive", thread_id, by, _make_revival(context, thread_id, body, by)
        )

    return router


def _make_revival(
    context: AppContext, thread_id: str, body: ReviveRequest, by: str
) -> Callable[[OnProgress], Awaitable[Outcome]]:
    async def work(on_progress: OnProgress) -> Outcome:
        warnings: list[str] = []
        await revive_thread(
            await context.client(),
            context.packs,
            thread_id,
            body.new_id,
            task_queue=context.task_queue,
            archive_id=body.archive_id or None,
            seq=body.seq,
            agent=body.agent or None,
            by=by,
            reason=body.reason,
            on_progress=_report_entries(on_progress),
            on_warning=warnings.append,
        )
        begins = f"Thread {body.new_id} starts from the archive."
        return Outcome(text=" ".join([begins, *(f"Warning: {each}" for each in warnings)]))

    return work


def _report_entries(on_progress: OnProgress) -> Callable[[str, int, int], None]:
    return lambda what, done, total: on_progress(f"{done:,} of {total:,} entries {what}")


def describe_archive(done: ArchiveResult) -> str:
    """Return a summary of an archive for people."""
    manifest = done.manifest
    how = "written and read back" if done.is_new else "existed already, and was read back"
    text = f"Archived: {manifest.entries:,} entries in {format_bytes(manifest.size_bytes)}, {how}."
    if done.left_out:
        text += (
            f" {done.left_out} entries and messages were never journalled; the archive lacks them."
        )
    if done.runs_deleted:
        text += f" Deleted: {format_count(done.runs_deleted, 'run')}."
    for each in done.passed_over:
        text += f" Skipped an archive that cannot be read: {each}"
    return text
