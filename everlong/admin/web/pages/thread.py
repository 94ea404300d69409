"""One thread: how it is and why, what it takes up, its limits, its growth, and what can be done."""

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from everlong.admin import service
from everlong.admin.service.overview import ThreadOverview
from everlong.admin.web.ids import RUN_ID, QueryId, ThreadId
from everlong.admin.web.pages import drawing, words
from everlong.admin.web.pages.explaining import explain
from everlong.admin.web.pages.frame import Frame
from everlong.admin.web.pages.journal import journal_values
from everlong.admin.web.pages.rendering import etag_of, tagged
from everlong.errors import EverlongError, ThreadNotFound
from everlong.policy.policy import LIMITS

# What the dialog of limits offers, most wanted first. All of the policy is in `everlong limits`.
_OFFERED: Final = (
    "steps_max",
    "tokens_max",
    "cost_usd_max",
    "thread_bytes_max",
    "context_bytes_max",
    "compact_at_bytes",
    "failed_turns_max",
    "same_failure_max",
    "no_progress_steps_max",
)
_ACTIONS: Final = (
    "compact",
    "pause",
    "unpause",
    "stop",
    "fork",
    "limits",
    "archive",
    "revive",
    "preview",
)


def routes(frame: Frame) -> APIRouter:
    """Return the routes of a thread's page."""
    router = APIRouter()
    desk = frame.desk

    async def page(request: Request, thread_id: str) -> Response:
        client = await desk.client()
        found = await service.overview(client, desk.packs, thread_id)
        journal, charts, around = await asyncio.gather(
            journal_values(desk, thread_id),
            _charts(frame, thread_id),
            frame.values(request, "thread"),
        )
        head = head_values(found)
        values = around | head | journal | charts
        values |= {
            "api": {action: words.api_url(thread_id, action) for action in _ACTIONS},
            "limit_names": _OFFERED,
            "live_url": f"/fragments/thread?id={words.query(thread_id)}",
            "charts_url": f"/fragments/charts?id={words.query(thread_id)}",
            "past_url": f"/fragments/past?id={words.query(thread_id)}",
            "runs_url": f"/fragments/runs?id={words.query(thread_id)}",
            "archives_url": f"/fragments/archives?id={words.query(thread_id)}",
        }
        text = frame.renderer.text("thread_head.html", values)
        return frame.renderer.page("thread.html", values | {"etag": etag_of(text)})

    @router.get("/threads/")
    async def by_query(request: Request, thread_id: QueryId) -> Response:
        return await page(request, thread_id)

    @router.get("/threads/{thread_id}")
    async def by_path(request: Request, thread_id: ThreadId) -> Response:
        return await page(request, thread_id)

    @router.get("/fragments/thread")
    async def head(request: Request, thread_id: QueryId) -> Response:
        found = await service.overview(await desk.client(), desk.packs, thread_id)
        values = await frame.values(request, "thread") | head_values(found)
        text = frame.renderer.text("thread_head.html", values)
        return tagged(request, etag_of(text), text)

    @router.get("/fragments/charts")
    async def charts(request: Request, thread_id: QueryId) -> Response:
        return frame.renderer.fragment(request, "charts.html", await _charts(frame, thread_id))

    @router.get("/fragments/runs")
    async def runs(
        request: Request, thread_id: QueryId, run: Annotated[str, Query(pattern=RUN_ID)] = ""
    ) -> Response:
        client = await desk.client()
        try:
            found = await service.runs(
                client, thread_id, from_run_id=run, temporal_ui=desk.temporal_ui
            )
        except ThreadNotFound:  # Or the thread is, in its archive.
            found = service.RunPage(thread_id=thread_id, runs=(), next_run_id="")
        next_url = (
            f"/fragments/runs?id={words.query(thread_id)}&run={words.query(found.next_run_id)}"
        )
        return frame.renderer.fragment(request, "runs.html", {"found": found, "next_url": next_url})

    return router


def head_values(found: ThreadOverview) -> dict[str, Any]:
    """Return what the head of a thread's page shows."""
    status = found.status
    word = status.status if status and not found.is_gone else found.row.status
    return {
        "thread_id": found.thread_id,
        "word": word,
        "agent": status.agent if status else found.row.agent,
        "is_open": found.row.is_open,
        "is_gone": found.is_gone,
        "has_archive": bool(found.archive),
        "unreadable_archives": found.unreadable_archives,
        "last_seq": found.last_seq,
        "unavailable": found.unavailable,
        "explained": explain(found),
        "approvals": found.approvals,
        "figures": _figures(found),
        "gauges": sorted(found.gauges, key=lambda each: -each.share),
        "limits_now": limits_now(found),
    }


def limits_now(found: ThreadOverview) -> dict[str, str]:
    """Return what the limits are that the dialog offers, in words; none if nobody runs the thread."""
    if found.status is None:
        return {}
    policy = found.status.policy
    fields = {}
    for name in _OFFERED:
        value = getattr(policy, name)
        unit = "bytes" if "bytes" in name else "usd" if "usd" in name else ""
        shown = "no limit" if value is None else words.gauge_value(value, unit)
        if unit == "bytes" and value is not None:
            shown = f"{words.number(value)} ({shown})"
        fields[name] = shown
    assert set(_OFFERED) >= LIMITS - {"step_bytes_max"}  # noqa: S101 - the table above is whole
    return fields


def _figures(found: ThreadOverview) -> list[tuple[str, str, str]]:
    sizes, row, status = found.sizes, found.row, found.status
    steps, under = words.NONE, ""
    if status is not None:
        counters = status.counters
        steps = words.number(counters.steps)
        under = f"{words.number(counters.tokens)} tokens, ${counters.cost_usd:,.2f}"
    elif row.card is not None:
        steps = words.number(row.card.steps)
    lag = status.compaction_lag_bytes if status and not found.is_gone else 0
    if found.is_gone:
        return [
            ("Archive", words.size(row.stored_bytes), "one Parquet file"),
            ("Context", words.size(sizes.context_bytes), "at its end"),
            ("Steps", steps, under),
            ("Entries", words.number(found.last_seq), ""),
        ]
    return [
        ("Operational state", words.size(sizes.operational_bytes), "at most 64.0 KiB"),
        ("Context", words.size(sizes.context_bytes), f"{words.size(lag)} late" if lag else ""),
        ("Stored", words.size(sizes.stored_bytes), words.growth(row.growth_bytes_per_hour, "")),
        (
            "History",
            words.size(sizes.history_bytes),
            f"{words.number(sizes.history_events)} events in this run",
        ),
        ("Steps", steps, under),
        ("Last resume", words.took(row.last_resume_ms), ""),
        ("Entries", words.number(found.last_seq), _waiting_text(found)),
    ]


def _waiting_text(found: ThreadOverview) -> str:
    waiting = found.status.waiting_messages if found.status else 0
    return f"{waiting} {'message waits' if waiting == 1 else 'messages wait'}" if waiting else ""


async def _charts(frame: Frame, thread_id: str) -> dict[str, Any]:
    series, problem = None, ""
    try:
        series = await service.series(await frame.desk.client(), frame.desk.packs, thread_id)
    except EverlongError as error:
        problem = f"It cannot be read right now: {error}"
    return {"series": series, "charts": drawing.charts_of(series), "charts_problem": problem}
