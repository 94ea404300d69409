"""One thread: how it is and why, what it takes up, its limits, its growth, and what can be done."""

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from everlong.admin.overview import ThreadOverview, load_overview
from everlong.admin.series import load_series
from everlong.admin.web.pages import filters
from everlong.admin.web.pages.charts import charts_of
from everlong.admin.web.pages.filters import Explained, limit_name, number
from everlong.admin.web.pages.journal import journal_values
from everlong.admin.web.pages.layout import Frame
from everlong.admin.web.pages.renderer import etag_of, tagged
from everlong.admin.web.parameters import RUN_ID, QueryId, ThreadId
from everlong.client.runs import RunPage
from everlong.errors import EverlongError, ThreadNotFound
from everlong.models import Pause, ThreadStatus
from everlong.policy import LimitHit
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
    context = frame.context

    async def page(request: Request, thread_id: str) -> Response:
        client = await context.client()
        found = await load_overview(client, context.packs, thread_id)
        journal, charts, around = await asyncio.gather(
            journal_values(context, thread_id),
            _charts(frame, thread_id),
            frame.values(request, "thread"),
        )
        head = head_values(found)
        values = around | head | journal | charts
        values |= {
            "api": {action: filters.api_url(thread_id, action) for action in _ACTIONS},
            "limit_names": _OFFERED,
            "live_url": f"/fragments/thread?id={filters.query(thread_id)}",
            "charts_url": f"/fragments/charts?id={filters.query(thread_id)}",
            "past_url": f"/fragments/past?id={filters.query(thread_id)}",
            "runs_url": f"/fragments/runs?id={filters.query(thread_id)}",
            "archives_url": f"/fragments/archives?id={filters.query(thread_id)}",
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
        found = await load_overview(await context.client(), context.packs, thread_id)
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
        handle = await context.thread(thread_id)
        try:
            found = await handle.runs(from_run_id=run, temporal_ui=context.temporal_ui)
        except ThreadNotFound:  # Or the thread is, in its archive.
            found = RunPage(thread_id=thread_id, runs=(), next_run_id="")
        next_url = (
            f"/fragments/runs?id={filters.query(thread_id)}&run={filters.query(found.next_run_id)}"
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
        shown = "no limit" if value is None else filters.gauge_value(value, unit)
        if unit == "bytes" and value is not None:
            shown = f"{filters.number(value)} ({shown})"
        fields[name] = shown
    assert set(_OFFERED) >= LIMITS - {"step_bytes_max"}  # noqa: S101 - the table above is whole
    return fields


def _figures(found: ThreadOverview) -> list[tuple[str, str, str]]:
    sizes, row, status = found.sizes, found.row, found.status
    steps, under = filters.NONE, ""
    if status is not None:
        counters = status.counters
        steps = filters.number(counters.steps)
        under = f"{filters.number(counters.tokens)} tokens, ${counters.cost_usd:,.2f}"
    elif row.card is not None:
        steps = filters.number(row.card.steps)
    lag = status.compaction_lag_bytes if status and not found.is_gone else 0
    if found.is_gone:
        return [
            ("Archive", filters.size(row.stored_bytes), "one Parquet file"),
            ("Context", filters.size(sizes.context_bytes), "at its end"),
            ("Steps", steps, under),
            ("Entries", filters.number(found.last_seq), ""),
        ]
    return [
        ("Operational state", filters.size(sizes.operational_bytes), "at most 64.0 KiB"),
        ("Context", filters.size(sizes.context_bytes), f"{filters.size(lag)} late" if lag else ""),
        ("Stored", filters.size(sizes.stored_bytes), filters.growth(row.growth_bytes_per_hour, "")),
        (
            "History",
            filters.size(sizes.history_bytes),
            f"{filters.number(sizes.history_events)} events in this run",
        ),
        ("Steps", steps, under),
        ("Last resume", filters.took(row.last_resume_ms), ""),
        ("Entries", filters.number(found.last_seq), _waiting_text(found)),
    ]


def _waiting_text(found: ThreadOverview) -> str:
    waiting = found.status.waiting_messages if found.status else 0
    return f"{waiting} {'message waits' if waiting == 1 else 'messages wait'}" if waiting else ""


async def _charts(frame: Frame, thread_id: str) -> dict[str, Any]:
    series, problem = None, ""
    try:
        series = await load_series(await frame.context.client(), frame.context.packs, thread_id)
    except EverlongError as error:
        problem = f"It cannot be read right now: {error}"
    return {"series": series, "charts": charts_of(series), "charts_problem": problem}


_ENDED = {
    "terminated": "Somebody terminated it in Temporal, so its last step may not be in the journal.",
    "canceled": "It was cancelled in Temporal.",
    "failed": "Its workflow failed.",
    "timed_out": "Its workflow ran out of time.",
}
_AFTER = "It can be forked from any entry, and goes on there."


def explain(found: ThreadOverview) -> Explained:
    """Return a thread's status in words."""
    status = found.status
    if found.is_gone:
        return Explained(
            f"Temporal has forgotten this thread. All of it is read from archive {found.archive}.",
            "It can be revived as a new thread, up to any entry.",
        )
    if not found.row.is_open:
        return _ended(found.row.status, status, has_archive=bool(found.archive))
    if status is None:
        return Explained(
            found.unavailable or "Nobody runs this thread.",
            "What is shown is what it published, and its journal up to its last run. Start a worker for "
            "it, and it answers again.",
            "bad",
        )
    return _living(status)


def _living(status: ThreadStatus) -> Explained:
    match status.status:
        case "working":
            waiting = f" {status.waiting_messages} more wait." if status.waiting_messages else ""
            text = f"At work on message {number(status.counters.answered + 1)}.{waiting}"
            if status.children:
                text += f" {len(status.children)} sub-agents work for it."
            return Explained(text)
        case "waiting":
            text = "Waits for a message. Everything so far is answered."
            if status.last_failure:
                failed = f"The last turn failed: {status.last_failure}"
                return Explained(failed, "Send it again once the cause is gone.", "warn")
            return Explained(text)
        case "approval":
            return Explained(
                "A person has to decide before it goes on.", "The call stands below.", "warn"
            )
        case "paused":
            return _paused(status.pause)
        case "held":
            return Explained(
                f"Held: {status.held_by}" if status.held_by else "Held.",
                "Nothing is lost. Restore what it waits for, and it goes on by itself.",
                "bad",
            )
        case "stopping":
            return Explained("It ends at its next safe point.")
    return Explained(f"Its status is {status.status}.")


def _paused(pause: Pause | None) -> Explained:
    if pause is not None and pause.limit is not None:
        return Explained(
            f"Paused by a limit. {_hit(pause.limit)}",
            "Raise the limit, then unpause it. Unpaused alone, it would be paused again.",
            "warn",
        )
    by = f" by {pause.by}" if pause is not None and pause.by else ""
    why = f": {pause.reason}" if pause is not None and pause.reason else "."
    return Explained(
        f"Paused{by}{why}", "It takes no steps until somebody unpauses it; messages queue.", "warn"
    )


def _ended(word: str, status: ThreadStatus | None, *, has_archive: bool) -> Explained:
    if status is not None and status.ended is not None:
        return Explained(f"Ended by a limit. {_hit(status.ended)}", _AFTER, "warn")
    if word in _ENDED:
        return Explained(_ENDED[word], _AFTER, "bad")
    if word == "archived" and has_archive:
        return Explained(
            "Ended, and archived.", "It can be revived from its archive as a new thread."
        )
    if word == "archived":
        return Explained(
            "Ended, to be archived.", "A sweep writes the archive, or the button here."
        )
    return Explained("It was stopped.", _AFTER)


def _hit(hit: LimitHit) -> str:
    return f"{limit_name(hit.limit)}: {number(hit.value)} of {number(hit.bound)}."
