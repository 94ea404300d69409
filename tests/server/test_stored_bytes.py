"""Stored bytes: what a thread, its spans and the metrics count is what the store holds."""

import uuid
from collections.abc import Sequence
from pathlib import Path

from temporalio import activity

from everlong import Agent, Reply, tool
from everlong.client.fork import fork as fork_thread
from everlong.client.status import read_status
from everlong.client.stored_bytes import Cause
from everlong.client.thread import thread
from everlong.client.updates import send
from everlong.embedded import TemporalServer
from everlong.errors import StoreUnavailable
from everlong.models import Message
from everlong.storage.file import FileBlobStore
from everlong.storage.pack_store import PackStore
from everlong.telemetry.spans import OFFLOAD
from everlong.testing import ScriptedModel
from tests.support.sample_payloads import noise
from tests.support.scripted_agents import call, results
from tests.support.telemetry_reader import find_spans, values
from tests.support.threads import Threads, open_threads

TEXT = noise(30_000).hex()


class LosingStore(FileBlobStore):
    """Stores every object, and loses its answer to the first PUT of a large one."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.lost = 0
        self.large: dict[str, int] = {}
        """Objects that activities wrote and that are no segments of a journal, by key."""

    async def put(self, key: str, data: bytes) -> bool | None:
        is_new = await super().put(key, data)
        if len(data) > len(TEXT) // 5:
            if not self.lost:
                self.lost += 1
                raise StoreUnavailable("the answer was lost, for a test")
            if activity.in_activity():
                self.large[key] = len(data)
        return is_new


def agent_that_repeats() -> Agent:
    """Calls its tool in each turn with the same call id. The tool fails once, then says the same."""
    failures = iter([True])

    @tool(attempts_max=3)
    def read() -> str:
        """Read a long text."""
        if next(failures, False):
            raise ValueError("it fails once")
        return TEXT

    def script(turn: Sequence[Message]) -> Reply:
        return Reply(text="read it") if results(turn) else Reply(tool_calls=(call(0, "read"),))

    return Agent(name="ops", model=ScriptedModel(script), tools=[read])


async def test_stored_bytes_equal_the_files_despite_repeats(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    store, agent = LosingStore(tmp_path / "blobs"), agent_that_repeats()
    fork_id = f"fork-{uuid.uuid4().hex[:8]}"
    counted = 0
    async with open_threads(server.address, store, agent) as threads:
        packs = PackStore(store)
        # Twice: the second worker replays the thread.
        for turn in (1, 2):
            async with threads.worker(max_cached_workflows=0 if turn == 2 else 10):
                await threads.send(thread_id, f"turn {turn}")
                status = await threads.wait_for_answers(thread_id, turn)
        async with threads.worker():
            # The same long message, twice.
            for turn in (3, 4):
                await _send(threads, packs, thread_id)
                status = await threads.wait_for_answers(thread_id, turn)
            head_seq = 1 + status.counters.steps
            await fork_thread(
                threads.client, packs, thread_id, head_seq, fork_id, task_queue=threads.task_queue
            )
            await _send(threads, packs, fork_id)
            number = (await read_status(threads.client, fork_id)).counters.messages
            fork = await threads.wait_for_answers(fork_id, number)
        assert store.lost == 1
        for each, known in ((thread_id, status), (fork_id, fork)):
            assert known.counters.written_bytes == (await threads.size(each)).blob_bytes
            found = await thread(threads.client, each, packs=packs).stored_bytes()
            assert found.stored_bytes == known.counters.written_bytes == found.recent_bytes
            largest = found.causes[0]
            assert (largest.cause, largest.tool) == (Cause.TOOL_RESULTS, "read")
            counted += known.counters.written_bytes
        by_source = values(threads, "everlong.offload.written")
        assert sum(by_source.values()) + packs.stats.written_bytes == counted
        assert by_source[frozenset({("source", "payload"), ("kind", "payload")})] == 0
        payloads = values(threads, "everlong.offload.payload")
        repeated = frozenset({("source", "journal"), ("outcome", "deduplicated")})
        assert payloads[repeated] > 3 * len(TEXT)
        # A span for each result that grew the store, and none for its repeats: one for each thread.
        spans = [dict(span.attributes or {}) for span in find_spans(threads, OFFLOAD)]
        reported = sum(int(str(each["everlong.offload.written_bytes"])) for each in spans)
        assert len(spans) == 2
        assert reported == sum(store.large.values())
        disk = [info.size_bytes async for info in store.list("")]
        assert sum(disk) == counted


async def _send(threads: Threads, packs: PackStore, thread_id: str) -> int:
    return await send(
        threads.client,
        thread_id,
        TEXT + "!",
        task_queue=threads.task_queue,
        agent="ops",
        packs=packs,
    )
