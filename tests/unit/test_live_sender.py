"""The sender of live output: what it posts, when it does not, and what it survives."""

import asyncio
import contextlib
import http.server
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter
from pydantic_core import to_json

from everlong.errors import ConfigError
from everlong.live import LiveSender, LiveServer
from everlong.live import hub as hub_module
from everlong.live import sender as sender_module
from everlong.live.hub import Listener, LiveHub
from everlong.live.models import PIECE_CHARS_MAX, TEXT_CHARS_MAX, LiveAnswer, LivePost
from everlong.live.sender import StepOutput

_POST = TypeAdapter(LivePost)


class FakeAdmin:
    """Admin server on loopback: a hub behind HTTP, with faults."""

    def __init__(self) -> None:
        self.hub = LiveHub()
        self.bodies: list[Any] = []
        self.tokens: list[str] = []
        self.connections = 0
        self.status = 200
        self.hang = threading.Event()
        self.hang.set()

    @contextlib.contextmanager
    def serve(self) -> Iterator[str]:
        admin = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                admin.connections += 1
                super().setup()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                admin.hang.wait(10)
                admin.bodies.append(json.loads(body))
                admin.tokens.append(self.headers.get("Authorization", ""))
                found = b"{}"
                if admin.status == 200:
                    found = to_json(admin.hub.take(_POST.validate_json(body)))
                self.send_response(admin.status)
                self.send_header("Content-Length", str(len(found)))
                self.end_headers()
                with contextlib.suppress(OSError):  # The sender has given up waiting.
                    self.wfile.write(found)

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            self.hang.set()
            server.shutdown()
            thread.join()
            server.server_close()

    @property
    def text(self) -> str:
        """All that was posted."""
        return json.dumps(self.bodies)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "REFRESH_SECONDS", 0.1)
    monkeypatch.setattr(sender_module, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(sender_module, "PAUSE_SECONDS_MIN", 0.05)


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
async def sender(admin: FakeAdmin) -> AsyncIterator[LiveSender]:
    with admin.serve() as url:
        made = LiveSender(LiveServer(url=url, token="worker-token"))
        yield made
        await asyncio.to_thread(made.close)


def reply(sender: LiveSender, thread_id: str = "t", attempt: int = 1, **fields: Any) -> StepOutput:
    defaults = {"kind": "reply", "order": attempt * 1000, "seq": 4}
    return sender.open_step("default", thread_id=thread_id, attempt=attempt, **(defaults | fields))


async def wait_for(done: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


async def read(listener: Listener, count: int) -> list[tuple[str, Any]]:
    """Return the next events: each name, with its text, its reason or its attempt."""
    found: list[tuple[str, Any]] = []
    deadline = time.monotonic() + 10
    while len(found) < count:
        assert time.monotonic() < deadline, found
        # Polled: the events come from threads of the fake server.
        await asyncio.sleep(0.005)
        for each in await listener.next(0) if listener._events else ():
            data = each.data
            found.append((each.name, data.get("text", data.get("reason", data.get("attempt")))))
    return found


async def test_a_listener_gets_the_text_of_a_reply(admin: FakeAdmin, sender: LiveSender) -> None:
    with admin.hub.listen("default", "t", "ana") as listener:
        output = reply(sender)
        assert await read(listener, 2) == [("open", None), ("start", 1)]
        output.add("The log ")
        assert await read(listener, 1) == [("delta", "The log ")]
        output.add("is ")
        output.add("full.")
        output.end("done")
        events = await read(listener, 2)
    assert "".join(text for name, text in events if name == "delta") == "is full."
    assert events[-1][0] == "done"
    assert admin.connections == 1
    assert set(admin.tokens) == {"Bearer worker-token"}


async def test_text_is_not_sent_while_nobody_listens(admin: FakeAdmin, sender: LiveSender) -> None:
    began = time.monotonic()
    output = reply(sender)
    for _ in range(50):
        output.add("secret ")
        await asyncio.sleep(0.005)
    output.end("done")
    await asyncio.sleep(0.15)
    assert "secret" not in admin.text
    # One at the start, and one for each refresh.
    assert 1 <= len(admin.bodies) <= 1 + (time.monotonic() - began) / 0.1
    assert "done" not in admin.text


async def test_a_late_listener_gets_the_text_so_far(admin: FakeAdmin, sender: LiveSender) -> None:
    output = reply(sender)
    output.add("early ")
    await wait_for(lambda: admin.bodies)
    with admin.hub.listen("default", "t", "ana") as listener:
        assert await read(listener, 3) == [("open", None), ("start", 1), ("delta", "early ")]
    output.end("done")


async def test_the_shortest_steps_of_a_followed_thread_are_seen(
    admin: FakeAdmin, sender: LiveSender
) -> None:
    with admin.hub.listen("default", "t", "ana") as listener:
        first = reply(sender)
        await read(listener, 2)
        await wait_for(lambda: first.sent is not None)  # The sender knows of the listener.
        first.end("done")
        tool = sender.open_step(
            "default", thread_id="t", kind="tool", attempt=1, order=2000, call_id="c", tool="scan"
        )
        tool.end("done")
        assert [name for name, _ in await read(listener, 3)] == ["done", "start", "done"]


async def test_a_tool_shows_its_newest_progress(admin: FakeAdmin, sender: LiveSender) -> None:
    with admin.hub.listen("default", "t", "ana") as listener:
        tool = sender.open_step(
            "default", thread_id="t", kind="tool", attempt=1, order=1, call_id="c", tool="scan"
        )
        await read(listener, 2)
        for number in range(1000):
            tool.show(f"{number} of\n999 {'x' * 1000}")
        await wait_for(lambda: "999 of" in admin.text)
        shown = (await read(listener, 1))[-1]
        tool.end("done")
    assert shown[0] == "progress"
    assert len(shown[1]) == 300
    assert "\n" not in shown[1]


async def test_a_failed_attempt_is_cut_off(admin: FakeAdmin, sender: LiveSender) -> None:
    with admin.hub.listen("default", "t", "ana") as listener:
        first = reply(sender)
        first.add("half a re")
        await read(listener, 3)
        first.end("cut")
        second = reply(sender, attempt=2)
        second.add("whole")
        assert await read(listener, 3) == [("cut", "failed"), ("start", 2), ("delta", "whole")]
        second.end("done")


async def test_an_older_attempt_sends_no_more_text(admin: FakeAdmin, sender: LiveSender) -> None:
    with admin.hub.listen("default", "t", "ana") as listener:
        second = reply(sender, attempt=2)
        await read(listener, 2)
        first = reply(sender, attempt=1)  # Its worker was taken for dead.
        await wait_for(lambda: len(admin.bodies) > 3)
        first.add("stale")
        second.add("fresh")
        assert await read(listener, 1) == [("delta", "fresh")]
        assert "stale" not in admin.text
        second.end("done")


async def test_long_replies_are_sent_in_pieces_up_to_a_bound(
    admin: FakeAdmin, sender: LiveSender
) -> None:
    with admin.hub.listen("default", "t", "ana") as listener:
        output = reply(sender)
        await read(listener, 2)
        output.add("\N{GRINNING FACE}" * (TEXT_CHARS_MAX + 5))
        output.end("done")
        events = await read(listener, TEXT_CHARS_MAX // PIECE_CHARS_MAX + 1)
    assert events[-1][0] == "done"
    assert sum(len(text) for name, text in events if name == "delta") == TEXT_CHARS_MAX


async def test_lone_surrogates_are_sent_as_the_journal_stores_them(
    admin: FakeAdmin, sender: LiveSender
) -> None:
    with admin.hub.listen("default", "t", "ana") as listener:
        output = reply(sender)
        output.add("a\ud800b")
        assert (await read(listener, 3))[-1] == ("delta", "a?b")
        output.end("done")


async def test_steps_run_on_while_the_server_hangs(
    admin: FakeAdmin, sender: LiveSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "POST_SECONDS_MAX", 0.2)
    admin.hang.clear()
    began = time.monotonic()
    for _ in range(200):
        output = reply(sender)
        output.add("text")
        output.end("done")
    assert time.monotonic() - began < 0.2
    output = reply(sender, attempt=2)
    await asyncio.sleep(0.3)
    admin.hang.set()
    with admin.hub.listen("default", "t", "ana") as listener:
        output.add("after")
        events = await read(listener, 3)
    assert ("delta", "after") in events


async def test_an_absent_server_is_named_once_and_tried_again(
    admin: FakeAdmin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with admin.serve() as url:
        pass  # The port is free again.
    sender = LiveSender(LiveServer(url=url, token="worker-token"))
    output = reply(sender)
    await wait_for(lambda: sender._failures > 1)
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert "threads are not affected" in caplog.text
    assert "worker-token" not in caplog.text
    output.end("done")
    await asyncio.to_thread(sender.close)


async def test_a_refused_token_pauses_the_sender_and_says_what_to_do(
    admin: FakeAdmin, sender: LiveSender, caplog: pytest.LogCaptureFixture
) -> None:
    admin.status = 403
    output = reply(sender)
    await wait_for(lambda: "role worker, in EVERLONG_LIVE_TOKEN" in caplog.text)
    await asyncio.sleep(0.2)
    assert len(admin.bodies) == 1
    output.end("done")


async def test_a_restarted_server_gets_the_text_again(
    admin: FakeAdmin, sender: LiveSender, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    output = reply(sender)
    output.add("so far")
    await wait_for(lambda: admin.bodies)
    admin.status = 503
    await wait_for(lambda: sender._failures)
    admin.hub, admin.status = LiveHub(), 200
    with admin.hub.listen("default", "t", "ana") as listener:
        assert (await read(listener, 3))[-1] == ("delta", "so far")
    assert "on again" in caplog.text
    output.end("done")


async def test_the_thread_ends_with_close_and_begins_again(
    admin: FakeAdmin, sender: LiveSender
) -> None:
    reply(sender).end("done")
    await asyncio.to_thread(sender.close)
    async with asyncio.timeout(30):  # `close` waits for 1 s at most, and this machine may be busy.
        while sender._thread is not None:
            await asyncio.sleep(0.01)
    with admin.hub.listen("default", "t", "ana") as listener:
        output = reply(sender)
        assert len(await read(listener, 2)) == 2
        output.end("cut")
        await asyncio.to_thread(sender.close)  # What was news before is posted.
        assert await read(listener, 1) == [("cut", "failed")]


async def test_memory_is_bounded(sender: LiveSender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "STEPS_MAX", 3)
    monkeypatch.setattr(sender_module, "CHARS_MAX", 100)
    outputs = [reply(sender, f"t{number}") for number in range(5)]
    for output in outputs:
        output.add("x" * 60)
    assert (len(sender._outputs), sender._chars) == (3, 100)
    for output in outputs:
        output.end("done")
    await asyncio.to_thread(sender.close)
    assert (len(sender._outputs), sender._chars) == (0, 0)


async def test_a_step_beyond_the_bounds_of_the_wire_is_not_reported(
    admin: FakeAdmin, sender: LiveSender
) -> None:
    output = reply(sender, "t" * 5000)
    output.add("text")
    output.show("progress")
    output.end("done")
    assert not sender._outputs


async def test_an_answer_beyond_what_was_sent_is_no_fault(
    admin: FakeAdmin, sender: LiveSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = reply(sender)
    output.add("text")
    have = [-5, 1_000_000]
    monkeypatch.setattr(
        admin.hub, "take", lambda _: LiveAnswer(chars={output.step.id: have.pop(0) if have else 0})
    )
    await wait_for(lambda: not have)
    before = len(admin.bodies)
    await wait_for(lambda: len(admin.bodies) > before + 1)
    output.end("done")
    assert sender._thread is not None


async def test_a_killed_workers_step_is_cut_off_by_the_server(
    admin: FakeAdmin, sender: LiveSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "SILENT_SECONDS", 0.0)
    with admin.hub.listen("default", "t", "ana") as listener:
        reply(sender).add("half")
        await read(listener, 3)
        await asyncio.sleep(0.01)
        admin.hub.end_silent()
        assert await read(listener, 1) == [("cut", "silent")]
        # It was only slow: its text is shown again.
        assert await read(listener, 2) == [("start", 1), ("delta", "half")]


@pytest.mark.parametrize(
    "url", ["", "localhost:8234", "ftp://host", "http://user:pass@host", "http://host?token=1"]
)
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"URL of the live server|credentials"):
        LiveServer(url=url)


def test_a_process_without_room_for_a_thread_runs_its_steps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    sender = LiveSender(LiveServer(url="http://127.0.0.1:9"))
    output = reply(sender)
    output.add("text")
    output.end("done")
    sender.close()
    assert not sender._outputs
    assert "threads are not affected: can't start new thread" in caplog.text
