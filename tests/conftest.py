"""One real Temporal server for each test process, and a worker around an agent."""

import asyncio
import contextlib
import dataclasses
import gc
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.client import Client, Interceptor
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxRestrictions

from everlong import Agent, EverlongPlugin, Policy, ThreadStart
from everlong.admin import service
from everlong.embedded import TemporalServer, start_server
from everlong.interceptors import sdk_internals
from everlong.models import AGENT_WORKFLOW, Message, ThreadStatus
from everlong.storage import BlobStore, open_store
from everlong.storage.packstore import PackStore
from tests.sweeps import QUICK_DELETES

if TYPE_CHECKING:
    from tests.weed import Weed

HERE = Path(__file__).parent
# The sandbox imports the module of a workflow again for each run and each replay. A test module
# would bring 85 modules of pytest with it, which takes 0.2 s of CPU each time.
SandboxRestrictions.default.passthrough_modules.update(
    ("pytest", "_pytest", "pytest_asyncio", "pluggy", "pygments", "iniconfig", "py", "hypothesis")
)
# Files that take half a minute and more, the slowest first.
SLOW = (
    "test_openai_agents",
    "test_interleavings",
    "test_thread_growth",
    "test_stack",
    "test_bench",
    "test_codec_kills",
    "test_thread_kills",
    "test_kills",
    "test_edges",
    "test_growth",
    "test_seeing",
    "test_prometheus",
    "test_doctor",
    "test_bench_seeing",
    "test_told",
    "test_s3_faults",
    "test_sweep_soak",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the server, so that `make check` can leave it out. What is slow comes first."""
    for item in items:
        if item.path.relative_to(HERE).parts[0] in {"server", "faults", "browser"}:
            item.add_marker("server")
    # A file goes to one test process: a slow one at the end would leave the others idle.
    items.sort(key=lambda item: SLOW.index(item.path.stem) if item.path.stem in SLOW else len(SLOW))


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays to the end: the modules and items of 3,700 tests."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Have all of it be freed in the end: extensions look whether it was."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def features_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test in which a private API of the SDK was found missing. One that wants that resets it."""
    monkeypatch.setattr(sdk_internals, "_off", set())
    yield
    assert sdk_internals._off == set()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    folder = tmp_path_factory.mktemp("temporal")
    running = asyncio.run(start_server(folder, dynamic_config=QUICK_DELETES, durable=False))
    with running.process:
        yield running


@dataclasses.dataclass
class Threads:
    """A client with the plugin, and the threads that a test makes with it."""

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
        return await service.send(
            self.client,
            thread_id,
            text,
            task_queue=self.task_queue,
            agent=agent,
            packs=PackStore(self.store),
        )

    async def answered(self, thread_id: str, number: int, seconds: float = 120) -> ThreadStatus:
        return await service.wait_for_status(
            self.client,
            thread_id,
            lambda status: status.counters.answered >= number,
            seconds_max=seconds,
        )

    async def conversation(self, thread_id: str) -> list[Message]:
        return await service.messages(self.client, PackStore(self.store), thread_id)

    async def size(self, thread_id: str) -> service.ThreadSize:
        return await service.size(self.client, self.store, thread_id)


@contextlib.asynccontextmanager
async def open_threads(
    address: str,
    store: BlobStore,
    *agents: Agent,
    inline_bytes_max: int = 16 * 1024,
    record_contents: bool = False,
    interceptors: Sequence[Interceptor] = (),
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
    )
    client = await Client.connect(address, plugins=[plugin], interceptors=interceptors)
    yield Threads(client, plugin, store, f"queue-{uuid.uuid4().hex[:8]}", spans, metrics)
    provider.shutdown()
    meter_provider.shutdown()


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return open_store((tmp_path / "blobs").as_uri())


@pytest.fixture
def thread_id() -> str:
    return f"thread-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Weed"]:
    """One real S3 server for each test process. Its keys are in the environment meanwhile."""
    from tests.weed import start_weed  # Here, so that only those who use it pay for it.

    with (
        start_weed(tmp_path_factory.mktemp("weed")) as weed,
        pytest.MonkeyPatch.context() as environment,
    ):
        for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN"):
            environment.delenv(name, raising=False)
        for name, value in weed.environ.items():
            environment.setenv(name, value)
        yield weed
