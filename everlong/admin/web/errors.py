"""Errors as answers: one shape for all, and a status that says whose turn it is.

Input that does not fit is never a 5xx. What a validator was given is not repeated: it may be content.
"""

import dataclasses
import logging
from collections.abc import Mapping
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from everlong.admin.web.pages import error_page
from everlong.errors import (
    ArchiveNotFound,
    BlobMissing,
    ConfigError,
    ControlRefused,
    DecisionRefused,
    EntryNotFound,
    EverlongError,
    MessageRefused,
    NotAnswered,
    NoWorker,
    QueryRefused,
    ServerUnreachable,
    SetupRefused,
    StoreError,
    StoreUnavailable,
    ThreadEnded,
    ThreadError,
    ThreadExists,
    ThreadIdRefused,
    ThreadNotFound,
    ThreadPaused,
)
from everlong.models import printable

_LOG: Final = logging.getLogger(__name__)
_MESSAGE_CHARS_MAX: Final = 2_000
API_PREFIX: Final = "/api/"

# The first that fits counts.
_STATUSES: Final[tuple[tuple[type[EverlongError], int], ...]] = (
    (ThreadNotFound, 404),
    (EntryNotFound, 404),
    (ArchiveNotFound, 404),
    (ThreadEnded, 409),
    (ThreadExists, 409),
    (ThreadPaused, 409),
    (ThreadIdRefused, 422),
    (MessageRefused, 422),
    (DecisionRefused, 422),
    (ControlRefused, 422),
    (NoWorker, 503),
    (NotAnswered, 503),
    (ThreadError, 409),
    (ServerUnreachable, 503),
    (StoreUnavailable, 503),
    # The bytes are gone or damaged: nothing that this server can mend by being asked again.
    (BlobMissing, 410),
    (StoreError, 422),
    (ConfigError, 422),
    (SetupRefused, 409),
    (QueryRefused, 422),
)
_NAMES: Final = {
    400: "BadRequest",
    401: "NotAuthenticated",
    403: "NotAllowed",
    404: "NotFound",
    405: "MethodNotAllowed",
    408: "TooSlow",
    409: "UnderWay",
    411: "LengthRequired",
    413: "TooLarge",
    415: "WrongType",
    422: "DoesNotFit",
    429: "TooMany",
    503: "Unavailable",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ErrorFields:
    """What went wrong."""

    type: str
    """The error's name, as in docs/admin.md."""
    message: str
    """What happened, to what, and what to do."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ErrorAnswer:
    """What every answer that is not a success holds."""

    error: ErrorFields


def status_of(error: EverlongError) -> int:
    """Return the HTTP status for one of our errors."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 400)


def refusal(
    request: Request,
    status: int,
    kind: str,
    message: str,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return the answer for an error: JSON for programs, a page for a browser that wants one."""
    message = message.encode(errors="replace").decode()[:_MESSAGE_CHARS_MAX]
    wants_page = "text/html" in request.headers.get("accept", "")
    if wants_page and not request.scope["path"].startswith(API_PREFIX):
        answer = error_page(request, status, kind, message)
    else:
        answer = JSONResponse({"error": {"type": kind, "message": message}}, status)
    for name, value in (headers or {}).items():
        answer.headers[name] = value
    if status == 503:
        answer.headers["retry-after"] = "2"
    return answer


def add_handlers(app: FastAPI) -> None:
    """Have an application answer all errors like this."""

    @app.exception_handler(EverlongError)
    async def ours(request: Request, error: EverlongError) -> Response:
        return refusal(request, status_of(error), type(error).__name__, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return refusal(request, 422, "DoesNotFit", validation_text(error))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        kind = _NAMES.get(error.status_code, "Refused")
        return refusal(request, error.status_code, kind, str(error.detail), error.headers)


def validation_text(error: RequestValidationError) -> str:
    """Return which fields do not fit and why, without what they held."""
    told = [
        f"{'.'.join(printable(str(part), 60) for part in each['loc'])}: {each['msg']}"
        for each in list(error.errors())[:8]
    ]
    return "; ".join(told) or "the request does not fit"


def unexpected(request: Request, error: Exception) -> Response:
    """Log an error that nobody expects, and return the answer. Its words may hold content."""
    _LOG.error("a request failed: %s", type(error).__name__, exc_info=_trace(error))
    return refusal(
        request,
        500,
        "InternalError",
        "Something failed that Everlong does not know of. The server's log names it.",
    )


class Redacted(Exception):
    """Stands in a log for an error whose words, or those of its causes, may hold content."""


def _trace(error: Exception) -> Exception:
    return Redacted(type(error).__name__).with_traceback(error.__traceback__)
