"""The admin application: pages, JSON API and codec server, behind one chain of middleware."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI, HTTPException, Request
from fastapi.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.staticfiles import StaticFiles

from everlong import limits
from everlong.admin.web.auth import Access, check_permission, strip_port
from everlong.admin.web.codec_server import (
    LOCAL_HOSTS,
    Authorize,
    create_codec_app,
    not_authenticated,
)
from everlong.admin.web.codec_server import REQUEST_BYTES_MAX as CODEC_BYTES_MAX
from everlong.admin.web.context import AppContext
from everlong.admin.web.errors import add_error_handlers
from everlong.admin.web.gateway import Gateway
from everlong.admin.web.pages import pages_router
from everlong.admin.web.routes import api_router
from everlong.admin.web.routes.session import session_router
from everlong.admin.web.security import (
    TOO_MANY_WRONG_TOKENS,
    Guard,
    Load,
    RequestLimits,
    Throttle,
    has_wrong_token,
    identify_user,
)
from everlong.versions import get_versions

REQUEST_BYTES_MAX: Final = 4 * limits.MIB
"""Body of an API request: a long message. The command line streams longer ones."""
_HERE: Final = Path(__file__).parent


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
            Middleware(Guard, access=access, throttle=throttle),
        ],
    )
    add_error_handlers(app)

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    app.include_router(api_router(context))
    app.include_router(session_router(access, throttle))
    app.include_router(pages_router(context))
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
            raise not_authenticated()
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
