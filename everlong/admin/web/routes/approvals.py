"""Routes for approvals: pending tool calls, and decisions on them."""

import dataclasses
from typing import Annotated

from fastapi import APIRouter, Path

from everlong.admin.approvals import (
    ApprovalPage,
    WaitingApproval,
    list_approvals,
    list_thread_approvals,
)
from everlong.admin.web.auth import CurrentUser, requires
from everlong.admin.web.context import AppContext
from everlong.admin.web.parameters import (
    ChangeRequest,
    ThreadId,
)
from everlong.admin.web.routes.actions import ActionResult


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecisionRequest(ChangeRequest):
    """A decision on a pending call."""

    approve: bool


def create_approvals_router(context: AppContext) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.get(
        "/approvals",
        tags=["approvals"],
        summary="All pending calls, oldest first",
        **requires("read"),
    )
    async def approvals() -> ApprovalPage:
        return await list_approvals(await context.client(), context.packs)

    @router.get(
        "/threads/{thread_id}/approvals",
        tags=["approvals"],
        summary="The thread's pending calls",
        name="approvals",
        **requires("read"),
    )
    async def thread_approvals(thread_id: ThreadId) -> tuple[WaitingApproval, ...]:
        return await list_thread_approvals(await context.client(), context.packs, thread_id)

    @router.post(
        "/threads/{thread_id}/approvals/{approval_id}",
        tags=["approvals"],
        summary="Approve or deny a pending call",
        **requires("decide"),
    )
    async def decide(
        thread_id: ThreadId,
        approval_id: Annotated[str, Path(max_length=64)],
        body: DecisionRequest,
        user: CurrentUser,
    ) -> ActionResult:
        by = user.resolve_author(body.by)
        handle = await context.thread(thread_id)
        await handle.decide(approval_id, approve=body.approve, by=by, reason=body.reason)
        text = (
            "The call runs."
            if body.approve
            else "The call does not run. The model gets the reason."
        )
        return ActionResult(thread_id=thread_id, action="decide", by=by, text=text)

    return router
