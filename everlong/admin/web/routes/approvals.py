"""Routes for what waits for people: approvals, unknown outcomes, and grants for later calls."""

import dataclasses
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Path
from pydantic import Field

from everlong import limits
from everlong.admin.approvals import (
    ApprovalPage,
    OutcomePage,
    WaitingApproval,
    WaitingOutcome,
    list_approvals,
    list_outcomes,
    list_thread_approvals,
    list_thread_outcomes,
)
from everlong.admin.web.auth import CurrentUser, requires
from everlong.admin.web.context import AppContext
from everlong.admin.web.parameters import (
    ChangeRequest,
    Fields,
    Text,
    ThreadId,
)
from everlong.admin.web.routes.actions import ActionResult
from everlong.client.grants import list_agent_grants, revoke_agent_grant
from everlong.models import Always, Grant

_Id = Annotated[str, Path(max_length=64)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlwaysRequest:
    """Later calls that an approval allows too."""

    match: Literal["tool", "arguments"]
    """`tool`: all calls of the tool. `arguments`: those with the same arguments."""
    scope: Literal["thread", "agent"] = "thread"
    seconds: Annotated[float, Field(gt=0, le=limits.GRANT_SECONDS_MAX)] | None = None
    """How long; null until it is revoked."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecisionRequest(ChangeRequest):
    """A decision on a pending call."""

    approve: bool
    arguments: Fields | None = None
    """All arguments to run the call with, instead of the model's."""
    always: AlwaysRequest | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutcomeRequest(ChangeRequest):
    """What became of a call whose outcome is unknown."""

    outcome: Literal["done", "not_done", "retry"]
    result: Annotated[Text, Field(max_length=limits.OUTCOME_RESULT_BYTES_MAX)] = ""
    """Result of a call that is done, for the model."""


_RESOLVED = {
    "done": "The model gets the result.",
    "not_done": "The model reads that the call had no effect.",
    "retry": "The call runs again, with the same idempotency key.",
}


def create_approvals_router(context: AppContext) -> APIRouter:
    """Return the routes."""
    router = APIRouter()
    _add_approvals(router, context)
    _add_outcomes(router, context)
    _add_grants(router, context)
    return router


def _add_approvals(router: APIRouter, context: AppContext) -> None:
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
        summary="Approve or deny a pending call; change its arguments, or allow later calls",
        **requires("decide"),
    )
    async def decide(
        thread_id: ThreadId, approval_id: _Id, body: DecisionRequest, user: CurrentUser
    ) -> ActionResult:
        by = user.resolve_author(body.by)
        handle = await context.thread(thread_id)
        await handle.decide(
            approval_id,
            approve=body.approve,
            by=by,
            reason=body.reason,
            arguments=body.arguments,
            always=None if body.always is None else Always(**vars(body.always)),
        )
        return ActionResult(
            thread_id=thread_id, action="decide", by=by, text=_describe_decision(body)
        )


def _describe_decision(body: DecisionRequest) -> str:
    if not body.approve:
        return "The call does not run. The model gets the reason."
    if body.arguments is not None:
        return "The call runs with the changed arguments, once all approvals are there."
    if body.always is not None:
        return "The call runs, and later ones need no approval."
    return "The call runs, once all approvals are there."


def _add_outcomes(router: APIRouter, context: AppContext) -> None:
    @router.get(
        "/outcomes",
        tags=["approvals"],
        summary="All calls whose outcome is unknown, oldest first",
        **requires("read"),
    )
    async def outcomes() -> OutcomePage:
        return await list_outcomes(await context.client(), context.packs)

    @router.get(
        "/threads/{thread_id}/outcomes",
        tags=["approvals"],
        summary="The thread's calls whose outcome is unknown",
        name="outcomes",
        **requires("read"),
    )
    async def thread_outcomes(thread_id: ThreadId) -> tuple[WaitingOutcome, ...]:
        return await list_thread_outcomes(await context.client(), context.packs, thread_id)

    @router.post(
        "/threads/{thread_id}/outcomes/{outcome_id}",
        tags=["approvals"],
        summary="Say what became of a call: done, not done, or try again",
        **requires("decide"),
    )
    async def resolve(
        thread_id: ThreadId, outcome_id: _Id, body: OutcomeRequest, user: CurrentUser
    ) -> ActionResult:
        by = user.resolve_author(body.by)
        handle = await context.thread(thread_id)
        await handle.resolve_outcome(
            outcome_id, outcome=body.outcome, by=by, result=body.result, reason=body.reason
        )
        text = _RESOLVED[body.outcome]
        return ActionResult(thread_id=thread_id, action="resolve", by=by, text=text)


def _add_grants(router: APIRouter, context: AppContext) -> None:
    @router.get(
        "/grants",
        tags=["approvals"],
        summary="Grants of all agents: calls that need no approval",
        **requires("read"),
    )
    async def agent_grants() -> list[Grant]:
        now_ms = time.time_ns() // 1_000_000
        return await list_agent_grants(await context.client(), context.packs, now_ms)

    @router.get(
        "/threads/{thread_id}/grants",
        tags=["approvals"],
        summary="Grants that allow calls of the thread: its own, and its agent's",
        name="grants",
        **requires("read"),
    )
    async def thread_grants(thread_id: ThreadId) -> list[Grant]:
        return await (await context.thread(thread_id)).grants()

    @router.post(
        "/grants/{grant_id}/revoke",
        tags=["approvals"],
        summary="Revoke a grant of an agent",
        **requires("decide"),
    )
    async def revoke_agent(grant_id: _Id, body: ChangeRequest, user: CurrentUser) -> ActionResult:
        by = user.resolve_author(body.by)
        client = await context.client()
        grant = await revoke_agent_grant(client, context.packs, grant_id, by=by, reason=body.reason)
        return _describe_revoked("" if grant is None else grant.thread_id, by)

    @router.post(
        "/threads/{thread_id}/grants/{grant_id}/revoke",
        tags=["approvals"],
        summary="Revoke a grant of the thread, or of its agent",
        **requires("decide"),
    )
    async def revoke(
        thread_id: ThreadId, grant_id: _Id, body: ChangeRequest, user: CurrentUser
    ) -> ActionResult:
        by = user.resolve_author(body.by)
        handle = await context.thread(thread_id)
        await handle.revoke_grant(grant_id, by=by, reason=body.reason)
        return _describe_revoked(thread_id, by)


def _describe_revoked(thread_id: str, by: str) -> ActionResult:
    text = "Calls that have not begun to run need an approval again."
    return ActionResult(thread_id=thread_id, action="revoke_grant", by=by, text=text)
