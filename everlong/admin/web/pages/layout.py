"""Layout of the pages: templates, the values that every page shows, and the login and error pages.

All values are escaped: threads contain untrusted text.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import jinja2
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from everlong.admin.conversation import describe_cause
from everlong.admin.web.auth import User
from everlong.admin.web.context import AppContext
from everlong.admin.web.pages import charts, filters
from everlong.admin.web.pages.filters import check_local_path
from everlong.admin.web.pages.markdown import render_markdown
from everlong.errors import EverlongError
from everlong.models.thread_ids import derive_id, show_id

HERE: Final = Path(__file__).parents[1]
# Characters of a message in a list. The journal shows the whole message.
_TEXT_CHARS_MAX: Final = 1500


def make_environment() -> jinja2.Environment:
    """Return the Jinja environment with its filters."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        size=filters.format_size,
        number=filters.format_number,
        took=filters.format_ms,
        growth=filters.format_growth,
        cost=filters.format_cost,
        cause=describe_cause,
        exact=filters.format_iso_time,
        clock=filters.format_utc_time,
        gauge_value=filters.format_gauge,
        days=filters.format_days_left,
        retry=filters.describe_retry,
        limit_name=filters.name_limit,
        pretty=filters.indent_json,
        visible=filters.escape_hidden,
        mark=filters.make_mark,
        thread_url=filters.build_thread_url,
        shown_id=show_id,
        derived_id=derive_id,
        tab_url=filters.build_tab_url,
        markdown=render_markdown,
        query=filters.quote_query,
        download_url=filters.build_download_url,
        api=filters.build_api_url,
        cut=shorten,
        spark=charts.build_spark,
        code_parts=filters.split_code,
        utf8_bytes=lambda text: len(text.encode(errors="replace")),
    )
    environment.globals["release"] = hash_static_files()
    return environment


def shorten(text: str, chars_max: int = _TEXT_CHARS_MAX) -> str:
    """Return the beginning of a text, and the number of characters left out."""
    if len(text) <= chars_max:
        return text
    return f"{text[:chars_max]} … {len(text) - chars_max:,} more characters"


def hash_static_files() -> str:
    """Return a digest of the static files, so that browsers fetch changed ones."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted((HERE / "static").iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def make_etag(*parts: object) -> str:
    """Return an ETag that changes with any of the parts."""
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        digest.update(repr(part).encode(errors="replace") + b"\0")
    return f'"{digest.hexdigest()}"'


class Renderer:
    """Renders templates to responses."""

    def __init__(self) -> None:
        self._templates = make_environment()

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        """Return the rendered text of a template."""
        return self._templates.get_template(template).render(values)

    def render_page(
        self, template: str, values: Mapping[str, Any], status_code: int = 200
    ) -> Response:
        """Return a page, or a fragment without an ETag."""
        return _make_html_response(self.render(template, values), status_code)

    def render_fragment(
        self, request: Request, template: str, values: Mapping[str, Any]
    ) -> Response:
        """Return a fragment of a page with its ETag, or a 304."""
        text = self.render(template, values)
        return respond_with_etag(request, make_etag(text), text)


def respond_with_etag(request: Request, etag: str, text: str) -> Response:
    """Return a text with its ETag, or a 304 if the browser has it."""
    if is_current(request, etag):
        return Response(status_code=304, headers={"ETag": etag})
    response = _make_html_response(text)
    response.headers["ETag"] = etag
    return response


def is_current(request: Request, etag: str) -> bool:
    """Return whether the browser has the version of this ETag."""
    return request.headers.get("if-none-match", "").removeprefix("W/") == etag


def _make_html_response(text: str, status_code: int = 200) -> Response:
    # JSON may contain lone surrogates, which UTF-8 cannot encode.
    data = text.encode(errors="replace")
    return Response(data, status_code=status_code, media_type="text/html; charset=utf-8")


@dataclasses.dataclass(frozen=True)
class Visitor:
    """The user of a page, for templates."""

    user: User

    @property
    def name(self) -> str:
        """Default author of changes. Users without a name may give another."""
        return self.user.resolve_author("")

    @property
    def role(self) -> str:
        """The user's role."""
        return str(self.user.role)

    @property
    def is_anonymous(self) -> bool:
        """Whether the user needs no token, and names the author of each change."""
        return self.user.via == "loopback"

    @property
    def has_session(self) -> bool:
        """Whether the user can log out."""
        return self.user.via == "session"

    def may(self, action: str) -> bool:
        """Return whether the user may do an action, and so sees its button."""
        return self.user.may(action)


def find_visitor(request: Request) -> Visitor | None:
    """Return the user of a page; None if the request is not authenticated."""
    user: User | None = getattr(request.state, "user", None)
    return None if user is None else Visitor(user)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The app context and the templates, which all pages share."""

    context: AppContext
    renderer: Renderer

    async def build_values(self, request: Request, page: str) -> dict[str, Any]:
        """Return the template values of every page."""
        namespace = ""
        with contextlib.suppress(EverlongError):  # A page that needs the server shows the error.
            namespace = (await self.context.client()).namespace
        return {
            "page": page,
            "who": find_visitor(request),
            "namespace": namespace,
            "waiting": await self.context.thread_list.pending(),
        }


def create_login_router(layout: Layout) -> APIRouter:
    """Return the routes of the login page."""
    router = APIRouter()

    @router.get("/login")
    async def login(request: Request) -> Response:
        wanted = check_local_path(request.query_params.get("next", "/"))
        if find_visitor(request) is not None:
            return RedirectResponse(wanted, 303)
        values = {"page": "login", "who": None, "next": wanted, "problem": ""}
        return layout.renderer.render_page("login.html", values)

    return router


_TITLES: Final[Mapping[int, tuple[str, str]]] = {
    400: ("The request is invalid", "Check the address or the fields, and try again."),
    401: ("Log in first", "This server needs a token."),
    403: (
        "Your role may not do this",
        "Ask the administrator of this server for another role: operators change threads, approvers "
        "decide, admins sweep.",
    ),
    404: ("Not found", "The address may be wrong, or the thread or archive no longer exists."),
    409: ("The state has changed", "It has changed since the page was loaded. Reload and check."),
    422: ("The request is invalid", "Check the address or the fields, and try again."),
    429: ("Too many requests", "Wait a minute, and try again."),
    503: (
        "Temporarily unavailable",
        "Check that the Temporal server, the blob store and a worker run: everlong doctor reports which "
        "one does not. Then reload this page.",
    ),
}
# Standard phrases of the framework, which add nothing to the title.
_PHRASES: Final = frozenset(status.phrase for status in HTTPStatus)
_OTHER: Final = ("Unexpected error", "The server's log has the details.")


@cache
def _make_renderer() -> Renderer:
    return Renderer()


def render_error_page(request: Request, status: int, kind: str, message: str) -> Response:
    """Return a page for an error, or one line if the request was for a fragment of a page."""
    title, advice = _TITLES.get(status, _OTHER)
    path = request.scope["path"]
    values = {
        "page": "",
        "who": find_visitor(request),
        "namespace": "",
        "waiting": 0,
        "code": f"{status} · {kind}",
        "title": title,
        "message": "" if message in _PHRASES else message,
        "advice": advice,
    }
    if status in (401, 429) and path == "/login":
        again = {
            "next": check_local_path(request.query_params.get("next", "/")),
            "problem": message,
        }
        return _make_renderer().render_page("login.html", values | again, status)
    is_fragment = path.startswith("/fragments/")
    return _make_renderer().render_page(
        "problem.html" if is_fragment else "error.html", values, status
    )
