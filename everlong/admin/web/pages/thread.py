"""The page of a thread: its conversation, and tabs for its state, sizes, past and runs."""

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request, Response

from everlong.admin.overview import ThreadOverview, load_overview
from everlong.admin.series import load_series
from everlong.admin.web.context import AppContext
from everlong.admin.web.pages import filters
from everlong.admin.web.pages.charts import build_thread_charts
from everlong.admin.web.pages.conversation import build_conversation, create_conversation_router
from everlong.admin.web.pages.filters import Explanation, format_number, name_limit
from everlong.admin.web.pages.journal import (
    Seq,
    build_journal,
    build_scene,
    create_journal_router,
)
from everlong.admin.web.pages.layout import Layout, make_etag, respond_with_etag
from everlong.admin.web.parameters import RUN_ID, QueryId, ThreadId
from everlong.client.fork_links import load_fork_links
from everlong.client.lookup import RunPage
from everlong.client.visibility import ThreadRow
from everlong.errors import EverlongError, ThreadNotFound
from everlong.format import format_count
from everlong.models import Pause, Status, ThreadStatus
from everlong.models.status import OUTCOME
from everlong.policy import LimitHit
from everlong.policy.policy import LIMITS

# Limits of the dialog, the most used first. `everlong limits` sets all fields of the policy.
_OFFERED_LIMITS: Final = (
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
    "rerun",
    "limits",
    "archive",
    "revive",
    "preview",
)


TABS: Final[Mapping[str, str]] = {
    "conversation": "Conversation",
    "state": "State",
    "size": "Size",
    "time-travel": "Time travel",
    "runs": "Runs",
}
"""Tabs of the page: the value of the parameter `tab`, and the label."""
_FIRST_TAB: Final = "conversation"


@dataclasses.dataclass(frozen=True)
class PageRequest:
    """A request for a tab of a thread's page."""

    thread_id: str
    tab: str
    before: int | None
    """First entry after the wanted page of the conversation."""
    after: int | None
    seq: int | None
    """Entry to travel to."""


def parse_page_request(
    thread_id: ThreadId,
    tab: str = _FIRST_TAB,
    before: Seq | None = None,
    after: Seq | None = None,
    seq: Seq | None = None,
) -> PageRequest:
    """Return the tab that a request is for: the first one if no tab has this name."""
    tab = tab if tab in TABS else _FIRST_TAB
    return PageRequest(thread_id, tab, before, after, seq)


def create_router(layout: Layout) -> APIRouter:
    """Return the routes of a thread's page."""
    router = APIRouter()
    context = layout.context

    async def page(request: Request, wanted: PageRequest) -> Response:
        found = await load_overview(await context.client(), context.packs, wanted.thread_id)
        contents, around, links = await asyncio.gather(
            _build_tab(layout, wanted, found),
            layout.build_values(request, "thread"),
            load_fork_links(await context.client(), wanted.thread_id),
        )
        values = around | build_live_values(found, wanted.tab) | contents | {"links": links}
        values |= {
            "api": {action: filters.build_api_url(wanted.thread_id, action) for action in _ACTIONS},
            "limit_names": _OFFERED_LIMITS,
            "forks_url": f"/fragments/forks?id={filters.quote_query(wanted.thread_id)}",
        }
        text = layout.renderer.render("thread_live.html", values | {"is_page": False})
        return layout.renderer.render_page(
            "thread.html", values | {"is_page": True, "etag": make_etag(text)}
        )

    @router.get("/threads/")
    async def by_query(
        request: Request,
        thread_id: QueryId,
        tab: str = _FIRST_TAB,
        before: Seq | None = None,
        after: Seq | None = None,
        seq: Seq | None = None,
    ) -> Response:
        return await page(request, parse_page_request(thread_id, tab, before, after, seq))

    @router.get("/threads/{thread_id}")
    async def by_path(
        request: Request, wanted: Annotated[PageRequest, Depends(parse_page_request)]
    ) -> Response:
        return await page(request, wanted)

    @router.get("/fragments/thread")
    async def live(request: Request, thread_id: QueryId, tab: str = _FIRST_TAB) -> Response:
        found = await load_overview(await context.client(), context.packs, thread_id)
        values = await layout.build_values(request, "thread")
        values |= build_live_values(found, tab if tab in TABS else _FIRST_TAB)
        text = layout.renderer.render("thread_live.html", values | {"is_page": False})
        return respond_with_etag(request, make_etag(text), text)

    @router.get("/fragments/charts")
    async def charts(request: Request, thread_id: QueryId) -> Response:
        return layout.renderer.render_fragment(
            request, "charts.html", await _build_charts(layout, thread_id)
        )

    @router.get("/fragments/forks")
    async def forks(request: Request, thread_id: QueryId) -> Response:
        links = await load_fork_links(await context.client(), thread_id)
        return layout.renderer.render_fragment(request, "fork_links.html", {"links": links})

    @router.get("/fragments/runs")
    async def runs(
        request: Request, thread_id: QueryId, run: Annotated[str, Query(pattern=RUN_ID)] = ""
    ) -> Response:
        return layout.renderer.render_fragment(
            request, "runs.html", await _build_runs(context, thread_id, run)
        )

    @router.get("/fragments/thread-grants")
    async def grants(request: Request, thread_id: QueryId) -> Response:
        values = await layout.build_values(request, "thread")
        values |= await _load_grants(context, thread_id)
        return layout.renderer.render_fragment(request, "grants.html", values)

    router.include_router(create_journal_router(layout))
    router.include_router(create_conversation_router(layout))
    return router


