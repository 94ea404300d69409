"""Bounds of requests: bytes and time of a body while it is read, and how many are under way.

They hold before a client is known, so they are all that a stranger can take. Paths at which strangers
log in have bounds of their own: whatever is sent there keeps no other request out.
"""

import asyncio
import dataclasses
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from everlong import limits
from everlong.admin.web.refusals import refusal

LOGIN_PATHS: Final = ("/login", "/api/v1/session")
LOGIN_BYTES_MAX: Final = 4 * limits.KIB
"""A token has 1,024 characters at most."""
LOGIN_SECONDS_MAX: Final = 10.0
LOGINS_MAX: Final = 16
REQUESTS_MAX: Final = 64
"""Under way at a time. A page that is open asks for one or two things at a time."""
BODY_SECONDS_MAX: Final = 60.0
"""Until a body is complete: 16 MiB at 2.2 Mbit/s."""
BODIES_BYTES_MAX: Final = 32 * limits.MIB
"""All bodies of requests under way: two of the largest."""
_BUSY: Final = "The server has as many requests under way as it takes. Try again."


@dataclasses.dataclass
class Load:
    """What requests under way take together."""

    requests: int = 0
    logins: int = 0
    body_bytes: int = 0


class RequestLimits:
    """Answers 413, 408 or 503 to a request beyond the bounds. Layers of one server share a `Load`."""

    def __init__(self, app: ASGIApp, load: Load, bytes_max: int) -> None:
        self._app = app
        self._load = load
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        is_login = scope["method"] == "POST" and scope["path"] in LOGIN_PATHS
        bytes_max = LOGIN_BYTES_MAX if is_login else self._bytes_max
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 15 or int(length) > bytes_max:
            answer = refusal(request, 413, "TooLarge", _too_large(bytes_max))
            await answer(scope, receive, send)
            return
        load = self._load
        if load.logins >= LOGINS_MAX if is_login else load.requests >= REQUESTS_MAX:
            await refusal(request, 503, "Unavailable", _BUSY)(scope, receive, send)
            return
        load.logins += is_login
        load.requests += not is_login
        body = _Body(receive, load, bytes_max, LOGIN_SECONDS_MAX if is_login else BODY_SECONDS_MAX)
        try:
            await self._app(scope, body.receive, send)
        finally:
            load.logins -= is_login
            load.requests -= not is_login
            load.body_bytes -= body.size_bytes


class _Body:
    """The body of one request, bounded while it is read."""

    def __init__(self, receive: Receive, load: Load, bytes_max: int, seconds_max: float) -> None:
        self.size_bytes = 0
        self._receive = receive
        self._load = load
        self._bytes_max = bytes_max
        self._deadline = asyncio.get_running_loop().time() + seconds_max
        self._is_complete = False

    async def receive(self) -> Any:
        """Return the next part, as ASGI has it; raise `HTTPException` beyond a bound."""
        if self._is_complete:
            return await self._receive()  # The client's end, which may be long in coming.
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "The request's body did not arrive in time.") from None
        part_bytes = len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        self.size_bytes += part_bytes
        self._load.body_bytes += part_bytes
        if self.size_bytes > self._bytes_max:
            raise HTTPException(413, _too_large(self._bytes_max))
        if self._load.body_bytes > BODIES_BYTES_MAX:
            raise HTTPException(503, _BUSY, {"retry-after": "2"})
        return message


def _too_large(bytes_max: int) -> str:
    return f"A request may have {bytes_max} bytes here, and no more."
