"""A query that a cold worker answers leaves a history that can be replayed."""

import asyncio
from datetime import timedelta

import pytest
from temporalio import activity, workflow
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.client import Client
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from everlong import EverlongPlugin
from everlong.embedded import TemporalServer
from everlong.interceptors.activation import RunAheadDetector
from everlong.storage.memory import MemoryBlobStore

ROUNDS = 8


@workflow.defn
class Waiter:
    """Waits for an activity; says to a query and to an update how far it is."""

    def __init__(self) -> None:
        self._state = "waiting"

    @workflow.run
    async def run(self, name: str) -> None:
        await workflow.execute_activity(
            "wait_for", name, task_queue=name, start_to_close_timeout=timedelta(seconds=60)
        )
        self._state = "done"
        await workflow.sleep(1000)

    @workflow.query
    def state(self) -> str:
        return self._state

    @workflow.update
    def note(self) -> str:
        return self._state


async def query_without_worker(client: Client, name: str) -> None:
    """A query waits for a worker; then a result and an update arrive; then a worker starts."""
    ended = asyncio.Event()

    @activity.defn
    async def wait_for(_: str) -> None:
        await ended.wait()

    queue = f"{name}-workflows"
    async with Worker(client, task_queue=name, activities=[wait_for]):
        async with Worker(client, task_queue=queue, workflows=[Waiter]):
            handle = await client.start_workflow(Waiter.run, name, id=name, task_queue=queue)
            assert await handle.query(Waiter.state) == "waiting"
        query = asyncio.create_task(handle.query(Waiter.state))
        await asyncio.sleep(0.3)
        ended.set()
        await asyncio.sleep(0.3)
        update = asyncio.create_task(handle.execute_update(Waiter.note))
        await asyncio.sleep(0.3)
        async with Worker(client, task_queue=queue, workflows=[Waiter]):
            assert await query in ("waiting", "done")
            # As on every replay: an update goes before the other events of its task.
            assert await update == "waiting"
    await handle.terminate()
    plugin = EverlongPlugin(store=MemoryBlobStore())
    replayer = Replayer(
        workflows=[Waiter], plugins=[plugin], workflow_runner=UnsandboxedWorkflowRunner()
    )
    await replayer.replay_workflow(await handle.fetch_history())


@pytest.mark.guarantee(38)
async def test_a_query_on_a_cold_worker_does_not_run_ahead_of_its_task(
    server: TemporalServer, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noticed = []

    def watched(self: RunAheadDetector, activation: WorkflowActivation) -> bool:
        noticed.append(original(self, activation))
        return noticed[-1]

    original = RunAheadDetector.observe
    monkeypatch.setattr(RunAheadDetector, "observe", watched)
    client = await Client.connect(server.address, plugins=[EverlongPlugin(store=MemoryBlobStore())])
    async with asyncio.timeout(60):
        await asyncio.gather(
            *(query_without_worker(client, f"{thread_id}-{n}") for n in range(ROUNDS))
        )
    assert any(noticed), "no query came before its task: nothing was tried"
