"""`everlong dev` and `everlong demo` as a user runs them: real processes, real signals."""

import asyncio
import base64
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client

from everlong import EverlongPlugin
from everlong.client.wait import wait_for_status
from everlong.codecs.payloads import INLINE_ENCODING
from everlong.config import build_store_url, read_dev_live_url
from everlong.embedded import ManagedProcess, TemporalServer, start_server
from everlong.embedded.server import find_free_port, find_temporal
from everlong.models.search_attributes import SEARCH_ATTRIBUTES
from everlong.project import create_project
from tests.support.forked_command import run_command
from tests.unit.test_process import wait_until_gone

ROOT = Path(__file__).parents[2]
EVERLONG = [sys.executable, "-m", "everlong"]
UP = "Ctrl-C stops everything"
DEMO = "everlong.demo:agent"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all tests of this file: what one stack wrote, the next one finds."""
    return tmp_path_factory.mktemp("stack")


@pytest.fixture(scope="module")
def port() -> int:
    return find_free_port()


def start_dev(data_dir: Path, port: int, log: Path, *agents: str) -> ManagedProcess:
    arguments = ["dev", *agents, "--data-dir", str(data_dir), "--port", str(port)]
    arguments += ["--ui-port", str(find_free_port())]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return ManagedProcess("dev", [*EVERLONG, *arguments], env=env, log=log)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project as `everlong init` makes it."""
    place = tmp_path_factory.mktemp("project") / "my-agent"
    create_project(place)
    return place


@pytest.fixture
def dev(data_dir: Path, port: int, tmp_path: Path) -> Iterator[ManagedProcess]:
    """A stack with the agent that it has by default."""
    with start_dev(data_dir, port, tmp_path / "log") as run:
        yield run


@pytest.fixture
def project_dev(
    project: Path, data_dir: Path, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ManagedProcess]:
    """A stack with the agent of a new project, whose worker is restarted when a file changes."""
    monkeypatch.chdir(project)
    with start_dev(data_dir, port, tmp_path / "log", "app:agent", "--reload") as run:
        yield run