async def _build_tab(layout: Layout, wanted: PageRequest, found: ThreadOverview) -> dict[str, Any]:
    """Return the template values of a tab beyond those of its live part."""
    context, thread_id = layout.context, wanted.thread_id
    match wanted.tab:
        case "state":
            return await build_journal(context, thread_id) | await _load_grants(context, thread_id)
        case "size":
            # The script asks for the charts: samples of a long journal take a second.
            return {"charts_url": f"/fragments/charts?id={filters.quote_query(thread_id)}"}
        case "time-travel":
            return await _build_past(context, found, wanted.seq)
        case "runs":
            return await _build_runs(context, thread_id) | {
                "archives_url": f"/fragments/archives?id={filters.quote_query(thread_id)}"
            }
    return await build_conversation(context, thread_id, before=wanted.before, after=wanted.after)


async def _load_grants(context: AppContext, thread_id: str) -> dict[str, Any]:
    """Return the grants that allow calls of a thread: its own, and those of its agent."""
    values: dict[str, Any] = {
        "grants": (),
        "grants_thread": thread_id,
        "grants_problem": "",
        "grants_url": f"/fragments/thread-grants?id={filters.quote_query(thread_id)}",
    }
    try:
        return values | {"grants": await (await context.thread(thread_id)).grants()}
    except ThreadNotFound:  # The thread exists only in its archive.
        return values
    except EverlongError as error:
        return values | {"grants_problem": str(error)}


async def _build_past(
    context: AppContext, found: ThreadOverview, seq: int | None
) -> dict[str, Any]:
    """Return the values of the state at an entry.

    Without one, the page's script asks for the newest: a context takes a second if it is long.
    """
    values: dict[str, Any] = {
        "past_url": f"/fragments/past?id={filters.quote_query(found.thread_id)}",
        "past_seq": min(max(1, seq or found.last_seq), max(1, found.last_seq)),
        "view": None,
        "past_problem": "",
    }
    if not found.last_seq or seq is None:
        return values
    try:
        return values | await build_scene(context, found.thread_id, values["past_seq"])
    except EverlongError as error:
        return values | {"past_problem": str(error)}


async def _build_runs(context: AppContext, thread_id: str, run_id: str = "") -> dict[str, Any]:
    handle = await context.thread(thread_id)
    try:
        found = await handle.runs(from_run_id=run_id, temporal_ui=context.temporal_ui)
    except ThreadNotFound:  # The thread exists only in its archive.
        found = RunPage(thread_id=thread_id, runs=(), next_run_id="")
    quoted, next_id = filters.quote_query(thread_id), filters.quote_query(found.next_run_id)
    return {"found": found, "next_url": f"/fragments/runs?id={quoted}&run={next_id}"}


def build_live_values(found: ThreadOverview, tab: str) -> dict[str, Any]:
    """Return the template values of the part of a thread's page that follows the thread."""
    quoted = filters.quote_query(found.thread_id)
    return build_head(found) | {
        "tab": tab,
        "tabs": [
            (name, label, filters.build_tab_url(found.thread_id, name))
            for name, label in TABS.items()
        ],
        "page_url": filters.build_thread_url(found.thread_id),
        "live_url": f"/fragments/thread?id={quoted}&tab={tab}",
        "live_output_url": filters.build_api_url(found.thread_id, "live"),
        "messages_url": filters.build_api_url(found.thread_id, "messages"),
        "labels_url": filters.build_api_url(found.thread_id, "labels"),
        # Changes with each event of the thread: then an open page reads the conversation again.
        "version": f"{found.row.run_id[:8]}-{found.sizes.history_events}-{found.last_seq}",
    }


