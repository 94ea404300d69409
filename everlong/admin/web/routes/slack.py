"""Route for Slack: the requests of the buttons Approve and Deny.

It is public, and authenticates by Slack's signature instead of a token. It exists only if a sink has a
signing secret.
"""

import logging
from typing import Final

from fastapi import APIRouter, HTTPException, Request, Response

from everlong.admin.web.slack_clicks import SlackClicks
from everlong.notify.slack import CALLBACK_PATH, CallbackReader, CallbackRefused

_LOG: Final = logging.getLogger(__name__)


def create_slack_router(clicks: SlackClicks, reader: CallbackReader) -> APIRouter:
    """Return the route."""
    router = APIRouter()

    @router.post(CALLBACK_PATH, include_in_schema=False)
    async def take_click(request: Request) -> Response:
        body = await request.body()
        try:
            click = reader.read(request.headers, body)
        except CallbackRefused as refusal:
            _LOG.warning("a request to %s was refused: %s", CALLBACK_PATH, refusal)
            # Without the reason: the caller may be an attacker.
            raise HTTPException(401, "This request is not accepted.") from None
        if click is not None and not clicks.start(click):
            raise HTTPException(503, "This server is handling as many decisions as it can.")
        return Response(status_code=200)

    return router
