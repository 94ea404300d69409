"""Sweeps of real namespaces, in a directory and in S3: by the service, a workflow and the command."""

import asyncio
import dataclasses
import json
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker
from typer.testing import CliRunner

from everlong.cli import app
from everlong.client.archives import archive
from everlong.client.fork import fork
from everlong.client.sweeps import (
    read_last_sweep,
    read_sweep_interval,
    schedule_sweeps,
    unschedule_sweeps,
)
from everlong.client.time_travel import read_messages
from everlong.embedded import TemporalServer
from everlong.errors import EverlongError
from everlong.models import SWEEP as SWEEP_ACTIVITY
from everlong.models import (
    SWEEPER_SCHEDULE,
    SWEEPER_WORKFLOW,
    SweepOptions,
    SweepReport,
    Tally,
    thread_key,
)
from everlong.queries.engine import run_query
from everlong.storage import open_store
from everlong.storage.pack_store import PackStore, open_packs
from everlong.telemetry.spans import SWEEP
from everlong.workflows.sweeper import SweeperWorkflow
from tests.support.namespaces import AT_ONCE, delete, end, list_sizes, new_namespace, sweep
from tests.support.soak_agent import soak
from tests.support.threads import Threads, open_threads

if TYPE_CHECKING:
    from tests.support.s3_server import S3Server

GONE_SECONDS_MAX = 90


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return (tmp_path / "blobs").as_uri()
    weed: S3Server = request.getfixturevalue("s3")
    return weed.url(f"sweep-{uuid.uuid4().hex[:8]}")


@pytest.fixture
async def threads(server: TemporalServer, url: str) -> AsyncIterator[Threads]:
    namespace = await new_namespace(server.address)
    async with open_threads(server.address, open_store(url), soak) as opened:
        config = {**opened.client.config(), "namespace": namespace}
        opened.client = Client(**config)  # type: ignore[arg-type] # as its own config has it
        yield opened


async def talk(threads: Threads, thread_id: str, text: str = "m1 w w") -> None:
    number = await threads.send(thread_id, text, agent="soak")
    await threads.wait_for_answers(thread_id, number)


async def wait_until_deleted(client: Client) -> None:
    deadline = time.monotonic() + GONE_SECONDS_MAX
    while [run async for run in client.list_workflows()]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)


@pytest.mark.guarantee(106)
async def test_a_thread_and_its_fork_stay_whole_until_their_histories_go(
    threads: Threads, url: str, tmp_path: Path
) -> None:
    client, index_dir = threads.client, tmp_path / "index"
    async with threads.worker():
        for number in range(3):
            await talk(threads, "ops", f"m{number} w ww")
        packs = PackStore(threads.store)
        await fork(client, packs, "ops", 4, "forked", task_queue=threads.task_queue)
        await talk(threads, "forked")
        before = await threads.conversation("ops"), await threads.conversation("forked")
        await sweep(client, threads.store, index_dir=index_dir)
        await end(client, "ops")
        await delete(client, "ops")
        await _check_quarantine_read(client, url)
        # The fork reads what its source wrote, and that one's history is gone.
        for _ in range(3):
            report = await sweep(client, threads.store, index_dir=index_dir)
            assert not report.incomplete
        fresh = PackStore(open_store(url))
        assert await read_messages(client, fresh, "forked") == before[1]
        await end(client, "forked")
    await delete(client, "forked")
    await wait_until_deleted(client)
    for _ in range(2):
        report = await sweep(client, threads.store, index_dir=index_dir)
    assert report.purged.bytes > 0
    assert not await list_sizes(open_store(url), "v1/")
    assert not await list_sizes(open_store(url), "quarantine/")


async def _check_quarantine_read(client: Client, url: str) -> None:
    """Check that reading a range of an object in quarantine succeeds, and restores the object."""
    store = open_store(url)
    ref, _ = await PackStore(store).write_body(
        thread_key(client.namespace, "forked"),
        "segment",  # type: ignore[arg-type]
        b"orphaned" * 100,
    )
    [key] = [key for key in await list_sizes(store) if ref.digest in key]
    data = await store.get(key)
    await sweep(client, store, dataclasses.replace(AT_ONCE, quarantine_seconds=3600))
    assert key not in await list_sizes(store)
    assert await open_packs(url).store.get_range(key, 3, 20) == data[3:23]
    assert await store.get(key) == data


@pytest.mark.parametrize("url", ["file"], indirect=True)
async def test_unchanged_histories_are_not_read_again(threads: Threads, tmp_path: Path) -> None:
    client = threads.client
    async with threads.worker():
        for number in range(3):
            await talk(threads, f"ops-{number}")
            await end(client, f"ops-{number}")
        first = await sweep(client, threads.store, index_dir=tmp_path)
        assert first.runs_read == first.runs > 0
        again = await sweep(client, threads.store, index_dir=tmp_path)
        assert (again.runs_read, again.packs_read) == (0, 0)
        await talk(threads, "ops-3")
        # A run that is still open may have new events between two looks of one sweep.
        await end(client, "ops-3")
        report = await sweep(client, threads.store, index_dir=tmp_path)
        assert report.runs_read == report.runs - first.runs > 0


