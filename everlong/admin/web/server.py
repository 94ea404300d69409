"""The server process: uvicorn with its settings, limits of connections, settings of the C allocator.

uvicorn bounds only the time between two requests of a connection: a client that sends half of a request,
or does not read its response, would keep its connection open. `BoundedProtocol` bounds the
time that a client may take. The server may take any time for a response.
"""

import asyncio
import contextlib
import ctypes
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from everlong import limits

CONNECTIONS_MAX: Final = 512
"""Half of the 1,024 files that a process may have open on most systems. A dashboard takes 6."""
HEAD_BYTES_MAX: Final = 32 * limits.KIB
"""Request line and headers. 512 connections hold at most 16 MiB of them."""
HEAD_SECONDS_MAX: Final = 10.0
"""From the first byte, or from the start of the connection, until the headers are complete."""
REQUEST_SECONDS_MAX: Final = 75.0
"""From there until the body is complete. `RequestLimits` answers 408 before, if a route reads it."""
STALL_SECONDS_MAX: Final = 60.0
"""Time that a response waits for a client that does not read it."""
# uvicorn's own exit code for an application that does not start.
_START_FAILED: Final = 3


def run_server(
    app: FastAPI, host: str, port: int, *, on_stop: Callable[[], None] = lambda: None
) -> None:
    """Serve an application until SIGINT or SIGTERM. `on_stop` is called before it waits for requests."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        access_log=False,
        log_config=_add_logger(uvicorn.config.LOGGING_CONFIG),
        # The peer of the connection is the client: any client could forge a forwarding header.
        proxy_headers=False,
        ws="none",
        http=BoundedProtocol,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
    )
    server = _Server(config, on_stop)
    with contextlib.suppress(
        KeyboardInterrupt
    ):  # uvicorn raises the signal again, once it is done.
        server.run()
    if not server.started:
        sys.exit(_START_FAILED)


class _Server(uvicorn.Server):
    """uvicorn's server. It ends streams that have no end before it waits for open connections."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`."""
        self._on_stop()
        await super().shutdown(sockets)


def _add_logger(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a log configuration with our logger added, which writes one line for each request."""
    handler = {
        "class": "logging.StreamHandler",
        "formatter": "everlong",
        "stream": "ext://sys.stderr",
    }
    ours = {"handlers": ["everlong"], "level": "INFO", "propagate": False}
    form = {"format": "%(asctime)s %(levelname)s %(message)s"}
    return {
        **config,
        "formatters": {**config["formatters"], "everlong": form},
        "handlers": {**config["handlers"], "everlong": handler},
        "loggers": {**config["loggers"], "everlong": ours},
    }


_Phase: TypeAlias = Literal["head", "body", "served", "idle"]
_WAITING: Final = ("head", "idle")
_SECONDS: Final[dict[_Phase, float]] = {"head": HEAD_SECONDS_MAX, "body": REQUEST_SECONDS_MAX}


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol, with bounds on the connections that clients keep open.

    Beyond `CONNECTIONS_MAX`, it closes the connection that has waited longest for the head of a request,
    or else the one that has been idle longest. So clients that send nothing, or half of a request, never
    lock other clients out.
    """

    _phase: _Phase = "head"
    _since = 0.0
    _deadline: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._enter("head")
        if len(self.connections) > CONNECTIONS_MAX:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """See `H11Protocol`."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(STALL_SECONDS_MAX, self.drop)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def drop(self) -> None:
        """Close the connection at once, and discard what has not been sent."""
        self._cancel()
        # Now: the event loop closes the connection itself one turn later.
        self.connections.discard(self)
        self.transport.abort()

    def _make_room(self) -> None:
        others = [
            each
            for each in self.connections
            if isinstance(each, BoundedProtocol) and each is not self and each._phase in _WAITING
        ]
        # Half-sent heads first: "head" comes before "idle".
        min(others, key=lambda each: (each._phase, each._since), default=self).drop()

    def _watch(self) -> None:
        """Find the phase of the request, and start the timer if the client has to act."""
        if self.transport.is_closing():
            self._cancel()
            return
        phase: _Phase = "served"
        if self.conn.their_state is h11.IDLE:
            # uvicorn's own timer runs between two requests. The first byte of a request stops it.
            phase = "head" if self.timeout_keep_alive_task is None else "idle"
        elif self.conn.their_state is h11.SEND_BODY:
            phase = "body"
        if phase != self._phase:
            self._enter(phase)

    def _enter(self, phase: _Phase) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._phase, self._since = phase, time.monotonic()
        if phase in _SECONDS:
            self._deadline = self.loop.call_later(_SECONDS[phase], self.drop)

    def _cancel(self) -> None:
        for timer in (self._deadline, self._stall):
            if timer is not None:
                timer.cancel()
        self._deadline = self._stall = None


# Numbers of the options in glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE_BYTES: Final = 128 * 1024
_ARENAS: Final = 2


def return_large_blocks() -> bool:
    """Make glibc return large freed blocks to the system. Returns whether that worked.

    glibc keeps freed blocks of up to 32 MiB, in up to 8 arenas per processor. Without this, a server
    that has decoded large payloads in several OS threads would keep hundreds of MiB.
    """
    if not sys.platform.startswith("linux"):
        return False
    with contextlib.suppress(OSError, AttributeError):  # Another C library.
        mallopt = ctypes.CDLL(None).mallopt
        settings = {
            _M_MMAP_THRESHOLD: _LARGE_BYTES,  # Fixed: the default grows with freed blocks.
            _M_TRIM_THRESHOLD: _LARGE_BYTES,
            _M_ARENA_MAX: _ARENAS,
        }
        return all(mallopt(option, value) for option, value in settings.items())
    return False
