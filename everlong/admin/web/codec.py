"""The codec server: shows real values in the Temporal UI and CLI.

It speaks Temporal's codec protocol: POST `/encode`, `/decode` and `/download` with payloads as JSON,
at any depth of the path, so that `/{namespace}/decode` is one of them. The namespace changes nothing:
a ref says itself where it leads, and what is encoded here belongs to no thread. Anyone who reaches it
reads payloads, so beyond loopback it wants a bearer token, and browsers are let in from named origins
only.

The CLI asks for whole values. The Temporal UI asks `/decode` to leave storage refs in place
(`preserveStorageRefs`), so that a page of history does not fetch every blob, and `/download` for one
of them when somebody presses its button. It shows that button for one kind of payload only, the
SDK's `ExternalStorageReference`; any other ref would show as base64 and lead nowhere. So what is
large is answered in that form, and what a page can show is decoded all the same.
"""

import asyncio
import base64
import binascii
import contextlib
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, TypeAlias

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.middleware.cors import CORSMiddleware
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from starlette.middleware.trustedhost import TrustedHostMiddleware
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.sdk.v1.external_storage_pb2 import ExternalStorageReference

from everlong import limits
from everlong.codecs import EverlongCodec
from everlong.codecs.codec import plain_bytes
from everlong.codecs.refs import is_ref, parse_ref
from everlong.config import is_loopback
from everlong.errors import ConfigError, EverlongError, StoreUnavailable
from everlong.storage import BlobStore
from everlong.storage.packstore import PackStore, pack_key

logger = logging.getLogger(__name__)

# A page of history in the UI holds at most a few thousand payloads of some KiB.
REQUEST_BYTES_MAX: Final = 16 * limits.MIB
PAYLOADS_MAX: Final = 10_000
"""Of one request. Each takes up to 0.2 ms, however small it is: two seconds for all of them."""
# Braces, colons and commas of the JSON, which base64 has none of. A payload has 8 or so.
_MARKS_MAX: Final = 16 * PAYLOADS_MAX
_MARKS: Final = (b"{", b":", b",")
# What is decoded before other requests get their turn.
_BATCH_PAYLOADS: Final = 200
# What all payloads of a request may decode to: as many tool results as a page can show, and no bomb.
RESPONSE_BYTES_MAX: Final = 64 * limits.MIB
# What the UI gets as a value, and not as a placeholder: some 2,000 lines, which a page still shows.
SHOWN_BYTES_MAX: Final = 128 * limits.KIB
# A response takes about 4 times its payloads while it is written as JSON: 1 GiB for these together.
CONVERSIONS_MAX: Final = 4
# A store that does not answer keeps none of those places for longer than somebody waits for a page.
_CONVERT_SECONDS_MAX: Final = 60.0
LOCAL_HOSTS: Final = ["127.0.0.1", "localhost", "[::1]"]
"""Names that a server is reached by which lets everybody in."""
# Where a placeholder keeps the ref that it stands for. As text: the UI reads metadata as UTF-8.
_REF_KEY: Final = "everlong-ref"
_ORIGIN: Final = re.compile(r"https?://[a-z0-9.-]+(:\d{1,5})?|https?://\[[0-9a-f:]+\](:\d{1,5})?")
_Convert: TypeAlias = Callable[[Sequence[Payload]], Awaitable[list[Payload]]]
Admit: TypeAlias = Callable[[Request, str], Awaitable[None]]
"""Raises `HTTPException` for somebody who may not do the action that is named: decode or encode."""
# What the UI sends; the last two only where it is told to pass its user's tokens on.
_HEADERS: Final = ("content-type", "x-namespace", "authorization", "authorization-extras")


