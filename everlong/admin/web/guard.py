"""The door: each request is let in or not before anything looks at it.

What is not public needs somebody who is known. A change that a browser makes on behalf of another
site's page is refused: it has to say that it comes from our own pages.
"""

import asyncio
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from everlong.admin.web.access import Access, User, bearer_of
from everlong.admin.web.origins import is_own
from everlong.admin.web.refusals import API_PREFIX, refusal
from everlong.admin.web.sessions import COOKIE

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
