"""The error page: what happened, and what to do."""

from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from typing import Final

from fastapi import Request, Response

from everlong.admin.web.pages.filters import check_local_path
from everlong.admin.web.pages.layout import find_visitor
from everlong.admin.web.pages.renderer import Renderer

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
        "Check that the Temporal server, the blob store and a worker run: everlong doctor says which "
        "one does not. Then reload this page.",
    ),
}
# Standard phrases of the framework, which add nothing to the title.
_PHRASES: Final = frozenset(status.phrase for status in HTTPStatus)
_OTHER: Final = ("Unexpected error", "The server's log has the details.")


@cache
def _renderer() -> Renderer:
    return Renderer()


def error_page(request: Request, status: int, kind: str, message: str) -> Response:
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
        return _renderer().render_page("login.html", values | again, status)
    is_fragment = path.startswith("/fragments/")
    return _renderer().render_page("problem.html" if is_fragment else "error.html", values, status)
