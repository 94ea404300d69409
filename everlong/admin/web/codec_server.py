"""The codec server: shows real values in the Temporal UI and CLI.

Implements Temporal's codec protocol: POST `/encode`, `/decode` and `/download` with payloads as JSON, at
any depth of the path, such as `/{namespace}/decode`. The namespace is ignored: a ref contains its own
location, and payloads that are encoded here belong to no thread. A client that reaches the server can
read payloads. So beyond loopback the server requires a bearer token, and accepts browsers from the
configured origins only.

The CLI asks for whole values. The Temporal UI asks `/decode` to leave storage refs in place
(`preserveStorageRefs`), so that a page of history does not fetch every blob, and `/download` when the
user presses a ref's button. It shows that button for one kind of payload only, the SDK's
`ExternalStorageReference`; any other ref would show as base64 without a way to open it. So large values
are returned in that form, and smaller ones are decoded although the UI asks for refs.
"""

import asyncio
import base64
import binascii
import contextlib
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, TypeAlias

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.middleware.cors import CORSMiddleware
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import Receive, Scope, Send
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.sdk.v1.external_storage_pb2 import ExternalStorageReference
from temporalio.converter import PayloadCodec

from everlong import limits
from everlong.codecs import EverlongCodec
from everlong.codecs.payloads import is_encoded, plain_bytes
from everlong.codecs.refs import is_ref, parse_ref
from everlong.config import is_loopback
from everlong.errors import ConfigError, EverlongError, StoreUnavailable
from everlong.storage import BlobStore
from everlong.storage.pack_store import ByteBudget, PackStore, pack_key

logger = logging.getLogger(__name__)

# A page of history in the UI holds at most a few thousand payloads of some KiB.
REQUEST_BYTES_MAX: Final = 16 * limits.MIB
PAYLOADS_MAX: Final = 10_000
"""Payloads of one request. Each takes up to 0.2 ms, however small it is: two seconds in all."""
# Braces, colons and commas of the JSON. Base64 contains none; a payload has about 8.
_MARKS_MAX: Final = 16 * PAYLOADS_MAX
_MARKS: Final = (b"{", b":", b",")
# Payloads that are decoded before other requests get a turn.
_BATCH_PAYLOADS: Final = 200
# Decoded bytes of one request: as many tool results as a page can show, and no decompression bomb.
RESPONSE_BYTES_MAX: Final = 64 * limits.MIB
# Larger values are placeholders in the UI. This is some 2,000 lines, which a page still shows.
SHOWN_BYTES_MAX: Final = 128 * limits.KIB
CONVERSIONS_MAX: Final = 4
"""Concurrent conversions. Further requests wait."""
CONVERSION_BYTES_MAX: Final = 144 * limits.MIB
"""Memory of all conversions together: one of the largest responses, and some small ones."""
# JSON is parsed to text, then objects, then payloads: 3.3 times its bytes for one large payload, and 7
# times for many small ones.
_PARSE_FACTOR: Final = 7
# Data is in memory twice: as read and in its payload, or in its payload and as sent.
_DECODE_FACTOR: Final = 2
_HELD_BYTES_MIN: Final = 256 * limits.KIB
# Time that a request waits for its turn, and that a store may take to answer.
_WAIT_SECONDS_MAX: Final = 30.0
_CONVERT_SECONDS_MAX: Final = 60.0
# A slower client is disconnected: other requests wait for the memory of its response.
_SEND_SECONDS_MAX: Final = 120.0
# Divisible by 3, so that pieces of base64 can be joined.
_PIECE_BYTES: Final = 192 * limits.KIB
LOCAL_HOSTS: Final = ["127.0.0.1", "localhost", "[::1]"]
"""Allowed host names of a server without authentication."""
# Metadata key of a placeholder's ref. The value is text, since the UI reads metadata as UTF-8.
_REF_KEY: Final = "everlong-ref"
_ORIGIN: Final = re.compile(r"https?://[a-z0-9.-]+(:\d{1,5})?|https?://\[[0-9a-f:]+\](:\d{1,5})?")
_Convert: TypeAlias = Callable[[Sequence[Payload], "_Memory"], Awaitable[list[Payload]]]
Authorize: TypeAlias = Callable[[Request, str], Awaitable[None]]
"""Raises HTTPException if the request's user may not do the action, `decode` or `encode`."""
_SDK_ENCODINGS: Final = frozenset(
    {b"binary/null", b"binary/plain", b"json/plain", b"json/protobuf", b"binary/protobuf"}
)
_WARNED: Final[set[bytes]] = set()
_WARNED_MAX: Final = 16
_BUSY: Final = "The server is decoding as much as its memory allows. Try again in a moment."
# Headers of the UI. It sends the last two only if it is configured to pass on its user's tokens.
_HEADERS: Final = ("content-type", "x-namespace", "authorization", "authorization-extras")


