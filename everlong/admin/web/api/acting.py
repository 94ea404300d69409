"""Routes that change something. Each is journalled with who asked for it, and why."""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from fastapi import APIRouter, Path
from pydantic import Field
from temporalio.client import Client

from everlong import limits
from everlong.admin import service
from everlong.admin.web.api.bodies import Ask, By, Fields, Text
from everlong.admin.web.api.parameters import SEQ_MAX
from everlong.admin.web.desk import Desk
from everlong.admin.web.ids import NewId, ThreadId
from everlong.admin.web.needs import CurrentUser, needs


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreviewAsk:
    """An action, and what it would be done with."""

    action: service.Action
    arguments: Fields = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LimitsAsk(Ask):
    """Fields of the policy and their new values."""

    changes: Fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecideAsk(Ask):
    """A decision about a call that waits."""

    approve: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForkAsk(Ask):
    """Where a new thread begins, and its id."""

    seq: Annotated[int, Field(ge=1, le=SEQ_MAX)]
    new_id: NewId
    agent: Annotated[Text, Field(max_length=64)] = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SendAsk:
    """A message for a thread, which is started if an agent is named and there is none."""

    text: Annotated[str, Field(min_length=1, max_length=4 * limits.MIB)]
    agent: Annotated[Text, Field(max_length=64)] = ""
    message_id: Annotated[str, Field(pattern=r"^[ -~]{0,64}$")] = ""
    by: By = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Done:
    """What was done."""

    thread_id: str
    action: str
    by: str
    text: str
    """What happens now, in words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sent:
    """A message that was queued."""

    thread_id: str
    number: int


def acting_router(desk: Desk) -> APIRouter:
    """Return the routes that change something."""
    router = APIRouter()
    _signals(router, desk)
    _changes(router, desk)
    _messages(router, desk)
    return router


_SIGNALS: Final[tuple[tuple[str, Callable[..., Awaitable[None]], str, str], ...]] = (
    ("compact", service.compact, "Shorten the context at the next safe point", "will compact"),
    ("pause", service.pause, "Take no more steps", "takes no more steps"),
    ("unpause", service.unpause, "Go on", "goes on"),
    ("stop", service.stop, "End at the next safe point", "will stop"),
)


def _signals(router: APIRouter, desk: Desk) -> None:
    for action, signal, summary, what in _SIGNALS:
        router.add_api_route(
            f"/threads/{{thread_id}}/{action}",
            _signalled(desk, action, signal, what),
            methods=["POST"],
            tags=["actions"],
            summary=summary,
            name=action,
            operation_id=f"{action}_thread",
            **needs(action),
        )


def _signalled(
    desk: Desk, action: str, signal: Callable[..., Awaitable[None]], what: str
) -> Callable[..., Awaitable[Done]]:
    async def act(thread_id: ThreadId, ask: Ask, user: CurrentUser) -> Done:
        by = user.acts_as(ask.by)
        client: Client = await desk.client()
        await signal(client, thread_id, by=by, reason=ask.reason)
        return Done(thread_id=thread_id, action=action, by=by, text=f"The thread {what}.")

    return act


def _changes(router: APIRouter, desk: Desk) -> None:
    @router.post(
        "/threads/{thread_id}/preview",
        tags=["actions"],
        summary="What an action would do, in words and bytes; nothing is done",
        **needs("read"),
    )
    async def preview(thread_id: ThreadId, ask: PreviewAsk) -> service.Preview:
        return await service.preview(
            await desk.client(), desk.packs, thread_id, ask.action, ask.arguments
        )

    @router.post(
        "/threads/{thread_id}/limits",
        tags=["actions"],
        summary="Change fields of the thread's policy",
        **needs("limits"),
    )
    async def set_limits(thread_id: ThreadId, ask: LimitsAsk, user: CurrentUser) -> Done:
        by = user.acts_as(ask.by)
        await service.configure(
            await desk.client(), thread_id, ask.changes, by=by, reason=ask.reason
        )
        names = ", ".join(sorted(ask.changes))
        return Done(thread_id=thread_id, action="limits", by=by, text=f"Changed: {names}.")

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
        await service.decide(
            await desk.client(), thread_id, approval_id, ask.approve, by, ask.reason
        )
        text = "The call runs." if ask.approve else "The call does not run; the model is told why."
        return Done(thread_id=thread_id, action="decide", by=by, text=text)


def _messages(router: APIRouter, desk: Desk) -> None:
    @router.post(
        "/threads/{thread_id}/fork",
        tags=["actions"],
        summary="Begin a new thread as this one was after an entry",
        **needs("fork"),
    )
    async def fork(thread_id: ThreadId, ask: ForkAsk, user: CurrentUser) -> Done:
        by = user.acts_as(ask.by)
        await service.fork(
            await desk.client(),
            desk.packs,
            thread_id,
            ask.seq,
            ask.new_id,
            task_queue=desk.task_queue,
            agent=ask.agent or None,
            by=by,
            reason=ask.reason,
        )
        text = f"Thread {ask.new_id} begins after entry {ask.seq}."
        return Done(thread_id=thread_id, action="fork", by=by, text=text)

    @router.post(
        "/threads/{thread_id}/messages",
        tags=["threads"],
        summary="Send a message to a thread, or start one",
        **needs("send"),
    )
    async def send(thread_id: ThreadId, ask: SendAsk, user: CurrentUser) -> Sent:
        number = await service.send(
            await desk.client(),
            thread_id,
            ask.text,
            task_queue=desk.task_queue,
            agent=ask.agent or None,
            packs=desk.packs,
            message_id=ask.message_id,
            by=user.acts_as(ask.by),
            seconds_max=service.WORKER_SECONDS_MAX,
        )
        return Sent(thread_id=thread_id, number=number)
