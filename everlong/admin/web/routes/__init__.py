"""The JSON API, under `/api/v1`: what the service can say and do, and no more."""

from typing import Any, Final

from fastapi import APIRouter

from everlong.admin.web.context import AppContext
from everlong.admin.web.routes.actions import actions_router
from everlong.admin.web.routes.approvals import approvals_router
from everlong.admin.web.routes.archives import archives_router
from everlong.admin.web.routes.fleet import fleet_router
from everlong.admin.web.routes.jobs import jobs_router
from everlong.admin.web.routes.journal import journal_router
from everlong.admin.web.routes.queries import queries_router
from everlong.admin.web.routes.threads import threads_router

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


def api_router(context: AppContext) -> APIRouter:
    """Return all routes of the API."""
    router = APIRouter(prefix=PREFIX, responses=_REFUSALS)
    router.include_router(threads_router(context))
    router.include_router(journal_router(context))
    router.include_router(actions_router(context))
    router.include_router(approvals_router(context))
    router.include_router(archives_router(context))
    router.include_router(fleet_router(context))
    router.include_router(jobs_router(context))
    router.include_router(queries_router(context))
    return router
