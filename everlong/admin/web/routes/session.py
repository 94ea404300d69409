"""Routes for the session: login exchanges a token for a session cookie; logout ends the session."""

import dataclasses
from typing import Annotated, Any, Final
from urllib.parse import parse_qs

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field

from everlong.admin.web.auth import (
    COOKIE,
    SESSION_SECONDS_MAX,
    TOO_MANY_WRONG_TOKENS,
    Access,
    Role,
    Throttle,
    User,
    list_actions,
)
from everlong.admin.web.errors import ErrorAnswer
from everlong.admin.web.middleware import read_session_id
from everlong.admin.web.pages.filters import check_local_path

_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": ErrorAnswer} for status in (400, 401, 403, 413, 415, 422, 429)
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Credentials:
    """Credentials of a login."""

    token: Annotated[str, Field(min_length=1, max_length=1024)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """The current user and their permissions."""

    name: str
    """Empty for a user on this machine without a token: each change then names its author."""
    role: Role
    via: str
    may: tuple[str, ...]


def create_session_router(access: Access, throttle: Throttle) -> APIRouter:
    """Return the routes that start, show and end a session."""
    router = APIRouter(tags=["session"], responses=_REFUSALS)

    async def check_token(token: str) -> User:
        user = access.find_by_token(token)
        if user is None:
            if not await throttle.delay():
                raise HTTPException(429, TOO_MANY_WRONG_TOKENS)
            raise HTTPException(
                401, "This token is not valid on this server. Check it and try again."
            )
        return user

    def set_session(request: Request, answer: Response, user: User) -> None:
        access.sessions.close(read_session_id(request))
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

    @router.get("/api/v1/session", summary="The current user and their permissions")
    async def show(request: Request) -> Identity:
        user: User | None = request.state.user
        if user is None:
            raise HTTPException(401, "You are not logged in. Log in with a token.")
        return _describe_user(user)

    @router.post("/api/v1/session", summary="Log in: exchange a token for a session cookie")
    async def begin(request: Request, answer: Response, credentials: Credentials) -> Identity:
        user = await check_token(credentials.token)
        set_session(request, answer, user)
        return _describe_user(user)

    @router.delete("/api/v1/session", summary="Log out", status_code=204)
    async def end(request: Request) -> Response:
        access.sessions.close(read_session_id(request))
        answer = Response(status_code=204)
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return answer

    @router.post("/login", include_in_schema=False)
    async def submit(request: Request) -> Response:
        # The login form without JavaScript has one field. `RequestLimits` bounds its size.
        fields = parse_qs((await request.body()).decode(errors="replace"))
        user = await check_token(fields.get("token", [""])[0])
        answer = RedirectResponse(check_local_path(request.query_params.get("next", "/")), 303)
        set_session(request, answer, user)
        return answer

    return router


def _is_https(request: Request) -> bool:
    """Return whether the browser uses HTTPS: to this server, or to a proxy in front of it."""
    origin = request.headers.get("origin", "")
    return request.scope["scheme"] == "https" or origin.startswith("https://")


def _describe_user(user: User) -> Identity:
    return Identity(name=user.name, role=user.role, via=user.via, may=list_actions(user.role))
