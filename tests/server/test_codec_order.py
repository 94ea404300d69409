"""A team's codec inside and around Everlong's, on a real server."""

import asyncio
import dataclasses
import logging
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.client import Client
from temporalio.converter import DataConverter, PayloadCodec
from temporalio.worker import Replayer, Worker

from everlong import EverlongPlugin
from everlong.client.sweeps import sweep
from everlong.client.wait import ask
from everlong.codecs.composition import INSPECTION_REMEDY
from everlong.doctor.checks import run_checks
from everlong.embedded import TemporalServer
from everlong.models import SweepOptions
from everlong.storage import BlobStore
from everlong.storage.memory import MemoryBlobStore
from everlong.telemetry.spans import RESUME
from tests.support.loop_workflows import ListLoop, Loop, compute_expected, next_result
from tests.support.namespaces import AT_ONCE, new_namespace
from tests.support.payload_workflows import list_encodings
from tests.support.sample_payloads import KEY_1
from tests.support.scripted_agents import pages_answer, reading_agent
from tests.support.team_codecs import ENCRYPTED, Cipher, Marking

KEYS = {"first": KEY_1}
LOOP = Loop(steps=12, result_bytes=20_000)


def with_codec(codec: PayloadCodec | None) -> DataConverter:
    return dataclasses.replace(DataConverter.default, payload_codec=codec)


def list_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        each.message
        for each in caplog.records
        if each.levelno >= logging.WARNING and INSPECTION_REMEDY in each.message
    ]


async def loop_bytes(
    server: TemporalServer, task_queue: str, codec: PayloadCodec | None, **options: Any
) -> int:
    """Run a loop of 12 steps; return the bytes that it stores."""
    store = MemoryBlobStore()
    client = await Client.connect(
        server.address,
        data_converter=with_codec(codec),
        plugins=[EverlongPlugin(store=store, **options)],
    )
    async with Worker(
        client, task_queue=task_queue, workflows=[ListLoop], activities=[next_result]
    ):
        found = await client.execute_workflow(
            ListLoop.run, LOOP, id=f"{task_queue}-{type(codec).__name__}", task_queue=task_queue
        )
    assert found == compute_expected(LOOP)
    return sum([info.size_bytes async for info in store.list("")])


