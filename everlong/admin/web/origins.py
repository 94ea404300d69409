"""Where a browser says that a request comes from. Host and port count together, as it does itself."""

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from everlong.admin.web.sessions import COOKIE

_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}


def is_own(request: Request, hosts: Iterable[str]) -> bool:
    """Tell whether a request comes from our own pages, or from no browser at all.

    Browsers say where a request comes from, and pages cannot make them say something else. Our own is
    the host that the request names, and those that are configured.
    """
    headers = request.headers
    site = headers.get("sec-fetch-site", "")
    if site:
        return site == "same-origin"
    origin = headers.get("origin", "")
    if not origin:
        # A session lives in a browser, and those send one of the two with each change.
        return COOKIE not in request.cookies
    scheme, _, netloc = origin.lower().partition("://")
    place = place_of(netloc, scheme)
    ours = [place_of(each, scheme) for each in (headers.get("host", ""), *hosts)]
    return place is not None and place in ours


def place_of(netloc: str, scheme: str = "https") -> tuple[str, int] | None:
    """Return the host and the port of `host:port`, or the scheme's own port; None if it is neither."""
    try:
        parts = urlsplit(f"//{netloc}")
        port = parts.port
    except ValueError:
        return None
    if parts.netloc != netloc or "@" in netloc or not parts.hostname or scheme not in _PORTS:
        return None
    return parts.hostname, _PORTS[scheme] if port is None else port


def host_of(netloc: str) -> str:
    """Return `host:port` without the port, as a request's Host header is compared with it."""
    place = place_of(netloc)
    host = place[0] if place else netloc
    return f"[{host}]" if ":" in host else host