def create_codec_app(
    store: BlobStore | PackStore,
    *,
    inner: PayloadCodec | None = None,
    token: str = "",
    cors_origins: Sequence[str] = (),
    background: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext,
    authorize: Authorize | None = None,
) -> FastAPI:
    """Return the codec server's application. With an empty token it accepts every request.

    `inner` is the codec that the workers have inside Everlong's. `background` is a context
    that is entered when the server starts and left before it ends. `authorize` replaces the token check.
    """
    app = FastAPI(
        title="Everlong codec server",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lambda _: background(),
    )
    codec = EverlongCodec(store, inner=inner)
    app.include_router(_make_router(codec, authorize or partial(_check_token, token)))

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> Response:
        # Log the reason: the CLI retries for 10 s and then reports only a deadline.
        route = request.scope["path"].rpartition("/")[2]
        logger.warning("/%s answered %d: %s", route, error.status_code, error.detail)
        return await http_exception_handler(request, error)

    if not token and authorize is None:
        # DNS rebinding: reject a page that points its own host name at 127.0.0.1.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_HOSTS)
    if cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[_check_origin(origin) for origin in cors_origins],
            allow_methods=["POST"],
            allow_headers=_HEADERS,
            # The UI may send cookies, for a single sign-on proxy in front of this server.
            allow_credentials=True,
            # A UI on another machine needs this when the codec server runs on the browser's machine.
            allow_private_network=True,
        )
    return app


def check_exposure(host: str, *, is_guarded: bool, allow_anonymous: bool) -> None:
    """Raise ConfigError if the server would accept unauthenticated requests beyond loopback."""
    if is_guarded or allow_anonymous or is_loopback(host):
        return
    raise ConfigError(
        f"listening on {host} would let everyone on the network read and change threads. Set "
        "EVERLONG_TOKEN or EVERLONG_TOKENS, or pass --allow-anonymous if a proxy protects the port."
    )


def _check_origin(origin: str) -> str:
    if not _ORIGIN.fullmatch(origin):
        raise ConfigError(
            f"{origin!r} is not a browser origin. Give scheme, host and port in lower case and nothing "
            "after them, such as http://127.0.0.1:8233."
        )
    return origin


def _make_router(codec: EverlongCodec, authorize: Authorize) -> APIRouter:
    router = APIRouter()
    conversions = _Conversions()

    async def answer(request: Request, action: str, convert: _Convert) -> Response:
        await authorize(request, action)
        _check_content_type(request)
        return await conversions.answer(request, await _read_body(request), convert)

    @router.post("/encode")
    @router.post("/{mount:path}/encode")
    async def encode(request: Request) -> Response:
        return await answer(request, "encode", partial(_encode, codec))

    @router.post("/decode")
    @router.post("/{mount:path}/decode")
    async def decode(request: Request) -> Response:
        for_ui = request.query_params.get("preserveStorageRefs", "").lower() == "true"
        return await answer(request, "decode", partial(_decode, codec, for_ui=for_ui))

    @router.post("/download")
    @router.post("/{mount:path}/download")
    async def download(request: Request) -> Response:
        # The UI adds preserveStorageRefs here too. It has no effect on a download.
        return await answer(request, "decode", partial(_download, codec))

    return router


class _Memory:
    """Share of the memory budget that one conversion holds."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._held = contextlib.AsyncExitStack()

    async def hold(self, size_bytes: int) -> None:
        """Hold so many bytes. Releases the bytes held before: waiting while holding could deadlock."""
        await self.release()
        try:
            async with asyncio.timeout(_WAIT_SECONDS_MAX):
                await self._held.enter_async_context(
                    self._budget.reserve(max(size_bytes, _HELD_BYTES_MIN))
                )
        except TimeoutError:
            raise HTTPException(503, _BUSY, {"retry-after": "2"}) from None

    async def release(self) -> None:
        """Release the held bytes."""
        await self._held.aclose()


class _Conversions:
    """Converts payloads of requests, with bounded concurrency and memory."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(CONVERSIONS_MAX)
        self._budget = ByteBudget(CONVERSION_BYTES_MAX)

    async def answer(self, request: Request, body: bytes, convert: _Convert) -> Response:
        """Return the response to a body. The response holds its share of memory until it is sent."""
        memory = _Memory(self._budget)
        try:
            async with self._places:
                await memory.hold(_PARSE_FACTOR * len(body))
                if await request.is_disconnected():  # It may have waited a long time.
                    raise HTTPException(408, "the client has disconnected")
                # In an OS thread: parsing hostile JSON must not block the event loop.
                payloads = await asyncio.to_thread(_parse_payloads, body)
                return _PayloadsResponse(await _run_conversion(payloads, convert, memory), memory)
        except BaseException:
            await memory.release()
            raise


