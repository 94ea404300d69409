"""Pages for what went wrong: what it is, and what to do."""

from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from typing import Final

from fastapi import Request, Response

from everlong.admin.web.pages.filters import local_path
from everlong.admin.web.pages.layout import visitor
from everlong.admin.web.pages.renderer import Renderer

_TITLES: Final[Mapping[int, tuple[str, str]]] = {
    400: ("That does not fit", "Look at what was asked for, and ask again."),
    401: ("Log in first", "This server wants a token."),
    403: (
        "Not for your role",
        "Ask whoever runs this server for another role: operators change threads, approvers decide, "
        "admins sweep.",
    ),
    404: ("Nothing is here", "The address may be wrong, or what it named is gone by now."),
    409: ("Not any more", "It has changed since the page was shown. Look again."),
    422: ("That does not fit", "Look at what was asked for, and ask again."),
    429: ("Too many tries", "Wait for a minute."),
    503: (
        "Not to be had right now",
        "Look whether the Temporal server, the blob store and a worker run: everlong doctor says which "
        "one does not. This page may simply be loaded again.",
    ),
}
# What a framework says where nobody said more.
_PHRASES: Final = frozenset(status.phrase for status in HTTPStatus)
_OTHER: Final = ("Something went wrong", "The log of this server has more.")


@cache
def _renderer() -> Renderer:
    return Renderer()


def error_page(request: Request, status: int, kind: str, message: str) -> Response:
    """Return a page that says what went wrong, for a browser; for a part of a page, a line."""
    title, advice = _TITLES.get(status, _OTHER)
    path = request.scope["path"]
    values = {
        "page": "",
        "who": visitor(request),
        "namespace": "",
        "waiting": 0,
        "code": f"{status} · {kind}",
        "title": title,
        "message": "" if message in _PHRASES else message,
        "advice": advice,
    }
    if status in (401, 429) and path == "/login":
        again = {"next": local_path(request.query_params.get("next", "/")), "problem": message}
        return _renderer().page("login.html", values | again, status)
    is_part = path.startswith("/fragments/")
    return _renderer().page("problem.html" if is_part else "error.html", values, status)