def build_head(found: ThreadOverview) -> dict[str, Any]:
    """Return the template values of the head of a thread's page."""
    status = found.status
    return {
        "thread_id": found.thread_id,
        "status": found.row.status,
        "retries": status.retries if status else (),
        "agent": status.agent if status else found.row.agent,
        "is_open": found.row.is_open,
        "is_gone": found.is_gone,
        "has_archive": bool(found.archive),
        "unreadable_archives": found.unreadable_archives,
        "last_seq": found.last_seq,
        "unavailable": found.unavailable,
        "explained": explain(found),
        "approvals": found.approvals,
        "parent_id": found.parent_id,
        "labels": found.row.labels,
        "used": _describe_use(found),
        "figures": _build_figures(found),
        "gauges": sorted(found.gauges, key=lambda each: -each.share),
        "limits_now": describe_limits(found),
        "limits_note": _LIMITS_NOTES[status.policy_from] if status else "",
    }


def describe_limits(found: ThreadOverview) -> dict[str, str]:
    """Return the present limits for the dialog; empty if no worker answers for the thread."""
    if found.status is None:
        return {}
    policy = found.status.policy
    fields = {}
    for name in _OFFERED_LIMITS:
        value = getattr(policy, name)
        unit = "bytes" if "bytes" in name else "usd" if "usd" in name else ""
        shown = "no limit" if value is None else filters.format_gauge(value, unit)
        if unit == "bytes" and value is not None:
            shown = f"{filters.format_number(value)} ({shown})"
        fields[name] = shown
    assert set(_OFFERED_LIMITS) >= LIMITS - {"step_bytes_max"}  # noqa: S101 - the table above is complete
    return fields


def _build_figures(found: ThreadOverview) -> list[tuple[str, str, str]]:
    sizes, row, status = found.sizes, found.row, found.status
    steps, under = filters.NONE, ""
    if status is not None:
        counters = status.counters
        steps = filters.format_number(counters.steps)
        under = f"{filters.format_number(counters.tokens)} tokens, ${counters.cost_usd:,.2f}"
    elif row.card is not None:
        steps = filters.format_number(row.card.steps)
    lag = status.compaction_lag_bytes if status and not found.is_gone else 0
    if found.is_gone:
        return [
            ("Archive", filters.format_size(row.stored_bytes), "one Parquet file"),
            ("Context", filters.format_size(sizes.context_bytes), "at its end"),
            ("Steps", steps, under),
            ("Entries", filters.format_number(found.last_seq), ""),
        ]
    return [
        ("Operational state", filters.format_size(sizes.operational_bytes), "at most 64.0 KiB"),
        (
            "Context",
            filters.format_size(sizes.context_bytes),
            f"{filters.format_size(lag)} late" if lag else "",
        ),
        (
            "Stored",
            filters.format_size(sizes.stored_bytes),
            filters.format_growth(row.growth_bytes_per_hour, ""),
        ),
        (
            "History",
            filters.format_size(sizes.history_bytes),
            f"{filters.format_number(sizes.history_events)} events in this run",
        ),
        ("Steps", steps, under),
        ("Last resume", filters.format_ms(row.last_resume_ms), ""),
        ("Entries", filters.format_number(found.last_seq), _describe_waiting(found)),
    ]


def _describe_use(found: ThreadOverview) -> str:
    """Return the steps, tokens and costs of a thread so far."""
    counts = found.status.counters if found.status else found.row.card
    if counts is None:
        return ""
    parts = [
        format_count(counts.steps, "step"),
        f"{filters.format_number(counts.tokens)} tokens",
        filters.format_cost(counts.cost_usd),
    ]
    return " · ".join(parts)


def _describe_waiting(found: ThreadOverview) -> str:
    waiting = found.status.waiting_messages if found.status else 0
    return f"{waiting} {'message waits' if waiting == 1 else 'messages wait'}" if waiting else ""


async def _build_charts(layout: Layout, thread_id: str) -> dict[str, Any]:
    series, problem = None, ""
    try:
        series = await load_series(await layout.context.client(), layout.context.packs, thread_id)
    except EverlongError as error:
        problem = f"The series cannot be read now: {error}"
    return {"series": series, "charts": build_thread_charts(series), "charts_problem": problem}


