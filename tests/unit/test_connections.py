"""Connections to the admin server: what a client may keep open, and for how long."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from everlong.admin.web import middleware
from everlong.admin.web import server as connections
from everlong.admin.web.middleware import Load, RequestLimits
from everlong.admin.web.server import BoundedProtocol

HEAD = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nHost: he"
OK = b"HTTP/1.1 200 OK"
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, and answer. The path says how slowly."""
    while scope["path"] != "/unread" and (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/slow":
        for _ in range(4):
            await asyncio.sleep(0.2)
            await send({"type": "http.response.body", "body": b"slow", "more_body": True})
    if scope["path"] == "/endless":
        for _ in range(1000):
            await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
            await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b"hello"})


@contextlib.asynccontextmanager
async def serve(app: ASGIApp = hello) -> AsyncIterator[tuple[int, ServerState]]:
    """Serve an application on a free port, without uvicorn's own handling of signals."""
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        h11_max_incomplete_event_size=connections.HEAD_BYTES_MAX,
    )
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: BoundedProtocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1], state
    finally:
        server.close()
        for task in list(state.tasks):
            task.cancel()
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.gather(*state.tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def connect(port: int, data: bytes = b"") -> AsyncIterator[Stream]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def read_rest(reader: asyncio.StreamReader, seconds: float = 5) -> bytes:
    """Return what arrives until the server closes."""
    async with asyncio.timeout(seconds):
        with contextlib.suppress(ConnectionResetError):
            return await reader.read()
        return b""


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALL_SECONDS_MAX", 0.3)
    monkeypatch.setitem(connections._SECONDS, "head", 0.3)
    monkeypatch.setitem(connections._SECONDS, "body", 0.3)


@pytest.mark.guarantee(88)
@pytest.mark.parametrize("sent", [b"", HALF, HEAD + HALF], ids=["nothing", "half", "second"])
async def test_a_connection_without_a_complete_head_is_closed_in_time(sent: bytes) -> None:
    async with serve() as (port, state), connect(port, sent) as (reader, writer):

        async def trickle() -> None:
            with contextlib.suppress(ConnectionError):
                while sent:
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        found = await read_rest(reader)
        await trickling
        assert found.startswith(OK) is sent.startswith(HEAD)
        assert not state.connections


@pytest.mark.parametrize("path", [b"/", b"/unread"])
async def test_a_body_that_trickles_is_cut_off_also_after_its_answer(path: bytes) -> None:
    head = b"POST " + path + b" HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serve() as (port, state), connect(port, head) as (reader, writer):

        async def trickle() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(b"1\r\nx\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        found = await read_rest(reader)
        await trickling
        assert found.startswith(OK) is (path == b"/unread")
        assert not state.connections


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    async with serve() as (port, state):
        async with connect(port, b"GET /endless HTTP/1.1\r\nHost: here\r\n\r\n"):
            async with asyncio.timeout(10):
                while not state.connections:
                    await asyncio.sleep(0.01)
                while state.connections:
                    await asyncio.sleep(0.05)


async def test_a_slow_answer_and_a_kept_connection_go_on() -> None:
    """Only what the client has to do is bounded: an answer may take any time."""
    async with serve() as (port, _), connect(port) as (reader, writer):
        for path in (b"/slow", b"/", b"/slow"):
            writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: here\r\n\r\n")
            async with asyncio.timeout(5):
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readuntil(b"0\r\n\r\n")
            assert head.startswith(OK)
            assert body.count(b"slow") == (4 if path == b"/slow" else 0)
            await asyncio.sleep(0.4)  # Idle: uvicorn's own time holds.


@pytest.mark.guarantee(88)
async def test_half_sent_heads_keep_no_other_client_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections._SECONDS, "head", 60)
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 20)
    async with serve() as (port, state), contextlib.AsyncExitStack() as opened:
        served = await opened.enter_async_context(
            connect(port, b"GET /slow HTTP/1.1\r\nHost: here\r\n\r\n")
        )
        for _ in range(3):  # Many in one turn of the event loop, too.
            halves = [connect(port, HALF) for _ in range(30)]
            await asyncio.gather(*(opened.enter_async_context(half) for half in halves))
        async with connect(port, HEAD) as (reader, _):
            async with asyncio.timeout(2):
                assert (await reader.readline()).startswith(OK)
        assert len(state.connections) <= 20
        async with asyncio.timeout(5):
            assert b"slow" in await served[0].readuntil(b"0\r\n\r\n")