def create_app(
    store: BlobStore | PackStore,
    *,
    token: str = "",
    cors_origins: Sequence[str] = (),
    beside: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext,
    admit: Admit | None = None,
) -> FastAPI:
    """Return the codec server's application. An empty token lets everybody in who reaches it.

    What is `beside` it is entered when the server starts, and left before it ends. `admit` is asked
    instead of the token, if it is given.
    """
    app = FastAPI(
        title="Everlong codec server",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lambda _: beside(),
    )
    app.include_router(_routes(EverlongCodec(store), admit or partial(_admit, token)))

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> Response:
        # The CLI tries for 10 s and then speaks of a deadline, so what it was told stands here too.
        route = request.scope["path"].rpartition("/")[2]
        logger.warning("/%s refused with %d: %s", route, error.status_code, error.detail)
        return await http_exception_handler(request, error)

    if not token and admit is None:
        # A page that points its own host name at 127.0.0.1 (DNS rebinding) is not let in either.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_HOSTS)
    if cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[_checked_origin(origin) for origin in cors_origins],
            allow_methods=["POST"],
            allow_headers=_HEADERS,
            # The UI can be told to send cookies, for a proxy with single sign-on that stands before us.
            allow_credentials=True,
            # A UI on another machine asks for this when the codec server is on the browser's own.
            allow_private_network=True,
        )
    return app


def check_exposure(host: str, *, is_guarded: bool, allow_anonymous: bool) -> None:
    """Refuse to listen beyond loopback where everybody would be let in, unless told to."""
    if is_guarded or allow_anonymous or is_loopback(host):
        return
    raise ConfigError(
        f"listening on {host} would let everyone on the network read and change threads. Set "
        "EVERLONG_TOKEN or EVERLONG_TOKENS, or pass --allow-anonymous if something else guards the port."
    )


def _checked_origin(origin: str) -> str:
    if not _ORIGIN.fullmatch(origin):
        raise ConfigError(
            f"{origin!r} is not an origin that a browser sends. Give scheme, host and port in small "
            "letters and nothing after them, as in http://127.0.0.1:8233."
        )
    return origin


def _routes(codec: EverlongCodec, admit: Admit) -> APIRouter:
    router = APIRouter()
    places = asyncio.Semaphore(CONVERSIONS_MAX)

    async def answer(request: Request, action: str, convert: _Convert) -> Response:
        await admit(request, action)
        _check_type(request)
        body = await _read(request)
        async with places:
            # In a thread: however odd the JSON is, other requests are answered meanwhile.
            payloads = await asyncio.to_thread(_parsed, body)
            return await _converted(payloads, convert)

    @router.post("/encode")
    @router.post("/{mount:path}/encode")
    async def encode(request: Request) -> Response:
        return await answer(request, "encode", codec.encode)

    @router.post("/decode")
    @router.post("/{mount:path}/decode")
    async def decode(request: Request) -> Response:
        for_page = request.query_params.get("preserveStorageRefs", "").lower() == "true"
        return await answer(request, "decode", partial(_decode, codec, for_page=for_page))

    @router.post("/download")
    @router.post("/{mount:path}/download")
    async def download(request: Request) -> Response:
        # The UI adds preserveStorageRefs here too, where it means nothing.
        return await answer(request, "decode", partial(_download, codec))

    return router


async def _download(codec: EverlongCodec, payloads: Sequence[Payload]) -> list[Payload]:
    """Return the values of refs, whole."""
    if not all(is_ref(_unwrapped(payload)) for payload in payloads):
        # Not 404: the UI takes that for a server without this endpoint.
        raise HTTPException(400, "these payloads are not all refs to Everlong's store")
    return await _decode(codec, payloads)


async def _decode(
    codec: EverlongCodec, payloads: Sequence[Payload], *, for_page: bool = False
) -> list[Payload]:
    """Decode payloads, but for large ones that are for a page: placeholders stand for those."""
    payloads = [_unwrapped(payload) for payload in payloads]
    sizes = await asyncio.to_thread(lambda: list(map(plain_bytes, payloads)))
    kept = [
        for_page and size_bytes > SHOWN_BYTES_MAX and is_ref(payload)
        for payload, size_bytes in zip(payloads, sizes, strict=True)
    ]
    if sum(size for size, keep in zip(sizes, kept, strict=True) if not keep) > RESPONSE_BYTES_MAX:
        raise HTTPException(
            413,
            f"these payloads decode to over {RESPONSE_BYTES_MAX} bytes. Ask for fewer at once, or read "
            "them with a client that has the plugin.",
        )
    chosen = [payload for payload, keep in zip(payloads, kept, strict=True) if not keep]
    decoded = iter(await _in_batches(codec, chosen))
    return [
        _placeholder(payload, size_bytes) if keep else next(decoded)
        for payload, size_bytes, keep in zip(payloads, sizes, kept, strict=True)
    ]


