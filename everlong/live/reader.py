"""Reader of live output: follows one thread for a terminal, from an OS thread of its own.

It connects again by itself. What it misses is in the journal, so it keeps nothing.
"""

import asyncio
import contextlib
import http.client
import json
import random
import socket
import threading
from collections.abc import Callable
from typing import Any, Final, Self, cast
from urllib.parse import urlencode

from everlong import limits
from everlong.live.connection import ERRORS, build_headers, build_path, open_connection
from everlong.live.models import LiveEvent, LiveServer

CONNECT_SECONDS_MAX: Final = 1.0
"""Time that a caller waits for the connection: a step that begins before it is shown a second later."""
READ_SECONDS_MAX: Final = 40.0
"""Time without a byte after which the connection counts as lost. The server sends a ping each 15 s."""
LINE_BYTES_MAX: Final = 2 * limits.MIB
"""The longest event: a text of 128 Ki characters, of up to 12 bytes each as JSON."""
EVENTS_MAX: Final = 256
"""Events that wait for the event loop. Beyond it, the server has to wait, and drops a slow reader."""
PAUSE_SECONDS_MIN: Final = 0.5
PAUSE_SECONDS_MAX: Final = 10.0
_PROBLEMS: Final = {
    401: "it wants a token: set EVERLONG_LIVE_TOKEN",
    403: "the user of EVERLONG_LIVE_TOKEN may not read threads",
    404: "it has no live output: check EVERLONG_LIVE_URL",
    429: "too many clients follow threads there",
}


class LiveReader:
    """Calls `on_event` in the event loop with each event of a thread, while its block runs.

    `on_problem` is called once with why there is no output, if that is so.
    """

    def __init__(
        self,
        server: LiveServer,
        thread_id: str,
        on_event: Callable[[LiveEvent], None],
        on_problem: Callable[[str], None],
    ) -> None:
        self._server = server
        # A parameter: proxies may change `%2F` and dots in a path.
        self._path = f"/api/v1/threads/-/live?{urlencode({'id': thread_id})}"
        self._on_event = on_event
        self._on_problem = on_problem
        self._room = threading.Semaphore(EVENTS_MAX)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._has_problem = False
        self._failures = 0

    async def __aenter__(self) -> Self:
        """Start to follow; wait until the server knows it, or does not answer at once."""
        self._loop = asyncio.get_running_loop()
        self._heard = asyncio.Event()
        # A daemon: a read that waits must not keep the process from ending.
        threading.Thread(target=self._run, name="everlong-live-reader", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                await self._heard.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop. The thread ends by itself."""
        self._closed.set()
        with self._lock:
            if self._socket is not None:
                with contextlib.suppress(OSError):  # The server has closed it.
                    self._socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._read_stream()
            except ERRORS as error:
                self._report_problem(f"it does not answer ({type(error).__name__})")
            except ValueError:
                self._report_problem("its answer is not live output: check EVERLONG_LIVE_URL")
            self._failures += 1
            seconds = min(PAUSE_SECONDS_MIN * 2 ** min(self._failures, 10), PAUSE_SECONDS_MAX)
            self._closed.wait(seconds * random.uniform(0.5, 1.0))  # noqa: S311

    def _read_stream(self) -> None:
        connection = open_connection(self._server, READ_SECONDS_MAX)
        try:
            connection.connect()
            with self._lock:
                self._socket = connection.sock
            headers = {"Accept": "text/event-stream", **build_headers(self._server)}
            connection.request("GET", build_path(self._server, self._path), headers=headers)
            response = connection.getresponse()
            if response.status == http.client.OK:
                self._read_events(response)
            else:
                status = response.status
                self._report_problem(_PROBLEMS.get(status, f"it answered with status {status}"))
        finally:
            with self._lock:
                self._socket = None
            connection.close()

    def _read_events(self, response: http.client.HTTPResponse) -> None:
        """Pass on events until the stream ends."""
        name = ""
        while not self._closed.is_set() and (line := response.readline(LINE_BYTES_MAX)):
            if len(line) == LINE_BYTES_MAX:
                raise ValueError("an event is too long")
            if not line.endswith(b"\n"):
                return  # The connection broke off.
            field, _, value = line.decode().rstrip("\r\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                self._failures = 0
                # Callers ignore names that they do not know.
                event = LiveEvent(cast("Any", name), json.loads(value))
                self._pass_on(event)

    def _pass_on(self, event: LiveEvent) -> None:
        while not self._room.acquire(timeout=1.0):
            if self._closed.is_set():
                return
        self._call(self._take, event)

    def _take(self, event: LiveEvent) -> None:
        self._room.release()
        self._heard.set()
        if not self._closed.is_set():
            self._on_event(event)

    def _take_problem(self, text: str) -> None:
        self._heard.set()
        if not self._closed.is_set():
            self._on_problem(text)

    def _report_problem(self, text: str) -> None:
        if not self._has_problem and not self._closed.is_set():
            self._has_problem = True
            self._call(self._take_problem, f"no live output from {self._server.url}: {text}")

    def _call(self, function: Callable[..., None], argument: object) -> None:
        with contextlib.suppress(RuntimeError):  # The event loop is closed: the process ends.
            self._loop.call_soon_threadsafe(function, argument)
