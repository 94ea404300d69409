"""HTTP connection to an admin server, by the standard library: a worker has no HTTP client.

Proxies of the environment are not used, and redirects are not followed: the token goes to the configured
server only.
"""

import http.client
import ssl
from typing import Final
from urllib.parse import urlsplit

from everlong.live.models import LiveServer

ERRORS: Final = (OSError, http.client.HTTPException)
"""Errors of a connection or a request. Those of TLS are `OSError` too."""


def open_connection(server: LiveServer, seconds_max: float) -> http.client.HTTPConnection:
    """Return a connection that connects with its first request; each wait is bounded."""
    parts = urlsplit(server.url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        return http.client.HTTPSConnection(
            host, parts.port, timeout=seconds_max, context=ssl.create_default_context()
        )
    return http.client.HTTPConnection(host, parts.port, timeout=seconds_max)


def build_path(server: LiveServer, path: str) -> str:
    """Return the path of a request. The server may be below a path of a proxy."""
    return urlsplit(server.url).path.rstrip("/") + path


def build_headers(server: LiveServer) -> dict[str, str]:
    """Return the headers that authenticate a request."""
    return {"Authorization": f"Bearer {server.token}"} if server.token else {}
