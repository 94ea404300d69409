"""The fleet page: figures of all threads, the store's health, and sweeps."""

from typing import Any

from fastapi import APIRouter, Request, Response

from everlong.admin.fleet import load_fleet
from everlong.admin.web.pages import filters
from everlong.admin.web.pages.layout import Layout, make_etag
from everlong.models import SweepReport


def create_router(layout: Layout) -> APIRouter:
    """Return the routes of the fleet page."""
    router = APIRouter()
    context = layout.context

    async def build_figures() -> dict[str, Any]:
        found = await load_fleet(context.thread_list, await context.last_sweep())
        running = [each for each in context.jobs.list_running() if each.action == "sweep"]
        return {
            "found": found,
            "sweep": found.last_sweep,
            "sweep_figures": build_sweep_figures(found.last_sweep) if found.last_sweep else [],
            "sweeping": running[0] if running else None,
        }

    @router.get("/fleet")
    async def fleet(request: Request) -> Response:
        values = await layout.build_values(request, "fleet") | await build_figures()
        text = layout.renderer.render("fleet_figures.html", values)
        who = values["who"]
        values |= {
            "store": await context.store_health(),
            "sweep_may": who is not None and who.may("sweep"),
            "sweep_url": "/api/v1/sweep",
            "live_url": "/fragments/fleet",
            "etag": make_etag(text),
        }
        return layout.renderer.render_page("fleet.html", values)

    @router.get("/fragments/fleet")
    async def fragment(request: Request) -> Response:
        values = await layout.build_values(request, "fleet") | await build_figures()
        return layout.renderer.render_fragment(request, "fleet_figures.html", values)

    return router


def build_sweep_figures(report: SweepReport) -> list[tuple[str, str, str]]:
    """Return the figures of a sweep: label, value, and the line below it."""
    return [
        ("Took", filters.format_ms(1000 * report.seconds) if report.seconds else filters.NONE, ""),
        (
            "Runs",
            filters.format_number(report.runs),
            f"{filters.format_number(report.runs_read)} read",
        ),
        (
            "Stored",
            filters.format_size(report.stored.bytes),
            _format_objects(report.stored.objects),
        ),
        (
            "Quarantined",
            filters.format_size(report.quarantined.bytes),
            _format_objects(report.quarantined.objects),
        ),
        (
            "Deleted",
            filters.format_size(report.purged.bytes),
            _format_objects(report.purged.objects),
        ),
        (
            "In quarantine",
            filters.format_size(report.in_quarantine.bytes),
            _format_objects(report.in_quarantine.objects),
        ),
    ]


def _format_objects(count: int) -> str:
    return f"{filters.format_number(count)} {'object' if count == 1 else 'objects'}"
