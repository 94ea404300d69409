"""The JSON API, under `/api/v1`: what the service can say and do, and no more."""

from typing import Any, Final

from fastapi import APIRouter

from everlong.admin.web.api.acting import acting_router
from everlong.admin.web.api.governing import governing_router
from everlong.admin.web.api.querying import querying_router
from everlong.admin.web.api.reading import reading_router
from everlong.admin.web.desk import Desk

PREFIX: Final = "/api/v1"
# One form for all, which the session's routes describe. A model for each would be built for each route.
_FORM: Final = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}}
_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"description": why, "content": _FORM}
    for status, why in {
        400: "The request cannot be read",
        401: "Nobody knows who asks",
        403: "Their role may not do that",
        404: "There is no such thread, entry or approval",
        409: "The thread cannot take it as it is now, or it is under way",
        410: "Bytes are missing from the store",
        413: "The request is too large",
        415: "Something else than JSON was sent",
        422: "Something does not fit; nothing was changed",
        429: "Too much of that is under way, or tokens are tried",
        503: "The server, the store or a worker does not answer",
    }.items()
}


def api_router(desk: Desk) -> APIRouter:
    """Return all routes of the API."""
    router = APIRouter(prefix=PREFIX, responses=_REFUSALS)
    router.include_router(reading_router(desk))
    router.include_router(acting_router(desk))
    router.include_router(governing_router(desk))
    router.include_router(querying_router(desk))
    return router
