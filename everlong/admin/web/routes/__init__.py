"""The JSON API under `/api/v1`: one module per resource."""

from typing import Any, Final

from fastapi import APIRouter

from everlong.admin.web.context import AppContext
from everlong.admin.web.routes.actions import create_actions_router
from everlong.admin.web.routes.approvals import create_approvals_router
from everlong.admin.web.routes.archives import create_archives_router
from everlong.admin.web.routes.bulk import create_bulk_router
from everlong.admin.web.routes.fleet import create_fleet_router
from everlong.admin.web.routes.jobs import create_jobs_router
from everlong.admin.web.routes.journal import create_journal_router
from everlong.admin.web.routes.live import create_live_router
from everlong.admin.web.routes.queries import create_queries_router
from everlong.admin.web.routes.threads import create_threads_router

PREFIX: Final = "/api/v1"
# One schema for all errors, which `routes.session` declares. Declaring the model here too would build it
# for every route.
_FORM: Final = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}}
_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"description": why, "content": _FORM}
    for status, why in {
        400: "The request cannot be parsed",
        401: "The request is not authenticated",
        403: "The user's role may not do this",
        404: "The thread, entry, approval or archive does not exist",
        409: "The thread's state does not allow this, or the same job is running",
        410: "Bytes are missing from the store",
        413: "The request is too large",
        415: "The body is not JSON",
        422: "The input is invalid; nothing was changed",
        429: "Too many jobs, queries, listeners or wrong tokens",
        503: "The Temporal server, the store or a worker does not answer",
    }.items()
}


def create_api_router(context: AppContext) -> APIRouter:
    """Return all routes of the API."""
    router = APIRouter(prefix=PREFIX, responses=_REFUSALS)
    router.include_router(create_threads_router(context))
    router.include_router(create_journal_router(context))
    router.include_router(create_actions_router(context))
    router.include_router(create_bulk_router(context))
    router.include_router(create_approvals_router(context))
    router.include_router(create_archives_router(context))
    router.include_router(create_fleet_router(context))
    router.include_router(create_jobs_router(context))
    router.include_router(create_live_router(context))
    router.include_router(create_queries_router(context))
    return router
