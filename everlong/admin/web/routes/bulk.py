"""Routes for bulk actions: a preview for each thread, and the action, as a job."""

import dataclasses
from typing import Annotated

from fastapi import APIRouter, HTTPException, Response
from pydantic import Field

from everlong.admin.bulk import (
    THREADS_MAX,
    BulkAction,
    BulkOptions,
    BulkPreview,
    describe_results,
    plan_bulk,
    run_bulk,
)
from everlong.admin.web.auth import (
    ARCHIVE_THEN,
    CurrentUser,
    check_permission,
    requires,
)
from everlong.admin.web.context import AppContext
from everlong.admin.web.jobs import Job, OnProgress, Outcome
from everlong.admin.web.parameters import (
    BodyId,
    ChangeRequest,
    LabelTexts,
    Text,
    limit_items,
)
from everlong.admin.web.routes.jobs import JOB_RESPONSES, run_job
from everlong.client.archives import Then

ThreadIds = Annotated[
    tuple[BodyId, ...], Field(min_length=1, max_length=THREADS_MAX), limit_items(THREADS_MAX)
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BulkPreviewRequest:
    """An action, the threads, and the options of the action."""

    action: BulkAction
    thread_ids: ThreadIds
    then: Then = "keep"
    """For `archive`: `keep` or `close`."""
    add: LabelTexts = ()
    remove: LabelTexts = ()
    """For `label`: labels to add, and labels or keys to remove."""

    @property
    def options(self) -> BulkOptions:
        """The options of the action."""
        return BulkOptions(then=self.then, add=self.add, remove=self.remove)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BulkRequest(ChangeRequest, BulkPreviewRequest):
    """A bulk action, with the confirmation that its preview asks for."""

    confirm: Annotated[Text, Field(max_length=64)] = ""


def create_bulk_router(context: AppContext) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    async def plan(body: BulkPreviewRequest) -> BulkPreview:
        rows = await context.thread_list.by_ids(body.thread_ids)
        return plan_bulk(rows, body.thread_ids, body.action, body.options)

    @router.post(
        "/bulk/preview",
        tags=["actions"],
        summary="Preview an action on up to 200 threads. Changes nothing, and queries no thread",
        **requires("read"),
    )
    async def preview(body: BulkPreviewRequest) -> BulkPreview:
        return await plan(body)

    @router.post(
        "/bulk",
        tags=["actions"],
        summary="Do an action on up to 200 threads, as a job with a result for each",
        responses=JOB_RESPONSES,
        **requires("bulk"),
    )
    async def bulk(body: BulkRequest, user: CurrentUser, response: Response) -> Job:
        action = ARCHIVE_THEN[body.then] if body.action == "archive" else body.action
        check_permission(user, action)
        by = user.resolve_author(body.by)
        planned = await plan(body)
        if planned.confirm != body.confirm.strip():
            raise HTTPException(409, _describe_confirmation(planned))

        async def work(on_progress: OnProgress) -> Outcome:
            results = await run_bulk(
                planned,
                body.options,
                context.thread,
                by=by,
                reason=body.reason,
                on_progress=on_progress,
            )
            return Outcome(text=describe_results(planned, results), bulk=results)

        return await run_job(context, response, "bulk", "", by, work)

    return router


def _describe_confirmation(planned: BulkPreview) -> str:
    if not planned.confirm:
        return "It acts on no thread now, or needs no confirmation. Preview it again."
    return (
        f"Confirm with {planned.confirm!r}: the action, and on how many threads it acts now. Preview it "
        "again if that number has changed."
    )
