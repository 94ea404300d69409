"""Routes for the whole fleet: totals of all threads, the store's health, and sweeps."""

import dataclasses
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Response

from everlong.admin.fleet import FleetView, StoreHealth, load_fleet
from everlong.admin.web.auth import CurrentUser, requires
from everlong.admin.web.context import AppContext
from everlong.admin.web.jobs import Job, OnProgress, Outcome
from everlong.admin.web.parameters import (
    By,
    Reason,
)
from everlong.admin.web.routes.jobs import JOB_RESPONSES, run_job
from everlong.client.sweeps import read_sweep_interval
from everlong.client.sweeps import sweep as sweep_namespace
from everlong.format import format_bytes, format_count
from everlong.models import SweepReport


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """Options of a sweep. A dry run, unless `dry_run` is false."""

    by: By = ""
    reason: Reason = ""
    dry_run: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepState:
    """State of the namespace's sweeps."""

    last: SweepReport | None
    """Report of the newest complete sweep."""
    job: Job | None
    """Sweep that this server is running."""
    every_seconds: float | None
    """Interval of the scheduled sweeps; None without a schedule."""


def create_fleet_router(context: AppContext) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.get(
        "/fleet",
        tags=["fleet"],
        summary="All threads together: bytes, growth, resumes, failure loops, the last sweep",
        **requires("read"),
    )
    async def fleet() -> FleetView:
        return await load_fleet(context.thread_list, await context.last_sweep())

    @router.get(
        "/store",
        tags=["fleet"],
        summary="Whether the store can be written and read, and how fast",
        **requires("read"),
    )
    async def store() -> StoreHealth:
        return await context.store_health()

    @router.get(
        "/sweep",
        tags=["fleet"],
        summary="The last sweep, and the running one",
        **requires("read"),
    )
    async def last() -> SweepState:
        return await read_sweep_state(context)

    @router.post(
        "/sweep",
        tags=["fleet"],
        summary="Sweep: quarantine and delete unreachable objects; or count them in a dry run",
        responses=JOB_RESPONSES,
        **requires("sweep"),
    )
    async def sweep(body: SweepRequest, user: CurrentUser, response: Response) -> Job:
        by = user.resolve_author(body.by)
        return await run_job(context, response, "sweep", "", by, _make_sweep(context, body, by))

    return router


def _make_sweep(
    context: AppContext, body: SweepRequest, by: str
) -> Callable[[OnProgress], Awaitable[Outcome]]:
    async def work(on_progress: OnProgress) -> Outcome:
        try:
            report = await sweep_namespace(
                await context.client(),
                context.packs,
                dataclasses.replace(
                    context.sweep_options, dry_run=body.dry_run, by=by, reason=body.reason
                ),
                index_dir=context.index_dir,
                on_progress=on_progress,
            )
        finally:
            context.forget_sweep()
        return Outcome(text=f"{describe_sweep(report)} Requested by {by}.", swept=report)

    return work


async def read_sweep_state(context: AppContext) -> SweepState:
    """Return the last sweep, the running one, and the schedule."""
    running = [each for each in context.jobs.list_running() if each.action == "sweep"]
    return SweepState(
        last=await context.last_sweep(),
        job=running[0] if running else None,
        every_seconds=await read_sweep_interval(await context.client()),
    )


def describe_sweep(report: SweepReport) -> str:
    """Return a summary of a sweep for people."""
    if report.incomplete:
        return f"Incomplete, so nothing was deleted permanently: {report.incomplete[0]}"
    size = format_bytes(report.quarantined.bytes)
    did = "A sweep would quarantine" if report.dry_run else "Quarantined"
    return f"{did} {size} in {format_count(report.quarantined.objects, 'object')}."
