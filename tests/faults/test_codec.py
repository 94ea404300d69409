"""A store that fails under a team's own workflow: nothing is lost, and nothing ends the workflow."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

from everlong import EverlongPlugin, limits
from everlong.codecs.refs import is_ref
from everlong.embedded import TemporalServer
from everlong.models import thread_key
from everlong.storage.file import FileBlobStore
from tests.support.fake_stores import FlakyStore
from tests.support.loop_workflows import (
    ACTIVITIES,
    TIMEOUT,
    WORKFLOWS,
    Fan,
    ListLoop,
    Loop,
    compute_expected,
    noise,
)


async def start(
    address: str, plugin: EverlongPlugin, thread_id: str, loop: Loop
) -> tuple[Client, WorkflowHandle[Any, str]]:
    client = await Client.connect(address, plugins=[plugin])
    handle = await client.start_workflow(ListLoop.run, loop, id=thread_id, task_queue=thread_id)
    return client, handle


def worker(client: Client, thread_id: str) -> Worker:
    return Worker(client, task_queue=thread_id, workflows=WORKFLOWS, activities=ACTIVITIES)


async def wait_for_steps(handle: WorkflowHandle[Any, Any], steps: int) -> None:
    async with asyncio.timeout(60):
        while await handle.query("steps") < steps:
            await asyncio.sleep(0.1)


async def failure_message(handle: WorkflowHandle[Any, Any]) -> str:
    """Wait for a failed task or a pending activity's failure, and return what it says."""
    async with asyncio.timeout(90):
        while True:
            async for event in handle.fetch_history_events():
                if event.HasField("workflow_task_failed_event_attributes"):
                    return event.workflow_task_failed_event_attributes.failure.message
            raw = (await handle.describe()).raw_description
            for pending in raw.pending_activities:
                if pending.last_failure.message:
                    return f"{pending.last_failure.message}: {pending.last_failure.cause.message}"
            await asyncio.sleep(0.1)


@pytest.mark.guarantee(31)
@pytest.mark.parametrize("damage", ["missing", "corrupt", "foreign"])
async def test_lost_packs_hold_a_workflow_and_restoring_them_lets_it_go_on(
    server: TemporalServer, tmp_path: Path, thread_id: str, damage: str
) -> None:
    loop = Loop(steps=6, result_bytes=20_000, wait_at=5)
    plugin = EverlongPlugin(store=FileBlobStore(tmp_path))
    client, handle = await start(server.address, plugin, thread_id, loop)
    async with worker(client, thread_id):
        await wait_for_steps(handle, 5)
    folder = tmp_path / "v1" / thread_key("default", thread_id)
    packs = {path: path.read_bytes() for path in folder.iterdir()}
    assert len(packs) >= 5
    for path, data in packs.items():
        if damage == "missing":
            path.unlink()
        elif damage == "corrupt":
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        else:
            path.write_bytes(b"bytes of another file")
    cold = await Client.connect(
        server.address, plugins=[EverlongPlugin(store=FileBlobStore(tmp_path))]
    )
    async with worker(cold, thread_id):
        handle = cold.get_workflow_handle_for(ListLoop.run, thread_id)
        await handle.signal(ListLoop.go)
        message = await failure_message(handle)
        assert any(path.name in message for path in packs), "the digest"
        assert thread_key("default", thread_id) in message, "the thread"
        assert "continues by itself" in message, "the remedy"
        assert noise("result 0", 20_000)[:40] not in message
        for path, data in packs.items():
            path.write_bytes(data)
        assert await asyncio.wait_for(handle.result(), 60) == compute_expected(loop)