async def test_a_head_that_is_too_long_is_refused() -> None:
    long = b"GET / HTTP/1.1\r\nHost: here\r\nX: " + b"x" * (connections.HEAD_BYTES_MAX + 1)
    async with serve() as (port, _), connect(port, long) as (reader, _):
        assert (await read_rest(reader)).startswith(b"HTTP/1.1 400")


# Bodies, by the layer that reads them.


class Reader:
    """An application that reads each body whole, and says how long it was."""

    def __init__(self) -> None:
        self.load = Load()
        self.most_bytes = 0
        self.app = RequestLimits(self._app, self.load, 1000)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            self.most_bytes = max(self.most_bytes, len(body))
            if not message.get("more_body"):
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % len(body)})


def make_scope(path: str = "/x", **headers: str) -> Scope:
    found = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": "POST", "path": path, "headers": found, "query_string": b""}


async def get_status(reader: Reader, scope: Scope, parts: list[bytes], pause: float = 0) -> int:
    """Send a body in parts; return the status, or that of the error that the application sees."""
    statuses: list[int] = []
    left = list(parts)

    async def receive() -> dict[str, object]:
        await asyncio.sleep(pause)
        part = left.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(int(str(message["status"])))

    try:
        await reader.app(scope, receive, send)  # type: ignore[arg-type]
    except HTTPException as error:
        return error.status_code
    return statuses[0]


@pytest.mark.guarantee(88)
@pytest.mark.parametrize("path", middleware.LOGIN_PATHS)
async def test_a_login_is_cut_off_while_it_is_read(path: str) -> None:
    reader = Reader()
    fits = [bytes(1024)] * 4
    assert await get_status(reader, make_scope(path), fits) == 200
    assert await get_status(reader, make_scope(path), [bytes(1024)] * 4096) == 413
    assert reader.most_bytes <= middleware.LOGIN_BYTES_MAX
    assert await get_status(reader, make_scope(path, content_length="4097"), []) == 413
    assert reader.load == Load()


async def test_a_body_is_bounded_in_bytes_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "BODY_SECONDS_MAX", 0.2)
    reader = Reader()
    assert await get_status(reader, make_scope(), [bytes(500), bytes(500)]) == 200
    assert await get_status(reader, make_scope(), [bytes(500), bytes(501)]) == 413
    for length in ("1001", "-1", "x", "9" * 5000, "²"):
        assert await get_status(reader, make_scope(content_length=length), [b""]) == 413
    assert await get_status(reader, make_scope(), [b"x"] * 50, pause=0.05) == 408
    assert reader.load == Load()


async def test_running_requests_are_bounded_separately_from_logins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(middleware, "REQUESTS_MAX", 3)
    monkeypatch.setattr(middleware, "LOGINS_MAX", 2)
    reader = Reader()
    statuses = await asyncio.gather(
        *(get_status(reader, make_scope("/login"), [b"x"], pause=0.1) for _ in range(5)),
        *(get_status(reader, make_scope("/x"), [b"x"], pause=0.1) for _ in range(5)),
    )
    assert sorted(statuses[:5]) == [200, 200, 503, 503, 503]
    assert sorted(statuses[5:]) == [200, 200, 200, 503, 503]
    assert reader.load == Load()


async def test_all_bodies_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "BODIES_BYTES_MAX", 1500)
    reader = Reader()
    statuses = await asyncio.gather(
        *(get_status(reader, make_scope(), [bytes(400), bytes(400)], pause=0.05) for _ in range(3))
    )
    # The bytes of one that was refused are free again.
    assert set(statuses) == {200, 503}
    assert await get_status(reader, make_scope(), [bytes(800)]) == 200
    assert reader.load == Load()
