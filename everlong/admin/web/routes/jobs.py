"""Routes for jobs, and the start of one: a request gets the result, or the job if it takes long."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, HTTPException, Path, Response

from everlong.admin.web.auth import requires
from everlong.admin.web.context import AppContext
from everlong.admin.web.jobs import Job, LongAction, OnProgress, Outcome

JOB_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    202: {"model": Job, "description": "The job is running; poll `/jobs/{id}`"}
}


def create_jobs_router(context: AppContext) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.get(
        "/jobs",
        tags=["jobs"],
        summary="List jobs of this server, newest first",
        **requires("read"),
    )
    async def jobs() -> tuple[Job, ...]:
        return context.jobs.list_all()

    @router.get(
        "/jobs/{job_id}",
        tags=["jobs"],
        summary="One job: its progress or its result",
        **requires("read"),
    )
    async def job(job_id: Annotated[str, Path(pattern="^[0-9a-f]{16}$")]) -> Job:
        found = context.jobs.find(job_id)
        if found is None:
            raise HTTPException(
                404, "This server has no such job. It may have been restarted: start the job again."
            )
        return found

    return router


async def run_job(
    context: AppContext,
    response: Response,
    action: LongAction,
    thread_id: str,
    by: str,
    work: Callable[[OnProgress], Awaitable[Outcome]],
) -> Job:
    """Start a job, and wait for it. Sets the status to 202 if it is still running."""
    job = await context.jobs.wait(context.jobs.start(action, thread_id, by, work).id)
    response.status_code = 202 if job.state == "running" else 200
    return job
