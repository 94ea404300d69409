"""The reader of live output: events, problems, reconnections."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from everlong.config import get_dev_live_file, load_settings, read_dev_live_url
from everlong.connection import find_live_server, get_live_server
from everlong.live import LiveServer
from everlong.live import reader as reader_module
from everlong.live.hub import format_event
from everlong.live.models import LiveEvent
from everlong.live.reader import LiveReader

OPEN = LiveEvent("open", {"thread_id": "t"})
DELTA = LiveEvent("delta", {"step": "a", "offset": 0, "text": "naïve\n😀"})
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class FakeServer:
    """Gives its answers in order, the last one again and again, and keeps the requests."""

    def __init__(self, *answers: Sequence[bytes]) -> None:
        self._answers = answers
        self.requests: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            self.requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
            answer = self._answers[min(len(self.requests), len(self._answers)) - 1]
            for part in answer:
                if not part:  # The stream stays open.
                    await reader.read()
                writer.write(part)
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[LiveServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            yield LiveServer(url=f"http://127.0.0.1:{port}/below/", token="reader-token")
        await asyncio.wait_for(asyncio.gather(*self._tasks), 10)


async def wait_for(done: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "PAUSE_SECONDS_MIN", 0.01)


async def test_events_arrive_and_a_lost_stream_is_opened_again() -> None:
    events: list[LiveEvent] = []
    problems: list[str] = []
    fake = FakeServer(
        [HEAD, chunk(format_event(OPEN)), chunk(b": ping\n\n"), chunk(format_event(DELTA)[:-9])],
        [HEAD, chunk(format_event(OPEN) + format_event(DELTA)), b""],
    )
    async with fake.serve() as server:
        async with LiveReader(server, "a/b ü", events.append, problems.append):
            await wait_for(lambda: len(events) == 3)
        threads = {each.name for each in threading.enumerate()}
        if "everlong-live-reader" in threads:  # It ends by itself.
            await asyncio.to_thread(time.sleep, 0.2)
    assert events == [OPEN, OPEN, DELTA]
    assert problems == []
    assert fake.requests[0].startswith("GET /below/api/v1/threads/-/live?id=a%2Fb+%C3%BC HTTP/1.1")
    assert "Authorization: Bearer reader-token" in fake.requests[0]
    assert "everlong-live-reader" not in {each.name for each in threading.enumerate()}


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, "set EVERLONG_LIVE_TOKEN"),
        (403, "may not read threads"),
        (404, "check EVERLONG_LIVE_URL"),
        (500, "status 500"),
    ],
)
async def test_a_refusal_is_told_once(status: int, remedy: str) -> None:
    problems: list[str] = []
    fake = FakeServer([f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode()])
    async with fake.serve() as server:
        async with LiveReader(server, "t", lambda _: None, problems.append):
            assert len(problems) == 1  # The start waits for it.
            await wait_for(lambda: len(fake.requests) > 2)
    assert len(problems) == 1
    assert remedy in problems[0]
    assert "reader-token" not in problems[0]


@pytest.mark.parametrize("data", [b"data: not json\n\n", b"data: \xff\n\n"])
async def test_an_answer_that_is_no_stream_of_events_is_told(data: bytes) -> None:
    problems: list[str] = []
    async with FakeServer([HEAD, chunk(data), b""]).serve() as server:
        async with LiveReader(server, "t", lambda _: None, problems.append):
            await wait_for(lambda: problems)
    assert "not live output" in problems[0]


async def test_an_event_beyond_the_bound_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "LINE_BYTES_MAX", 1000)
    events: list[LiveEvent] = []
    problems: list[str] = []
    fake = FakeServer([HEAD, chunk(b"data: " + b"x" * 5000), b""])
    async with fake.serve() as server:
        async with LiveReader(server, "t", events.append, problems.append):
            await wait_for(lambda: problems)
    assert events == []


async def test_an_absent_server_does_not_delay_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "CONNECT_SECONDS_MAX", 0.05)
    async with FakeServer([b""]).serve() as server:  # It accepts, and never answers.
        began = time.monotonic()
        async with LiveReader(server, "t", lambda _: None, lambda _: None):
            assert time.monotonic() - began < 5


def test_commands_find_the_server_of_a_running_dev_stack(tmp_path: Path) -> None:
    settings = load_settings({"EVERLONG_DATA_DIR": str(tmp_path)})
    assert find_live_server(settings) is None
    file = get_dev_live_file(tmp_path)
    file.write_text("http://127.0.0.1:8234", encoding="ascii")
    assert find_live_server(settings) == LiveServer(url="http://127.0.0.1:8234")
    assert get_live_server(settings) is None  # Workers need the setting.
    env = {
        "EVERLONG_DATA_DIR": str(tmp_path),
        "EVERLONG_LIVE_URL": "https://ops.example.org",
        "EVERLONG_LIVE_TOKEN": "secret",
    }
    configured = find_live_server(load_settings(env))
    assert configured == LiveServer(url="https://ops.example.org", token="secret")
    assert "secret" not in repr(configured) + repr(load_settings(env))


@pytest.mark.parametrize(
    "text",
    [
        "http://evil.example:80",
        "http://127.0.0.1:1/x",
        "http://127.0.0.1:1@evil",
        "",
        "x" * 9999,
        "ü",
    ],
)
def test_a_planted_file_names_no_other_machine(tmp_path: Path, text: str) -> None:
    get_dev_live_file(tmp_path).write_text(text, encoding="utf-8")
    assert read_dev_live_url(tmp_path) == ""
