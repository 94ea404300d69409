"""Queries against `everlong serve` as a process, by users whose role is viewer."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from everlong.config import drop_temporal_variables
from everlong.embedded import ManagedProcess, TemporalServer
from everlong.embedded.server import find_free_port
from everlong.embedded.stack import CODEC_SERVER_READY
from tests.support.query_fuzzer import list_children
from tests.support.query_runner import ENDLESS

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

SERVER_KIB_MAX = 400 * 1024
BOMBS = (
    "with a as (" * 9,
    "with a as (" * 1_800,
    "select " + "(" * 19_000,
    "select " + "cast(" * 3_800,
    "select " + "not " * 4_500 + "true",
    "select length(repeat('x', 2000000000))",
    "select list({'a': range}) from range(5000000) group by range // 1000",
    "select * from range(10000000) order by hash(range)",
)
READS = (
    'select (with "pg_settings" as (select 1) select 1), * from pg_settings',
    "select * from duckdb_databases",
    "select * from sqlite_master",
    "select current_setting('temp_directory')",
)


class RunningServer:
    """A server that runs."""

    def __init__(self, process: ManagedProcess, port: int, folder: Path) -> None:
        self.process, self.port, self.folder = process, port, folder

    def user(self, name: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}/api/v1",
            headers={"authorization": f"Bearer token-of-the-viewer-{name}"},
            timeout=120,
        )

    def peak_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0])

    async def until(self, count: int) -> None:
        """Wait until so many queries run, with a folder for each."""
        async with asyncio.timeout(30):
            while (
                len(list_children(self.process.pid)) != count
                or len(list(self.folder.glob("everlong-query-*"))) != count
            ):
                await asyncio.sleep(0.05)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def serving(
    server: TemporalServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningServer]:
    folder = tmp_path_factory.mktemp("serving")
    (folder / "tmp").mkdir()
    port = find_free_port()
    env = {
        **drop_temporal_variables(),
        "TEMPORAL_ADDRESS": server.address,
        "EVERLONG_STORE": (folder / "blobs").as_uri(),
        "EVERLONG_TOKENS": ",".join(
            f"{name}:viewer:token-of-the-viewer-{name}" for name in ("ana", "bob", "eve")
        ),
        "TMPDIR": str(folder / "tmp"),
    }
    arguments = [sys.executable, "-m", "everlong", "serve", "--port", str(port)]
    with ManagedProcess("serve", arguments, env=env, log=folder / "log") as started:
        await started.wait_for_output(CODEC_SERVER_READY, 60)
        yield RunningServer(started, port, folder / "tmp")


async def post_query(client: httpx.AsyncClient, sql: str) -> httpx.Response:
    return await client.post("/query", json={"sql": sql})


@pytest.mark.guarantee(102)
async def test_attacks_leave_the_server_small_and_others_served(serving: RunningServer) -> None:
    async with serving.user("ana") as ana, serving.user("bob") as bob:
        bombs = asyncio.gather(*(post_query(ana, sql) for sql in BOMBS))
        served = []
        while not bombs.done():
            started = time.monotonic()
            answer = await post_query(bob, "select 1 as one")
            assert answer.json()["rows"] == [[1]]
            served.append(time.monotonic() - started)
            await asyncio.sleep(0.2)  # Each of them takes 0.3 s of CPU.
        statuses = {answer.status_code for answer in await bombs}
        assert statuses <= {200, 422, 429}
        assert 422 in statuses
        for sql in READS:
            answer = await post_query(ana, sql)
            assert answer.status_code == 422, sql
            assert answer.json()["error"]["type"] == "QueryRefused"
    assert len(served) >= 2
    assert serving.peak_kib() < SERVER_KIB_MAX
    await serving.until(0)


@pytest.mark.guarantee(102)
async def test_two_statements_of_a_user_do_not_block_the_others(serving: RunningServer) -> None:
    async with serving.user("ana") as ana, serving.user("bob") as bob:
        endless = [asyncio.create_task(post_query(ana, ENDLESS)) for _ in range(2)]
        await serving.until(2)
        assert (await post_query(bob, "select 1 as one")).json()["rows"] == [[1]]
        refused = await post_query(ana, "select 1 as one")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        assert "You are running 2 queries already" in refused.json()["error"]["message"]
        for each in endless:
            each.cancel()
        await asyncio.wait(endless)
        # Closing the requests has cancelled the queries, and freed their slots.
        await serving.until(0)
        assert (await post_query(ana, "select 1 as one")).json()["rows"] == [[1]]
