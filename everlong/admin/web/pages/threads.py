"""The list of threads: sorted, filtered, searched and paged; and its table alone, for live updates."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from everlong.admin.web.pages.layout import (
    Layout,
    is_current,
    make_etag,
    respond_with_etag,
)
from everlong.client.thread_list import (
    CURSOR_CHARS_MAX,
    Sort,
    ThreadPage,
    parse_cursor,
)
from everlong.errors import ConfigError

PAGE_ROWS: Final = 50
_SORTS: Final = frozenset(get_args(Sort))
_DEFAULT_SORT: Final = "-started"
_CHARS_MAX: Final = 200
_OFFSET: Final = re.compile(r"[0-9]{1,7}")
_HEADS: Final = (
    ("Thread", "c-id", "id"),
    ("Status", "c-status", "status"),
    ("Operational", "c-size num", ""),
    ("Context", "c-size num", ""),
    ("Stored", "c-size num", "stored"),
    ("Growth", "c-growth num", "growth"),
    ("Steps", "c-steps num", "steps"),
    ("Last resume", "c-resume num", "resume"),
    ("Compaction lag", "c-lag num", "lag"),
    ("Approvals", "c-pending num", "pending"),
    ("Run began", "c-began num", "started"),
)


@dataclasses.dataclass(frozen=True)
class ListQuery:
    """Filters, order and position of a list of threads."""

    text: str
    status: str
    agent: str
    sort: str
    offset: int
    cursor: str = ""
    """Position in a list that the Temporal server pages. Such a list has no offsets."""

    def url(self, base: str = "/", **changes: Any) -> str:
        """Return the URL of this list, with changes."""
        wanted = dataclasses.asdict(dataclasses.replace(self, **{"cursor": "", **changes}))
        defaults = dict.fromkeys(wanted, "") | {"sort": _DEFAULT_SORT, "offset": 0}
        given = {name: value for name, value in wanted.items() if value != defaults[name]}
        return f"{base}?{urlencode(given, errors='replace')}" if given else base


def parse_list_query(given: Mapping[str, str]) -> ListQuery:
    """Parse the query of a URL. Invalid values become defaults, so every URL shows a list."""
    sort, offset = given.get("sort", ""), given.get("offset", "")
    return ListQuery(
        text=given.get("text", "").strip()[:_CHARS_MAX],
        status=given.get("status", "")[:_CHARS_MAX],
        agent=given.get("agent", "")[:_CHARS_MAX],
        sort=sort if sort in _SORTS else _DEFAULT_SORT,
        offset=int(offset) if _OFFSET.fullmatch(offset) else 0,
        cursor=_check_cursor(given.get("cursor", "")),
    )


def _check_cursor(text: str) -> str:
    """Return a valid cursor; empty for an invalid one, which shows the first page."""
    try:
        parse_cursor(text[: CURSOR_CHARS_MAX + 1])
    except ConfigError:
        return ""
    return text if len(text) <= CURSOR_CHARS_MAX else ""


@dataclasses.dataclass(frozen=True)
class Head:
    """Head of a column."""

    label: str
    css: str
    url: str
    """URL that sorts by the column; empty if it cannot."""
    order: str


def build_heads(query: ListQuery) -> list[Head]:
    """Return the heads of the table. A second click on one reverses the order."""
    found = []
    for label, css, name in _HEADS:
        order, url = "", ""
        if name:
            falling, rising = f"-{name}", name
            order = {falling: "descending", rising: "ascending"}.get(query.sort, "")
            # Names sort ascending first, figures descending.
            first, second = (rising, falling) if name in ("id", "status") else (falling, rising)
            url = query.url(sort=second if query.sort == first else first, offset=0)
        found.append(Head(label, css, url, order))
    return found


def create_router(layout: Layout) -> APIRouter:
    """Return the routes of the list of threads."""
    router = APIRouter()
    thread_list = layout.context.thread_list

    async def read_page(query: ListQuery) -> ThreadPage:
        try:
            return await thread_list.page(
                query.text,
                query.status,
                query.agent,
                query.sort,  # type: ignore[arg-type] # one of Sort, by parse_list_query
                query.offset,
                PAGE_ROWS,
                query.cursor,
            )
        except ConfigError:  # The server rejects the cursor: it belongs to another list.
            return await read_page(dataclasses.replace(query, cursor=""))

    def build_table_values(query: ListQuery, found: ThreadPage) -> dict[str, Any]:
        on_server = found.source == "server"
        earlier = max(0, found.offset - PAGE_ROWS)
        later = found.offset + PAGE_ROWS
        return {
            "query": query,
            "found": found,
            "heads": build_heads(query),
            # A list of the server has no way back but the browser's button.
            "first_url": query.url(offset=0) if on_server and found.offset else "",
            "earlier_url": query.url(offset=earlier) if found.offset and not on_server else "",
            "later_url": _build_later_url(query, found, later),
            "inside_url": query.url(sort="id", offset=0) if on_server and query.text else "",
        }

    @router.get("/")
    async def threads(request: Request) -> Response:
        query = parse_list_query(request.query_params)
        found = await read_page(query)
        values = await layout.build_values(request, "threads")
        values |= build_table_values(query, found)
        values |= {
            "statuses": sorted(_list_choices(query.status, found.by_status, found).items()),
            "agents": sorted(_list_choices(query.agent, dict.fromkeys(found.agents, 0), found)),
            "default_sort": _DEFAULT_SORT,
            "live_url": query.url("/fragments/threads", cursor=query.cursor),
            "etag": _make_list_etag(query, found),
        }
        return layout.renderer.render_page("threads.html", values)

    @router.get("/fragments/threads")
    async def table(request: Request) -> Response:
        query = parse_list_query(request.query_params)
        found = await read_page(query)
        etag = _make_list_etag(query, found)
        if is_current(request, etag):  # Skip the rendering.
            return respond_with_etag(request, etag, "")
        text = layout.renderer.render("threads_table.html", build_table_values(query, found))
        return respond_with_etag(request, etag, text)

    return router


def _list_choices(query: str, known: Mapping[str, int], found: ThreadPage) -> dict[str, int]:
    """Return the values of a filter: the known ones, and the one in use."""
    if not query or found.source == "memory":
        return dict(known)
    return {query: 0, **known}


def _build_later_url(query: ListQuery, found: ThreadPage, later: int) -> str:
    if not found.next_cursor:
        return ""
    if found.source == "server":
        return query.url(offset=0, cursor=found.next_cursor)
    return query.url(offset=later)


def _make_list_etag(query: ListQuery, found: ThreadPage) -> str:
    return make_etag(query, found.version)
