"""The list of threads: sorted, filtered and paged, with chosen columns; its table for live updates.

The URL holds all that a viewer has chosen, so that every list can be shared as a link.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from everlong.admin.web.pages.layout import (
    Layout,
    find_visitor,
    is_current,
    make_etag,
    respond_with_etag,
)
from everlong.admin.web.parameters import AGE
from everlong.client.thread_list import (
    CURSOR_CHARS_MAX,
    Sort,
    ThreadPage,
    parse_cursor,
)
from everlong.client.visibility import NEEDS_PERSON
from everlong.errors import ConfigError
from everlong.models.labels import LABEL_CHARS_MAX

PAGE_ROWS: Final = 50
_SORTS: Final = frozenset(get_args(Sort))
_CHARS_MAX: Final = 200
_OFFSET: Final = re.compile(r"[0-9]{1,7}")
_AGES: Final[Mapping[str, str]] = {
    "": "Any age",
    "1h": "Active in the last hour",
    "1d": "Active in the last day",
    "7d": "Active in the last 7 days",
    "idle-1d": "Not active for a day",
    "idle-7d": "Not active for 7 days",
    "idle-30d": "Not active for 30 days",
}
"""Choices of the filter by last activity. The URL takes any other number too."""


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the table."""

    name: str
    label: str
    css: str
    sort: str = ""
    """What a click on its head sorts by; empty if it cannot."""
    is_default: bool = True
    is_fixed: bool = False
    """Whether the column is always shown."""


COLUMNS: Final = (
    Column("id", "Thread", "c-id", "id", is_fixed=True),
    Column("status", "Status", "c-status", "status", is_fixed=True),
    Column("operational", "Operational", "c-size num", is_default=False),
    Column("context", "Context", "c-size num"),
    Column("stored", "Stored", "c-size num", "stored"),
    Column("growth", "Growth", "c-growth num", "growth"),
    Column("steps", "Steps", "c-steps num", "steps"),
    Column("tokens", "Tokens", "c-tokens num", "tokens"),
    Column("cost", "Cost", "c-cost num", "cost"),
    Column("resume", "Last resume", "c-resume num", "resume", is_default=False),
    Column("lag", "Compaction lag", "c-lag num", "lag", is_default=False),
    Column("pending", "Approvals", "c-pending num", "pending"),
    Column("active", "Last active", "c-active num", "active"),
    Column("started", "Run began", "c-began num", "started", is_default=False),
)
"""All columns, in the order in which they are shown."""
CHOSEN_COLUMNS: Final = tuple(each for each in COLUMNS if not each.is_fixed)
_DEFAULT_COLUMNS: Final = ",".join(each.name for each in CHOSEN_COLUMNS if each.is_default)
_NO_COLUMNS: Final = "none"
# Figures sort by the largest first, names by the alphabet.
_RISING: Final = frozenset({"id", "status"})


@dataclasses.dataclass(frozen=True)
class ListQuery:
    """Filters, order, columns and position of a list of threads."""

    text: str = ""
    status: str = ""
    agent: str = ""
    label: str = ""
    age: str = ""
    sort: str = ""
    """Empty for the default: what needs a person first; in a large fleet, the newest first."""
    columns: str = ""
    """Names of the chosen columns; empty for the default ones."""
    offset: int = 0
    cursor: str = ""
    """Position in a list that the Temporal server pages. Such a list has no offsets."""

    def url(self, base: str = "/", **changes: Any) -> str:
        """Return the URL of this list, with changes."""
        wanted = dataclasses.asdict(dataclasses.replace(self, **{"cursor": "", **changes}))
        given = {name: value for name, value in wanted.items() if value}
        return f"{base}?{urlencode(given, errors='replace', safe=',')}" if given else base

    @property
    def is_filtered(self) -> bool:
        """Whether the list is only of some threads."""
        return bool(self.text or self.status or self.agent or self.label or self.age)

    @property
    def shown(self) -> tuple[Column, ...]:
        """The columns of the table."""
        names = (self.columns or _DEFAULT_COLUMNS).split(",")
        return tuple(each for each in COLUMNS if each.is_fixed or each.name in names)


def parse_list_query(given: Mapping[str, str]) -> ListQuery:
    """Parse the query of a URL. Invalid values become defaults, so every URL shows a list."""
    sort, offset, age = given.get("sort", ""), given.get("offset", ""), given.get("age", "")
    return ListQuery(
        text=given.get("text", "").strip()[:_CHARS_MAX],
        status=given.get("status", "")[:_CHARS_MAX],
        agent=given.get("agent", "")[:_CHARS_MAX],
        label=given.get("label", "").strip()[:LABEL_CHARS_MAX],
        age=age if re.fullmatch(AGE, age) else "",
        sort=sort if sort in _SORTS else "",
        columns=_parse_columns(given.get("columns", "")),
        offset=int(offset) if _OFFSET.fullmatch(offset) else 0,
        cursor=_check_cursor(given.get("cursor", "")),
    )


