"""Roots of a sweep besides histories: resets, running activities, schedules and claims."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from temporalio import activity, workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleSpec,
    ScheduleState,
)
from temporalio.common import RetryPolicy
from temporalio.converter import DataConverter, ExternalStorage
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from everlong import EverlongPlugin, Policy
from everlong.client.archives import list_archives
from everlong.client.wait import wait_for_status
from everlong.codecs import EverlongCodec
from everlong.codecs.payloads import walk_payloads
from everlong.codecs.sdk_storage import EverlongStorageDriver
from everlong.embedded import TemporalServer
from everlong.models import SWEEPER_WORKFLOW, SweepOptions, SweepReport
from everlong.storage import BlobStore
from everlong.storage.pack_store import PackStore
from tests.support.governed_agent import build_governed_agent
from tests.support.loop_workflows import ACTIVITIES, WORKFLOWS, ListLoop, Loop
from tests.support.namespaces import list_sizes, new_namespace, sweep, wait_until
from tests.support.sample_payloads import noise
from tests.support.threads import Threads, open_threads

SWEEPS = 3
LARGE = 20_000


def large(number: int) -> str:
    return noise(LARGE, number).hex()


async def decode_all(client: Client, store: BlobStore) -> int:
    """Decode all that the namespace keeps, from the bare store; return how much was in the store."""
    codec, count = EverlongCodec(PackStore(store)), 0
    async for run in client.list_workflows():
        handle = client.get_workflow_handle(run.id, run_id=run.run_id)
        for event in (await handle.fetch_history()).events:
            for payload, _ in walk_payloads(event):
                count += payload.metadata["encoding"] == b"binary/everlong-ref"
                await codec.decode([payload])
    return count


@pytest.fixture
async def threads(server: TemporalServer, store: BlobStore) -> AsyncIterator[Threads]:
    namespace = await new_namespace(server.address, attributes=True)
    agents = (
        build_governed_agent(),
        build_governed_agent(Policy(steps_max=1, on_limit="archive"), name="brief"),
    )
    async with open_threads(server.address, store, *agents, inline_bytes_max=128) as opened:
        config = {**opened.client.config(), "namespace": namespace}
        opened.client = Client(**config)  # type: ignore[arg-type] # as its own config has it
        async with opened.worker():
            yield opened


async def say(threads: Threads, text: str, agent: str = "ops") -> None:
    await threads.wait_for_answers("ops", await threads.send("ops", text, agent=agent))


async def test_a_sweep_archives_a_thread_ended_by_a_limit(threads: Threads) -> None:
    client, packs = threads.client, PackStore(threads.store)
    await say(threads, "hello", agent="brief")
    await threads.send("ops", "and more", agent="brief")
    await wait_for_status(client, "ops", lambda status: status.status == "archived", seconds_max=90)

    async def is_listed() -> bool:
        query = "EverlongStatus = 'archived' AND ExecutionStatus = 'Completed'"
        return bool([run async for run in client.list_workflows(query)])

    await wait_until(is_listed)
    report = await sweep(client, threads.store, dry_run=True)
    assert (report.archived, report.not_archived) == (0, ())
    report = await client.execute_workflow(
        SWEEPER_WORKFLOW,
        SweepOptions(),
        id="sweep-once",
        task_queue=threads.task_queue,
        result_type=SweepReport,
    )
    assert (report.archived, report.not_archived) == (1, ())
    [archive] = (await list_archives(client, packs, thread_id="ops")).archives
    assert archive.status == "archived"
    assert (await sweep(client, threads.store)).archived == 0


@pytest.mark.guarantee(106)
async def test_a_reset_thread_continues_after_a_sweep(threads: Threads) -> None:
    client = threads.client
    for number in range(3):
        await say(threads, f"message {number} {large(number)}")
    handle = client.get_workflow_handle("ops")
    events = (await handle.fetch_history()).events
    done = [
        event.event_id
        for event in events
        if event.HasField("workflow_task_completed_event_attributes")
    ]
    await sweep(client, threads.store)
    reset = await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id="ops"),
            reason="test",
            request_id="reset",
            workflow_task_finish_event_id=done[len(done) // 2],
        )
    )
    again = client.get_workflow_handle("ops", run_id=reset.run_id)
    assert (await again.describe()).run_id == reset.run_id
    await say(threads, "after the reset")
    for _ in range(SWEEPS):
        assert not (await sweep(client, threads.store)).incomplete
    assert await decode_all(client, threads.store) > 0
    texts = [each.text for each in await threads.conversation("ops")]
    assert "after the reset" in texts


@activity.defn
async def beat_and_fail() -> None:
    attempt = activity.info().attempt
    activity.heartbeat(large(100 + attempt))
    await asyncio.sleep(0.3)  # The SDK sends a heartbeat by and by.
    raise ApplicationError("no", large(200 + attempt), next_retry_delay=timedelta(hours=1))


@workflow.defn
class Waits:
    @workflow.run
    async def run(self, _text: str) -> None:
        await workflow.execute_activity(
            beat_and_fail,
            start_to_close_timeout=timedelta(hours=1),
            heartbeat_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(maximum_attempts=9),
        )


@pytest.mark.guarantee(106)
async def test_objects_of_a_running_activity_and_a_schedule_stay(
    server: TemporalServer, store: BlobStore
) -> None:
    namespace = await new_namespace(server.address)
    plugin = EverlongPlugin(store=store, inline_bytes_max=512)
    client = await Client.connect(server.address, namespace=namespace, plugins=[plugin])
    start = ScheduleActionStartWorkflow("Waits", large(1), id="nightly", task_queue="none")
    await client.create_schedule(
        "nightly", Schedule(start, ScheduleSpec(), state=ScheduleState(paused=True))
    )
    worker = Worker(client, task_queue="q", workflows=[Waits], activities=[beat_and_fail])
    async with worker:
        handle = await client.start_workflow(Waits.run, "text", id="waits", task_queue="q")

        async def has_failed() -> bool:
            [pending] = (await handle.describe()).raw_description.pending_activities or [None]
            return pending is not None and pending.HasField("last_failure")

        await wait_until(has_failed)
        before = await list_sizes(store)
        for _ in range(SWEEPS):
            report = await sweep(client, store)
            assert not report.incomplete
        # The schedule's argument, the heartbeat and the failure's detail: nothing else names them.
        assert await list_sizes(store) == before
        assert len(before) == 3
        await handle.terminate()
    await client.get_schedule_handle("nightly").delete()


@pytest.mark.guarantee(106)
async def test_objects_named_by_the_sdks_external_storage_stay(
    server: TemporalServer, store: BlobStore
) -> None:
    namespace = await new_namespace(server.address)
    storage = ExternalStorage(drivers=[EverlongStorageDriver(store)], payload_size_threshold=2_000)
    converter = dataclasses.replace(DataConverter.default, external_storage=storage)
    client = await Client.connect(server.address, namespace=namespace, data_converter=converter)
    worker = Worker(client, task_queue="q", workflows=WORKFLOWS, activities=ACTIVITIES)
    async with worker:
        loop = Loop(steps=5, result_bytes=LARGE)
        await client.execute_workflow(ListLoop.run, loop, id="loop", task_queue="q")
    plugin = EverlongPlugin(store=store)
    sweeping = await Client.connect(server.address, namespace=namespace, plugins=[plugin])
    before = await list_sizes(store)
    assert before
    for _ in range(SWEEPS):
        assert not (await sweep(sweeping, store)).incomplete
    assert await list_sizes(store) == before
