"""Routes for approvals: calls that wait for a person, and decisions about them."""

import dataclasses
from typing import Annotated

from fastapi import APIRouter, Path

from everlong.admin.approvals import (
    ApprovalPage,
    WaitingApproval,
    list_approvals,
    list_thread_approvals,
)
from everlong.admin.web.auth import CurrentUser, needs
from everlong.admin.web.context import AppContext
from everlong.admin.web.parameters import (
    Ask,
    ThreadId,
)
from everlong.admin.web.routes.actions import Done


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecideAsk(Ask):
    """A decision about a call that waits."""

    approve: bool


def approvals_router(context: AppContext) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.get(
        "/approvals",
        tags=["approvals"],
        summary="All calls that wait for a person, oldest first",
        **needs("read"),
    )
    async def approvals() -> ApprovalPage:
        return await list_approvals(await context.client(), context.packs)

    @router.get(
        "/threads/{thread_id}/approvals",
        tags=["approvals"],
        summary="The thread's calls that wait for a person",
        name="approvals",
        **needs("read"),
    )
    async def thread_approvals(thread_id: ThreadId) -> tuple[WaitingApproval, ...]:
        return await list_thread_approvals(await context.client(), context.packs, thread_id)

    @router.post(
        "/threads/{thread_id}/approvals/{approval_id}",
        tags=["approvals"],
        summary="Approve or deny a call that waits for a person",
        **needs("decide"),
    )
    async def decide(
        thread_id: ThreadId,
        approval_id: Annotated[str, Path(max_length=64)],
        ask: DecideAsk,
        user: CurrentUser,
    ) -> Done:
        by = user.acts_as(ask.by)
        handle = await context.thread(thread_id)
        await handle.decide(approval_id, approve=ask.approve, by=by, reason=ask.reason)
        text = "The call runs." if ask.approve else "The call does not run; the model is told why."
        return Done(thread_id=thread_id, action="decide", by=by, text=text)

    return router
