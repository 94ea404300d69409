"""Receivers of notifications on loopback: HTTP and SMTP servers that fail, hang and repeat."""

import asyncio
import base64
import contextlib
import dataclasses
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

Answer = int | str
"""Status of an answer; `hang` for none, `twice` for two answers, `drip` for one that never ends."""


@dataclasses.dataclass(frozen=True)
class Received:
    """A request or a mail."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    answer: Answer

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclasses.dataclass
class HttpReceiver:
    """A running HTTP server and what it has received."""

    url: str = ""
    received: list[Received] = dataclasses.field(default_factory=list)
    arrived: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    @property
    def taken(self) -> Counter[str]:
        """Events by idempotency key, of the requests that were answered with 200."""
        return Counter(
            event["key"]
            for each in self.received
            if each.answer in (200, "twice")
            for event in each.json["events"]
        )

    async def wait_for(self, done: Callable[[], bool], seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while not done():
                self.arrived.clear()
                await self.arrived.wait()


@contextlib.asynccontextmanager
async def run_http_receiver(
    choose: Callable[[int], Answer] = lambda number: 200,
    *,
    body: bytes = b"",
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[HttpReceiver]:
    """Run a server. `choose` returns the answer to the request with this number."""
    found = HttpReceiver()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {
                name.lower(): text for name, _, text in (each.partition(": ") for each in head[1:])
            }
            sent = await reader.readexactly(int(headers["content-length"]))
            answer = choose(len(found.received))
            found.received.append(Received(head[0].split()[1], headers, sent, answer))
            found.arrived.set()
            if answer == "hang":
                await reader.read()  # Until the client leaves.
                return
            if answer == "drip":
                for _ in range(1000):
                    writer.write(b"H")
                    await writer.drain()
                    await asyncio.sleep(0.01)
                return
            status = 200 if answer == "twice" else answer
            extra = "Location: http://127.0.0.1:1/\r\n" if status == 302 else ""
            whole = f"HTTP/1.1 {status} X\r\n{extra}Content-Length: {len(body)}\r\n\r\n".encode()
            writer.write((whole + body) * (2 if answer == "twice" else 1))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # The client has closed the connection, as it may.
        finally:
            writer.close()

    async with run_server(handle, tls) as port:
        found.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/hook"
        yield found


@contextlib.asynccontextmanager
async def run_server(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any],
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Run an asyncio server on a free port, and end its connections with it."""
    tasks: set[asyncio.Task[None]] = set()

    async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handle(reader, writer)
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(tracked, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclasses.dataclass
class SmtpReceiver:
    """A running SMTP server, and the mails that it has taken."""

    choose: Callable[[int], Answer]
    starttls: ssl.SSLContext | None
    tls: ssl.SSLContext | None
    port: int = 0
    count: int = 0
    """Mails that were sent, taken or not."""
    mails: list[str] = dataclasses.field(default_factory=list)
    logins: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    was_encrypted: list[bool] = dataclasses.field(default_factory=list)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            session = _SmtpSession(self, reader, writer)
            await session.say("220 test")
            while line := (await reader.readline()).decode().strip():
                if not await session.answer(line):
                    break
        writer.close()


class _SmtpSession:
    def __init__(
        self, server: SmtpReceiver, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server, self._reader, self._writer = server, reader, writer
        self._encrypted = server.tls is not None

    async def say(self, *lines: str) -> None:
        self._writer.write("".join(f"{line}\r\n" for line in lines).encode())
        await self._writer.drain()

    async def answer(self, line: str) -> bool:
        """Answer a command. Returns whether the session goes on."""
        match line.split()[0].upper():
            case "EHLO" if self._encrypted:
                await self.say("250-test", "250 AUTH PLAIN")
            case "EHLO" if self._server.starttls:
                await self.say("250-test", "250 STARTTLS")
            case "STARTTLS" if self._server.starttls:
                await self.say("220 go")
                await self._writer.start_tls(self._server.starttls)
                self._encrypted = True
            case "AUTH":
                _, user, password = base64.b64decode(line.split()[2]).decode().split("\0")
                self._server.logins.append((user, password))
                await self.say("235 in")
            case "DATA":
                return await self._take_mail()
            case "QUIT":
                await self.say("221 bye")
                return False
            case _:
                await self.say("250 ok")
        return True

    async def _take_mail(self) -> bool:
        await self.say("354 go")
        text = (await self._reader.readuntil(b"\r\n.\r\n")).decode()
        answer = self._server.choose(self._server.count)
        self._server.count += 1
        if answer == "hang":
            await self._reader.read()  # Until the client leaves.
            return False
        if answer == 250:
            self._server.mails.append(text)
            self._server.was_encrypted.append(self._encrypted)
        await self.say(f"{answer} done")
        return True


@contextlib.asynccontextmanager
async def run_smtp_receiver(
    choose: Callable[[int], Answer] = lambda number: 250,
    *,
    starttls: ssl.SSLContext | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[SmtpReceiver]:
    """Run a server. `choose` returns the code that answers the mail with this number, or `hang`."""
    found = SmtpReceiver(choose, starttls, tls)
    async with run_server(found.handle, tls) as port:
        found.port = port
        yield found
