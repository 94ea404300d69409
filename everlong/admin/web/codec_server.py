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
from everlong.codecs.codec import is_encoded, plain_bytes
from everlong.codecs.refs import is_ref, parse_ref
from everlong.config import is_loopback
from everlong.errors import ConfigError, EverlongError, StoreUnavailable
from everlong.storage import BlobStore
from everlong.storage.byte_budget import ByteBudget
from everlong.storage.pack_store import PackStore, pack_key

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
CONVERSIONS_MAX: Final = 4
"""Requests that are converted at a time. Others wait."""
CONVERSION_BYTES_MAX: Final = 144 * limits.MIB
"""Memory that all conversions take together: one of the largest responses, and some small ones."""
# JSON is parsed to a text, to objects and to payloads, one after another: 3.3 times its bytes for one
# large payload, and 7 times for many small ones.
_PARSE_FACTOR: Final = 7
# Data is in memory twice: as it is read, and in its payload; or in its payload, and as it is sent.
_DECODE_FACTOR: Final = 2
_LEAST_BYTES: Final = 256 * limits.KIB
# A request waits so long for its turn, and a store that does not answer keeps its place no longer.
_WAIT_SECONDS_MAX: Final = 30.0
_CONVERT_SECONDS_MAX: Final = 60.0
# A client that takes longer over a response is cut off: others wait for the memory.
_SEND_SECONDS_MAX: Final = 120.0
# Divisible by 3, so that pieces of base64 can be joined.
_PIECE_BYTES: Final = 192 * limits.KIB
LOCAL_HOSTS: Final = ["127.0.0.1", "localhost", "[::1]"]
"""Names that a server is reached by which lets everybody in."""
# Where a placeholder keeps the ref that it stands for. As text: the UI reads metadata as UTF-8.
_REF_KEY: Final = "everlong-ref"
_ORIGIN: Final = re.compile(r"https?://[a-z0-9.-]+(:\d{1,5})?|https?://\[[0-9a-f:]+\](:\d{1,5})?")
_Convert: TypeAlias = Callable[[Sequence[Payload], "_Memory"], Awaitable[list[Payload]]]
Admit: TypeAlias = Callable[[Request, str], Awaitable[None]]
"""Raises `HTTPException` for somebody who may not do the action that is named: decode or encode."""
_SDK_ENCODINGS: Final = frozenset(
    {b"binary/null", b"binary/plain", b"json/plain", b"json/protobuf", b"binary/protobuf"}
)
_WARNED: Final[set[bytes]] = set()
_WARNED_MAX: Final = 16
_BUSY: Final = "The server decodes as much as its memory allows. Try again."
# What the UI sends; the last two only where it is told to pass its user's tokens on.
_HEADERS: Final = ("content-type", "x-namespace", "authorization", "authorization-extras")


def create_app(
    store: BlobStore | PackStore,
    *,
    inner: PayloadCodec | None = None,
    token: str = "",
    cors_origins: Sequence[str] = (),
    beside: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext,
    admit: Admit | None = None,
) -> FastAPI:
    """Return the codec server's application. An empty token lets everybody in who reaches it.

    `inner` is the codec that a team's workers have inside Everlong's.
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
    codec = EverlongCodec(store, inner=inner)
    app.include_router(_routes(codec, admit or partial(_admit, token)))

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
    conversions = _Conversions()

    async def answer(request: Request, action: str, convert: _Convert) -> Response:
        await admit(request, action)
        _check_type(request)
        return await conversions.answer(request, await _read(request), convert)

    @router.post("/encode")
    @router.post("/{mount:path}/encode")
    async def encode(request: Request) -> Response:
        return await answer(request, "encode", partial(_encode, codec))

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


class _Memory:
    """The share of the server's memory that one conversion holds."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._held = contextlib.AsyncExitStack()

    async def hold(self, size_bytes: int) -> None:
        """Hold so many bytes, and nothing of before: what holds some and waits could wait for ever."""
        await self.release()
        try:
            async with asyncio.timeout(_WAIT_SECONDS_MAX):
                await self._held.enter_async_context(
                    self._budget.reserve(max(size_bytes, _LEAST_BYTES))
                )
        except TimeoutError:
            raise HTTPException(503, _BUSY, {"retry-after": "2"}) from None

    async def release(self) -> None:
        """Give back what is held."""
        await self._held.aclose()


