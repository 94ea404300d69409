"""`everlong serve` as a process under attack: a forged store and unauthenticated clients."""

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from everlong.codecs import EverlongCodec
from everlong.config import drop_temporal_variables
from everlong.embedded.process import ManagedProcess
from everlong.embedded.server import find_free_port
from everlong.embedded.stack import CODEC_SERVER_READY
from everlong.storage import open_store
from tests.support import forged_packs
from tests.support.forged_packs import MIB, as_json, refs
from tests.support.sample_payloads import payload

PEAK_BYTES_MAX = 400 * MIB

pytestmark = pytest.mark.asyncio(loop_scope="module")


class RunningServer:
    """A running server, over a store to which attackers can write."""

    def __init__(self, process: ManagedProcess, port: int, root: Path) -> None:
        self.process, self.port, self.root = process, port, root
        self.url = f"http://127.0.0.1:{port}"

    @property
    def peak_bytes(self) -> int:
        return forged_packs.peak_bytes(self.process.pid)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def serving(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningServer]:
    folder = tmp_path_factory.mktemp("attacked")
    root = folder / "blobs"
    open_store(root.as_uri())
    env = {
        **drop_temporal_variables(),
        "TEMPORAL_ADDRESS": "127.0.0.1:1",
        "EVERLONG_STORE": root.as_uri(),
        "EVERLONG_TOKEN": "",
        "EVERLONG_TOKENS": "",
    }
    port = find_free_port()
    arguments = [sys.executable, "-m", "everlong", "serve", "--port", str(port)]
    with ManagedProcess("serve", arguments, env=env, log=folder / "log") as process:
        await process.wait_for_output(CODEC_SERVER_READY, 60)
        yield RunningServer(process, port, root)


@pytest_asyncio.fixture(loop_scope="module")
async def client(serving: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=serving.url, timeout=120) as client:
        yield client
        assert (await client.get("/healthz")).status_code == 200


async def measure_answer(client: httpx.AsyncClient, body: object) -> tuple[int, int]:
    """Decode, and read the answer without keeping it; return its status and its bytes."""
    size_bytes = 0
    async with client.stream("POST", "/decode", json=body) as answer:
        async for part in answer.aiter_bytes():
            size_bytes += len(part)
    return answer.status_code, size_bytes


@pytest.mark.guarantee(88)
async def test_forged_packs_stay_within_the_servers_bounds(
    serving: RunningServer, client: httpx.AsyncClient
) -> None:
    root = serving.root
    twice = as_json(refs(forged_packs.repeated_source(root, 512, 64 * 1024)))
    for _ in range(3):
        assert (await measure_answer(client, twice))[0] == 422
    giant = as_json(refs(forged_packs.sparse_file(root, 64 * 1024 * MIB)))
    assert (await measure_answer(client, giant))[0] == 422
    # In order, and for one as large as a response may be; for the first, 512 MiB are inflated.
    many = as_json(refs(forged_packs.many_sources(root, 64, 8, 64 * 1024)))
    repeated = as_json(refs(forged_packs.one_frame(root, 64 * MIB)))
    bombs = as_json([forged_packs.inline_bomb(16 * MIB)] * 2)
    found = await asyncio.gather(
        *(measure_answer(client, each) for each in (many, repeated, bombs))
    )
    assert [(status, size_bytes // MIB) for status, size_bytes in found] == [
        (200, 42),  # Base64.
        (200, 85),
        (200, 42),
    ]
    assert serving.peak_bytes < PEAK_BYTES_MAX


@pytest.mark.guarantee(88)
async def test_concurrent_requests_stay_within_the_servers_bounds(
    serving: RunningServer, client: httpx.AsyncClient
) -> None:
    small = as_json(refs(forged_packs.one_frame(serving.root, 6 * MIB)))
    large = as_json([payload(random.Random(0).randbytes(11 * MIB))])
    found = await asyncio.gather(
        *(measure_answer(client, small) for _ in range(8)),
        *(measure_answer(client, large) for _ in range(4)),
    )
    assert {status for status, _ in found[:8]} <= {200, 503}
    # Bodies beyond the memory for concurrent requests get 503, which asks for a retry.
    assert {status for status, _ in found[8:]} == {200, 503}
    assert serving.peak_bytes < PEAK_BYTES_MAX


async def test_clients_that_do_not_read_stay_within_the_servers_bounds(
    serving: RunningServer,
) -> None:
    body = httpx.Request(
        "POST",
        serving.url,
        json=as_json(refs(forged_packs.one_frame(serving.root, 64 * MIB))),
    ).read()
    head = b"POST /decode HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(4):
            _, writer = await asyncio.open_connection("127.0.0.1", serving.port)
            writers.append(writer)
            writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        await asyncio.sleep(1)
        async with httpx.AsyncClient(base_url=serving.url, timeout=10) as client:
            assert (await client.get("/healthz")).status_code == 200
    finally:
        for writer in writers:
            writer.transport.abort()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
    assert serving.peak_bytes < PEAK_BYTES_MAX


async def test_encoder_output_is_served_under_attack(
    serving: RunningServer, client: httpx.AsyncClient
) -> None:
    codec = EverlongCodec(open_store(serving.root.as_uri()))
    for size_bytes in (10_000, 40 * MIB):
        given = payload(random.Random(0).randbytes(size_bytes))
        status, answer_bytes = await measure_answer(client, as_json(await codec.encode([given])))
        assert (status, answer_bytes > size_bytes) == (200, True)
    assert serving.peak_bytes < PEAK_BYTES_MAX


async def test_unauthenticated_bodies_are_limited_to_a_login(serving: RunningServer) -> None:
    headers = {"origin": serving.url, "content-type": "application/x-www-form-urlencoded"}
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(64):
            sent += 65536
            yield bytes(65536)

    async with httpx.AsyncClient(base_url=serving.url, timeout=30) as client:
        for path in ("/login", "/api/v1/session"):
            began = time.monotonic()
            with contextlib.suppress(httpx.WriteError, httpx.ReadError):
                answer = await client.post(path, headers=headers, content=endless())
                assert answer.status_code in (413, 415)
            assert time.monotonic() - began < 10
        answer = await client.post("/login", headers=headers, data={"token": "x" * 5000})
        assert answer.status_code == 413
    assert serving.peak_bytes < PEAK_BYTES_MAX
