"""The door: each request is let in or not before anything looks at it.

What is not public needs somebody who is known. A change that a browser makes on behalf of another
site's page is refused: it has to say that it comes from our own pages.
"""

import asyncio
import dataclasses
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from everlong import limits
from everlong.admin.web.auth import COOKIE, Access, User, bearer_of, place_of
from everlong.admin.web.errors import API_PREFIX, refusal

PUBLIC: Final = ("/login", "/healthz", "/api/v1/session", "/favicon.ico")
"""Paths that need nobody who is known."""
PUBLIC_PREFIX: Final = "/static/"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_JSON: Final = "application/json"
_FORM_PATHS: Final = ("/login",)
TOO_MANY: Final = "Too many wrong tokens; try again later."
# Somebody who tries tokens waits so long for each answer, and few of them wait at a time.
_WRONG_SECONDS: Final = 0.5
_WRONG_MAX: Final = 16


class Throttle:
    """Makes those wait who show a wrong token."""

    def __init__(self) -> None:
        self._waiting = 0

    async def wrong(self) -> bool:
        """Wait; return whether there was room for it."""
        if self._waiting >= _WRONG_MAX:
            return False
        self._waiting += 1
        try:
            await asyncio.sleep(_WRONG_SECONDS)
        finally:
            self._waiting -= 1
        return True


class Guard:
    """Lets requests in, with `request.state.user` set; answers the others itself."""

    def __init__(self, app: ASGIApp, access: Access, throttle: Throttle) -> None:
        self._app = app
        self._access = access
        self._throttle = throttle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        request = Request(scope)
        user = request.state.user = user_of(self._access, request)
        refused = await self._refusal(request, user)
        if refused is not None:
            await refused(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _refusal(self, request: Request, user: User | None) -> Response | None:
        # First: whatever is public would tell as well whether a token is right.
        if is_wrong(request, user) and not await self._throttle.wrong():
            return refusal(request, 429, "TooMany", TOO_MANY)
        path = request.scope["path"]
        is_public = path in PUBLIC or path.startswith(PUBLIC_PREFIX)
        if user is None and not is_public:
            return _unknown(request)
        if request.method in _SAFE:
            return None
        return self._foreign(request, user)

    def _foreign(self, request: Request, user: User | None) -> Response | None:
        """Refuse a change that a page of another site has a browser make."""
        headers = request.headers
        if user is not None and user.via == "token":
            return None  # No browser sends it by itself.
        if not is_own(request, self._access.hosts):
            return refusal(
                request,
                403,
                "NotAllowed",
                "Changes are taken from the dashboard's own pages, or with a bearer token.",
            )
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if request.scope["path"] in _FORM_PATHS or kind == _JSON or not has_body:
            return None
        return refusal(request, 415, "WrongType", "Send application/json.")


def _unknown(request: Request) -> Response:
    wants_page = "text/html" in request.headers.get("accept", "")
    if request.method == "GET" and wants_page and not request.scope["path"].startswith(API_PREFIX):
        return RedirectResponse(f"/login?next={quote(_wanted(request), safe='/')}", 303)
    return refusal(
        request,
        401,
        "NotAuthenticated",
        "Nobody knows who you are. Send a bearer token, or log in at /login.",
        {"WWW-Authenticate": "Bearer"},
    )


def _wanted(request: Request) -> str:
    """Return what was asked for, as the browser wrote it: path and query."""
    raw: bytes = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    path = raw.partition(b"?")[0].decode("latin-1")
    query: str = request.scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def user_of(access: Access, request: Request) -> User | None:
    """Return who makes a request."""
    address = request.client.host if request.client else ""
    return access.user(request.headers, address, session_id_of(request))


def session_id_of(request: Request) -> str:
    """Return the session's id in a cookie, whatever cookies others left beside it; empty if none."""
    return request.cookies.get(COOKIE, "")


def is_wrong(request: Request, user: User | None) -> bool:
    """Tell whether a request shows a token that is nobody's."""
    return user is None and bearer_of(request.headers) is not None


def is_own(request: Request, hosts: Iterable[str]) -> bool:
    """Tell whether a request comes from our own pages, or from no browser at all.

    Browsers say where a request comes from, and pages cannot make them say something else. Our own is
    the host that the request names, and those that are configured.
    """
    headers = request.headers
    site = headers.get("sec-fetch-site", "")
    if site:
        return site == "same-origin"
    origin = headers.get("origin", "")
    if not origin:
        # A session lives in a browser, and those send one of the two with each change.
        return COOKIE not in request.cookies
    scheme, _, netloc = origin.lower().partition("://")
    place = place_of(netloc, scheme)
    ours = [place_of(each, scheme) for each in (headers.get("host", ""), *hosts)]
    return place is not None and place in ours


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
