"""Error responses: one JSON shape for all errors, and one HTTP status for each type of error.

Invalid input is never a 5xx. Messages never repeat the input: it may be content of a thread.
"""

import dataclasses
import logging
from collections.abc import Mapping
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from everlong.admin.web.pages.layout import render_error_page
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
from everlong.models import make_printable

_LOG: Final = logging.getLogger(__name__)
_MESSAGE_CHARS_MAX: Final = 2_000
API_PREFIX: Final = "/api/v1/"

# The first match counts.
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
    # Missing or damaged bytes: a retry does not help.
    (BlobMissing, 410),
    (StoreError, 422),
    (ConfigError, 422),
    (SetupRefused, 409),
    (QueryRefused, 422),
)
_ERROR_TYPES: Final = {
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
    """Type and message of an error."""

    type: str
    """Name of the error, as in docs/how-to/administer.md."""
    message: str
    """Problem, the object that has it, and the remedy."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ErrorAnswer:
    """Body of every error response."""

    error: ErrorFields


def get_http_status(error: EverlongError) -> int:
    """Return the HTTP status of an Everlong error."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 400)


def make_error_response(
    request: Request,
    status: int,
    kind: str,
    message: str,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return the response for an error: a page if the client accepts HTML, otherwise JSON."""
    message = message.encode(errors="replace").decode()[:_MESSAGE_CHARS_MAX]
    wants_page = "text/html" in request.headers.get("accept", "")
    if wants_page and not request.scope["path"].startswith(API_PREFIX):
        response = render_error_page(request, status, kind, message)
    else:
        response = JSONResponse({"error": {"type": kind, "message": message}}, status)
    for name, value in (headers or {}).items():
        response.headers[name] = value
    if status == 503:
        response.headers["retry-after"] = "2"
    return response


def add_error_handlers(app: FastAPI) -> None:
    """Make an application answer all errors in the one shape."""

    @app.exception_handler(EverlongError)
    async def handle_everlong_error(request: Request, error: EverlongError) -> Response:
        return make_error_response(
            request, get_http_status(error), type(error).__name__, str(error)
        )

    @app.exception_handler(RequestValidationError)
    async def handle_validation_error(request: Request, error: RequestValidationError) -> Response:
        return make_error_response(request, 422, "DoesNotFit", describe_validation_error(error))

    @app.exception_handler(HTTPException)
    async def handle_http_error(request: Request, error: HTTPException) -> Response:
        kind = _ERROR_TYPES.get(error.status_code, "Refused")
        return make_error_response(
            request, error.status_code, kind, str(error.detail), error.headers
        )


def describe_validation_error(error: RequestValidationError) -> str:
    """Return which fields are invalid and why, without their values."""
    problems = [
        f"{'.'.join(make_printable(str(part), 60) for part in each['loc'])}: {each['msg']}"
        for each in list(error.errors())[:8]
    ]
    return "; ".join(problems) or "the request is invalid"


def handle_unexpected(request: Request, error: Exception) -> Response:
    """Log an unexpected error without its message, which may hold content, and return a 500."""
    _LOG.error("a request failed: %s", type(error).__name__, exc_info=_redact(error))
    return make_error_response(
        request,
        500,
        "InternalError",
        "An unexpected error occurred. The server's log has its type.",
    )


class Redacted(Exception):
    """Replaces an error in the log, since its message or its causes may hold content."""


def _redact(error: Exception) -> Exception:
    return Redacted(type(error).__name__).with_traceback(error.__traceback__)
