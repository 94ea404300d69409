"""HTTP requests to sinks: one POST with a deadline, on the standard library alone.

The deadline is for the whole request, so a receiver that answers one byte at a time cannot hold it. No
redirect is followed: it would carry a signed body, or a token, to an address that is not configured.
"""

import asyncio
import dataclasses
import functools
import http.client
import io
import ipaddress
import ssl
from collections.abc import Mapping
from typing import Final, cast
from urllib.parse import urlsplit

from everlong import limits

_PORTS: Final = {"http": 80, "https": 443}
_HEAD_END: Final = b"\r\n\r\n"
_CHUNK_BYTES: Final = 16 * limits.KIB


class RequestFailed(Exception):
    """A request got no answer. The text names the cause, and neither the URL's path nor its query."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    """Header names are in small letters."""
    body: bytes
    """At most `NOTIFY_ANSWER_BYTES_MAX`; empty unless it was asked for."""


async def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    seconds_max: float,
    reads_body: bool = False,
) -> Answer:
    """Send a POST request, and return its answer. Raises `RequestFailed`."""
    host = urlsplit(url).hostname or ""
    try:
        async with asyncio.timeout(seconds_max):
            return await _post(url, body, headers, reads_body=reads_body)
    except TimeoutError:
        raise RequestFailed(f"{host} did not answer within {seconds_max:g} s") from None
    except ssl.SSLCertVerificationError as error:
        # Its message has the certificate's names, which are those of the configured host.
        raise RequestFailed(
            f"the certificate of {host} is not trusted: {error.verify_message}"
        ) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise RequestFailed(f"the request to {host} failed: {type(error).__name__}") from None


@functools.cache
def _get_tls_context() -> ssl.SSLContext:
    """Return the context of all requests: reading the system's certificates takes 20 ms."""
    return ssl.create_default_context()


async def _post(url: str, body: bytes, headers: Mapping[str, str], *, reads_body: bool) -> Answer:
    parts = urlsplit(url)
    host = parts.hostname or ""
    is_tls = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        host,
        parts.port or _PORTS[parts.scheme],
        ssl=_get_tls_context() if is_tls else None,
        limit=_CHUNK_BYTES,
    )
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        head = {
            "Host": parts.netloc,
            "Content-Length": str(len(body)),
            "Connection": "close",
            "User-Agent": "everlong",
            **headers,
        }
        lines = [f"POST {target} HTTP/1.1", *(f"{name}: {text}" for name, text in head.items())]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a header has a line break")
        writer.write("\r\n".join(lines).encode("latin-1") + _HEAD_END + body)
        await writer.drain()
        raw = b""
        # The bound of what is read, whatever the receiver sends.
        while len(raw) < limits.NOTIFY_ANSWER_BYTES_MAX:
            if not reads_body and _HEAD_END in raw:
                break
            chunk = await reader.read(_CHUNK_BYTES)
            if not chunk:
                break
            raw += chunk
        return _parse(raw, reads_body=reads_body)
    finally:
        # Not awaited: a receiver that hangs would hold the close of a TLS connection.
        writer.transport.abort()


class _Received:
    """Stands for the socket that `http.client` reads an answer from."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._raw)


def _parse(raw: bytes, *, reads_body: bool) -> Answer:
    # http.client uses nothing of the socket but a file of its bytes.
    response = http.client.HTTPResponse(cast("http.client.socket", _Received(raw)), method="POST")  # type: ignore[name-defined]
    response.begin()
    headers = {name.lower(): text for name, text in response.getheaders()}
    return Answer(response.status, headers, response.read() if reads_body else b"")


def is_loopback_url(url: str) -> bool:
    """Return whether a URL's host is this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
