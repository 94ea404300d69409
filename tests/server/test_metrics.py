"""Metrics of a worker, the admin server and the SDK's Core, as Prometheus would get them."""

import asyncio
import dataclasses
import re
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from temporalio.client import Client
from temporalio.worker import Worker

from everlong import Agent, EverlongPlugin, Reply, tool
from everlong.admin.fleet import FleetFigures, measure_fleet
from everlong.client.updates import send
from everlong.client.wait import wait_for_status
from everlong.config import Settings, load_settings, point_to_embedded
from everlong.embedded import TemporalServer, start_codec_server, start_worker
from everlong.embedded.server import find_free_port
from everlong.storage import BlobStore
from everlong.telemetry.exporters import ExportSettings, open_providers
from everlong.testing import ScriptedModel
from everlong.worker_options import READY
from tests.support.scripted_agents import call
from tests.support.thread_driver import Drive, call_then_answer

ECHO = Agent(name="ops", model=ScriptedModel(lambda turn: Reply(text="heard")))
# The labels of Core's metrics. The values of none of them grow with the number of threads.
LABELS = {
    "activity_type",
    "eager",
    "le",
    "namespace",
    "operation",
    "poller_type",
    "status_code",
    "task_queue",
    "worker_type",
    "workflow_type",
}


@tool(needs_approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


async def scrape(url: str, done: Callable[[str], bool], seconds_max: float = 20.0) -> str:
    """Ask until what is shown is as expected."""
    deadline = time.monotonic() + seconds_max
    text = ""
    async with httpx.AsyncClient() as client:
        while time.monotonic() < deadline:
            try:
                text = (await client.get(url)).text
            except httpx.TransportError as error:
                text = f"{type(error).__name__}"
            if done(text):
                return text
            await asyncio.sleep(0.05)
    raise AssertionError(text)


async def test_core_and_everlong_metrics_share_one_endpoint(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    providers = open_providers(
        ExportSettings(service_name="everlong-worker", metrics="prometheus", prometheus_port=0)
    )
    core = providers.open_core()
    assert core is not None
    assert providers.endpoint is not None
    plugin = EverlongPlugin(store=store, agents=[ECHO], meter_provider=providers.meter_provider)
    client = await Client.connect(server.address, plugins=[plugin], runtime=core.runtime)
    async with Worker(client, task_queue=thread_id):
        number = await send(client, thread_id, "hello", task_queue=thread_id, agent="ops")
        await wait_for_status(
            client, thread_id, lambda status: status.counters.answered >= number, seconds_max=90
        )
    core.drain()
    providers.meters.add("everlong.holds", 1, {"error": "StoreUnavailable"})
    text = await scrape(providers.endpoint.url, bool)
    providers.shutdown()
    step = f'activity_type="everlong.call_model",namespace="default",task_queue="{thread_id}"'
    assert f"temporal_activity_execution_latency_seconds_count{{{step}" in text
    for name in (
        "temporal_request_total",
        "temporal_request_latency_seconds_bucket",
        "temporal_worker_task_slots_available",
        "temporal_workflow_task_schedule_to_start_latency_seconds_sum",
        "everlong_holds_total",
    ):
        assert f"\n{name}{{" in text, name
    of_core = [line for line in text.splitlines() if line.startswith("temporal_")]
    assert {label for line in of_core for label in re.findall(r"(\w+)=\"", line)} <= LABELS
    described = await client.get_workflow_handle(thread_id).describe()
    assert described.run_id not in text


async def summarise_rows(client: Client, done: Callable[[FleetFigures], bool]) -> FleetFigures:
    """Measure until visibility has caught up."""
    for _ in range(200):
        fleet = await measure_fleet(client)
        if done(fleet):
            return fleet
        await asyncio.sleep(0.05)
    raise AssertionError(fleet)


async def measure_baseline(client: Client) -> FleetFigures:
    """Measure the threads that other tests left, once the server's list has caught up with them."""
    fleet = await measure_fleet(client)
    for _ in range(20):
        await asyncio.sleep(0.2)
        before, fleet = fleet, await measure_fleet(client)
        if fleet == before:
            return fleet
    raise AssertionError(fleet)


async def test_all_threads_are_counted_without_queries(drive: Drive) -> None:
    agent = Agent(name="ops", model=call_then_answer(call(0, "pay"), call(1, "pay")), tools=[pay])
    async with drive([agent]) as thread:
        before = await measure_baseline(thread.threads.client)
        await thread.send()
        [first, second] = await thread.pending(2)
        asking = await summarise_rows(
            thread.threads.client, lambda fleet: fleet.pending >= before.pending + 2
        )
        assert asking.by_status["approval"] == before.by_status["approval"] + 1
        for approval in (first, second):
            await thread.decide(approval.id)
        await thread.wait_for_answers()
        await thread.handle.signal("pause")
        paused = before.by_status["paused"] + 1
        after = await summarise_rows(
            thread.threads.client, lambda fleet: fleet.by_status["paused"] == paused
        )
        assert after.pending == before.pending
        await thread.handle.terminate()
        await summarise_rows(
            thread.threads.client, lambda fleet: fleet.by_status["paused"] == paused - 1
        )


def make_settings(tmp_path: Path, address: str, port: int) -> Settings:
    """Settings of a stack whose worker shows metrics on a port; its admin server is on the next."""
    settings = load_settings(
        {"EVERLONG_DATA_DIR": str(tmp_path), "OTEL_METRICS_EXPORTER": "prometheus"}
    )
    return point_to_embedded(dataclasses.replace(settings, metrics_port=port), address)


async def test_a_worker_shows_its_metrics_until_it_stops(
    server: TemporalServer, tmp_path: Path
) -> None:
    port = find_free_port()
    settings = make_settings(tmp_path, server.address, port)
    with start_worker(settings, ["everlong.demo:agent"]) as worker:
        await worker.wait_for_output(READY, 30)
        url = f"http://127.0.0.1:{port}/metrics"
        text = await scrape(url, lambda text: "temporal_worker_start_total" in text)
        assert 'service_name="everlong-worker"' in text
        worker.stop()
        assert worker.returncode == 0, worker.output()


async def test_the_admin_server_shows_all_threads(server: TemporalServer, tmp_path: Path) -> None:
    port = find_free_port()
    settings = make_settings(tmp_path, server.address, port - 1)
    with start_codec_server(settings, find_free_port(), 8233):
        url = f"http://127.0.0.1:{port}/metrics"
        text = await scrape(url, lambda text: 'everlong_threads{status="waiting"}' in text)
        assert 'service_name="everlong-admin"' in text
        assert "everlong_approvals_age_seconds" in text


async def test_without_temporal_the_admin_server_serves_values_and_no_gauges(
    tmp_path: Path,
) -> None:
    port, web_port = find_free_port(), find_free_port()
    settings = make_settings(tmp_path, f"127.0.0.1:{find_free_port()}", port - 1)
    with start_codec_server(settings, web_port, 8233) as admin:
        await admin.wait_for_output("metrics of all threads are not shown", 30)
        assert "ok" in await scrape(f"http://127.0.0.1:{web_port}/healthz", bool)
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://127.0.0.1:{port}/metrics")
        assert answer.status_code == 200
        assert "everlong_threads" not in answer.text
