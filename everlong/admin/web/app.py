"""The whole server as one application: pages, API and codec behind one door."""

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
from everlong.admin.web.auth import Access, check_may, host_of
from everlong.admin.web.codec_server import LOCAL_HOSTS, Admit, create_app, unknown
from everlong.admin.web.codec_server import REQUEST_BYTES_MAX as CODEC_BYTES_MAX
from everlong.admin.web.context import AppContext
from everlong.admin.web.errors import add_handlers
from everlong.admin.web.gateway import Shell
from everlong.admin.web.pages import pages_router
from everlong.admin.web.routes import api_router
from everlong.admin.web.routes.session import login_router
from everlong.admin.web.security import (
    TOO_MANY,
    Guard,
    Load,
    RequestLimits,
    Throttle,
    is_wrong,
    user_of,
)
from everlong.versions import versions

REQUEST_BYTES_MAX: Final = 4 * limits.MIB
"""Of the API: a long message. What is longer is sent with the command line, which streams it."""
_HERE: Final = Path(__file__).parent


def create_admin_app(
    context: AppContext,
    access: Access,
    *,
    cors_origins: Sequence[str] = (),
    beside: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext,
) -> FastAPI:
    """Return the application. What is `beside` it is entered when the server starts."""
    throttle = Throttle()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.openapi()  # Routes are built with it, so that the first request need not wait for them.
        async with context.opened(), beside():
            yield

    # A page that points its own host name at 127.0.0.1 (DNS rebinding) is not let in.
    is_named = access.is_open or access.proxy is not None
    hosts = [*LOCAL_HOSTS, *map(host_of, access.hosts)] if is_named else ["*"]
    load = Load()
    codec = create_app(
        context.packs,
        inner=context.inner_codec,
        cors_origins=cors_origins,
        admit=_admission(access, throttle),
    )
    bounded_codec = RequestLimits(codec, load, CODEC_BYTES_MAX)
    app = FastAPI(
        title="Everlong",
        summary="Threads of long-running agents: what they are, and what may be done to them.",
        version=versions().everlong,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        lifespan=lifespan,
        # The first is the outermost.
        middleware=[
            Middleware(
                Shell, codec=TrustedHostMiddleware(bounded_codec, hosts, www_redirect=False)
            ),
            Middleware(RequestLimits, load=load, bytes_max=REQUEST_BYTES_MAX),
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
            Middleware(Guard, access=access, throttle=throttle),
        ],
    )
    add_handlers(app)

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    app.include_router(api_router(context))
    app.include_router(login_router(access, throttle))
    app.include_router(pages_router(context))
    app.mount("/static", StaticFiles(directory=_HERE / "static", check_dir=False), name="static")
    _describe(app)
    return app


def _admission(access: Access, throttle: Throttle) -> Admit:
    """Return who may use the codec. It lies beside the door, and asks the same."""

    async def admit(request: Request, action: str) -> None:
        user = request.state.user = user_of(access, request)
        if is_wrong(request, user) and not await throttle.wrong():
            raise HTTPException(429, TOO_MANY)
        if user is None:
            raise unknown()
        check_may(user, action)

    return admit


def _describe(app: FastAPI) -> None:
    """Say in the description how to authenticate."""
    made = app.openapi

    def described() -> dict[str, Any]:
        schema = made()
        components = schema.setdefault("components", {})
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "session": {"type": "apiKey", "in": "cookie", "name": "everlong_session"},
        }
        schema["security"] = [{}, {"bearer": []}, {"session": []}]
        return schema

    app.openapi = described  # type: ignore[method-assign]