_LIMITS_NOTES: Final = {
    "thread": "the policy of the thread sets them and the action at each",
    "agent": "the agent's own policy, which the thread records with its first reply",
    "default": "defaults: no worker with the thread's agent has answered yet",
}
_TERMINATED = {
    "": "It was terminated in Temporal, so the journal may lack its last step.",
    "failed": "Its workflow failed, so the journal may lack its last step.",
    "timed_out": "Its workflow timed out, so the journal may lack its last step.",
}
# Whether an unknown outcome waits -> what a thread in the state `approval` waits for.
_WAITS_FOR = {
    False: "A person has to decide before it continues.",
    True: "A person has to say whether a call took effect: it is not known.",
}
_HELD_ADVICE = "Nothing is lost. Fix the cause, and it continues by itself."
_FORK_ADVICE = "Fork it from any entry to continue in a new thread."


def explain(found: ThreadOverview) -> Explanation:
    """Explain a thread's status, with advice for the user."""
    status = found.status
    if found.is_gone:
        return Explanation(
            f"Temporal no longer has this thread. It is shown from archive {found.archive}.",
            "Revive it as a new thread, up to any entry.",
        )
    if not found.row.is_open:
        return _explain_ended(found.row, status, has_archive=bool(found.archive))
    if found.row.status == Status.HELD and status is None:
        return Explanation(f"Held: {found.unavailable}", _HELD_ADVICE, "bad")
    if status is None:
        return Explanation(
            found.unavailable or "No worker runs this thread.",
            "This page shows the state that the thread published last, and its journal up to the newest "
            "entry that its history names. Start a worker for it to see its present state.",
            "bad",
        )
    return _explain_open(status)


def _explain_open(status: ThreadStatus) -> Explanation:
    match status.status:
        case Status.WORKING:
            if status.stopping:
                return Explanation("It ends at its next safe point.")
            waiting = f" {status.waiting_messages} more wait." if status.waiting_messages else ""
            text = f"Working on message {format_number(status.counters.answered + 1)}.{waiting}"
            if status.children:
                text += f" {len(status.children)} sub-agents work for it."
            return Explanation(text)
        case Status.RETRYING:
            return Explanation(
                "A call has failed and is tried again.",
                "Nothing is lost. After its last attempt, the error is in the journal.",
                "warn",
            )
        case Status.WAITING:
            return Explanation("Waiting for a message. All messages so far are answered.")
        case Status.FAILED:
            return Explanation(
                f"The last turn failed: {status.last_failure}",
                "Fix the cause, then send the message again.",
                "bad",
            )
        case Status.APPROVAL:
            return Explanation(
                _WAITS_FOR[status.reason == OUTCOME], "The call is in the conversation.", "warn"
            )
        case Status.PAUSED:
            return _explain_paused(status.pause)
        case Status.HELD:
            held_by = status.held_by.removeprefix("held by ")
            return Explanation(f"Held: {held_by}", _HELD_ADVICE, "bad")
    return Explanation(f"Its status is {status.status}.")


def _explain_paused(pause: Pause | None) -> Explanation:
    if pause is not None and pause.limit is not None:
        return Explanation(
            f"Paused by a limit. {_describe_hit(pause.limit)}",
            "Raise the limit first, then unpause the thread. Otherwise the limit pauses it again.",
            "warn",
        )
    by = f" by {pause.by}" if pause is not None and pause.by else ""
    why = f": {pause.reason}" if pause is not None and pause.reason else "."
    return Explanation(
        f"Paused{by}{why}", "It takes no steps until it is unpaused. Messages are queued.", "warn"
    )


def _explain_ended(
    row: ThreadRow, status: ThreadStatus | None, *, has_archive: bool
) -> Explanation:
    if row.status == Status.TERMINATED:
        text = _TERMINATED.get(row.reason, _TERMINATED[""])
        return Explanation(text, _FORK_ADVICE, "bad")
    if status is not None and status.ended is not None:
        return Explanation(f"Ended by a limit. {_describe_hit(status.ended)}", _FORK_ADVICE, "warn")
    if row.status == Status.ARCHIVED and has_archive:
        return Explanation("Ended and archived.", "Revive it from its archive as a new thread.")
    if row.status == Status.ARCHIVED:
        return Explanation(
            "Ended, not yet archived.",
            "The next sweep archives it. The button Archive does so now.",
        )
    if row.reason == "canceled":
        return Explanation("It was cancelled in Temporal.", _FORK_ADVICE)
    return Explanation("It has ended, and its journal is complete.", _FORK_ADVICE)


def _describe_hit(hit: LimitHit) -> str:
    return f"{name_limit(hit.limit)}: {format_number(hit.value)} of {format_number(hit.bound)}."
