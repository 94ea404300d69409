"""The admin application: pages, JSON API and codec server, behind one chain of middleware.

`Gateway` is the outermost middleware. A line of its log names the route and the user. It never contains
a thread id, a query or a token.
"""

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, unquote_to_bytes

from fastapi import FastAPI, HTTPException, Request
from fastapi.middleware import Middleware
from starlette.datastructures import MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everlong import limits
from everlong.admin.web.auth import (
    TOO_MANY_WRONG_TOKENS,
    Access,
    Throttle,
    check_permission,
    strip_port,
)
from everlong.admin.web.codec_server import (
    LOCAL_HOSTS,
    Authorize,
    create_codec_app,
    make_authentication_error,
)
from everlong.admin.web.codec_server import REQUEST_BYTES_MAX as CODEC_BYTES_MAX
from everlong.admin.web.context import AppContext
from everlong.admin.web.errors import add_error_handlers, handle_unexpected, make_error_response
from everlong.admin.web.middleware import (
    AuthenticationMiddleware,
    Load,
    RequestLimits,
    has_wrong_token,
    identify_user,
)
from everlong.admin.web.pages import create_pages_router
from everlong.admin.web.routes import create_api_router
from everlong.admin.web.routes.session import create_session_router
from everlong.admin.web.routes.slack import create_slack_router
from everlong.versions import get_versions

_LOG: Final = logging.getLogger("everlong.admin.web.requests")
REQUEST_BYTES_MAX: Final = 4 * limits.MIB
"""Body of an API request: a long message. The command line streams longer ones."""
_HERE: Final = Path(__file__).parent
_CODEC: Final = frozenset({"encode", "decode", "download"})
_API: Final = "/api/v1/"
_STATIC: Final = "/static/"

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "object-src 'none'; img-src 'self' data:"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not `no-referrer`: with that, browsers do not say which origin the login's form comes from.
    "referrer-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""On every response but the codec's: no content from other origins, no inline scripts, no frames."""


def create_admin_app(
    context: AppContext,
    access: Access,
    *,
    cors_origins: Sequence[str] = (),
    background: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext,
) -> FastAPI:
    """Return the application. `background` is a context that is entered while the server runs."""
    throttle = Throttle()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.openapi()  # Builds the routes, so that the first request does not wait for them.
        async with context.lifespan(), background():
            yield

    # DNS rebinding: reject a page that points its own host name at 127.0.0.1.
    checks_host = access.is_open or access.proxy is not None
    hosts = [*LOCAL_HOSTS, *map(strip_port, access.hosts)] if checks_host else ["*"]
    load = Load()
    codec = create_codec_app(
        context.packs,
        inner=context.inner_codec,
        cors_origins=cors_origins,
        authorize=_make_codec_check(access, throttle),
    )
    bounded_codec = RequestLimits(codec, load, CODEC_BYTES_MAX)
    app = FastAPI(
        title="Everlong",
        summary="Threads of long-running agents: read, control and archive them.",
        version=get_versions().everlong,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        lifespan=lifespan,
        # The first is the outermost.
        middleware=[
            Middleware(
                Gateway, codec=TrustedHostMiddleware(bounded_codec, hosts, www_redirect=False)
            ),
            Middleware(RequestLimits, load=load, bytes_max=REQUEST_BYTES_MAX),
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
            Middleware(AuthenticationMiddleware, access=access, throttle=throttle),
        ],
    )
    add_error_handlers(app)

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    app.include_router(create_api_router(context))
    app.include_router(create_session_router(access, throttle))
    if (reader := context.slack_clicks.reader) is not None:
        app.include_router(create_slack_router(context.slack_clicks, reader))
    app.include_router(create_pages_router(context))
    app.mount("/static", StaticFiles(directory=_HERE / "static", check_dir=False), name="static")
    _add_security_schemes(app)
    return app


def _make_codec_check(access: Access, throttle: Throttle) -> Authorize:
    """Return the codec server's check of requests: they bypass the guard, so they authenticate here."""

    async def authorize(request: Request, action: str) -> None:
        user = request.state.user = identify_user(access, request)
        if has_wrong_token(request, user) and not await throttle.delay():
            raise HTTPException(429, TOO_MANY_WRONG_TOKENS)
        if user is None:
            raise make_authentication_error()
        check_permission(user, action)

    return authorize


