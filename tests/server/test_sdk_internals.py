"""Workflows on an SDK that lacks a private API: they run, resume and end normally."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Replayer, Worker

from everlong import EverlongPlugin
from everlong.embedded import TemporalServer
from everlong.interceptors import sdk_internals
from tests.server.test_nexus import Sides, answer, connect
from tests.support.fake_stores import CountingStore
from tests.support.loop_workflows import ListLoop, Loop, compute_expected, next_result
from tests.support.missing_sdk_apis import REMOVALS, list_warnings

LOOP = Loop(steps=6, result_bytes=30_000, wait_at=3)


@contextlib.asynccontextmanager
async def cold_worker(
    server: TemporalServer, store: CountingStore, queue: str
) -> AsyncIterator[Client]:
    """A worker whose plugin remembers nothing."""
    client = await Client.connect(server.address, plugins=[EverlongPlugin(store=store)])
    async with Worker(client, task_queue=queue, workflows=[ListLoop], activities=[next_result]):
        yield client


async def wait_until_waiting(handle: WorkflowHandle[Any, Any]) -> None:
    async with asyncio.timeout(90):
        while await handle.query("steps") < LOOP.wait_at:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("missing", ["nothing", *REMOVALS])
async def test_a_workflow_runs_resumes_and_replays_without_a_private_api(
    server: TemporalServer,
    thread_id: str,
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    features = set()
    if missing != "nothing":
        feature, remove = REMOVALS[missing]
        features = {feature}
        remove(monkeypatch)
    store = CountingStore()
    async with cold_worker(server, store, thread_id) as client:
        handle = await client.start_workflow(ListLoop.run, LOOP, id=thread_id, task_queue=thread_id)
        await wait_until_waiting(handle)
    put = store.puts
    async with cold_worker(server, store, thread_id) as client:
        handle = client.get_workflow_handle_for(ListLoop.run, thread_id)
        await wait_until_waiting(handle)
        written = store.puts - put
        await handle.signal(ListLoop.go)
        assert await handle.result() == compute_expected(LOOP)
    plugins = [EverlongPlugin(store=store)]
    await Replayer(workflows=[ListLoop], plugins=plugins).replay_workflow(
        await handle.fetch_history()
    )
    assert sdk_internals._off == features
    assert len(list_warnings(caplog)) == len(features)
    # Only without the hooks does a replay write again.
    assert (written > 0) == (sdk_internals.HOOKS in features)
    sdk_internals._off.clear()


@pytest.mark.parametrize(
    "broken", ["RunAheadDetector.observe", "_fails_workflow", "_add_interceptor"]
)
async def test_a_hook_that_meets_messages_of_another_shape_fails_no_workflow(
    server: TemporalServer,
    thread_id: str,
    broken: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise AttributeError("no such field")

    monkeypatch.setattr(f"everlong.interceptors.activation.{broken}", fail)
    loop = Loop(steps=3, result_bytes=30_000)
    async with cold_worker(server, CountingStore(), thread_id) as client:
        result = await client.execute_workflow(
            ListLoop.run, loop, id=thread_id, task_queue=thread_id
        )
    assert result == compute_expected(loop)
    assert len(list_warnings(caplog)) == 1
    sdk_internals._off.clear()


async def test_an_operation_result_stays_readable_without_the_sdks_nexus_context(
    server: TemporalServer,
    thread_id: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    REMOVALS["nexus._operation_context"][1](monkeypatch)
    sides = Sides(
        await connect(server, CountingStore()), await connect(server, CountingStore()), thread_id
    )
    async with sides.running():
        handle = await sides.call("reverse_run", 100_000)
        assert await handle.result() == answer("reverse_run", 100_000, compressible=False)
    assert len(list_warnings(caplog)) == 1
    sdk_internals._off.clear()
