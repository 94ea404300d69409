"""The codec server: shows real values in the Temporal UI and CLI.

It speaks Temporal's codec protocol: POST `/encode` and `/decode` with payloads as JSON. Anyone who
reaches it reads payloads, so beyond loopback it wants a bearer token, and browsers are let in from
named origins only.
"""

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from google.protobuf import json_format
from starlette.middleware.trustedhost import TrustedHostMiddleware
from temporalio.api.common.v1 import Payload, Payloads

from everlong import limits
from everlong.codecs import EverlongCodec
from everlong.codecs.codec import plain_bytes
from everlong.errors import ConfigError, EverlongError, StoreUnavailable
from everlong.storage import BlobStore

# A page of history in the UI holds at most a few thousand payloads of some KiB.
REQUEST_BYTES_MAX: Final = 16 * limits.MIB
# What all payloads of a request may decode to: as many tool results as a page can show, and no bomb.
RESPONSE_BYTES_MAX: Final = 64 * limits.MIB


def create_app(store: BlobStore, *, token: str = "", cors_origins: Sequence[str] = ()) -> FastAPI:
    """Return the codec server's application. An empty token lets everybody in who reaches it."""
    app = FastAPI(title="Everlong codec server", docs_url=None, redoc_url=None, openapi_url=None)
    codec = EverlongCodec(store)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/encode")
    async def encode(request: Request) -> Response:
        return await _convert(request, token, codec.encode)

    @app.post("/decode")
    async def decode(request: Request) -> Response:
        return await _convert(request, token, codec.decode)

    if not token:
        # A page that points its own host name at 127.0.0.1 (DNS rebinding) is not let in either.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]"])
    if cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["content-type", "x-namespace", "authorization"],
        )
    return app


def check_exposure(host: str, *, token: str, allow_anonymous: bool) -> None:
    """Refuse to listen beyond loopback without a token, unless told to."""
    if token or allow_anonymous or is_loopback(host):
        return
    raise ConfigError(
        f"listening on {host} would let everyone on the network read payloads. Set EVERLONG_TOKEN, or "
        "pass --allow-anonymous if something else guards the port."
    )


def is_loopback(host: str) -> bool:
    """Tell whether a host to listen on is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _convert(
    request: Request, token: str, convert: Callable[[Sequence[Payload]], Awaitable[list[Payload]]]
) -> Response:
    _authorize(request, token)
    payloads = Payloads()
    try:
        json_format.Parse(await _bounded_body(request), payloads)
    except (json_format.ParseError, UnicodeDecodeError):
        raise HTTPException(400, "the body is not Temporal payloads as JSON") from None
    try:
        if sum(map(plain_bytes, payloads.payloads)) > RESPONSE_BYTES_MAX:
            raise HTTPException(413, f"these payloads decode to over {RESPONSE_BYTES_MAX} bytes")
        converted = Payloads(payloads=await convert(payloads.payloads))
    except StoreUnavailable as error:
        raise HTTPException(503, str(error)) from error
    except EverlongError as error:
        raise HTTPException(422, f"{type(error).__name__}: {error}") from error
    return Response(json_format.MessageToJson(converted), media_type="application/json")


def _authorize(request: Request, token: str) -> None:
    given = request.headers.get("authorization", "")
    if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        raise HTTPException(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})
    # A browser sends this type across origins only after a preflight, which CORS answers.
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(415, "send application/json")


async def _bounded_body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > REQUEST_BYTES_MAX:
            raise HTTPException(413, f"more than {REQUEST_BYTES_MAX} bytes")
    return bytes(body)
