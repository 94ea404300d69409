"""All attacks at the same time, against one `everlong serve` with a real Temporal server.

`pytest -s tests/server/test_serve_attacks.py` prints what each of them took.
"""

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import httpx
import pytest
import pytest_asyncio

from everlong.config import drop_temporal_variables
from everlong.embedded import ManagedProcess, TemporalServer
from everlong.embedded.server import find_free_port
from everlong.embedded.stack import CODEC_SERVER_READY
from everlong.storage import open_store
from tests.server.test_query_attacks import BOMBS, READS
from tests.support import forged_packs
from tests.support.forged_packs import MIB, as_json, refs
from tests.support.query_fuzzer import list_children

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

PEAK_BYTES_MAX: Final = 400 * MIB
HALF_SENT_HEADS: Final = 900
TOKENS: Final = {name: f"token-of-{name}-0123456789" for name in ("ana", "bob", "eve", "kim")}
HOSTILE_IDS: Final = ("%20%20", "%E2%80%A8", "a%E2%80%AEb", "%FF%FE", "a%0Ab", "%00", "x" * 2000)

Attack = Callable[[], Awaitable[set[int]]]


class RunningServer:
    """A server that runs, over a store that others may write."""

    def __init__(self, process: ManagedProcess, port: int, root: Path) -> None:
        self.process, self.port, self.root = process, port, root
        self.child_peak_bytes = 0

    def user(self, name: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"authorization": f"Bearer {TOKENS[name]}"},
            timeout=120,
        )

    @property
    def peak_bytes(self) -> int:
        return forged_packs.peak_bytes(self.process.pid)

    def look_at_children(self) -> None:
        for pid in list_children(self.process.pid):
            with contextlib.suppress(OSError, ValueError, IndexError):
                self.child_peak_bytes = max(
                    self.child_peak_bytes, forged_packs.peak_bytes(int(pid))
                )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def serving(
    server: TemporalServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningServer]:
    folder = tmp_path_factory.mktemp("attacked")
    root = folder / "blobs"
    open_store(root.as_uri())
    roles = {"ana": "viewer", "bob": "viewer", "eve": "viewer", "kim": "operator"}
    env = {
        **drop_temporal_variables(),
        "TEMPORAL_ADDRESS": server.address,
        "EVERLONG_STORE": root.as_uri(),
        "EVERLONG_TOKENS": ",".join(f"{name}:{roles[name]}:{TOKENS[name]}" for name in roles),
    }
    port = find_free_port()
    arguments = [sys.executable, "-m", "everlong", "serve", "--port", str(port)]
    with ManagedProcess("serve", arguments, env=env, log=folder / "log") as started:
        await started.wait_for_output(CODEC_SERVER_READY, 60)
        yield RunningServer(started, port, root)


