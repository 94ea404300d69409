"""`everlong serve` with Temporal's own CLI: a real server, real processes, values out of the store."""

import base64
import contextlib
import hashlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHandle

from everlong.config import drop_temporal_variables
from everlong.embedded import ManagedProcess, TemporalServer
from everlong.embedded.server import find_free_port, find_temporal
from everlong.embedded.stack import CODEC_SERVER_READY
from everlong.storage import BlobStore, open_store
from tests.support.threads import open_threads

TOKEN = "a-token-of-the-tests"
# By default, the CLI retries a codec server that refuses for 10 s. It does not show the refusal.
BRIEFLY = ("--command-timeout", "3s")
# The Temporal UI gets the first as a value, just so, and the second as a button.
SMALL_BYTES, LARGE_BYTES = 130_000, 400_000


def value(name: str, size_bytes: int) -> dict[str, str]:
    """A value that does not compress below what stays in history, and is known by its head."""
    return {
        "head": f"{name}-begins",
        "noise": hashlib.shake_256(name.encode()).hexdigest(size_bytes // 2),
        "tail": f"{name}-ends",
    }


@workflow.defn(name="codec-server-swap")
class Swap:
    """Takes a large and a small value, and returns another large one."""

    @workflow.run
    async def run(self, large: dict[str, str], small: dict[str, str]) -> dict[str, str]:
        assert large["tail"] == "large-ends"
        assert small["tail"] == "small-ends"
        return value("result", LARGE_BYTES)


@workflow.defn(name="codec-server-tail")
class Tail:
    """Returns the end of its input, which proves that the whole value arrived."""

    @workflow.run
    async def run(self, given: dict[str, str]) -> str:
        return given["tail"]


@contextlib.asynccontextmanager
async def serve(
    store: str, log: Path, *, port: int, token: str = "", origins: Sequence[str] = ()
) -> AsyncIterator[str]:
    """Run `everlong serve` on a port, and give its address."""
    arguments = [sys.executable, "-m", "everlong", "serve", "--port", str(port)]
    for origin in origins:
        arguments += ["--cors-origin", origin]
    env = {**drop_temporal_variables(), "EVERLONG_STORE": store, "EVERLONG_TOKEN": token}
    with ManagedProcess("codec server", arguments, env=env, log=log) as process:
        await process.wait_for_output(CODEC_SERVER_READY, 60)
        yield f"http://127.0.0.1:{port}"


async def swap(address: str, store: BlobStore, workflow_id: str) -> WorkflowHandle[Swap, object]:
    """Run a workflow whose inputs and result are in the store."""
    async with open_threads(address, store) as threads:
        async with threads.worker(workflows=[Swap]):
            handle = await threads.client.start_workflow(
                Swap.run,
                args=[value("large", LARGE_BYTES), value("small", SMALL_BYTES)],
                id=workflow_id,
                task_queue=threads.task_queue,
            )
            assert (await handle.result())["tail"] == "result-ends"
            return handle


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return (tmp_path / "blobs").as_uri()


@pytest.fixture
def store(store_url: str) -> BlobStore:
    return open_store(store_url)


def temporal(address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [find_temporal(), *arguments, "--address", address],
        env=drop_temporal_variables(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def show(
    address: str, workflow_id: str, endpoint: str, token: str, *options: str
) -> subprocess.CompletedProcess[str]:
    codec = ["--codec-endpoint", endpoint, "--codec-auth", f"Bearer {token}"]
    return temporal(address, "workflow", "show", "-w", workflow_id, "-o", "json", *codec, *options)


def parse_shown(result: subprocess.CompletedProcess[str]) -> Iterator[object]:
    """The inputs and the result of a workflow, as the CLI printed them."""
    assert result.returncode == 0, result.stderr
    events = json.loads(result.stdout)["events"]
    parts = (
        events[0]["workflowExecutionStartedEventAttributes"]["input"],
        events[-1]["workflowExecutionCompletedEventAttributes"]["result"],
    )
    for payload in (payload for part in parts for payload in part["payloads"]):
        assert base64.b64decode(payload["metadata"]["encoding"]) == b"json/plain"
        yield json.loads(base64.b64decode(payload["data"]))


@pytest.mark.guarantee(89)
async def test_temporals_cli_with_the_token_shows_stored_values(
    server: TemporalServer, store: BlobStore, store_url: str, thread_id: str, tmp_path: Path
) -> None:
    await swap(server.address, store, thread_id)
    expected = [
        value("large", LARGE_BYTES),
        value("small", SMALL_BYTES),
        value("result", LARGE_BYTES),
    ]
    raw = temporal(server.address, "workflow", "show", "-w", thread_id, "-o", "json")
    assert raw.returncode == 0
    assert len(raw.stdout) < 20_000
    log = tmp_path / "serve.log"
    async with serve(store_url, log, port=find_free_port(), token=TOKEN) as url:
        for endpoint in (url, f"{url}/default", f"{url}/behind/a-proxy/default"):
            assert list(parse_shown(show(server.address, thread_id, endpoint, TOKEN))) == expected
        refused = show(server.address, thread_id, url, "another", *BRIEFLY)
        assert refused.returncode != 0
        assert "begins" not in refused.stdout + refused.stderr
    assert "/decode answered 401" in log.read_text()
    assert TOKEN not in log.read_text()


async def test_the_codec_servers_log_names_missing_objects(
    server: TemporalServer, store: BlobStore, store_url: str, thread_id: str, tmp_path: Path
) -> None:
    await swap(server.address, store, thread_id)
    elsewhere = (tmp_path / "elsewhere").as_uri()
    open_store(elsewhere)
    log = tmp_path / "serve.log"
    async with serve(elsewhere, log, port=find_free_port()) as url:
        assert show(server.address, thread_id, url, "", *BRIEFLY).returncode != 0
    assert "/decode answered 422: BlobMissing" in log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.guarantee(89)
async def test_inputs_of_temporals_cli_reach_a_workflow_through_the_store(
    server: TemporalServer, store: BlobStore, store_url: str, thread_id: str, tmp_path: Path
) -> None:
    given = tmp_path / "input.json"
    given.write_text(json.dumps(value("given", LARGE_BYTES)))
    log = tmp_path / "serve.log"
    async with open_threads(server.address, store) as threads:
        async with serve(store_url, log, port=find_free_port(), token=TOKEN) as url:
            arguments = ["--type", "codec-server-tail", "--task-queue", threads.task_queue]
            arguments += ["--input-file", str(given), "-w", thread_id, "--codec-endpoint", url]
            arguments += ["--codec-auth", f"Bearer {TOKEN}"]
            started = temporal(server.address, "workflow", "start", *arguments)
            assert started.returncode == 0, started.stderr
        async with threads.worker(workflows=[Tail]):
            handle = threads.client.get_workflow_handle(thread_id)
            assert await handle.result() == "given-ends"
        description = await handle.describe()
        assert description.raw_description.workflow_execution_info.history_size_bytes < 5_000


async def test_the_codec_server_is_healthy_while_it_runs(store_url: str, tmp_path: Path) -> None:
    async with serve(store_url, tmp_path / "log", port=find_free_port(), token=TOKEN) as url:
        with urllib.request.urlopen(f"{url}/healthz", timeout=10) as response:
            assert json.load(response) == {"status": "ok"}
