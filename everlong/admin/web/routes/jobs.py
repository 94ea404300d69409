"""Routes for jobs: actions that take longer than a request."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, HTTPException, Path, Response

from everlong.admin.web.auth import needs
from everlong.admin.web.context import AppContext
from everlong.admin.web.jobs import Job, LongAction, Outcome, Tell

JOB_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    202: {"model": Job, "description": "It is under way; ask for the job again"}
}


def jobs_router(context: AppContext) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.get(
        "/jobs",
        tags=["jobs"],
        summary="What was asked of this server and takes long, the newest first",
        **needs("read"),
    )
    async def jobs() -> tuple[Job, ...]:
        return context.jobs.all()

    @router.get(
        "/jobs/{job_id}", tags=["jobs"], summary="How a job goes, or ended", **needs("read")
    )
    async def job(job_id: Annotated[str, Path(pattern="^[0-9a-f]{16}$")]) -> Job:
        found = context.jobs.find(job_id)
        if found is None:
            raise HTTPException(404, "This server knows no such job: it may have been restarted.")
        return found

    return router


async def run_job(
    context: AppContext,
    response: Response,
    action: LongAction,
    thread_id: str,
    by: str,
    work: Callable[[Tell], Awaitable[Outcome]],
) -> Job:
    """Begin something, and answer with what came of it, or with the job if that takes long."""
    job = await context.jobs.wait(context.jobs.start(action, thread_id, by, work).id)
    response.status_code = 202 if job.state == "running" else 200
    return job