class _Conversions:
    """Converts payloads for requests, a bounded number at a time and in bounded memory."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(CONVERSIONS_MAX)
        self._budget = ByteBudget(CONVERSION_BYTES_MAX)

    async def answer(self, request: Request, body: bytes, convert: _Convert) -> Response:
        """Return the response to a body. It holds its share of memory until it is sent."""
        memory = _Memory(self._budget)
        try:
            async with self._places:
                await memory.hold(_PARSE_FACTOR * len(body))
                if await request.is_disconnected():  # It may have waited for long.
                    raise HTTPException(408, "the client is gone")
                # In a thread: however odd the JSON is, other requests are answered meanwhile.
                payloads = await asyncio.to_thread(_parsed, body)
                return _PayloadsResponse(await _converted(payloads, convert, memory), memory)
        except BaseException:
            await memory.release()
            raise


class _PayloadsResponse(Response):
    """Payloads as JSON, written piece by piece: no more than one payload is in memory twice."""

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
                for piece in _joined(_as_json(self._payloads)):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    await asyncio.sleep(0)
                await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            # The server closes a connection whose response is not complete.
            logger.warning("a response was given up: its client did not read it in time")
        finally:
            self._payloads.clear()
            await self._memory.release()


def _as_json(payloads: list[Payload]) -> Iterator[bytes]:
    """Yield payloads as protobuf writes them in JSON. Each is dropped from the list before the next."""
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
        # The data follows whatever the rest has.
        yield text[:-1].encode() + (b', "data": "' if text != "{}" else b'"data": "')
        view = memoryview(data)
        for at in range(0, len(view), _PIECE_BYTES):
            yield binascii.b2a_base64(view[at : at + _PIECE_BYTES], newline=False)
        yield b'"}'
    yield b"]}"


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield pieces that are worth sending: small ones are joined."""
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
    """Encode payloads: what is large is compressed and stored."""
    await memory.hold(2 * _DECODE_FACTOR * sum(payload.ByteSize() for payload in payloads))
    return await _by_team(codec, codec.encode(payloads))


async def _by_team(codec: EverlongCodec, work: Awaitable[list[Payload]]) -> list[Payload]:
    """Return what a codec makes of payloads. A team's codec inside may raise anything."""
    try:
        return await work
    except (EverlongError, TimeoutError):
        raise
    except Exception as error:
        if codec.inner is None:
            raise
        name = type(codec.inner).__name__
        # Without its words, which may hold content.
        raise HTTPException(
            422, f"the payload codec {name} does not take these payloads ({type(error).__name__})"
        ) from None


async def _download(
    codec: EverlongCodec, payloads: Sequence[Payload], memory: _Memory
) -> list[Payload]:
    """Return the values of refs, whole."""
    if not all(is_ref(_unwrapped(payload)) for payload in payloads):
        # Not 404: the UI takes that for a server without this endpoint.
        raise HTTPException(400, "these payloads are not all refs to Everlong's store")
    return await _decode(codec, payloads, memory)


async def _decode(
    codec: EverlongCodec, payloads: Sequence[Payload], memory: _Memory, *, for_page: bool = False
) -> list[Payload]:
    """Decode payloads, but for large ones that are for a page: placeholders stand for those."""
    payloads = [_unwrapped(payload) for payload in payloads]
    sizes = await asyncio.to_thread(lambda: list(map(plain_bytes, payloads)))
    kept = [
        for_page and size_bytes > SHOWN_BYTES_MAX and is_ref(payload)
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
    decoded = iter(await _in_batches(codec, chosen))
    return [
        _placeholder(payload, size_bytes) if keep else next(decoded)
        for payload, size_bytes, keep in zip(payloads, sizes, kept, strict=True)
    ]


async def _in_batches(codec: EverlongCodec, payloads: Sequence[Payload]) -> list[Payload]:
    decoded: list[Payload] = []
    for start in range(0, len(payloads), _BATCH_PAYLOADS):
        batch = payloads[start : start + _BATCH_PAYLOADS]
        decoded += await _by_team(codec, codec.decode(batch))
        for given, found in zip(batch, decoded[start:], strict=True):
            if is_encoded(given):
                _warn_of_foreign(found.metadata.get("encoding", b""))
    return decoded


def _warn_of_foreign(encoding: bytes) -> None:
    """Log once that a value is shown as another codec, or a converter, has written it.

    It is no error: a team's converter may write what only its own UI shows.
    """
    if encoding in _SDK_ENCODINGS or encoding in _WARNED or len(_WARNED) >= _WARNED_MAX:
        return
    _WARNED.add(encoding)
    logger.warning(
        "values decode to the encoding %r, which Temporal's UI does not show. If your workers have a "
        "payload codec of their own, start everlong serve with --codec module:name (EVERLONG_CODEC).",
        encoding[:60].decode(errors="replace"),
    )


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


async def _converted(
    payloads: Sequence[Payload], convert: _Convert, memory: _Memory
) -> list[Payload]:
    try:
        async with asyncio.timeout(_WAIT_SECONDS_MAX + _CONVERT_SECONDS_MAX):
            return await convert(payloads, memory)
    except TimeoutError:
        seconds = f"{_CONVERT_SECONDS_MAX:.0f} s"
        raise HTTPException(503, f"the blob store did not answer within {seconds}") from None
    except EverlongError as error:
        # The UI asks again after a 5xx, and shows what it has after a 4xx.
        status = 503 if isinstance(error, StoreUnavailable) else 422
        raise HTTPException(status, f"{type(error).__name__}: {error}") from error


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
