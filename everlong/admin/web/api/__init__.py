"""The JSON API, under `/api/v1`: what the service can say and do, and no more."""

from typing import Any, Final

from fastapi import APIRouter

from everlong.admin.web.api.acting import acting_router
from everlong.admin.web.api.governing import governing_router
from everlong.admin.web.api.querying import querying_router
from everlong.admin.web.api.reading import reading_router
from everlong.admin.web.desk import Desk
from everlong.admin.web.refusals import ErrorAnswer

PREFIX: Final = "/api/v1"
_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": ErrorAnswer, "description": "The request cannot be read"},
    401: {"model": ErrorAnswer, "description": "Nobody knows who asks"},
    403: {"model": ErrorAnswer, "description": "Their role may not do that"},
    404: {"model": ErrorAnswer, "description": "There is no such thread, entry or approval"},
    409: {
        "model": ErrorAnswer,
        "description": "The thread cannot take it as it is now, or it is under way",
    },
    410: {"model": ErrorAnswer, "description": "Bytes are missing from the store"},
    413: {"model": ErrorAnswer, "description": "The request is too large"},
    415: {"model": ErrorAnswer, "description": "Something else than JSON was sent"},
    422: {"model": ErrorAnswer, "description": "Something does not fit; nothing was changed"},
    429: {
        "model": ErrorAnswer,
        "description": "Too much of that is under way, or tokens are tried",
    },
    503: {"model": ErrorAnswer, "description": "The server, the store or a worker does not answer"},
}


def api_router(desk: Desk) -> APIRouter:
    """Return all routes of the API."""
    router = APIRouter(prefix=PREFIX, responses=_REFUSALS)
    router.include_router(reading_router(desk))
    router.include_router(acting_router(desk))
    router.include_router(governing_router(desk))
    router.include_router(querying_router(desk))
    return router