class _PayloadsResponse(Response):
    """Payloads as JSON, sent in pieces, so that at most one payload is in memory twice."""

    media_type = "application/json"

    def __init__(self, payloads: list[Payload], memory: _Memory) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._payloads = payloads
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            async with asyncio.timeout(_SEND_SECONDS_MAX):
                await send(start)
                for piece in _join_pieces(_write_json(self._payloads)):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    await asyncio.sleep(0)
                await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            # uvicorn closes the connection of an incomplete response.
            logger.warning("a response was cancelled: the client did not read it in time")
        finally:
            self._payloads.clear()
            await self._memory.release()


def _write_json(payloads: list[Payload]) -> Iterator[bytes]:
    """Yield payloads in protobuf's JSON form. Removes each from the list before the next."""
    yield b'{"payloads": ['
    payloads.reverse()
    is_first = True
    while payloads:
        payload = payloads.pop()
        if not is_first:
            yield b", "
        is_first = False
        data = payload.data
        if len(data) <= _PIECE_BYTES:
            yield json_format.MessageToJson(payload, indent=None).encode()
            continue
        rest = Payload(metadata=payload.metadata, external_payloads=payload.external_payloads)
        del payload
        text = json_format.MessageToJson(rest, indent=None)
        # Append the data to the other fields.
        yield text[:-1].encode() + (b', "data": "' if text != "{}" else b'"data": "')
        view = memoryview(data)
        for at in range(0, len(view), _PIECE_BYTES):
            yield binascii.b2a_base64(view[at : at + _PIECE_BYTES], newline=False)
        yield b'"}'
    yield b"]}"


