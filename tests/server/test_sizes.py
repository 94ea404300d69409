"""Sizes of threads and their store, as metrics and search attributes."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest
from temporalio import workflow
from temporalio.common import SearchAttributeKey, TypedSearchAttributes

from everlong import Agent, Policy, tool
from everlong.client.status import list_pending
from everlong.client.thread import ThreadHandle
from everlong.client.wait import wait_for_status
from everlong.embedded import TemporalServer
from everlong.interceptors.resume import PARTS
from everlong.storage import BlobInfo, BlobStore
from everlong.telemetry.spans import RESUME
from tests.support.scripted_agents import build_one_call_model, reading_agent
from tests.support.telemetry_reader import find_spans, values
from tests.support.threads import open_threads


class SlowStore:
    """A store that takes its time to be read."""

    def __init__(self, store: BlobStore, seconds: float) -> None:
        self._store = store
        self.seconds = seconds

    async def put(self, key: str, data: bytes) -> None:
        await self._store.put(key, data)

    async def get(self, key: str) -> bytes:
        await asyncio.sleep(self.seconds)
        return await self._store.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        await asyncio.sleep(self.seconds)
        return await self._store.get_range(key, start, length)

    def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        return self._store.list(prefix)

    async def delete(self, keys: Iterable[str]) -> None:
        await self._store.delete(keys)


@workflow.defn
class Reader:
    """Is started with something large, and waits."""

    def __init__(self) -> None:
        self._is_released = False

    @workflow.run
    async def run(self, text: str) -> int:
        await workflow.wait_condition(lambda: self._is_released)
        return len(text)

    @workflow.signal
    def go(self) -> None:
        self._is_released = True


@pytest.mark.guarantee(37)
async def test_a_resume_span_shows_the_wait_for_a_slow_store(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, SlowStore(store, 0.3)) as threads:
        async with threads.worker(workflows=[Reader]):
            handle = await threads.client.start_workflow(
                Reader.run,
                "".join(map(str, range(30_000))),
                id=thread_id,
                task_queue=threads.task_queue,
            )
            await handle.describe()
            await asyncio.sleep(0.5)
    # Another plugin, with an empty cache: it has to read.
    async with open_threads(server.address, SlowStore(store, 0.3)) as threads:
        handle = threads.client.get_workflow_handle(thread_id)
        threads.task_queue = (await handle.describe()).task_queue
        async with threads.worker(workflows=[Reader]):
            await handle.signal(Reader.go)
            assert await handle.result() > 100_000
        [resume] = find_spans(threads, RESUME)
        recorded = resume.attributes or {}
        assert recorded["everlong.resume.blobs"] == 1
        assert recorded["everlong.resume.cache.misses"] == 1
        assert recorded["everlong.resume.bytes"] > 1000  # type: ignore[operator]
        assert 0.3 <= recorded["everlong.resume.read_seconds"] < 5  # type: ignore[operator]
        for part in PARTS:
            [child] = find_spans(threads, f"{RESUME}.{part}")
            taken = ((child.end_time or 0) - (child.start_time or 0)) / 1e9
            assert taken == pytest.approx(recorded[f"everlong.resume.{part}_seconds"])
        whole = ((resume.end_time or 0) - (resume.start_time or 0)) / 1e9
        parts = [recorded[f"everlong.resume.{part}_seconds"] for part in PARTS]
        assert sum(parts) == pytest.approx(whole)  # type: ignore[arg-type]
        gets = frozenset({"operation": "get", "outcome": "ok"}.items())
        assert values(threads, "everlong.store.duration")[gets] >= 0.3


async def test_sizes_limits_and_tokens_are_measured(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    agent = reading_agent(5, policy=Policy(steps_max=3, idle_seconds=1.0))
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.send(thread_id, "read")
        await wait_for_status(
            threads.client,
            thread_id,
            lambda status: status.pause is not None and status.tail_entries == 0,
            seconds_max=90,
        )
        hit = {"agent": "ops", "limit": "steps_max", "action": "pause"}
        assert values(threads, "everlong.limit.hits") == {frozenset(hit.items()): 1}
        sizes = values(threads, "everlong.thread.size")
        classes = {dict(labels)["class"] for labels in sizes}
        assert classes == {"operational", "context", "journal"}
        assert all(value > 0 for value in sizes.values())
        written = values(threads, "everlong.step.written")
        steps = {dict(labels)["step"] for labels in written}
        assert {"model", "tool", "journal"} <= steps
        tokens = values(threads, "gen_ai.client.token.usage")
        assert {dict(labels)["gen_ai.token.type"] for labels in tokens} == {"input", "output"}
        assert thread_id not in str(threads.metrics.get_metrics_data())


async def test_sizes_and_waits_are_search_attributes(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    @tool(needs_approval=True)
    def wait() -> str:
        """Wait for an approval."""
        return "done"

    async def attributes() -> TypedSearchAttributes:
        handle = threads.client.get_workflow_handle(thread_id)
        return (await handle.describe()).typed_search_attributes

    stored = SearchAttributeKey.for_int("EverlongStateBytes")
    asked_at = SearchAttributeKey.for_datetime("EverlongAskedAt")
    last_resume = SearchAttributeKey.for_float("EverlongLastResumeMs")
    agent = Agent(name="ops", model=build_one_call_model("wait"), tools=[wait])
    async with open_threads(server.address, store, agent) as threads:
        async with threads.worker():
            await threads.send(thread_id, "please")
            await wait_for_status(
                threads.client, thread_id, lambda status: status.pending == 1, seconds_max=90
            )
            now = await attributes()
            [approval] = await list_pending(threads.client, thread_id)
            assert now.get(stored, 0) > 0
            asked = now.get(asked_at)
            assert asked is not None
            assert asked.timestamp() * 1000 == pytest.approx(approval.asked_ms, abs=1)
            assert now.get(last_resume) is None
        async with threads.worker():
            await ThreadHandle(threads.client, thread_id).decide(
                approval.id, approve=True, by="ada"
            )
            await threads.wait_for_answers(thread_id, 1)
            now = await attributes()
            assert now.get(asked_at) is None
            [resume] = [
                span
                for span in find_spans(threads, RESUME)
                if (span.attributes or {})["everlong.resume.end"] == "live"
            ]
            lasted_ms = ((resume.end_time or 0) - (resume.start_time or 0)) / 1e6
            assert now.get(last_resume, 0.0) == pytest.approx(lasted_ms, abs=0.1)
