"""TCP proxy on loopback with faults to switch on: it hangs, cuts, resets or delays connections."""

import asyncio
import contextlib
import ssl
from typing import Final, Self
from urllib.parse import urlsplit

_CHUNK: Final = 16 * 1024


class Proxy:
    """Forwards connections to an endpoint. A changed attribute applies from the next bytes on."""

    def __init__(self, endpoint: str, tls: ssl.SSLContext | None = None) -> None:
        self._target = urlsplit(endpoint)
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.hang = False  # Accept requests and never answer.
        self.refuse = False  # Close each new connection at once.
        self.cut_after: int | None = None  # Close a connection after this many bytes of answers.
        self.cuts_left = 0  # Number of connections to cut.
        self.stall_after: int | None = None  # Answer this many bytes of a connection, then no more.
        self.upload_bytes_per_second: int | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        port = self._server.sockets[0].getsockname()[1]
        self.endpoint = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop(self) -> None:
        """Close all open connections."""
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            if not self.refuse:
                await self._pass_on(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # Cut connections are expected here.
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._target.hostname, self._target.port
        back, out = await asyncio.open_connection(host, port)
        try:
            ends = [self._upload(reader, out), self._answer(back, writer)]
            pumps = [asyncio.ensure_future(end) for end in ends]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
                with contextlib.suppress(OSError, asyncio.CancelledError):
                    await pump
        finally:
            out.transport.abort()

    async def _upload(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            if self.upload_bytes_per_second is not None:
                await asyncio.sleep(len(data) / self.upload_bytes_per_second)
            out.write(data)
            await out.drain()

    async def _answer(self, back: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = 0
        while data := await back.read(_CHUNK):
            while self.hang or (self.stall_after is not None and passed >= self.stall_after):
                await asyncio.sleep(0.02)
            if self.cut_after is not None and self.cuts_left > 0:
                data = data[: self.cut_after - passed]
            writer.write(data)
            await writer.drain()
            passed += len(data)
            if self.cut_after is not None and self.cuts_left > 0 and passed >= self.cut_after:
                self.cuts_left -= 1
                return
