"""Runs that Temporal does not list, lists late, or lists in another state: a sweep counts them."""

import asyncio
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.history.v1 import (
    HistoryEvent,
    WorkflowExecutionContinuedAsNewEventAttributes,
    WorkflowExecutionPausedEventAttributes,
    WorkflowExecutionStartedEventAttributes,
)
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import ListWorkflowExecutionsResponse

from everlong import limits
from everlong.models import thread_key
from everlong.storage.memory import MemoryBlobStore
from everlong.sweep import Histories
from everlong.sweep.history_reader import find_related_runs, is_closing
from everlong.sweep.records import Records, SeenIds
from tests.support.fake_namespace import AT_ONCE, NAMESPACE, FakeNamespace, FakeRun

SWEEPS = 3
LONG = dataclasses.replace(AT_ONCE, quarantine_seconds=3600)
ENDED = {"COMPLETED", "FAILED", "CANCELED", "TERMINATED", "CONTINUED_AS_NEW", "TIMED_OUT"}


async def build_namespace(workflow_id: str = "w0") -> tuple[FakeNamespace, FakeRun]:
    world = FakeNamespace(MemoryBlobStore())
    run = world.start(workflow_id)
    for _ in range(3):
        run.payloads.append(await world.append(run, 400))
    run.payloads.append(await world.large(workflow_id))
    return world, run


@pytest.mark.parametrize("status", WorkflowExecutionStatus.keys())
async def test_every_run_that_has_not_ended_is_open(status: str) -> None:
    async def listed(*_: Any, **__: Any) -> ListWorkflowExecutionsResponse:
        info = WorkflowExecutionInfo(status=WorkflowExecutionStatus.Value(status))
        return ListWorkflowExecutionsResponse(executions=[info])

    service = SimpleNamespace(list_workflow_executions=listed)
    client = SimpleNamespace(workflow_service=service, namespace=NAMESPACE)
    histories = Histories(client)  # type: ignore[arg-type] # all that a listing needs
    [[run]] = [page async for page in histories.list_runs()]
    assert run.is_open == (status.removeprefix("WORKFLOW_EXECUTION_STATUS_") not in ENDED)


def test_only_the_end_of_a_run_closes_it() -> None:
    end = WorkflowExecutionContinuedAsNewEventAttributes(new_execution_run_id="next")
    pause = WorkflowExecutionPausedEventAttributes()
    assert is_closing(HistoryEvent(workflow_execution_continued_as_new_event_attributes=end))
    assert not is_closing(HistoryEvent(workflow_execution_paused_event_attributes=pause))
    assert not is_closing(HistoryEvent())


def test_a_run_names_its_neighbours_in_the_chain() -> None:
    start = WorkflowExecutionStartedEventAttributes(
        continued_execution_run_id="last", first_execution_run_id="first"
    )
    event = HistoryEvent(workflow_execution_started_event_attributes=start)
    assert set(find_related_runs(event)) == {("", "last"), ("", "first")}
    end = WorkflowExecutionContinuedAsNewEventAttributes(new_execution_run_id="next")
    event = HistoryEvent(workflow_execution_continued_as_new_event_attributes=end)
    assert list(find_related_runs(event)) == [("", "next")]


@pytest.mark.guarantee(106)
async def test_a_run_listed_as_closed_is_read_to_its_last_event(
    tmp_path: Path,
) -> None:
    world, run = await build_namespace()
    run.run = dataclasses.replace(run.run, is_open=False)  # As a status of a newer server.
    await world.sweep(index_dir=tmp_path)
    run.payloads.append(await world.append(run, 2000))
    for _ in range(SWEEPS):
        await world.sweep(index_dir=tmp_path)
    assert await world.keys() == await world.reachable()
    world.close(run)
    await world.sweep(index_dir=tmp_path)
    world.histories_read.clear()
    await world.sweep(index_dir=tmp_path)
    assert world.histories_read == []


async def test_heartbeat_data_of_a_run_goes_once_the_run_has_ended(tmp_path: Path) -> None:
    world, run = await build_namespace()
    run.heartbeat = await world.large("w0")
    await world.sweep(index_dir=tmp_path)
    world.close(run)
    for _ in range(SWEEPS):
        await world.sweep(index_dir=tmp_path)
    assert await world.keys() == await world.reachable()
    assert not await world.keys("quarantine/")


@pytest.mark.guarantee(106)
async def test_a_new_index_does_not_make_a_listing_decide() -> None:
    world, run = await build_namespace()
    await world.sweep(LONG)
    before = await world.keys()
    world.hidden = {run.run.run_id}
    for _ in range(SWEEPS):
        await world.sweep()  # With an index of its own each.
    assert await world.keys() == before == await world.reachable()


