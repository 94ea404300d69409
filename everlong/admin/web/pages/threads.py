"""The list of threads: sorted, filtered, searched, in pages; and its table alone, for live updates."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from everlong.admin.web.pages.layout import Frame
from everlong.admin.web.pages.renderer import etag_of, is_known, tagged
from everlong.client.threads import (
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
class Asked:
    """Which threads somebody wants to see."""

    text: str
    status: str
    agent: str
    sort: str
    offset: int
    cursor: str = ""
    """Place in a list of the server, which has no offsets."""

    def url(self, base: str = "/", **changes: Any) -> str:
        """Return the address of this list, or of one beside it."""
        wanted = dataclasses.asdict(dataclasses.replace(self, **{"cursor": "", **changes}))
        defaults = dict.fromkeys(wanted, "") | {"sort": _DEFAULT_SORT, "offset": 0}
        given = {name: value for name, value in wanted.items() if value != defaults[name]}
        return f"{base}?{urlencode(given, errors='replace')}" if given else base


def asked_for(given: Mapping[str, str]) -> Asked:
    """Read what is wanted from an address, as far as it makes sense: a list is shown for any."""
    sort, offset = given.get("sort", ""), given.get("offset", "")
    return Asked(
        text=given.get("text", "").strip()[:_CHARS_MAX],
        status=given.get("status", "")[:_CHARS_MAX],
        agent=given.get("agent", "")[:_CHARS_MAX],
        sort=sort if sort in _SORTS else _DEFAULT_SORT,
        offset=int(offset) if _OFFSET.fullmatch(offset) else 0,
        cursor=_cursor(given.get("cursor", "")),
    )


def _cursor(text: str) -> str:
    """Return a cursor, or nothing if it is none: the first page is shown then."""
    try:
        parse_cursor(text[: CURSOR_CHARS_MAX + 1])
    except ConfigError:
        return ""
    return text if len(text) <= CURSOR_CHARS_MAX else ""


@dataclasses.dataclass(frozen=True)
class Head:
    """A column's head."""

    label: str
    css: str
    url: str
    """That sorts by it; empty if it cannot be sorted by."""
    order: str


def heads(asked: Asked) -> list[Head]:
    """Return the heads of the table. A second press on one turns the order around."""
    found = []
    for label, css, name in _HEADS:
        order, url = "", ""
        if name:
            falling, rising = f"-{name}", name
            order = {falling: "descending", rising: "ascending"}.get(asked.sort, "")
            # Of names one wants the first, of figures the largest.
            first, second = (rising, falling) if name in ("id", "status") else (falling, rising)
            url = asked.url(sort=second if asked.sort == first else first, offset=0)
        found.append(Head(label, css, url, order))
    return found


def routes(frame: Frame) -> APIRouter:
    """Return the routes of the list."""
    router = APIRouter()
    directory = frame.context.directory

    async def look(asked: Asked) -> ThreadPage:
        try:
            return await directory.page(
                asked.text,
                asked.status,
                asked.agent,
                asked.sort,  # type: ignore[arg-type] # one of Sort, by asked_for
                asked.offset,
                PAGE_ROWS,
                asked.cursor,
            )
        except ConfigError:  # The server refuses the cursor: it is of another list.
            return await look(dataclasses.replace(asked, cursor=""))

    def table_values(asked: Asked, found: ThreadPage) -> dict[str, Any]:
        on_server = found.source == "server"
        earlier = max(0, found.offset - PAGE_ROWS)
        later = found.offset + PAGE_ROWS
        return {
            "asked": asked,
            "found": found,
            "heads": heads(asked),
            # A server's list leads onwards only: the browser's own button leads back.
            "first_url": asked.url(offset=0) if on_server and found.offset else "",
            "earlier_url": asked.url(offset=earlier) if found.offset and not on_server else "",
            "later_url": _later_url(asked, found, later),
            "inside_url": asked.url(sort="id", offset=0) if on_server and asked.text else "",
        }

    @router.get("/")
    async def threads(request: Request) -> Response:
        asked = asked_for(request.query_params)
        found = await look(asked)
        values = await frame.values(request, "threads")
        values |= table_values(asked, found)
        values |= {
            "statuses": sorted(_choices(asked.status, found.by_status, found).items()),
            "agents": sorted(_choices(asked.agent, dict.fromkeys(found.agents, 0), found)),
            "default_sort": _DEFAULT_SORT,
            "live_url": asked.url("/fragments/threads", cursor=asked.cursor),
            "etag": _tag(asked, found),
        }
        return frame.renderer.page("threads.html", values)

    @router.get("/fragments/threads")
    async def table(request: Request) -> Response:
        asked = asked_for(request.query_params)
        found = await look(asked)
        etag = _tag(asked, found)
        if is_known(request, etag):  # Nothing is drawn for those who have it.
            return tagged(request, etag, "")
        text = frame.renderer.text("threads_table.html", table_values(asked, found))
        return tagged(request, etag, text)

    return router


def _choices(asked: str, known: Mapping[str, int], found: ThreadPage) -> dict[str, int]:
    """Return what can be filtered by: what is known, and what the server was asked for."""
    if not asked or found.source == "memory":
        return dict(known)
    return {asked: 0, **known}


def _later_url(asked: Asked, found: ThreadPage, later: int) -> str:
    if not found.next_cursor:
        return ""
    if found.source == "server":
        return asked.url(offset=0, cursor=found.next_cursor)
    return asked.url(offset=later)


def _tag(asked: Asked, found: ThreadPage) -> str:
    return etag_of(asked, found.version)
