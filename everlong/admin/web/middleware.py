"""ASGI middleware: authentication, CSRF protection, and limits of requests.

`RequestLimits` bounds bodies and concurrent requests before authentication, so its bounds limit what an
anonymous client can use up. Login paths have bounds of their own: a flood of logins blocks no other
request. `AuthenticationMiddleware` then rejects requests that are not authenticated, except for public
paths, and changes that a browser makes for another site's page.
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
from everlong.admin.web.auth import (
    COOKIE,
    TOO_MANY_WRONG_TOKENS,
    Access,
    Throttle,
    User,
    parse_netloc,
    read_bearer_token,
)
from everlong.admin.web.errors import API_PREFIX, make_error_response
from everlong.notify.slack import CALLBACK_BYTES_MAX, CALLBACK_PATH

PUBLIC: Final = ("/login", "/healthz", "/api/v1/session", "/favicon.ico", CALLBACK_PATH)
"""Paths that need no authentication. The last authenticates by Slack's signature."""
PUBLIC_PREFIX: Final = "/static/"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_JSON: Final = "application/json"
_FORM_PATHS: Final = ("/login", CALLBACK_PATH)


class AuthenticationMiddleware:
    """Authenticates requests and sets `request.state.user`. Answers rejected requests itself."""

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
        user = request.state.user = identify_user(self._access, request)
        error = await self._check(request, user)
        if error is not None:
            await error(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _check(self, request: Request, user: User | None) -> Response | None:
        # Before the public paths: they too would reveal whether a token is right.
        if has_wrong_token(request, user) and not await self._throttle.delay():
            return make_error_response(request, 429, "TooMany", TOO_MANY_WRONG_TOKENS)
        path = request.scope["path"]
        is_public = path in PUBLIC or path.startswith(PUBLIC_PREFIX)
        if user is None and not is_public:
            return _reject_anonymous(request)
        if request.method in _SAFE:
            return None
        return self._check_origin(request, user)

    def _check_origin(self, request: Request, user: User | None) -> Response | None:
        """Return an error for a change that a browser makes for another site's page."""
        headers = request.headers
        if user is not None and user.via == "token":
            return None  # Browsers never add a bearer token by themselves.
        if not is_own_origin(request, self._access.hosts):
            return make_error_response(
                request,
                403,
                "NotAllowed",
                "Changes are accepted from the dashboard's own pages, or with a bearer token.",
            )
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if request.scope["path"] in _FORM_PATHS or kind == _JSON or not has_body:
            return None
        return make_error_response(request, 415, "WrongType", "Send application/json.")


def _reject_anonymous(request: Request) -> Response:
    wants_page = "text/html" in request.headers.get("accept", "")
    if request.method == "GET" and wants_page and not request.scope["path"].startswith(API_PREFIX):
        return RedirectResponse(f"/login?next={quote(_find_requested_url(request), safe='/')}", 303)
    return make_error_response(
        request,
        401,
        "NotAuthenticated",
        "You are not logged in. Send a bearer token, or log in at /login.",
        {"WWW-Authenticate": "Bearer"},
    )


def _find_requested_url(request: Request) -> str:
    """Return path and query of a request, as the browser sent them."""
    raw: bytes = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    path = raw.partition(b"?")[0].decode("latin-1")
    query: str = request.scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def identify_user(access: Access, request: Request) -> User | None:
    """Return the user of a request, or None."""
    address = request.client.host if request.client else ""
    return access.authenticate(request.headers, address, read_session_id(request))


def read_session_id(request: Request) -> str:
    """Return the session id of the cookie header; empty if it has none."""
    return request.cookies.get(COOKIE, "")


def has_wrong_token(request: Request, user: User | None) -> bool:
    """Return whether a request has a bearer token that belongs to no user."""
    return user is None and read_bearer_token(request.headers) is not None


def is_own_origin(request: Request, hosts: Iterable[str]) -> bool:
    """Return whether a request comes from the dashboard's own pages, or from no browser at all.

    Browsers send the origin of a request, and pages cannot change it. The own origins are the request's
    host and the configured hosts. Host and port count together, as they do in browsers.
    """
    headers = request.headers
    site = headers.get("sec-fetch-site", "")
    if site:
        return site == "same-origin"
    origin = headers.get("origin", "")
    if not origin:
        # Sessions exist in browsers only, and browsers send one of the two headers with each change.
        return COOKIE not in request.cookies
    scheme, _, netloc = origin.lower().partition("://")
    place = parse_netloc(netloc, scheme)
    ours = [parse_netloc(each, scheme) for each in (headers.get("host", ""), *hosts)]
    return place is not None and place in ours


LOGIN_PATHS: Final = ("/login", "/api/v1/session")
LOGIN_BYTES_MAX: Final = 4 * limits.KIB
"""A token has 1,024 characters at most."""
LOGIN_SECONDS_MAX: Final = 10.0
LOGINS_MAX: Final = 16
CALLBACKS_MAX: Final = 16
"""Concurrent requests of Slack. Anonymous clients can send them too, so the bound is their own."""
REQUESTS_MAX: Final = 64
"""Concurrent requests. An open page makes one or two at a time."""
STREAMS_MAX: Final = 300
"""Concurrent streams of live output: `LISTENERS_MAX`, and some that are refused just now. They do not
count as requests, since each lasts for minutes."""
BODY_SECONDS_MAX: Final = 60.0
"""Time for a complete body: 16 MiB at 2.2 Mbit/s."""
BODIES_BYTES_MAX: Final = 32 * limits.MIB
"""Bodies of all concurrent requests: two of the largest."""
_BUSY: Final = "The server is handling as many requests as it can. Try again in a moment."


@dataclasses.dataclass
class Load:
    """Totals of the requests that are being handled."""

    requests: int = 0
    logins: int = 0
    streams: int = 0
    callbacks: int = 0
    body_bytes: int = 0


class RequestLimits:
    """Answers 413, 408 or 503 to a request beyond the bounds. Instances of one server share a `Load`."""

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
        is_callback = scope["path"] == CALLBACK_PATH
        bytes_max = LOGIN_BYTES_MAX if is_login else self._bytes_max
        if is_callback:
            bytes_max = CALLBACK_BYTES_MAX
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 15 or int(length) > bytes_max:
            response = make_error_response(request, 413, "TooLarge", _describe_too_large(bytes_max))
            await response(scope, receive, send)
            return
        load = self._load
        kind, count_max = ("logins", LOGINS_MAX) if is_login else _choose_count(scope)
        if getattr(load, kind) >= count_max:
            await make_error_response(request, 503, "Unavailable", _BUSY)(scope, receive, send)
            return
        setattr(load, kind, getattr(load, kind) + 1)
        body = _Body(
            receive,
            load,
            bytes_max,
            LOGIN_SECONDS_MAX if is_login or is_callback else BODY_SECONDS_MAX,
        )
        try:
            await self._app(scope, body.receive, send)
        finally:
            setattr(load, kind, getattr(load, kind) - 1)
            load.body_bytes -= body.size_bytes


def _choose_count(scope: Scope) -> tuple[str, int]:
    """Return the total that a request counts in, and its bound."""
    path: str = scope["path"]
    if path == CALLBACK_PATH:
        return "callbacks", CALLBACKS_MAX
    is_live = path.startswith(f"{API_PREFIX}threads/") and path.endswith("/live")
    # Five slashes: not the page of a thread with the id `live`.
    if scope["method"] == "GET" and is_live and path.count("/") == 5:
        return "streams", STREAMS_MAX
    return "requests", REQUESTS_MAX


class _Body:
    """Body of one request, bounded while it is read."""

    def __init__(self, receive: Receive, load: Load, bytes_max: int, seconds_max: float) -> None:
        self.size_bytes = 0
        self._receive = receive
        self._load = load
        self._bytes_max = bytes_max
        self._deadline = asyncio.get_running_loop().time() + seconds_max
        self._is_complete = False

    async def receive(self) -> Any:
        """Return the next ASGI message. Raises HTTPException beyond a bound."""
        if self._is_complete:
            return await self._receive()  # Waits for the disconnect, without a deadline.
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "The body of the request did not arrive in time.") from None
        part_bytes = len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        self.size_bytes += part_bytes
        self._load.body_bytes += part_bytes
        if self.size_bytes > self._bytes_max:
            raise HTTPException(413, _describe_too_large(self._bytes_max))
        if self._load.body_bytes > BODIES_BYTES_MAX:
            raise HTTPException(503, _BUSY, {"retry-after": "2"})
        return message


def _describe_too_large(bytes_max: int) -> str:
    return f"The body is too large: at most {bytes_max} bytes are accepted here."
