"""Routes of the live channel: workers post output, and listeners get it as server-sent events."""

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from everlong.admin.web.auth import CurrentUser, requires
from everlong.admin.web.context import AppContext
from everlong.admin.web.parameters import ThreadId
from everlong.live.hub import LISTEN_SECONDS_MAX, LiveHub, TooManyListeners, stream_events
from everlong.live.models import LiveAnswer, LivePost


class EventStream(StreamingResponse):
    """Events of one thread. It is a listener only while it is sent."""

    media_type = "text/event-stream"

    def __init__(
        self, hub: LiveHub, namespace: str, thread_id: str, user: str, seconds_max: float
    ) -> None:
        # nginx would collect events until its buffer is full.
        super().__init__((), headers={"x-accel-buffering": "no"})
        self._hub = hub
        self._subscription = (namespace, thread_id, user)
        self._seconds_max = seconds_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        try:
            with self._hub.listen(*self._subscription) as listener:
                self.body_iterator = stream_events(listener, self._seconds_max)
                await super().__call__(scope, receive, send)
        except TooManyListeners:
            raise HTTPException(
                429, "Too many clients follow threads here. Close some, or read the journal."
            ) from None


def create_live_router(context: AppContext) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.get(
        "/threads/{thread_id}/live",
        tags=["live"],
        summary="Follow a thread: text of the reply in progress, and progress of tools",
        response_class=EventStream,
        status_code=200,
        **requires("read"),
    )
    async def live(
        thread_id: ThreadId,
        user: CurrentUser,
        seconds: Annotated[float, Query(ge=0, le=LISTEN_SECONDS_MAX)] = LISTEN_SECONDS_MAX,
    ) -> Response:
        """Server-sent events; each has a JSON object. Best effort: the journal has what is missed.

        `open`: the stream begins. `start`: an attempt of a step begins. It voids what was shown of the
        step before. `delta`: a piece of the reply's text. `progress`: the newest progress of a tool.
        `cut`: the attempt died, and what was shown of it is void. `done`: the reply is stored as entry
        `seq`, or the tool has ended; read the journal. `dropped`: the server ends the stream; connect
        again.
        """
        namespace = (await context.client()).namespace
        return EventStream(context.live, namespace, thread_id, user.name, seconds)

    @router.post(
        "/live",
        tags=["live"],
        summary="Report running steps; for workers",
        **requires("live"),
    )
    async def report(body: LivePost) -> LiveAnswer:
        return context.live.take(body)

    return router
