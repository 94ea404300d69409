"""`everlong serve` as a process, without a Temporal server: trusted proxies and the log."""

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from everlong.config import drop_temporal_variables
from everlong.embedded.process import ManagedProcess
from everlong.embedded.server import find_free_port
from everlong.embedded.stack import CODEC_SERVER_READY

TOKEN = "a-token-of-the-viewer"
PROXY = "127.0.0.2"
"""Where the proxy is that may name users. We are at 127.0.0.1."""
HOST = {"host": "ops.example.org"}
BEARER = {"authorization": f"Bearer {TOKEN}"}
MALLORY = {**HOST, "x-forwarded-user": "mallory", "x-everlong-role": "admin"}

pytestmark = pytest.mark.asyncio(loop_scope="module")


class RunningServer:
    """A server that runs."""

    def __init__(self, process: ManagedProcess, port: int) -> None:
        self.process, self.port = process, port

    def client(self, address: str = "127.0.0.1") -> httpx.AsyncClient:
        """Return a client that connects from an address."""
        transport = httpx.AsyncHTTPTransport(local_address=address)
        url = f"http://127.0.0.1:{self.port}"
        return httpx.AsyncClient(transport=transport, base_url=url, headers=HOST, timeout=60)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def serving(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningServer]:
    folder = tmp_path_factory.mktemp("serving")
    env = {
        **drop_temporal_variables(),
        "TEMPORAL_ADDRESS": "127.0.0.1:1",
        "EVERLONG_STORE": (folder / "blobs").as_uri(),
        "EVERLONG_TOKEN": "",
        "EVERLONG_TOKENS": f"ana:viewer:{TOKEN}",
        "EVERLONG_TRUST_USER_HEADER": "X-Forwarded-User",
        "EVERLONG_TRUST_ROLE_HEADER": "X-Everlong-Role",
        "EVERLONG_TRUSTED_PROXIES": PROXY,
        "EVERLONG_HOSTS": "ops.example.org",
    }
    port = find_free_port()
    arguments = [sys.executable, "-m", "everlong", "serve", "--port", str(port)]
    with ManagedProcess("serve", arguments, env=env, log=folder / "log") as process:
        await process.wait_for_output(CODEC_SERVER_READY, 60)
        yield RunningServer(process, port)


@pytest.mark.guarantee(91)
@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "x-real-ip"])
async def test_a_header_makes_no_client_a_proxy(serving: RunningServer, header: str) -> None:
    forwarded = {**MALLORY, header: f"for={PROXY}" if header == "forwarded" else PROXY}
    async with serving.client() as client:
        answer = await client.get("/api/v1/session", headers=forwarded)
    assert answer.status_code == 401


async def test_a_trusted_proxy_may_forward_any_user(serving: RunningServer) -> None:
    async with serving.client(PROXY) as client:
        forwarded = {**MALLORY, "x-forwarded-for": "203.0.113.9", "x-forwarded-proto": "https"}
        answer = await client.get("/api/v1/session", headers=forwarded)
    assert (answer.json()["name"], answer.json()["via"]) == ("mallory", "proxy")


async def test_a_websocket_request_is_no_server_error(serving: RunningServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
    with contextlib.closing(writer):
        writer.write(
            b"GET /api/v1/threads HTTP/1.1\r\nHost: ops.example.org\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        await writer.drain()
        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")


async def wait_for_log(serving: RunningServer, line: str) -> None:
    """Wait until the log has a line, with its time before it and what it took behind it."""
    wanted = re.compile(rf"^\d{{4}}-\d\d-\d\d [\d:,]+ INFO {re.escape(line)} \d+ ms$", re.MULTILINE)
    async with asyncio.timeout(30):
        while not wanted.search(serving.process.output()):
            await asyncio.sleep(0.05)


@pytest.mark.guarantee(94)
async def test_each_request_is_one_log_line_without_content(serving: RunningServer) -> None:
    async with serving.client() as client:
        await client.get("/api/v1/query?x=secret", headers=BEARER)
        await client.get("/api/v1/threads/secret-id", headers=BEARER)
        pause = "/api/v1/threads/secret-id/pause"
        await client.post(pause, headers=BEARER, json={"reason": "secret"})
        await client.post("/secret/decode", headers=BEARER, json={"payloads": []})
        await client.get("/secret-page")
        await client.get("/static/app.js?secret")
        await client.post(
            "/api/v1/session", json={"token": TOKEN}, headers={"sec-fetch-site": "same-origin"}
        )
        await client.get("/healthz", headers={"host": "secret.example"})
    for line in (
        "GET /api/v1/query 200 ana",
        "GET /api/v1/threads/{thread_id} 503 ana",
        "POST /api/v1/threads/{thread_id}/pause 403 ana",
        "POST /decode 200 ana",
        "GET (none) 401 -",
        "POST /api/v1/session 200 ana",
        "GET (none) 400 -",
    ):
        await wait_for_log(serving, line)
    assert "secret" not in serving.process.output()
    assert "/static/" not in serving.process.output(), "requests for static files are logged"
    assert TOKEN not in serving.process.output()
