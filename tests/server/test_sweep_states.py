"""Runs and schedules of a real server that a sweep could misread: paused, not listed, deleted."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.api.workflowservice.v1 import (
    PauseWorkflowExecutionRequest,
    UnpauseWorkflowExecutionRequest,
)
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleSpec,
    ScheduleState,
    WorkflowHandle,
)
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from everlong import EverlongPlugin
from everlong.codecs import EverlongCodec
from everlong.codecs.payloads import walk_payloads
from everlong.embedded import TemporalServer
from everlong.models import SweepOptions
from everlong.storage import BlobStore
from everlong.storage.pack_store import PackStore, open_packs
from everlong.sweep import Histories, Sweep
from everlong.sweep.history_reader import Run
from tests.support.namespaces import (
    AT_ONCE,
    delete,
    end,
    list_sizes,
    new_namespace,
    sweep,
    wait_until,
)
from tests.support.sample_payloads import noise

SWEEPS = 3


@pytest.fixture
async def client(server: TemporalServer, store: BlobStore) -> Client:
    namespace = await new_namespace(server.address)
    plugin = EverlongPlugin(store=store, inline_bytes_max=512)
    return await Client.connect(server.address, namespace=namespace, plugins=[plugin])


def large(number: int) -> str:
    return noise(20_000, number).hex()


@workflow.defn
class Counts:
    """Counts its `add` signals, and continues as new at the signal `roll`."""

    def __init__(self) -> None:
        self.signals = 0
        self.rolls = False

    @workflow.run
    async def run(self, text: str) -> None:
        await workflow.wait_condition(lambda: self.rolls)
        workflow.continue_as_new(f"{text[:10]} again")

    @workflow.signal
    async def add(self, _text: str) -> None:
        self.signals += 1

    @workflow.signal
    async def roll(self) -> None:
        self.rolls = True


async def decode_all(handle: WorkflowHandle[Counts, None], store: BlobStore) -> None:
    codec = EverlongCodec(PackStore(store))
    for event in (await handle.fetch_history()).events:
        for payload, _ in walk_payloads(event):
            await codec.decode([payload])


@pytest.mark.guarantee(106)
async def test_inputs_sent_to_a_paused_run_stay(
    client: Client, store: BlobStore, tmp_path: Path
) -> None:
    runner = UnsandboxedWorkflowRunner()
    async with Worker(client, task_queue="q", workflows=[Counts], workflow_runner=runner):
        handle = await client.start_workflow(Counts.run, large(1), id="counts", task_queue="q")
        which = {
            "namespace": client.namespace,
            "workflow_id": "counts",
            "run_id": handle.first_execution_run_id,
            "identity": "test",
        }
        pause = PauseWorkflowExecutionRequest(**which, reason="test", request_id="1")  # type: ignore[arg-type]
        await client.workflow_service.pause_workflow_execution(pause)

        async def is_paused() -> bool:
            return (await client.count_workflows("ExecutionStatus = 'Paused'")).count == 1

        await wait_until(is_paused)
        await sweep(client, store, index_dir=tmp_path)
        unpause = UnpauseWorkflowExecutionRequest(**which, reason="test", request_id="2")  # type: ignore[arg-type]
        await client.workflow_service.unpause_workflow_execution(unpause)
        await handle.signal(Counts.add, large(2))
        before = await list_sizes(store)
        assert len(before) == 2
        for _ in range(SWEEPS):
            assert not (await sweep(client, store, index_dir=tmp_path)).incomplete
        assert await list_sizes(store) == before
        await decode_all(handle, store)
        await handle.terminate()


class UnlistedNamespace(Histories):
    """Its listing has lost everything."""

    async def list_runs(self) -> AsyncIterator[list[Run]]:
        yield []

    async def list_schedules(self) -> AsyncIterator[list[str]]:
        yield []


async def test_runs_missing_from_a_listing_are_found_by_id(
    client: Client, store: BlobStore
) -> None:
    runner = UnsandboxedWorkflowRunner()
    start = ScheduleActionStartWorkflow("Counts", large(9), id="nightly", task_queue="none")
    await client.create_schedule(
        "nightly", Schedule(start, ScheduleSpec(), state=ScheduleState(paused=True))
    )
    async with Worker(client, task_queue="q", workflows=[Counts], workflow_runner=runner):
        handle = await client.start_workflow(Counts.run, large(1), id="counts", task_queue="q")
        await handle.signal(Counts.roll)
        current = client.get_workflow_handle("counts")

        async def has_rolled() -> bool:
            return (await current.describe()).run_id != handle.first_execution_run_id

        await wait_until(has_rolled)
        await current.signal(Counts.add, large(2))

        async def is_listed() -> bool:
            return len([run async for run in client.list_workflows("WorkflowId = 'counts'")]) == 2

        await wait_until(is_listed)
        before = await list_sizes(store)
        assert len(before) == 3
        await sweep(client, store)
        packs = open_packs(store)
        codec = client.data_converter.payload_codec
        for _ in range(SWEEPS):
            work = Sweep(
                UnlistedNamespace(client),
                codec,
                packs,
                SweepOptions(retention=AT_ONCE),
                allow_short_quarantine=True,
            )
            report = await work.run()
            # The newest run by its workflow's id, the one before by its first event.
            assert (report.runs, report.incomplete) == (2, ())
        assert await list_sizes(store) == before
        await current.terminate()
    await client.get_schedule_handle("nightly").delete()


async def test_inputs_of_a_schedule_go_with_it_and_its_runs(
    client: Client, store: BlobStore
) -> None:
    start = ScheduleActionStartWorkflow("Counts", large(1), id="nightly", task_queue="none")
    handle = await client.create_schedule(
        "nightly", Schedule(start, ScheduleSpec(), state=ScheduleState(paused=True))
    )
    await handle.trigger()

    async def has_started() -> bool:
        return bool([run async for run in client.list_workflows()])

    await wait_until(has_started)
    await sweep(client, store)
    assert await list_sizes(store)
    [run_id] = [run.id async for run in client.list_workflows()]
    assert run_id != "nightly"
    await handle.delete()
    await end(client, run_id)
    await delete(client, run_id)

    async def is_gone() -> bool:
        await sweep(client, store)
        return not await list_sizes(store)

    await wait_until(is_gone, 40)
