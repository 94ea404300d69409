"""A real Prometheus scrapes a real worker and a real admin service, by the configuration of deploy/."""

import asyncio
import contextlib
import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML

from everlong import Policy, limits
from everlong.embedded import ManagedProcess, TemporalServer, start_server
from everlong.embedded.server import find_free_port
from everlong.embedded.stack import CODEC_SERVER_READY
from everlong.models import SWEEPER_WORKFLOW, SweepOptions
from everlong.storage import open_store
from everlong.telemetry.metrics import METRICS
from everlong.worker_options import READY
from tests.support.prometheus_names import CORE, series_labels, series_names
from tests.support.thread_driver import DrivenThread
from tests.support.threads import Threads, open_threads

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = shutil.which("prometheus")
QUEUE = "measured"
# Small, so that payloads of a thread go to the store, and a replay reads them from there.
INLINE_BYTES_MAX = 200
# The samples of a worker that has gone by now count as well.
WINDOW = "[5m]"
SCRAPED = {"__name__", "instance", "job", "le"}
# Labels that only a real provider's calls and those that fail have.
UNUSED = {"error_type", "gen_ai_provider_name"}


@dataclasses.dataclass
class Fleet:
    """The started processes, each on a port of its own. `cleanup` stops them."""

    server: TemporalServer
    tmp_path: Path
    cleanup: contextlib.ExitStack
    workers: int = 0

    def __post_init__(self) -> None:
        self.worker_port, self.admin_port, self.port = (
            find_free_port(),
            find_free_port(),
            find_free_port(),
        )
        self.blobs = self.tmp_path / "blobs"

    def everlong(self, name: str, *arguments: str, metrics_port: int) -> ManagedProcess:
        env = {
            **os.environ,
            "TEMPORAL_ADDRESS": self.server.address,
            "EVERLONG_STORE": self.blobs.as_uri(),
            "EVERLONG_TASK_QUEUE": QUEUE,
            "EVERLONG_INLINE_BYTES_MAX": str(INLINE_BYTES_MAX),
            "OTEL_METRICS_EXPORTER": "prometheus",
            "OTEL_EXPORTER_PROMETHEUS_PORT": str(metrics_port),
        }
        command = [sys.executable, "-m", "everlong", *arguments]
        return self._start(
            ManagedProcess(name, command, env=env, log=self.tmp_path / f"{name}.log")
        )

    def worker(self) -> ManagedProcess:
        self.workers += 1
        name = f"worker-{self.workers}"
        return self.everlong(
            name, "worker", "tests.support.metrics_agent:ops", metrics_port=self.worker_port
        )

    def admin(self) -> ManagedProcess:
        arguments = ["serve", "--port", str(find_free_port())]
        return self.everlong("admin", *arguments, metrics_port=self.admin_port)

    def prometheus(self) -> ManagedProcess:
        """Start it with our configuration, but for the targets and the time between scrapes."""
        config = YAML(typ="safe").load(DEPLOY / "prometheus.yml")
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(DEPLOY / name) for name in config["rule_files"]]
        ports = {"everlong-worker": self.worker_port, "everlong-admin": self.admin_port}
        jobs = [job for job in config["scrape_configs"] if job["job_name"] in ports]
        for job in jobs:
            target = f"127.0.0.1:{ports[job['job_name']]}"
            job["static_configs"] = [{"targets": [target]}]
        config["scrape_configs"] = jobs
        path = self.tmp_path / "prometheus.yml"
        YAML(typ="safe").dump(config, path)
        command = [
            str(PROMETHEUS),
            f"--config.file={path}",
            f"--storage.tsdb.path={self.tmp_path / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        log = self.tmp_path / "prometheus.log"
        return self._start(ManagedProcess("prometheus", command, env=os.environ, log=log))

    def _start(self, process: ManagedProcess) -> ManagedProcess:
        self.cleanup.callback(process.stop)
        return process

    async def ask(self, path: str, **parameters: str) -> Any:
        async with httpx.AsyncClient(trust_env=False) as http:
            url = f"http://127.0.0.1:{self.port}/api/v1/{path}"
            answer = await http.get(url, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    async def query(self, query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.ask("query", query=query))["result"]
        return found

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """Have a file where the store's directory was: nothing can be read or written."""
        away = self.blobs.rename(self.tmp_path / "away")
        self.blobs.touch()
        try:
            yield
        finally:
            self.blobs.unlink()
            away.rename(self.blobs)


async def wait_until(check: Callable[[], Awaitable[list[Any]]], seconds: float = 90) -> None:
    """Wait until nothing is missing any more."""
    deadline = time.monotonic() + seconds
    while missing := await check():
        assert time.monotonic() < deadline, missing
        await asyncio.sleep(0.5)


async def exercise_threads(fleet: Fleet, thread_id: str) -> None:
    """Have threads do all that is measured."""
    first = fleet.worker()
    prometheus = fleet.prometheus()
    store = open_store(fleet.blobs.as_uri())
    async with open_threads(
        fleet.server.address, store, inline_bytes_max=INLINE_BYTES_MAX
    ) as threads:
        threads.task_queue = QUEUE
        asking = await start_and_wait(threads, f"{thread_id}-asking", Policy())
        await first.wait_for_output(READY, 60)
        await prometheus.wait_for_output("Server is ready to receive web requests", 30)
        await asking.send("restart")
        [approval] = await asking.pending()
        await wait_until(lambda: find_counted(fleet, 'up{job="everlong-worker"}'))
        first.stop()

        second, admin = fleet.worker(), fleet.admin()
        await second.wait_for_output(READY, 60)
        await admin.wait_for_output(CODEC_SERVER_READY, 60)
        await wait_until(lambda: find_counted(fleet, "everlong_approvals_pending"))
        await asking.decide(approval.id)  # A resume: this worker has not seen the thread.
        small = Policy(compact_at_bytes=8 * limits.KIB, compact_to_bytes=4 * limits.KIB)
        reading = await start_and_wait(threads, f"{thread_id}-reading", small)
        # Limits are counted once they are journalled: of a paused thread, when it rests.
        failing = Policy(same_failure_max=2, idle_seconds=1)
        looping = await start_and_wait(threads, f"{thread_id}-looping", failing)
        await asyncio.gather(reading.send("read"), looping.send("loop"))
        await asyncio.gather(
            asking.wait_for_answers(), reading.wait_for_answers(), looping.wait_for_status("paused")
        )
        with fleet.outage():
            await asking.send("hello")
            await wait_until(lambda: find_counted(fleet, "everlong_holds_total"))
        await asking.wait_for_answers(2)
        await threads.client.execute_workflow(
            SWEEPER_WORKFLOW, SweepOptions(), id=f"{thread_id}-sweep", task_queue=QUEUE
        )


async def start_and_wait(threads: Threads, thread_id: str, policy: Policy) -> DrivenThread:
    await threads.start(thread_id, policy)
    return DrivenThread(threads, thread_id)


async def find_counted(fleet: Fleet, name: str) -> list[str]:
    return [] if await fleet.query(f"{name} > 0") else [name]


async def find_unknown_series(fleet: Fleet) -> list[str]:
    """Return the series that Prometheus has no sample of."""
    names = {name for metric in METRICS for name in series_names(metric)} | CORE.keys()
    found = await asyncio.gather(
        *(fleet.query(f"count(last_over_time({name}{WINDOW}))") for name in sorted(names))
    )
    return [name for name, result in zip(sorted(names), found, strict=True) if not result]


async def silent(fleet: Fleet, alerts: set[str]) -> list[str]:
    firing = await fleet.query('ALERTS{alertstate="firing"}')
    return sorted(alerts - {alert["metric"]["alertname"] for alert in firing})


async def check_labels(fleet: Fleet) -> None:
    """Assert that each series has exactly its documented labels."""
    for metric in METRICS:
        name = min(series_names(metric))
        found = await fleet.query(f"last_over_time({name}{WINDOW})")
        labels = set[str]().union(*(result["metric"] for result in found)) - SCRAPED
        assert labels | UNUSED == series_labels()[name] | UNUSED, name
        assert {result["metric"]["job"] for result in found} == {f"everlong-{metric.source}"}
    for name, expected in CORE.items():
        for result in await fleet.query(f"last_over_time({name}{WINDOW})"):
            assert expected <= result["metric"].keys(), name


@pytest.mark.full
@pytest.mark.guarantee(82)
@pytest.mark.skipif(PROMETHEUS is None, reason="Debian's package prometheus is not installed")
async def test_prometheus_knows_every_metric_and_fires_the_alerts(
    tmp_path: Path, thread_id: str
) -> None:
    with contextlib.ExitStack() as cleanup:
        # One of its own: a sweep reads all that the namespace has.
        folder = tmp_path / "temporal"
        folder.mkdir()
        server = await start_server(folder)
        cleanup.enter_context(server.process)
        fleet = Fleet(server, tmp_path, cleanup)
        await exercise_threads(fleet, thread_id)
        await wait_until(lambda: find_unknown_series(fleet))
        await check_labels(fleet)
        # Those that wait for no time to pass.
        await wait_until(lambda: silent(fleet, {"EverlongFailureLoop", "EverlongStepsHeld"}))
        groups = (await fleet.ask("rules"))["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert {rule["health"] for rule in rules} == {"ok"}, rules
