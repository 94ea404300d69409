"""Routes for actions on a thread. Each change is journalled with its author and reason."""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from fastapi import APIRouter
from pydantic import Field

from everlong import limits
from everlong.admin.preview import Action, Preview, preview_action
from everlong.admin.web.auth import CurrentUser, check_permission, requires
from everlong.admin.web.context import AppContext
from everlong.admin.web.parameters import (
    SEQ_MAX,
    ChangeRequest,
    Fields,
    LabelTexts,
    NewId,
    Text,
    ThreadId,
)
from everlong.client.fork_links import ForkLinks
from everlong.client.thread import ThreadHandle


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreviewRequest:
    """An action and its arguments."""

    action: Action
    arguments: Fields = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LimitsRequest(ChangeRequest):
    """New values of policy fields."""

    changes: Fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelsRequest(ChangeRequest):
    """Labels to add, and labels or keys to remove."""

    add: LabelTexts = ()
    remove: LabelTexts = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForkRequest(ChangeRequest):
    """Id of a fork, and the entry that it begins after."""

    seq: Annotated[int, Field(ge=1, le=SEQ_MAX)]
    new_id: NewId
    agent: Annotated[Text, Field(max_length=64)] = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RerunRequest(ChangeRequest):
    """The changed message, the entry of the turn that it begins, and the id of the fork."""

    seq: Annotated[int, Field(ge=1, le=SEQ_MAX)]
    text: Annotated[Text, Field(min_length=1, max_length=4 * limits.MIB)]
    new_id: NewId


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionResult:
    """Result of an action."""

    thread_id: str
    action: str
    by: str
    text: str
    """Effect, for people."""


_SIGNALS: Final[tuple[tuple[str, Callable[..., Awaitable[None]], str, str], ...]] = (
    ("compact", ThreadHandle.compact, "Compact the context at the next safe point", "will compact"),
    ("pause", ThreadHandle.pause, "Pause: take no more steps", "takes no more steps"),
    ("unpause", ThreadHandle.unpause, "Unpause: continue", "continues"),
    ("stop", ThreadHandle.stop, "Stop: end at the next safe point", "will stop"),
)


def create_actions_router(context: AppContext) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    _add_signal_routes(router, context)

    @router.post(
        "/threads/{thread_id}/preview",
        tags=["actions"],
        summary="Preview an action: its effect as text and bytes. Changes nothing",
        **requires("read"),
    )
    async def preview(thread_id: ThreadId, body: PreviewRequest) -> Preview:
        return await preview_action(
            await context.client(), context.packs, thread_id, body.action, body.arguments
        )

    @router.post(
        "/threads/{thread_id}/limits",
        tags=["actions"],
        summary="Change fields of the thread's policy",
        **requires("limits"),
    )
    async def set_limits(
        thread_id: ThreadId, body: LimitsRequest, user: CurrentUser
    ) -> ActionResult:
        # Who may change how many people must approve may decide alone.
        if "approvals_needed" in body.changes:
            check_permission(user, "decide")
        by = user.resolve_author(body.by)
        handle = await context.thread(thread_id)
        await handle.configure(body.changes, by=by, reason=body.reason)
        names = ", ".join(sorted(body.changes))
        return ActionResult(thread_id=thread_id, action="limits", by=by, text=f"Changed: {names}.")

    @router.post(
        "/threads/{thread_id}/labels",
        tags=["actions"],
        summary="Change the thread's labels",
        **requires("label"),
    )
    async def label(thread_id: ThreadId, body: LabelsRequest, user: CurrentUser) -> ActionResult:
        by = user.resolve_author(body.by)
        handle = await context.thread(thread_id)
        labels = await handle.label(body.add, remove=body.remove, by=by, reason=body.reason)
        text = f"Labels: {', '.join(labels) or 'none'}."
        return ActionResult(thread_id=thread_id, action="label", by=by, text=text)

    @router.post(
        "/threads/{thread_id}/fork",
        tags=["actions"],
        summary="Fork: start a new thread from this one's state after an entry",
        **requires("fork"),
    )
    async def fork(thread_id: ThreadId, body: ForkRequest, user: CurrentUser) -> ActionResult:
        by = user.resolve_author(body.by)
        handle = await context.thread(thread_id)
        await handle.fork(
            body.seq, body.new_id, agent=body.agent or None, by=by, reason=body.reason
        )
        text = f"Thread {body.new_id} begins after entry {body.seq}."
        return ActionResult(thread_id=thread_id, action="fork", by=by, text=text)

    @router.post(
        "/threads/{thread_id}/rerun",
        tags=["actions"],
        summary="Rerun: start a fork from before a message, with a changed message",
        **requires("rerun"),
    )
    async def rerun(thread_id: ThreadId, body: RerunRequest, user: CurrentUser) -> ActionResult:
        by = user.resolve_author(body.by)
        handle = await context.thread(thread_id)
        await handle.rerun(body.seq, body.text, body.new_id, by=by, reason=body.reason)
        text = f"Thread {body.new_id} works on the changed message."
        return ActionResult(thread_id=thread_id, action="rerun", by=by, text=text)

    @router.get(
        "/threads/{thread_id}/forks",
        tags=["threads"],
        summary="Where the thread began, if it is a fork, and its own forks",
        **requires("read"),
    )
    async def forks(thread_id: ThreadId) -> ForkLinks:
        return await (await context.thread(thread_id)).fork_links()

    return router


def _add_signal_routes(router: APIRouter, context: AppContext) -> None:
    for action, signal, summary, what in _SIGNALS:
        router.add_api_route(
            f"/threads/{{thread_id}}/{action}",
            _make_signal_route(context, action, signal, what),
            methods=["POST"],
            tags=["actions"],
            summary=summary,
            name=action,
            operation_id=f"{action}_thread",
            **requires(action),
        )


def _make_signal_route(
    context: AppContext, action: str, signal: Callable[..., Awaitable[None]], what: str
) -> Callable[..., Awaitable[ActionResult]]:
    async def act(thread_id: ThreadId, body: ChangeRequest, user: CurrentUser) -> ActionResult:
        by = user.resolve_author(body.by)
        await signal(await context.thread(thread_id), by=by, reason=body.reason)
        return ActionResult(thread_id=thread_id, action=action, by=by, text=f"The thread {what}.")

    return act
