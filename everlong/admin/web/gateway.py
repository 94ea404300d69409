"""What lies around the application: headers of answers, a line in the log for each, paths, the codec.

A line names the route and who asked. It never has a thread's id, a query or a token.
"""

import logging
import time
from collections.abc import MutableMapping
from typing import Any, Final
from urllib.parse import unquote, unquote_to_bytes

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everlong.admin.web.errors import refusal, unexpected

_LOG: Final = logging.getLogger("everlong.admin.web.requests")
_CODEC: Final = frozenset({"encode", "decode", "download"})
_API: Final = "/api/v1/"
_STATIC: Final = "/static/"

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "object-src 'none'; img-src 'self' data:"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not `no-referrer`: with that, browsers do not say which origin the login's form comes from.
    "referrer-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Of every answer but the codec's: nothing from elsewhere, nothing inline, in nobody's frame."""


class Shell:
    """The outermost layer."""

    def __init__(self, app: ASGIApp, codec: ASGIApp) -> None:
        self._app = app
        self._codec = codec

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        scope.setdefault("state", {})  # Who asks is written there, by the door or by the codec.
        status = 0
        is_codec = _is_codec(scope)

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if not is_codec:
                    _harden(message, scope["path"])
            await send(message)

        _keep_slashes(scope)
        try:
            if not _is_utf8(scope):
                text = (
                    "the address is not UTF-8; encode what stands in it as UTF-8, then by percents"
                )
                await refusal(Request(scope), 400, "BadRequest", text)(scope, receive, noted)
                return
            await (self._codec if is_codec else self._app)(scope, receive, noted)
        except Exception as error:  # noqa: BLE001 - left to others, its words would be logged.
            answer = unexpected(Request(scope), error)
            if not status:
                await answer(scope, receive, noted)
        finally:
            is_dull = scope["path"].startswith(_STATIC) and status < 400
            _LOG.log(
                logging.DEBUG if is_dull else logging.INFO,
                "%s %s %d %s %.0f ms",
                scope["method"],
                _route(scope, is_codec=is_codec),
                status,
                _name(scope),
                1000 * (time.monotonic() - began),
            )


def _is_codec(scope: Scope) -> bool:
    """Tell whether a request is for the codec server, at whatever depth of the path."""
    path: str = scope["path"]
    return (
        scope["method"] in ("POST", "OPTIONS")
        and path.rpartition("/")[2] in _CODEC
        and not path.startswith(_API)
    )


def _keep_slashes(scope: MutableMapping[str, Any]) -> None:
    """Keep the escaped slashes of a path: a thread's id is one segment, whatever it holds.

    The server has undone all escapes by now. Here `%` and `/` stay escaped inside a segment, and
    `ids.ThreadId` undoes that.
    """
    raw = scope.get("raw_path") or b""
    if b"%2f" in raw.lower() or b"%25" in raw:
        kept = raw.partition(b"?")[0].decode("ascii", errors="replace")
        kept = kept.replace("%25", "%2525").replace("%2F", "%252F").replace("%2f", "%252F")
        scope["path"] = unquote(kept)


def _is_utf8(scope: Scope) -> bool:
    """Whether path and query are UTF-8. Otherwise U+FFFD would stand in an id, which is another id."""
    try:
        unquote_to_bytes(scope.get("raw_path") or b"").decode()
        unquote_to_bytes(scope.get("query_string") or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _harden(message: Message, path: str) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in HEADERS.items():
        headers[name] = value
    # Scripts import each other by name: a browser asks whether it has the newest of each.
    headers["cache-control"] = "no-cache" if path.startswith(_STATIC) else "no-store"


def _route(scope: Scope, *, is_codec: bool) -> str:
    if is_codec:
        return f"/{scope['path'].rpartition('/')[2]}"
    if scope["path"].startswith(_STATIC):
        return _STATIC
    found: str = getattr(scope.get("route"), "path", "(none)")
    # A route knows its path within the API only.
    is_inside = scope["path"].startswith(_API) and found.startswith("/")
    return found if not is_inside or found.startswith(_API) else f"{_API}{found[1:]}"


def _name(scope: Scope) -> str:
    user = scope.get("state", {}).get("user")
    return (user.name or user.via) if user is not None else "-"