def _add_security_schemes(app: FastAPI) -> None:
    """Add the ways to authenticate to the OpenAPI description."""
    openapi = app.openapi

    def add_schemes() -> dict[str, Any]:
        schema = openapi()
        components = schema.setdefault("components", {})
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "session": {"type": "apiKey", "in": "cookie", "name": "everlong_session"},
        }
        schema["security"] = [{}, {"bearer": []}, {"session": []}]
        return schema

    app.openapi = add_schemes  # type: ignore[method-assign]


class Gateway:
    """Routes a request to the codec server or to the application, and logs it."""

    def __init__(self, app: ASGIApp, codec: ASGIApp) -> None:
        self._app = app
        self._codec = codec

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        scope.setdefault("state", {})  # The guard or the codec server sets the user there.
        status = 0
        is_codec = _is_codec(scope)

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if not is_codec:
                    _add_security_headers(message, scope["path"])
            await send(message)

        _keep_slashes(scope)
        try:
            if not _is_utf8(scope):
                text = "The URL is not UTF-8. Percent-encode its parts as UTF-8."
                await make_error_response(Request(scope), 400, "BadRequest", text)(
                    scope, receive, send_and_note
                )
                return
            await (self._codec if is_codec else self._app)(scope, receive, send_and_note)
        except Exception as error:  # noqa: BLE001 - the server would log its message, which may hold content.
            response = handle_unexpected(Request(scope), error)
            if not status:
                await response(scope, receive, send_and_note)
        finally:
            is_static = scope["path"].startswith(_STATIC) and status < 400
            _LOG.log(
                logging.DEBUG if is_static else logging.INFO,
                "%s %s %d %s %.0f ms",
                scope["method"],
                _find_route_path(scope, is_codec=is_codec),
                status,
                _find_user_name(scope),
                1000 * (time.monotonic() - began),
            )


def _is_codec(scope: Scope) -> bool:
    """Return whether a request is for the codec server, at any depth of the path."""
    path: str = scope["path"]
    return (
        scope["method"] in ("POST", "OPTIONS")
        and path.rpartition("/")[2] in _CODEC
        and not path.startswith(_API)
    )


def _keep_slashes(scope: MutableMapping[str, Any]) -> None:
    """Keep the escaped slashes of a path: a thread id is one segment, whatever it contains.

    uvicorn has undone all escapes by now. This keeps `%` and `/` escaped inside a segment, and
    `parameters.ThreadId` unescapes them.
    """
    raw = scope.get("raw_path") or b""
    if b"%2f" in raw.lower() or b"%25" in raw:
        kept = raw.partition(b"?")[0].decode("ascii", errors="replace")
        kept = kept.replace("%25", "%2525").replace("%2F", "%252F").replace("%2f", "%252F")
        scope["path"] = unquote(kept)


def _is_utf8(scope: Scope) -> bool:
    """Return whether path and query are UTF-8. Otherwise an id would contain U+FFFD: another id."""
    try:
        unquote_to_bytes(scope.get("raw_path") or b"").decode()
        unquote_to_bytes(scope.get("query_string") or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _add_security_headers(message: Message, path: str) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in HEADERS.items():
        headers[name] = value
    # Scripts import each other by name, without a version: browsers revalidate each of them.
    headers["cache-control"] = "no-cache" if path.startswith(_STATIC) else "no-store"


def _find_route_path(scope: Scope, *, is_codec: bool) -> str:
    if is_codec:
        return f"/{scope['path'].rpartition('/')[2]}"
    if scope["path"].startswith(_STATIC):
        return _STATIC
    found: str = getattr(scope.get("route"), "path", "(none)")
    # A route of the API has its path without the prefix.
    is_inside = scope["path"].startswith(_API) and found.startswith("/")
    return found if not is_inside or found.startswith(_API) else f"{_API}{found[1:]}"


def _find_user_name(scope: Scope) -> str:
    user = scope.get("state", {}).get("user")
    return (user.name or user.via) if user is not None else "-"
