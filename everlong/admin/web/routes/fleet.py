"""Routes for all threads together: totals, the blob store's health, and sweeps."""

import dataclasses
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Response

from everlong.admin.fleet import FleetView, StoreHealth, load_fleet
from everlong.admin.format import bytes_text, counted
from everlong.admin.web.auth import CurrentUser, needs
from everlong.admin.web.context import AppContext
from everlong.admin.web.jobs import Job, Outcome, Tell
from everlong.admin.web.parameters import (
    By,
    Reason,
)
from everlong.admin.web.routes.jobs import JOB_RESPONSES, run_job
from everlong.client.sweeps import read_sweep_interval
from everlong.client.sweeps import sweep as sweep_namespace
from everlong.models import SweepReport


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepAsk:
    """How to sweep, and who asks. Nothing is changed, unless somebody says so."""

    by: By = ""
    reason: Reason = ""
    dry_run: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepState:
    """Sweeps of the namespace."""

    last: SweepReport | None
    """Of the newest that came to its end."""
    job: Job | None
    """What this server sweeps now."""
    every_seconds: float | None
    """How often workers sweep by themselves; None if they do not."""


def fleet_router(context: AppContext) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.get(
        "/fleet",
        tags=["fleet"],
        summary="All threads together: bytes, growth, resumes, failure loops, the last sweep",
        **needs("read"),
    )
    async def fleet() -> FleetView:
        return await load_fleet(context.directory, await context.last_sweep())

    @router.get(
        "/store",
        tags=["fleet"],
        summary="Whether the store takes and gives bytes, and how fast",
        **needs("read"),
    )
    async def store() -> StoreHealth:
        return await context.store_health()

    @router.get(
        "/sweep",
        tags=["fleet"],
        summary="The last sweep, and the one that is under way",
        **needs("read"),
    )
    async def last() -> SweepState:
        return await sweep_state(context)

    @router.post(
        "/sweep",
        tags=["fleet"],
        summary="Free what nothing reaches, by way of the quarantine; or say what that would be",
        responses=JOB_RESPONSES,
        **needs("sweep"),
    )
    async def sweep(ask: SweepAsk, user: CurrentUser, response: Response) -> Job:
        by = user.acts_as(ask.by)
        return await run_job(context, response, "sweep", "", by, _sweep(context, ask, by))

    return router


def _sweep(context: AppContext, ask: SweepAsk, by: str) -> Callable[[Tell], Awaitable[Outcome]]:
    async def work(tell: Tell) -> Outcome:
        try:
            report = await sweep_namespace(
                await context.client(),
                context.packs,
                dataclasses.replace(context.sweeps, dry_run=ask.dry_run, by=by, reason=ask.reason),
                index_dir=context.index_dir,
                on_progress=tell,
            )
        finally:
            context.forget_sweep()
        return Outcome(text=f"{swept_text(report)} Asked for by {by}.", swept=report)

    return work


async def sweep_state(context: AppContext) -> SweepState:
    """Return what is known of sweeps."""
    under_way = [each for each in context.jobs.running() if each.action == "sweep"]
    return SweepState(
        last=await context.last_sweep(),
        job=under_way[0] if under_way else None,
        every_seconds=await read_sweep_interval(await context.client()),
    )


def swept_text(report: SweepReport) -> str:
    """Return what a sweep did, in words."""
    if report.incomplete:
        return f"Incomplete, so nothing was deleted for good: {report.incomplete[0]}"
    size = bytes_text(report.quarantined.bytes)
    did = "A sweep would set aside" if report.dry_run else "Set aside"
    return f"{did} {size} in {counted(report.quarantined.objects, 'object')}."