async def _in_batches(codec: EverlongCodec, payloads: Sequence[Payload]) -> list[Payload]:
    decoded: list[Payload] = []
    for start in range(0, len(payloads), _BATCH_PAYLOADS):
        decoded += await codec.decode(payloads[start : start + _BATCH_PAYLOADS])
    return decoded


def _placeholder(payload: Payload, size_bytes: int) -> Payload:
    """Return what the UI shows for a large value, with a button that downloads it."""
    ref = parse_ref(payload)
    key = pack_key(ref.thread, ref.pack)
    reference = ExternalStorageReference(
        driver_name="everlong", claim_data={"key": key, "size": f"{size_bytes:,} bytes"}
    )
    placeholder = Payload(
        metadata={
            "encoding": b"json/protobuf",
            "messageType": ExternalStorageReference.DESCRIPTOR.full_name.encode(),
            _REF_KEY: base64.b64encode(payload.SerializeToString(deterministic=True)),
        },
        data=json_format.MessageToJson(reference).encode(),
    )
    placeholder.external_payloads.add().size_bytes = size_bytes
    return placeholder


def _unwrapped(payload: Payload) -> Payload:
    """Return the ref that a placeholder stands for; any other payload as it is.

    The UI sends the ref out of history. A client that keeps to the protocol may as well send what
    `/decode` gave it.
    """
    wrapped = payload.metadata.get(_REF_KEY)
    if wrapped is None:
        return payload
    try:
        return Payload.FromString(base64.b64decode(wrapped, validate=True))
    except (binascii.Error, DecodeError):
        raise HTTPException(400, "a placeholder is damaged: its ref does not parse") from None


async def _converted(payloads: Sequence[Payload], convert: _Convert) -> Response:
    try:
        async with asyncio.timeout(_CONVERT_SECONDS_MAX):
            converted = Payloads(payloads=await convert(payloads))
    except TimeoutError:
        seconds = f"{_CONVERT_SECONDS_MAX:.0f} s"
        raise HTTPException(503, f"the blob store did not answer within {seconds}") from None
    except EverlongError as error:
        # The UI asks again after a 5xx, and shows what it has after a 4xx.
        status = 503 if isinstance(error, StoreUnavailable) else 422
        raise HTTPException(status, f"{type(error).__name__}: {error}") from error
    # In a thread, so that other requests are answered while 64 MiB are written as JSON.
    text = await asyncio.to_thread(json_format.MessageToJson, converted, indent=None)
    return Response(text, media_type="application/json")


async def _admit(token: str, request: Request, _: str) -> None:
    given = request.headers.get("authorization", "")
    if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        raise unknown()


def unknown() -> HTTPException:
    """Return the refusal of somebody whom nobody knows."""
    return HTTPException(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})


def _check_type(request: Request) -> None:
    # A browser sends this type across origins only after a preflight, which CORS answers.
    content_type = request.headers.get("content-type", "").partition(";")[0]
    if content_type.strip().lower() != "application/json":
        raise HTTPException(415, "send application/json")


async def _read(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > REQUEST_BYTES_MAX:
            raise HTTPException(413, f"more than {REQUEST_BYTES_MAX} bytes")
    # Before anything is parsed: a megabyte may be a payload, or 300,000 of them.
    if sum(map(body.count, _MARKS)) > _MARKS_MAX:
        raise _too_many()
    return bytes(body)


def _parsed(body: bytes) -> Sequence[Payload]:
    try:
        payloads = json_format.Parse(body, Payloads()).payloads
    except (json_format.ParseError, UnicodeDecodeError, RecursionError):
        raise HTTPException(400, "the body is not Temporal payloads as JSON") from None
    if len(payloads) > PAYLOADS_MAX:
        raise _too_many()
    return payloads


def _too_many() -> HTTPException:
    return HTTPException(413, f"more than {PAYLOADS_MAX} payloads. Ask for fewer at once.")