async def test_twelve_steps_cost_what_is_new_unless_another_codec_encrypts_first(
    server: TemporalServer, thread_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    alone = await loop_bytes(server, thread_id, None, keys=KEYS)
    assert not list_warnings(caplog)
    marked = await loop_bytes(server, f"{thread_id}-m", Marking())
    assert not list_warnings(caplog)
    encrypted = await loop_bytes(server, f"{thread_id}-e", Cipher())
    assert len(list_warnings(caplog)) == 1
    # 0.23, 0.32 and 1.6 MB were measured.
    assert marked < 2 * alone
    assert encrypted > 5 * alone


async def test_the_warning_appears_once_however_many_workers_there_are(
    server: TemporalServer, thread_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = EverlongPlugin(store="memory:")
    clients = [
        await Client.connect(server.address, data_converter=with_codec(Cipher()), plugins=[plugin])
        for _ in range(2)
    ]
    assert not list_warnings(caplog)
    for client in clients:
        async with Worker(client, task_queue=thread_id, workflows=[ListLoop]):
            await asyncio.sleep(0.3)
    [warning] = list_warnings(caplog)
    assert warning.startswith("the payload codec Cipher encrypts")
    assert "EVERLONG_KEYS" in warning


async def test_doctor_warns_of_a_codec_that_encrypts_here_and_on_workers(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    plugin = EverlongPlugin(store=store, agents=[reading_agent(1)])
    client = await Client.connect(
        server.address, data_converter=with_codec(Cipher()), plugins=[plugin]
    )
    async with Worker(client, task_queue=thread_id, identity="it"):
        await asyncio.sleep(0.3)
        found = {
            each.check: each
            async for each in run_checks(
                client, plugin.packs, task_queue=thread_id, inline_bytes_max=3072
            )
        }
    for check in ("codec", "worker it"):
        assert found[check].status == "warning", found[check]
        assert "Cipher encrypts" in found[check].text
        assert "EVERLONG_KEYS" in found[check].fix


class Outside:
    """Clients and workers with keys, and a codec that encrypts around Everlong's."""

    def __init__(self, address: str, store: BlobStore, namespace: str = "default") -> None:
        self.spans = InMemorySpanExporter()
        self._provider = TracerProvider()
        self._provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self._address, self._store, self._namespace = address, store, namespace

    async def connect(self) -> tuple[Client, EverlongPlugin]:
        plugin = EverlongPlugin(
            store=self._store,
            keys=KEYS,
            outer_codec=Cipher(),
            agents=[reading_agent(2)],
            tracer_provider=self._provider,
        )
        client = await Client.connect(self._address, namespace=self._namespace, plugins=[plugin])
        return client, plugin

    def resumes(self) -> list[dict[str, Any]]:
        found = [each for each in self.spans.get_finished_spans() if each.name == RESUME]
        return [dict(each.attributes or {}) for each in found]


@pytest.mark.guarantee(24)
async def test_under_an_outer_codec_a_loop_runs_resumes_with_prefetch_and_survives_sweeps(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    outside = Outside(server.address, store, await new_namespace(server.address))
    loop = dataclasses.replace(LOOP, wait_at=10)
    client, plugin = await outside.connect()
    options: dict[str, Any] = {
        "task_queue": thread_id,
        "workflows": [ListLoop],
        "activities": [next_result],
    }
    async with Worker(client, **options):
        handle = await client.start_workflow(ListLoop.run, loop, id=thread_id, task_queue=thread_id)
        async with asyncio.timeout(60):
            while await handle.query(ListLoop.steps) < 10:
                await asyncio.sleep(0.05)
    stored = sorted([info.key async for info in store.list("v1/")])
    for _ in range(2):
        report = await sweep(
            client, plugin.packs, SweepOptions(retention=AT_ONCE), allow_short_quarantine=True
        )
        assert not report.incomplete
    kept = sorted([info.key async for info in store.list("v1/")])
    assert len(kept) > 5
    assert set(kept) <= set(stored)
    cold, _ = await outside.connect()
    async with Worker(cold, **options):
        again = cold.get_workflow_handle(thread_id)
        await again.signal(ListLoop.go)
        assert await again.result() == compute_expected(loop)
    [resume, *_] = outside.resumes()
    assert resume["everlong.resume.prefetch.blobs"] == 10
    assert resume["everlong.resume.prefetch.bytes"] > 10 * LOOP.result_bytes / 2
    history = await again.fetch_history()
    assert list_encodings(history.events) == {ENCRYPTED}
    _, fresh = await outside.connect()
    await Replayer(workflows=[ListLoop], plugins=[fresh]).replay_workflow(history)
    size_bytes = sum([info.size_bytes async for info in store.list("v1/")])
    assert size_bytes < 2 * LOOP.steps * LOOP.result_bytes


async def test_under_an_outer_codec_threads_answer_and_doctor_finds_nothing_wrong(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    client, plugin = await Outside(server.address, store).connect()
    async with Worker(client, task_queue=thread_id, identity="it"):
        answer = await ask(
            client,
            plugin.packs,
            thread_id,
            "read",
            task_queue=thread_id,
            agent="ops",
            seconds_max=60,
        )
        assert answer == pages_answer(2)
        found = [
            each
            async for each in run_checks(
                client, plugin.packs, task_queue=thread_id, inline_bytes_max=3072
            )
        ]
    assert {each.status for each in found} == {"ok"}, found
    assert "Cipher is around Everlong's" in {each.check: each.text for each in found}["codec"]