@pytest.mark.guarantee(107)
@pytest.mark.parametrize("url", ["file"], indirect=True)
@pytest.mark.parametrize("thread_id", ["ops", "a\\", "it's \\n"])
async def test_a_thread_freed_before_any_sweep_is_swept(threads: Threads, thread_id: str) -> None:
    client, packs = threads.client, PackStore(threads.store)
    async with threads.worker():
        await talk(threads, thread_id)
        await end(client, thread_id)
        done = await archive(client, packs, thread_id, then="free")
        assert done.runs_deleted > 0
        await wait_until_deleted(client)
        for _ in range(2):
            report = await sweep(client, threads.store)
            assert not report.incomplete
    assert not await list_sizes(threads.store)
    assert len(await list_sizes(threads.store, "archive/")) >= 2
    found = await run_query(client, packs, "select thread_id from threads", threads=[thread_id])
    assert found.rows == ((thread_id,),)


@pytest.mark.parametrize("url", ["file"], indirect=True)
async def test_the_sweeper_sweeps_in_a_worker(threads: Threads) -> None:
    async with threads.worker():
        await talk(threads, "ops")
        report = await threads.client.execute_workflow(
            SWEEPER_WORKFLOW,
            SweepOptions(),
            id="sweep-once",
            task_queue=threads.task_queue,
            result_type=SweepReport,
        )
    assert not report.incomplete
    assert report.reachable.objects > 0
    assert await read_last_sweep(threads.client, threads.plugin.packs) == report
    assert SWEEP in {span.name for span in threads.spans.get_finished_spans()}


@pytest.mark.parametrize("url", ["file"], indirect=True)
async def test_workers_sweep_by_a_schedule(threads: Threads) -> None:
    client = threads.client
    assert await read_sweep_interval(client) is None
    for seconds in (3600, 7200):
        await schedule_sweeps(client, seconds, SweepOptions(), task_queue=threads.task_queue)
        assert await read_sweep_interval(client) == seconds
    async with threads.worker():
        await client.get_schedule_handle(SWEEPER_SCHEDULE).trigger()
        deadline = time.monotonic() + GONE_SECONDS_MAX
        while await read_last_sweep(client, threads.plugin.packs) is None:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
    assert await unschedule_sweeps(client)
    assert not await unschedule_sweeps(client)


@pytest.mark.parametrize("url", ["file"], indirect=True)
async def test_the_command_sweeps_and_restores(
    threads: Threads, url: str, server: TemporalServer, tmp_path: Path
) -> None:
    async with threads.worker():
        await talk(threads, "ops")
    packs = PackStore(threads.store)
    thread = thread_key(threads.client.namespace, "ops")
    ref, _ = await packs.write_body(thread, "segment", b"orphaned")  # type: ignore[arg-type]
    env = {
        "TEMPORAL_ADDRESS": server.address,
        "TEMPORAL_NAMESPACE": threads.client.namespace,
        "EVERLONG_STORE": url,
        "EVERLONG_DATA_DIR": str(tmp_path / "data"),
        "EVERLONG_RETENTION": "payload=0s,journal=0s,quarantine=2d",
    }

    async def command(*arguments: str) -> tuple[int, str, BaseException | None]:
        result = await asyncio.to_thread(CliRunner().invoke, app, ["sweep", *arguments], env=env)
        return result.exit_code, result.stdout, result.exception

    code, text, _ = await command("--dry-run", "--json")
    assert (code, json.loads(text)["quarantined"]["objects"]) == (0, 1)
    code, text, _ = await command()
    assert code == 0
    assert "of class journal" in text
    _, text, _ = await command("--quarantine", "list", "--json")
    [copy] = json.loads(text)
    assert ref.digest in copy["original"]
    code, text, _ = await command("--quarantine", "restore", copy["original"])
    assert (code, text) == (0, f"{copy['original']} is restored\n")
    assert await packs.read_body(ref) == b"orphaned"
    for key in await list_sizes(threads.store):
        if ref.digest not in key:
            await threads.store.delete([key])
    _, _, error = await command()
    assert isinstance(error, EverlongError)
    assert error.exit_code == 12


@pytest.mark.guarantee(109)
async def test_an_unfinished_sweep_continues_in_the_next_activity(
    server: TemporalServer,
) -> None:
    runs: list[str] = []

    @activity.defn(name=SWEEP_ACTIVITY)
    async def part(options: SweepOptions) -> SweepReport:
        runs.append(activity.info().workflow_run_id or "")
        return SweepReport(
            id=str(len(runs)),
            started_ms=len(runs),
            seconds=10.0,
            runs_read=100,
            quarantined=Tally(objects=2, bytes=20),
            classes={"payload": Tally(objects=2, bytes=20)},
            is_unfinished=len(runs) < 3,
        )

    client = await Client.connect(server.address)
    queue = f"sweep-{uuid.uuid4().hex[:8]}"
    async with Worker(client, task_queue=queue, workflows=[SweeperWorkflow], activities=[part]):
        report: SweepReport = await client.execute_workflow(
            SWEEPER_WORKFLOW, SweepOptions(), id=queue, task_queue=queue, result_type=SweepReport
        )
    assert len(runs) == 3
    assert len(set(runs)) == 1  # By this id the next one finds where the last one was.
    assert (report.id, report.started_ms, report.seconds, report.runs_read) == ("3", 1, 30.0, 300)
    assert report.quarantined == report.classes["payload"] == Tally(objects=6, bytes=60)
    assert not report.is_unfinished
