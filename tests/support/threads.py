"""Client with the plugin, a worker's task queue, and the threads that a test starts with them."""

import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator, Sequence

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.client import Client, Interceptor
from temporalio.worker import Worker

from everlong import Agent, EverlongPlugin, Policy, ThreadStart
from everlong.client.lookup import ThreadSize, measure_size
from everlong.client.thread import ThreadHandle
from everlong.client.time_travel import read_messages
from everlong.client.updates import send as send_message
from everlong.client.wait import wait_for_status
from everlong.live import LiveServer
from everlong.models import AGENT_WORKFLOW, Entry, Message, ThreadStatus
from everlong.notify import Notify
from everlong.storage import BlobStore
from everlong.storage.pack_store import PackStore


@dataclasses.dataclass
class Threads:
    """Client with the plugin, and operations on the threads that a test starts."""

    client: Client
    plugin: EverlongPlugin
    store: BlobStore
    task_queue: str
    spans: InMemorySpanExporter
    metrics: InMemoryMetricReader

    def worker(self, **options: object) -> Worker:
        return Worker(self.client, task_queue=self.task_queue, **options)  # type: ignore[arg-type]

    async def start(self, thread_id: str, policy: Policy | None = None, agent: str = "ops") -> None:
        await self.client.start_workflow(
            AGENT_WORKFLOW,
            ThreadStart(agent=agent, policy=policy),
            id=thread_id,
            task_queue=self.task_queue,
        )

    async def send(self, thread_id: str, text: str, agent: str = "ops") -> int:
        return await send_message(
            self.client,
            thread_id,
            text,
            task_queue=self.task_queue,
            agent=agent,
            packs=PackStore(self.store),
        )

    async def wait_for_answers(
        self, thread_id: str, number: int, seconds: float = 120
    ) -> ThreadStatus:
        return await wait_for_status(
            self.client,
            thread_id,
            lambda status: status.counters.answered >= number,
            seconds_max=seconds,
        )

    async def conversation(self, thread_id: str) -> list[Message]:
        return await read_messages(self.client, PackStore(self.store), thread_id)

    async def size(self, thread_id: str) -> ThreadSize:
        return await measure_size(self.client, self.store, thread_id)


@contextlib.asynccontextmanager
async def open_threads(
    address: str,
    store: BlobStore,
    *agents: Agent,
    inline_bytes_max: int = 16 * 1024,
    record_contents: bool = False,
    interceptors: Sequence[Interceptor] = (),
    notify: Notify | None = None,
    live: LiveServer | None = None,
    namespace: str = "default",
) -> AsyncIterator[Threads]:
    spans, metrics = InMemorySpanExporter(), InMemoryMetricReader()
    provider, meter_provider = TracerProvider(), MeterProvider([metrics])
    provider.add_span_processor(SimpleSpanProcessor(spans))
    plugin = EverlongPlugin(
        store=store,
        agents=agents,
        inline_bytes_max=inline_bytes_max,
        tracer_provider=provider,
        meter_provider=meter_provider,
        record_contents=record_contents,
        notify=notify,
        live=live,
    )
    client = await Client.connect(
        address, namespace=namespace, plugins=[plugin], interceptors=interceptors
    )
    yield Threads(client, plugin, store, f"queue-{uuid.uuid4().hex[:8]}", spans, metrics)
    provider.shutdown()
    meter_provider.shutdown()


async def read_journal(
    client: Client,
    packs: PackStore,
    thread_id: str,
    first_seq: int = 1,
    last_seq: int | None = None,
) -> list[Entry]:
    """Return the entries of a range of a thread's journal; by default, all."""
    handle = ThreadHandle(client, thread_id, packs=packs)
    return [entry async for entry in handle.journal(first_seq, last_seq)]
