"""Logging in and out: a token is exchanged for a session, which a browser keeps as a cookie."""

import dataclasses
from typing import Annotated, Any, Final
from urllib.parse import parse_qs

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field

from everlong.admin.web.auth import COOKIE, SESSION_SECONDS_MAX, Access, Role, User, allowed_to
from everlong.admin.web.errors import ErrorAnswer
from everlong.admin.web.pages.filters import local_path
from everlong.admin.web.security import TOO_MANY, Throttle, session_id_of

_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": ErrorAnswer} for status in (400, 401, 403, 413, 415, 422, 429)
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Credentials:
    """What somebody logs in with."""

    token: Annotated[str, Field(min_length=1, max_length=1024)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """Who asks, and what they may do."""

    name: str
    """Empty for somebody on this machine without a token: their changes say who makes them."""
    role: Role
    via: str
    may: tuple[str, ...]


def login_router(access: Access, throttle: Throttle) -> APIRouter:
    """Return the routes that begin, show and end a session."""
    router = APIRouter(tags=["session"], responses=_REFUSALS)

    async def entered(token: str) -> User:
        user = access.by_token(token)
        if user is None:
            if not await throttle.wrong():
                raise HTTPException(429, TOO_MANY)
            raise HTTPException(401, "That is not a token of this server.")
        return user

    def keep(request: Request, answer: Response, user: User) -> None:
        access.sessions.close(session_id_of(request))
        request.state.user = user  # For the log.
        answer.set_cookie(
            COOKIE,
            access.sessions.open(user.name, user.role),
            max_age=int(SESSION_SECONDS_MAX),
            httponly=True,
            samesite="strict",
            secure=_is_https(request),
            path="/",
        )

    @router.get("/api/v1/session", summary="Who you are, and what you may do")
    async def show(request: Request) -> Identity:
        user: User | None = request.state.user
        if user is None:
            raise HTTPException(401, "Nobody knows who you are. Log in with a token.")
        return _identity(user)

    @router.post("/api/v1/session", summary="Log in: exchange a token for a session cookie")
    async def begin(request: Request, answer: Response, credentials: Credentials) -> Identity:
        user = await entered(credentials.token)
        keep(request, answer, user)
        return _identity(user)

    @router.delete("/api/v1/session", summary="Log out", status_code=204)
    async def end(request: Request) -> Response:
        access.sessions.close(session_id_of(request))
        answer = Response(status_code=204)
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return answer

    @router.post("/login", include_in_schema=False)
    async def submit(request: Request) -> Response:
        # Without JavaScript; the form has one field. `RequestLimits` bounds it while it is read.
        fields = parse_qs((await request.body()).decode(errors="replace"))
        user = await entered(fields.get("token", [""])[0])
        answer = RedirectResponse(local_path(request.query_params.get("next", "/")), 303)
        keep(request, answer, user)
        return answer

    return router


def _is_https(request: Request) -> bool:
    """Tell whether the browser speaks HTTPS: to us, or by its own word to a proxy before us."""
    origin = request.headers.get("origin", "")
    return request.scope["scheme"] == "https" or origin.startswith("https://")


def _identity(user: User) -> Identity:
    return Identity(name=user.name, role=user.role, via=user.via, may=allowed_to(user.role))
