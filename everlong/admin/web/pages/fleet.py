"""All threads together."""

from typing import Any

from fastapi import APIRouter, Request, Response

from everlong.admin.fleet import load_fleet
from everlong.admin.web.pages import filters
from everlong.admin.web.pages.layout import Frame
from everlong.admin.web.pages.renderer import etag_of
from everlong.models import SweepReport


def routes(frame: Frame) -> APIRouter:
    """Return the routes of the fleet's page."""
    router = APIRouter()
    context = frame.context

    async def figures() -> dict[str, Any]:
        found = await load_fleet(context.directory, await context.last_sweep())
        under_way = [each for each in context.jobs.running() if each.action == "sweep"]
        return {
            "found": found,
            "sweep": found.last_sweep,
            "sweep_figures": sweep_figures(found.last_sweep) if found.last_sweep else [],
            "sweeping": under_way[0] if under_way else None,
        }

    @router.get("/fleet")
    async def fleet(request: Request) -> Response:
        values = await frame.values(request, "fleet") | await figures()
        text = frame.renderer.text("fleet_figures.html", values)
        who = values["who"]
        values |= {
            "store": await context.store_health(),
            "sweep_may": who is not None and who.may("sweep"),
            "sweep_url": "/api/v1/sweep",
            "live_url": "/fragments/fleet",
            "etag": etag_of(text),
        }
        return frame.renderer.page("fleet.html", values)

    @router.get("/fragments/fleet")
    async def listed(request: Request) -> Response:
        values = await frame.values(request, "fleet") | await figures()
        return frame.renderer.fragment(request, "fleet_figures.html", values)

    return router


def sweep_figures(report: SweepReport) -> list[tuple[str, str, str]]:
    """Return what a page shows of a sweep: a name, a figure, and what stands under it."""
    return [
        ("Took", filters.took(1000 * report.seconds) if report.seconds else filters.NONE, ""),
        ("Runs", filters.number(report.runs), f"{filters.number(report.runs_read)} read"),
        ("Stored", filters.size(report.stored.bytes), _objects(report.stored.objects)),
        ("Set aside", filters.size(report.quarantined.bytes), _objects(report.quarantined.objects)),
        ("Deleted", filters.size(report.purged.bytes), _objects(report.purged.objects)),
        (
            "In quarantine",
            filters.size(report.in_quarantine.bytes),
            _objects(report.in_quarantine.objects),
        ),
    ]


def _objects(count: int) -> str:
    return f"{filters.number(count)} {'object' if count == 1 else 'objects'}"
