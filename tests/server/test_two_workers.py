"""Two workers on one client: each has a life of its own."""

import asyncio

from temporalio.client import Client
from temporalio.worker import Worker

from everlong.embedded import TemporalServer
from everlong.telemetry.spans import RESUME
from tests.support.fake_stores import SlowStore
from tests.support.loop_workflows import Gatherer, numbered_result
from tests.support.threads import open_threads

# More than are fetched side by side (16), so that some have to wait.
COUNT = 24
SIZE = 40_000


def worker_of(client: Client, queue: str) -> Worker:
    return Worker(client, task_queue=queue, workflows=[Gatherer], activities=[numbered_result])


async def until_gathered(client: Client, thread_id: str) -> None:
    handle = client.get_workflow_handle(thread_id)
    async with asyncio.timeout(60):
        while await handle.query("steps") < COUNT:
            await asyncio.sleep(0.1)


async def test_stopping_one_worker_leaves_the_prefetches_of_the_other_alone(
    server: TemporalServer, thread_id: str
) -> None:
    store = SlowStore()
    async with open_threads(server.address, store) as threads:
        async with worker_of(threads.client, thread_id):
            await threads.client.start_workflow(
                Gatherer.run, args=[COUNT, SIZE], id=thread_id, task_queue=thread_id
            )
            await until_gathered(threads.client, thread_id)
    # Another process, as far as caches go.
    async with open_threads(server.address, store) as threads:
        other = worker_of(threads.client, f"{thread_id}-other")
        async with worker_of(threads.client, thread_id):
            async with other:
                store._get_seconds = 0.3
                gets = store.gets
                handle = threads.client.get_workflow_handle(thread_id)
                await handle.signal(Gatherer.go)
                async with asyncio.timeout(90):
                    while store.gets == gets:
                        await asyncio.sleep(0.01)
            await handle.result()
        [resume] = [span for span in threads.spans.get_finished_spans() if span.name == RESUME]
        assert resume.attributes is not None
        assert resume.attributes["everlong.resume.prefetch.blobs"] == COUNT