def children(pid: int) -> dict[str, int]:
    """The children of a process, by what they run."""
    found: dict[str, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            command = stat.with_name("cmdline").read_bytes().split(b"\0")
        except OSError:  # It ended while we looked.
            continue
        # One that has just been forked still has its parent's command.
        known = {b"start-dev", b"serve", b"worker"}.intersection(command)
        if parent == pid and known:
            found[known.pop().decode()] = int(stat.parent.name)
    return found


def run(*arguments: str, data_dir: Path, port: int) -> str:
    """Run `everlong` against the stack, and return its output."""
    env = {"TEMPORAL_ADDRESS": f"127.0.0.1:{port}", "EVERLONG_DATA_DIR": str(data_dir)}
    done = run_command(*arguments, cwd=data_dir, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def show_with_temporal(thread_id: str, port: int, *options: str) -> str:
    """Return the history of a thread as Temporal's own command shows it."""
    command = [find_temporal(), "workflow", "show", "--address", f"127.0.0.1:{port}"]
    return subprocess.run(
        [*command, "-w", thread_id, "-o", "json", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def plugin(data_dir: Path) -> EverlongPlugin:
    return EverlongPlugin(store=build_store_url(data_dir))


def test_the_tests_of_a_new_project_pass(project: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "3 passed" in result.stdout, result.stdout


async def test_a_new_project_runs_reloads_and_stops(
    project_dev: ManagedProcess, project: Path, data_dir: Path, port: int
) -> None:
    dev = project_dev
    await dev.wait_for_output(UP, 60)
    parts = children(dev.pid)
    assert set(parts) == {"start-dev", "serve", "worker"}
    assert f"Temporal     127.0.0.1:{port}" in dev.output()
    [send] = re.findall(r"^  .*(send .*)$", dev.output(), flags=re.MULTILINE)
    assert send == "send ops-1 'Hello' --agent ops"
    # The worker sends live output there, and `everlong chat` reads it.
    live_url = read_dev_live_url(data_dir)
    assert f"dashboard    {live_url}\n" in dev.output()
    assert f"live       to {live_url}\n" in (data_dir / "worker.log").read_text()

    def everlong(*arguments: str) -> str:
        return run(*arguments, data_dir=data_dir, port=port)

    assert "queued" in everlong(*shlex.split(send), "--no-wait")
    client = await Client.connect(f"127.0.0.1:{port}", plugins=[plugin(data_dir)])
    await wait_for_status(client, "ops-1", lambda found: found.pending == 1, seconds_max=120)
    source = project / "app.py"
    text = source.read_text()
    source.write_text(f"{text}def (\n")
    line = len(text.splitlines()) + 1
    await dev.wait_for_output(f"{source}, line {line}: SyntaxError: invalid syntax", 60)
    await dev.wait_for_output("No worker runs now", 60)
    source.write_text(text.replace(" restarted", " is back"))
    everlong("approve", "ops-1", "--by", "tester", "--reason", "why not")
    await wait_for_status(
        client, "ops-1", lambda found: found.counters.answered > 0, seconds_max=120
    )
    assert "Restart: api is back." in everlong("journal", "ops-1")
    os.kill(dev.pid, signal.SIGINT)
    assert await dev.wait() == 0
    for pid in parts.values():
        wait_until_gone(pid)


@pytest.mark.full
async def test_the_next_start_continues_with_the_data(
    project_dev: ManagedProcess, data_dir: Path, port: int
) -> None:
    await project_dev.wait_for_output(UP, 60)
    shown = json.loads(run("show", "ops-1", "--json", data_dir=data_dir, port=port))
    assert shown["counters"]["answered"] == 1
    assert shown["size"]["blob_bytes"] == shown["counters"]["written_bytes"]
    table = run("show", "ops-1", data_dir=data_dir, port=port)
    assert "1 of 1 answered" in table
    assert re.search(r"B in \d+ objects", table)
    assert "will stop" in run("stop", "ops-1", data_dir=data_dir, port=port)
    client = await Client.connect(f"127.0.0.1:{port}")
    registered = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace="default")
    )
    assert set(SEARCH_ATTRIBUTES) <= set(registered.custom_attributes)


@pytest.mark.full
async def test_temporals_own_cli_shows_real_values_through_the_codec_server(
    project_dev: ManagedProcess, data_dir: Path, port: int
) -> None:
    await project_dev.wait_for_output(UP, 60)
    log = (data_dir / "codec-server.log").read_text()
    endpoint = re.search(r"http://127\.0\.0\.1:\d+", log)
    assert endpoint is not None
    plain = show_with_temporal("ops-1", port)
    decoded = show_with_temporal("ops-1", port, "--codec-endpoint", endpoint[0])
    encoding = base64.b64encode(INLINE_ENCODING).decode()
    assert encoding in plain
    assert encoding not in decoded
    started = json.loads(decoded)["events"][0]["workflowExecutionStartedEventAttributes"]
    [payload] = started["input"]["payloads"]
    assert json.loads(base64.b64decode(payload["data"]))["agent"] == "ops"


@pytest.mark.guarantee(86)
@pytest.mark.parametrize(
    "part",
    [
        pytest.param("start-dev", marks=pytest.mark.full),
        pytest.param("serve", marks=pytest.mark.full),
        "worker",
    ],
)
async def test_a_dead_part_stops_the_stack_and_is_named(dev: ManagedProcess, part: str) -> None:
    await dev.wait_for_output(UP, 60)
    assert f"demo ({DEMO})" in dev.output()
    parts = children(dev.pid)
    os.kill(parts[part], signal.SIGKILL)
    assert await dev.wait() == 3
    name = {"start-dev": "Temporal server", "serve": "codec-server", "worker": "worker"}[part]
    assert f"error: the {name} ended by itself with exit code -9" in dev.output()
    assert "Traceback" not in dev.output()
    for pid in parts.values():
        wait_until_gone(pid)


async def test_ctrl_c_during_the_start_stops_the_stack_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)")
    monkeypatch.chdir(tmp_path)
    ports = ["--port", str(find_free_port()), "--ui-port", str(find_free_port())]
    arguments = ["dev", "slow:agent", "--data-dir", str(tmp_path / "data"), *ports]
    with ManagedProcess(
        "dev", [*EVERLONG, *arguments], env=os.environ, log=tmp_path / "log"
    ) as run:
        await run.wait_for_output("Starting", 30)
        while "worker" not in children(run.pid):
            await asyncio.sleep(0.05)
        parts = children(run.pid)
        os.kill(run.pid, signal.SIGINT)
        async with asyncio.timeout(45):
            assert await run.wait() == 0
    for pid in parts.values():
        wait_until_gone(pid)


async def test_two_stacks_that_start_together_get_a_server_each(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    servers = await asyncio.gather(
        *(start_server(tmp_path / name, usual_ports=True) for name in ("one", "two"))
    )
    try:
        assert servers[0].port != servers[1].port
        assert [server.process.returncode for server in servers] == [None, None]
    finally:
        for server in servers:
            server.process.stop()


@pytest.mark.parametrize("command", [["show", "t"], ["send", "t", "hi"], ["worker", DEMO]])
def test_a_namespace_that_does_not_exist_is_named(
    server: TemporalServer, tmp_path: Path, command: list[str]
) -> None:
    env = {
        "TEMPORAL_ADDRESS": server.address,
        "TEMPORAL_NAMESPACE": "nowhere",
        "EVERLONG_STORE": tmp_path.as_uri(),
    }
    result = run_command(*command, cwd=tmp_path, env=env)
    assert result.returncode == 4, result.stderr
    assert "nowhere" in result.stderr
    assert "TEMPORAL_NAMESPACE" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.guarantee(85)
async def test_no_part_outlives_a_killed_stack(dev: ManagedProcess) -> None:
    await dev.wait_for_output(UP, 60)
    parts = children(dev.pid)
    dev.kill()
    for pid in parts.values():
        wait_until_gone(pid)


def demo(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    ports = ["--port", str(find_free_port()), "--ui-port", str(find_free_port())]
    arguments = ["everlong", "demo", "--data-dir", str(tmp_path / "demo"), *ports]
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; from everlong.__main__ import main; sys.argv = {arguments!r}; "
            f"{code}; main()",
        ],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_the_demo_shows_its_table_and_checks_itself(tmp_path: Path) -> None:
    result = demo(tmp_path, "pass")
    assert result.returncode == 0, result.stderr
    for row in ("history", "blobs", "naive loop", "runs", "resume", "outage"):
        assert re.search(rf"│ {row} +│", result.stdout), row
    assert "Checked:" in result.stdout
    assert "http://127.0.0.1:" in result.stdout
    assert re.search(r"everlong show demo-\w+ ", result.stdout)


@pytest.mark.full
def test_the_demo_fails_if_its_figures_are_false(tmp_path: Path) -> None:
    """The thread's journal is tampered with between the run and the check."""
    tamper = (
        "import everlong.demo.run as run; real = run.messages\n"
        "async def forget_one(*a):\n"
        "    found = await real(*a)\n"
        "    return found[:10] + found[11:]\n"
        "run.messages = forget_one\n"
        "pass"
    )
    result = demo(tmp_path, f"exec({tamper!r})")
    assert result.returncode == 8, result.stdout
    assert "error: the demo's own check failed: the journal holds 124 messages" in result.stderr
    assert "Traceback" not in result.stderr