@pytest.mark.guarantee(30)
async def test_while_the_store_is_down_payloads_stay_inline_and_the_workflow_goes_on(
    server: TemporalServer,
    tmp_path: Path,
    thread_id: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "STORE_DOWN_SECONDS", 0.3)
    store = FlakyStore(tmp_path)
    plugin = EverlongPlugin(store=store)
    loop = Loop(steps=40, result_bytes=20_000, wait_at=10)
    client, handle = await start(server.address, plugin, thread_id, loop)
    with caplog.at_level(logging.WARNING, "everlong"):
        async with worker(client, thread_id):
            await wait_for_steps(handle, 10)
            store.down = True
            await handle.signal(ListLoop.go)
            await wait_for_steps(handle, 15)
            store.down = False
            assert await handle.result() == compute_expected(loop)
    stats = plugin.codec.stats
    assert stats.fallbacks >= 10
    assert len([r for r in caplog.records if "the blob store is down" in r.message]) == 1
    # Once it is back, payloads go there again: the last ones are refs.
    events = [event async for event in handle.fetch_history_events()]
    inputs = [
        event.activity_task_scheduled_event_attributes.input.payloads[0]
        for event in events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    assert not is_ref(inputs[12])
    assert is_ref(inputs[-1])


@pytest.mark.guarantee(30)
async def test_a_payload_too_large_to_stay_inline_waits_for_the_store(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    store = FlakyStore(tmp_path)
    client = await Client.connect(server.address, plugins=[EverlongPlugin(store=store)])
    async with worker(client, thread_id):
        store.down = True
        handle = await client.start_workflow(
            Fan.run, args=[1, 4_000_000], id=thread_id, task_queue=thread_id
        )
        message = await failure_message(handle)
        assert "the store is down for a test" in message
        store.down = False
        assert await asyncio.wait_for(handle.result(), 90) == 4_000_000


@pytest.mark.guarantee(27)
async def test_an_outage_in_the_middle_of_many_inputs_stays_within_the_servers_limit(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    """40 inputs of 140 KB would each fit inline, and all of them would end the workflow."""
    store = FlakyStore(tmp_path)
    client = await Client.connect(server.address, plugins=[EverlongPlugin(store=store)])
    async with worker(client, thread_id):
        store.down = True
        handle = await client.start_workflow(
            Fan.run, args=[40, 250_000], id=thread_id, task_queue=thread_id
        )
        assert "the store is down for a test" in await failure_message(handle)
        store.down = False
        assert await asyncio.wait_for(handle.result(), 90) == 40 * 250_000


@activity.defn
async def make_text(number: int) -> str:
    return noise(f"text {number}", 1_900_000)


@workflow.defn
class Local:
    """Its local activities return more together than the server takes at once."""

    @workflow.run
    async def run(self) -> int:
        texts = await asyncio.gather(
            *(
                workflow.execute_local_activity(make_text, number, start_to_close_timeout=TIMEOUT)
                for number in range(5)
            )
        )
        return sum(map(len, texts))


@pytest.mark.guarantee(30)
async def test_an_outage_under_local_activities_does_not_end_the_workflow(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    store = FlakyStore(tmp_path)
    client = await Client.connect(server.address, plugins=[EverlongPlugin(store=store)])
    async with Worker(client, task_queue=thread_id, workflows=[Local], activities=[make_text]):
        store.down = True
        handle = await client.start_workflow(Local.run, id=thread_id, task_queue=thread_id)
        await asyncio.sleep(4)
        assert (await handle.describe()).status == WorkflowExecutionStatus.RUNNING
        store.down = False
        assert await asyncio.wait_for(handle.result(), 60) == 5 * 1_900_000


@activity.defn
async def count_characters(text: str) -> int:
    return len(text)


@workflow.defn
class RetriedActivity:
    """Calls one activity, a few times if it must."""

    @workflow.run
    async def run(self, size: int) -> int:
        return await workflow.execute_activity(
            count_characters,
            noise("once", size),
            start_to_close_timeout=TIMEOUT,
            retry_policy=RetryPolicy(maximum_attempts=5),
        )


@pytest.mark.guarantee(31)
async def test_an_activity_with_unreadable_input_is_retried(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    store = FileBlobStore(tmp_path)
    starter = await Client.connect(server.address, plugins=[EverlongPlugin(store=store)])
    reader = await Client.connect(server.address, plugins=[EverlongPlugin(store=store)])
    workflows = Worker(starter, task_queue=thread_id, workflows=[RetriedActivity])
    activities = Worker(reader, task_queue=thread_id, activities=[count_characters])
    async with workflows:
        handle = await starter.start_workflow(
            RetriedActivity.run, 50_000, id=thread_id, task_queue=thread_id
        )
        folder = tmp_path / "v1" / thread_key("default", thread_id)
        async with asyncio.timeout(90):
            while not (folder.exists() and any(folder.iterdir())):
                await asyncio.sleep(0.05)
        [pack] = folder.iterdir()
        hidden = tmp_path / "hidden"
        pack.rename(hidden)
        async with activities:
            assert pack.name in await failure_message(handle)
            hidden.rename(pack)
            assert await asyncio.wait_for(handle.result(), 60) == 50_000


@pytest.mark.guarantee(30)
def test_the_bounds_fit_into_a_workflow_task() -> None:
    """An outage is noticed, and the payloads kept inline, before the task's 10 s are over."""
    assert 2 * limits.STORE_TRY_SECONDS + 1 < 10
    assert limits.COMPLETION_BYTES_MAX < 4_000_000