def attacks(serving: RunningServer) -> dict[str, Attack]:  # noqa: C901 - one function for each attack
    """Return the attacks by name; each returns the statuses of its answers."""
    root = serving.root

    async def query(name: str, *statements: str) -> set[int]:
        async with serving.user(name) as client:
            answers = await asyncio.gather(
                *(client.post("/api/v1/query", json={"sql": sql}) for sql in statements)
            )
        return {answer.status_code for answer in answers}

    async def decode(*bodies: object) -> set[int]:
        async def one(client: httpx.AsyncClient, body: object) -> int:
            async with client.stream("POST", "/decode", json=body) as answer:
                async for _ in answer.aiter_bytes():
                    pass
            return answer.status_code

        async with serving.user("kim") as client:
            return set(await asyncio.gather(*(one(client, body) for body in bodies)))

    async def log_in() -> set[int]:
        async def endless() -> AsyncIterator[bytes]:
            for _ in range(64):
                yield bytes(65536)

        headers = {"content-type": "application/x-www-form-urlencoded"}
        found: set[int] = set()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{serving.port}") as client:
            for path in ("/login", "/api/v1/session"):
                with contextlib.suppress(httpx.WriteError, httpx.ReadError):
                    found.add(
                        (await client.post(path, headers=headers, content=endless())).status_code
                    )
        return found

    async def half_send() -> set[int]:
        writers: list[asyncio.StreamWriter] = []
        try:
            for _ in range(HALF_SENT_HEADS):
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", serving.port)
                    writers.append(writer)
                    writer.write(b"GET /threads HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
            await asyncio.sleep(12)
        finally:
            for writer in writers:
                writer.transport.abort()
        return set()

    async def start_hostile_ids() -> set[int]:
        async with serving.user("kim") as client:
            answers = [
                await client.post(
                    f"/api/v1/threads/{each}/messages", json={"text": "x", "agent": "ops"}
                )
                for each in HOSTILE_IDS
            ]
        return {answer.status_code for answer in answers}

    repeated = as_json(refs(forged_packs.repeated_source(root, 512, 64 * 1024)))
    giant = as_json(refs(forged_packs.sparse_file(root, 64 * 1024 * MIB)))
    many = as_json(refs(forged_packs.many_sources(root, 64, 8, 64 * 1024)))
    bombs = as_json([forged_packs.inline_bomb(16 * MIB)] * 2)
    return {
        "statements that make the parser backtrack": lambda: query("ana", *BOMBS),
        "statements that read settings": lambda: query("eve", READS[0]),
        "one source 512 times, three requests": lambda: decode(repeated, repeated, repeated),
        "a pack of 64 GiB": lambda: decode(giant),
        "64 packs that inflate to 512 MiB": lambda: decode(many),
        "inline payloads that inflate": lambda: decode(bombs),
        "logins of 4 MiB": log_in,
        f"{HALF_SENT_HEADS} half-sent request heads": half_send,
        "messages to hostile thread ids": start_hostile_ids,
    }


@pytest.mark.full
async def test_concurrent_attacks_leave_the_server_small_and_serving(
    serving: RunningServer,
) -> None:
    before_bytes = serving.peak_bytes
    rows: dict[str, tuple[float, set[int]]] = {}
    waits: list[float] = []

    async def run(name: str, attack: Attack) -> None:
        began = time.monotonic()
        statuses = await attack()
        rows[name] = (time.monotonic() - began, statuses)

    async def probe() -> None:
        while True:
            began = time.monotonic()
            with contextlib.suppress(httpx.TransportError):
                async with serving.user("bob") as client:
                    answer = await client.post("/api/v1/query", json={"sql": "select 1 as one"})
                if answer.status_code == 200:
                    waits.append(time.monotonic() - began)
            serving.look_at_children()
            await asyncio.sleep(0.1)

    probing = asyncio.create_task(probe())
    async with asyncio.timeout(150):
        await asyncio.gather(*(run(*each) for each in attacks(serving).items()))
    probing.cancel()
    await asyncio.wait([probing])
    async with serving.user("bob") as client:
        answer = await client.post("/api/v1/query", json={"sql": "select 1 as one"})
    assert answer.json()["rows"] == [[1]]
    for name, (seconds, statuses) in rows.items():
        sys.stdout.write(f"{name}: {seconds:.1f} s, {sorted(statuses)}\n")
    sys.stdout.write(
        f"server: {before_bytes / MIB:.0f} MiB before, peak {serving.peak_bytes / MIB:.0f}; "
        f"largest query process {serving.child_peak_bytes / MIB:.0f}; "
        f"{len(waits)} queries of others, median {statistics.median(waits):.1f} s\n"
    )
    assert serving.peak_bytes < PEAK_BYTES_MAX
    assert waits, "no query of another user was answered meanwhile"
    # Nothing that is answered is an error of the server.
    assert {each for _, statuses in rows.values() for each in statuses} <= {
        200,
        400,
        404,
        413,
        415,
        422,
        429,
        503,
    }
    assert rows["statements that read settings"][1] <= {422, 429}
    assert rows["messages to hostile thread ids"][1] <= {400, 404, 422}
