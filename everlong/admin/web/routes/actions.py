"""Routes that act on a thread: each change is journalled with the name of its author and the reason."""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from fastapi import APIRouter
from pydantic import Field

from everlong.admin.preview import Action, Preview, preview_action
from everlong.admin.web.auth import CurrentUser, needs
from everlong.admin.web.context import AppContext
from everlong.admin.web.parameters import (
    SEQ_MAX,
    Ask,
    Fields,
    NewId,
    Text,
    ThreadId,
)
from everlong.client.thread import ThreadHandle


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreviewAsk:
    """An action, and what it would be done with."""

    action: Action
    arguments: Fields = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LimitsAsk(Ask):
    """Fields of the policy and their new values."""

    changes: Fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForkAsk(Ask):
    """Where a new thread begins, and its id."""

    seq: Annotated[int, Field(ge=1, le=SEQ_MAX)]
    new_id: NewId
    agent: Annotated[Text, Field(max_length=64)] = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Done:
    """What was done."""

    thread_id: str
    action: str
    by: str
    text: str
    """What happens now, in words."""


_SIGNALS: Final[tuple[tuple[str, Callable[..., Awaitable[None]], str, str], ...]] = (
    ("compact", ThreadHandle.compact, "Shorten the context at the next safe point", "will compact"),
    ("pause", ThreadHandle.pause, "Take no more steps", "takes no more steps"),
    ("unpause", ThreadHandle.unpause, "Go on", "goes on"),
    ("stop", ThreadHandle.stop, "End at the next safe point", "will stop"),
)


def actions_router(context: AppContext) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    _signals(router, context)

    @router.post(
        "/threads/{thread_id}/preview",
        tags=["actions"],
        summary="What an action would do, in words and bytes; nothing is done",
        **needs("read"),
    )
    async def preview(thread_id: ThreadId, ask: PreviewAsk) -> Preview:
        return await preview_action(
            await context.client(), context.packs, thread_id, ask.action, ask.arguments
        )

    @router.post(
        "/threads/{thread_id}/limits",
        tags=["actions"],
        summary="Change fields of the thread's policy",
        **needs("limits"),
    )
    async def set_limits(thread_id: ThreadId, ask: LimitsAsk, user: CurrentUser) -> Done:
        by = user.acts_as(ask.by)
        handle = await context.thread(thread_id)
        await handle.configure(ask.changes, by=by, reason=ask.reason)
        names = ", ".join(sorted(ask.changes))
        return Done(thread_id=thread_id, action="limits", by=by, text=f"Changed: {names}.")

    @router.post(
        "/threads/{thread_id}/fork",
        tags=["actions"],
        summary="Begin a new thread as this one was after an entry",
        **needs("fork"),
    )
    async def fork(thread_id: ThreadId, ask: ForkAsk, user: CurrentUser) -> Done:
        by = user.acts_as(ask.by)
        handle = await context.thread(thread_id)
        await handle.fork(ask.seq, ask.new_id, agent=ask.agent or None, by=by, reason=ask.reason)
        text = f"Thread {ask.new_id} begins after entry {ask.seq}."
        return Done(thread_id=thread_id, action="fork", by=by, text=text)

    return router


def _signals(router: APIRouter, context: AppContext) -> None:
    for action, signal, summary, what in _SIGNALS:
        router.add_api_route(
            f"/threads/{{thread_id}}/{action}",
            _signalled(context, action, signal, what),
            methods=["POST"],
            tags=["actions"],
            summary=summary,
            name=action,
            operation_id=f"{action}_thread",
            **needs(action),
        )


def _signalled(
    context: AppContext, action: str, signal: Callable[..., Awaitable[None]], what: str
) -> Callable[..., Awaitable[Done]]:
    async def act(thread_id: ThreadId, ask: Ask, user: CurrentUser) -> Done:
        by = user.acts_as(ask.by)
        await signal(await context.thread(thread_id), by=by, reason=ask.reason)
        return Done(thread_id=thread_id, action=action, by=by, text=f"The thread {what}.")

    return act