async def test_a_workflow_is_checked_again_before_its_objects_go(tmp_path: Path) -> None:
    world, run = await build_namespace()
    named = await world.large("w0")
    world.close(run)
    await world.sweep(index_dir=tmp_path)  # It is not referenced yet, so it is quarantined.
    again = world.start("w0")  # The id is used again, and the listing lags.
    again.payloads.append(named)
    world.hidden = {again.run.run_id}
    for _ in range(SWEEPS):
        await world.sweep(index_dir=tmp_path)
    assert await world.keys() == await world.reachable()


async def test_a_deleted_workflow_is_looked_up_once(tmp_path: Path) -> None:
    world, run = await build_namespace()
    await world.sweep(LONG, index_dir=tmp_path / "a")
    world.delete(run)
    other = world.start("w1")
    for _ in range(SWEEPS):
        await world.sweep(LONG, index_dir=tmp_path / "b")
    assert world.described.count("w0") == 1
    assert await world.keys() == await world.reachable()
    assert other.run.run_id in world.histories_read


async def test_a_schedule_counts_until_temporal_reports_it_deleted(tmp_path: Path) -> None:
    world, _ = await build_namespace()
    world.nightly = await world.large("w-nightly")
    await world.sweep(LONG, index_dir=tmp_path)
    world.hidden_schedules.add("nightly")
    for index_dir in (tmp_path, tmp_path, None, None):  # None: all that was known is in the store.
        await world.sweep(index_dir=index_dir)
        assert await world.keys() == await world.reachable()


async def test_objects_of_a_schedule_go_with_it(tmp_path: Path) -> None:
    world, _ = await build_namespace()
    world.nightly = await world.large("w-nightly")
    place = f"v1/{thread_key(NAMESPACE, 'w-nightly')}/"
    assert await world.keys(place)
    await world.sweep(index_dir=tmp_path)
    world.nightly = None
    for _ in range(SWEEPS):
        report = await world.sweep(index_dir=tmp_path)
    assert report.foreign.objects == 0
    assert not await world.keys(place)
    assert await world.keys() == await world.reachable()


async def test_a_shortened_history_is_read_again(tmp_path: Path) -> None:
    world, run = await build_namespace()
    past = list(run.payloads[:2])
    await world.sweep(LONG, index_dir=tmp_path)
    run.payloads = past  # Temporal's database was restored, and the run goes on from there.
    run.payloads.append(await world.large("w0"))
    for _ in range(SWEEPS):
        await world.sweep(index_dir=tmp_path)
    assert await world._keys(run.payloads[-1]) <= await world.keys()


async def test_records_of_seen_threads_are_merged_without_deleted_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SWEEP_RECORDS_MAX", 3)
    world = FakeNamespace(MemoryBlobStore())
    for number in range(6):
        run = world.start(f"w{number}")
        if number % 2:
            run.payloads.append(await world.large(f"w{number}"))
        await world.sweep(LONG)
        if number < 2:
            world.delete(run)
    records = Records(world.store, await world.fetch_namespace_id())
    # The history of w1 is gone as well, but something of it is stored.
    assert (await records.load_seen()).workflow_ids == {"w1", "w2", "w3", "w4", "w5"}
    assert len(await world.keys(f"sweep/{await world.fetch_namespace_id()}/seen/")) <= 3


async def test_ids_of_deleted_threads_do_not_accumulate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlong.sweep.records._GONE_MIN", 2)
    world = FakeNamespace(MemoryBlobStore())
    world.start("w0")
    short = [world.start(f"short-{number}") for number in range(5)]
    await world.sweep(LONG)
    for run in short:
        world.delete(run)
    await world.sweep(LONG)
    records = Records(world.store, await world.fetch_namespace_id())
    assert (await records.load_seen()).workflow_ids == {"w0"}


async def test_an_unreadable_record_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_RECORDS_MAX", 1)
    store = MemoryBlobStore()
    newer = "sweep/n/seen/1763276400000-0123abcd.json"
    await store.put(newer, json.dumps({"version": 9, "workflow_ids": ["x"]}).encode())
    for number in range(3):
        records = Records(store, "n", f"176327640000{number}-00000000")
        await records.add_seen(SeenIds(), SeenIds(frozenset({f"w{number}"})), SeenIds())
    assert (await records.load_seen()).workflow_ids == {"w0", "w1", "w2"}
    assert await store.get(newer)


async def test_records_merged_during_a_read_are_all_found() -> None:
    class Merging(MemoryBlobStore):
        is_merged = False

        async def get(self, key: str) -> bytes:
            if "/seen/" in key and not self.is_merged:
                self.is_merged = True
                seen = b'{"workflow_ids":["w0","w1"],"schedule_ids":[],"version":1}'
                await self.put("sweep/n/seen/1763276400009-00000000-1.json", seen)
                await self.delete(
                    [each.key async for each in self.list("") if "-1." not in each.key]
                )
            await asyncio.sleep(0)
            return await super().get(key)

    store = Merging()
    for number in range(2):
        records = Records(store, "n", f"176327640000{number}-00000000")
        await records.write_seen(SeenIds(frozenset({f"w{number}"})))
    assert (await records.load_seen()).workflow_ids == {"w0", "w1"}