def _parse_columns(text: str) -> str:
    """Return the names of known columns in their order; empty for the default ones."""
    if not text:
        return ""
    names = text[:_CHARS_MAX].split(",")
    known = ",".join(each.name for each in CHOSEN_COLUMNS if each.name in names)
    if not known and _NO_COLUMNS not in names:
        return ""
    return "" if known == _DEFAULT_COLUMNS else known or _NO_COLUMNS


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


def build_heads(query: ListQuery, sort: str) -> list[Head]:
    """Return the heads of a table that is sorted so. A second click on one reverses the order."""
    found = []
    for column in query.shown:
        order, url = "", ""
        if column.sort:
            falling, rising = f"-{column.sort}", column.sort
            order = {falling: "descending", rising: "ascending"}.get(sort, "")
            first, second = (rising, falling) if column.sort in _RISING else (falling, rising)
            url = query.url(sort=second if sort == first else first, offset=0)
        found.append(Head(column.label, column.css, url, order))
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
                query.sort,  # type: ignore[arg-type] # empty or one of Sort, by parse_list_query
                query.offset,
                PAGE_ROWS,
                query.cursor,
                query.label,
                query.age,
            )
        except ConfigError:  # The server rejects the cursor: it belongs to another list.
            return await read_page(dataclasses.replace(query, cursor=""))

    def build_table_values(request: Request, query: ListQuery, found: ThreadPage) -> dict[str, Any]:
        on_server = found.source == "server"
        earlier = max(0, found.offset - PAGE_ROWS)
        later = found.offset + PAGE_ROWS
        return {
            "query": query,
            "found": found,
            "heads": build_heads(query, found.sort),
            "shown": [column.name for column in query.shown],
            "statuses_first": _list_needed(query, found),
            "is_large": found.source != "memory",
            "may_bulk": _may_bulk(request),
            # A list of the server has no way back but the browser's button.
            "first_url": query.url(offset=0) if on_server and found.offset else "",
            "earlier_url": query.url(offset=earlier) if found.offset and not on_server else "",
            "later_url": _build_later_url(query, found, later),
            "inside_url": query.url(sort="id", offset=0) if on_server and query.text else "",
        }

    @router.get("/")
    async def threads(request: Request) -> Response:
        query = _parse_request(request)
        found = await read_page(query)
        values = await layout.build_values(request, "threads")
        values |= build_table_values(request, query, found)
        values |= {
            "statuses": sorted(_list_choices(query.status, found.by_status, found).items()),
            "agents": sorted(_list_choices(query.agent, dict.fromkeys(found.agents, 0), found)),
            "ages": {**_AGES, query.age: _AGES.get(query.age, query.age)},
            "choices": CHOSEN_COLUMNS,
            "no_columns": _NO_COLUMNS,
            "live_url": query.url("/fragments/threads", cursor=query.cursor),
            "etag": _make_list_etag(request, query, found),
        }
        return layout.renderer.render_page("threads.html", values)

    @router.get("/fragments/threads")
    async def table(request: Request) -> Response:
        query = _parse_request(request)
        found = await read_page(query)
        etag = _make_list_etag(request, query, found)
        if is_current(request, etag):  # Skip the rendering.
            return respond_with_etag(request, etag, "")
        values = build_table_values(request, query, found)
        text = layout.renderer.render("threads_table.html", values)
        return respond_with_etag(request, etag, text)

    return router


def _parse_request(request: Request) -> ListQuery:
    """Parse the query of a request. A form without scripts repeats the field of each chosen column."""
    given = request.query_params
    return parse_list_query({**given, "columns": ",".join(given.getlist("columns"))})


def _list_needed(query: ListQuery, found: ThreadPage) -> list[tuple[str, int, str]]:
    """Return the statuses that need a person: the word, the count, and the URL of their list.

    The counts are of all threads, so the lists have no other filter.
    """
    return [
        (status.value, count, ListQuery(status=status.value, columns=query.columns).url())
        for status in NEEDS_PERSON
        if (count := found.by_status.get(status.value, 0))
    ]


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


def _make_list_etag(request: Request, query: ListQuery, found: ThreadPage) -> str:
    return make_etag(query, found.sort, found.version, _may_bulk(request))


def _may_bulk(request: Request) -> bool:
    """Return whether the user may act on several threads at once, and so selects rows."""
    visitor = find_visitor(request)
    return visitor is not None and visitor.may("bulk")