def _join_pieces(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join small pieces, so that each is worth sending."""
    parts: list[bytes] = []
    size_bytes = 0
    for piece in pieces:
        parts.append(piece)
        size_bytes += len(piece)
        if size_bytes >= _PIECE_BYTES:
            yield b"".join(parts)
            parts, size_bytes = [], 0
    if parts:
        yield b"".join(parts)


async def _encode(
    codec: EverlongCodec, payloads: Sequence[Payload], memory: _Memory
) -> list[Payload]:
    """Encode payloads. Large ones are compressed and stored."""
    await memory.hold(2 * _DECODE_FACTOR * sum(payload.ByteSize() for payload in payloads))
    return await _run_codec(codec, codec.encode(payloads))


async def _run_codec(codec: EverlongCodec, work: Awaitable[list[Payload]]) -> list[Payload]:
    """Await a codec. Translates errors of the inner codec, which may raise anything."""
    try:
        return await work
    except (EverlongError, TimeoutError):
        raise
    except Exception as error:
        if codec.inner is None:
            raise
        name = type(codec.inner).__name__
        # Without its message, which may hold content.
        raise HTTPException(
            422, f"the payload codec {name} cannot convert these payloads ({type(error).__name__})"
        ) from None


async def _download(
    codec: EverlongCodec, payloads: Sequence[Payload], memory: _Memory
) -> list[Payload]:
    """Return the whole values of refs."""
    if not all(is_ref(_unwrap(payload)) for payload in payloads):
        # Not 404: the UI would conclude that the server has no such endpoint.
        raise HTTPException(400, "these payloads are not all refs to Everlong's store")
    return await _decode(codec, payloads, memory)


async def _decode(
    codec: EverlongCodec, payloads: Sequence[Payload], memory: _Memory, *, for_ui: bool = False
) -> list[Payload]:
    """Decode payloads. For the UI, placeholders replace large ones."""
    payloads = [_unwrap(payload) for payload in payloads]
    sizes = await asyncio.to_thread(lambda: list(map(plain_bytes, payloads)))
    kept = [
        for_ui and size_bytes > SHOWN_BYTES_MAX and is_ref(payload)
        for payload, size_bytes in zip(payloads, sizes, strict=True)
    ]
    chosen_bytes = sum(size for size, keep in zip(sizes, kept, strict=True) if not keep)
    if chosen_bytes > RESPONSE_BYTES_MAX:
        raise HTTPException(
            413,
            f"these payloads decode to over {RESPONSE_BYTES_MAX} bytes. Ask for fewer at once, or read "
            "them with a client that has the plugin.",
        )
    await memory.hold(_DECODE_FACTOR * chosen_bytes)
    chosen = [payload for payload, keep in zip(payloads, kept, strict=True) if not keep]
    decoded = iter(await _decode_batches(codec, chosen))
    return [
        _make_placeholder(payload, size_bytes) if keep else next(decoded)
        for payload, size_bytes, keep in zip(payloads, sizes, kept, strict=True)
    ]


async def _decode_batches(codec: EverlongCodec, payloads: Sequence[Payload]) -> list[Payload]:
    decoded: list[Payload] = []
    for start in range(0, len(payloads), _BATCH_PAYLOADS):
        batch = payloads[start : start + _BATCH_PAYLOADS]
        decoded += await _run_codec(codec, codec.decode(batch))
        for given, found in zip(batch, decoded[start:], strict=True):
            if is_encoded(given):
                _warn_of_encoding(found.metadata.get("encoding", b""))
    return decoded


def _warn_of_encoding(encoding: bytes) -> None:
    """Log once for each encoding that the Temporal UI does not show.

    This is not an error: a custom converter may write values for a UI of its own.
    """
    if encoding in _SDK_ENCODINGS or encoding in _WARNED or len(_WARNED) >= _WARNED_MAX:
        return
    _WARNED.add(encoding)
    logger.warning(
        "values decode to the encoding %r, which the Temporal UI does not show. If your workers have a "
        "payload codec inside Everlong's, start everlong serve with --codec module:name "
        "(EVERLONG_CODEC).",
        encoding[:60].decode(errors="replace"),
    )


def _make_placeholder(payload: Payload, size_bytes: int) -> Payload:
    """Return a payload that the UI shows as a reference with a download button."""
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


def _unwrap(payload: Payload) -> Payload:
    """Return the ref of a placeholder, and any other payload unchanged.

    The UI sends the ref of the history. Other clients may send the placeholder that `/decode` returned.
    """
    wrapped = payload.metadata.get(_REF_KEY)
    if wrapped is None:
        return payload
    try:
        return Payload.FromString(base64.b64decode(wrapped, validate=True))
    except (binascii.Error, DecodeError):
        raise HTTPException(400, "a placeholder is damaged: its ref does not parse") from None


async def _run_conversion(
    payloads: Sequence[Payload], convert: _Convert, memory: _Memory
) -> list[Payload]:
    try:
        async with asyncio.timeout(_WAIT_SECONDS_MAX + _CONVERT_SECONDS_MAX):
            return await convert(payloads, memory)
    except TimeoutError:
        seconds = f"{_CONVERT_SECONDS_MAX:.0f} s"
        raise HTTPException(503, f"the blob store did not answer within {seconds}") from None
    except EverlongError as error:
        # The UI retries after a 5xx, and shows the encoded value after a 4xx.
        status = 503 if isinstance(error, StoreUnavailable) else 422
        raise HTTPException(status, f"{type(error).__name__}: {error}") from error


async def _check_token(token: str, request: Request, _: str) -> None:
    given = request.headers.get("authorization", "")
    if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        raise make_authentication_error()


def make_authentication_error() -> HTTPException:
    """Return the 401 for a request without a valid token."""
    return HTTPException(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})


def _check_content_type(request: Request) -> None:
    # Browsers send this type across origins only after a CORS preflight.
    content_type = request.headers.get("content-type", "").partition(";")[0]
    if content_type.strip().lower() != "application/json":
        raise HTTPException(415, "send application/json")


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > REQUEST_BYTES_MAX:
            raise HTTPException(413, f"the body has more than {REQUEST_BYTES_MAX} bytes")
    # Before parsing: a megabyte may hold one payload, or 300,000.
    if sum(map(body.count, _MARKS)) > _MARKS_MAX:
        raise _make_count_error()
    return bytes(body)


def _parse_payloads(body: bytes) -> Sequence[Payload]:
    try:
        payloads = json_format.Parse(body, Payloads()).payloads
    except (json_format.ParseError, UnicodeDecodeError, RecursionError):
        raise HTTPException(400, "the body is not Temporal payloads as JSON") from None
    if len(payloads) > PAYLOADS_MAX:
        raise _make_count_error()
    return payloads


def _make_count_error() -> HTTPException:
    return HTTPException(413, f"more than {PAYLOADS_MAX} payloads. Ask for fewer at once.")
