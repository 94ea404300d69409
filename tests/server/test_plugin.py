"""The plugin on a real client: what workers get, and what payloads become."""

import asyncio
import dataclasses
import hashlib
from collections.abc import Sequence
from datetime import timedelta

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import DataConverter, PayloadCodec
from temporalio.plugin import SimplePlugin
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from everlong import Agent, EverlongPlugin, Reply, limits
from everlong.activities import AgentActivities
from everlong.codecs import EverlongCodec
from everlong.embedded import TemporalServer
from everlong.errors import ConfigError
from everlong.interceptors import sdk_internals
from everlong.interceptors.sdk_internals import HookedRunner
from everlong.models.names import CALL_MODEL, NOTIFY, RUN_TOOL, SWEEP
from everlong.storage import BlobStore
from everlong.telemetry.spans import RESUME
from everlong.testing import ScriptedModel
from tests.support.fake_stores import CountingStore, SlowStore
from tests.support.loop_workflows import Gatherer, numbered_result
from tests.support.threads import open_threads

AGENT = Agent(name="ops", model=ScriptedModel(lambda turn: Reply(text="hi")))
SIZE = 300_000


def noise(seed: str, size: int = SIZE) -> str:
    return hashlib.shake_256(seed.encode()).hexdigest(size // 2)


@activity.defn
async def grow(text: str) -> str:
    return noise(text[:20])


@workflow.defn
class Growing:
    """A team's own workflow: large input, large activity input and result, large output."""

    @workflow.run
    async def run(self, text: str) -> str:
        for _ in range(3):
            text = await workflow.execute_activity(
                grow, text, start_to_close_timeout=timedelta(seconds=30)
            )
        return text


@workflow.defn(sandboxed=False)
class UnsandboxedGrowing(Growing):
    @workflow.run
    async def run(self, text: str) -> str:
        return await super().run(text)


def grown(text: str) -> str:
    for _ in range(3):
        text = noise(text[:20])
    return text


@pytest.mark.parametrize("workflow_type", [Growing, UnsandboxedGrowing])
async def test_a_teams_workflow_runs_unchanged_with_a_small_history(
    server: TemporalServer, store: BlobStore, thread_id: str, workflow_type: type[Growing]
) -> None:
    async with open_threads(server.address, store) as threads:
        async with threads.worker(workflows=[workflow_type], activities=[grow]):
            result = await threads.client.execute_workflow(
                workflow_type.run, noise("in"), id=thread_id, task_queue=threads.task_queue
            )
        assert result == grown(noise("in"))
        size = await threads.size(thread_id)
        assert size.history_bytes < 12_000
        # Input and three results; the workflow's own result is the last of them once more.
        assert size.blobs == 4
        assert size.blob_bytes < 4 * SIZE * 0.6


async def test_stored_histories_replay_with_the_plugin(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store) as threads:
        async with threads.worker(workflows=[Growing], activities=[grow]):
            await threads.client.execute_workflow(
                Growing.run, noise("in"), id=thread_id, task_queue=threads.task_queue
            )
        history = await threads.client.get_workflow_handle(thread_id).fetch_history()
        replayer = Replayer(workflows=[Growing], plugins=[threads.plugin])
        await replayer.replay_workflow(history)


class Marking(PayloadCodec):
    """Another codec, as a team may have one for encryption."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(metadata={"encoding": b"test/marked"}, data=p.SerializeToString())
            for p in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload.FromString(payload.data) for payload in payloads]


async def test_another_codec_stays_inside_everlongs(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    converter = dataclasses.replace(DataConverter.default, payload_codec=Marking())
    client = await Client.connect(
        server.address, data_converter=converter, plugins=[EverlongPlugin(store=store)]
    )
    async with Worker(client, task_queue=thread_id, workflows=[Growing], activities=[grow]):
        result = await client.execute_workflow(
            Growing.run, noise("in"), id=thread_id, task_queue=thread_id
        )
    assert result == grown(noise("in"))


@pytest.mark.guarantee(33)
async def test_histories_from_before_the_plugin_are_still_read(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    plain = await Client.connect(server.address)
    handle = await plain.start_workflow(
        Growing.run, noise("in"), id=thread_id, task_queue=thread_id
    )
    client = await Client.connect(server.address, plugins=[EverlongPlugin(store=store)])
    async with Worker(client, task_queue=thread_id, workflows=[Growing], activities=[grow]):
        assert await client.get_workflow_handle(handle.id).result() == grown(noise("in"))


@pytest.mark.guarantee(24)
async def test_a_second_wrap_changes_nothing(server: TemporalServer) -> None:
    plugin = EverlongPlugin(store="memory:", agents=[AGENT])
    client = await Client.connect(server.address, plugins=[plugin])
    again = Client(**client.config(active_config=True))
    codec = again.config(active_config=True)["data_converter"].payload_codec
    assert isinstance(codec, EverlongCodec)
    assert codec._inner is None
    with pytest.warns(UserWarning, match="present from both"):
        worker = Worker(again, task_queue="q", plugins=[plugin])
    names = [each.__name__ for each in worker.config(active_config=True)["workflows"]]
    assert sorted(names) == sorted(set(names)), "each once"


async def test_workers_inherit_agents_hook_and_short_sticky_timeout(server: TemporalServer) -> None:
    plugin = EverlongPlugin(store="memory:", agents=[AGENT])
    client = await Client.connect(server.address, plugins=[plugin])
    config = Worker(client, task_queue="q").config(active_config=True)
    assert isinstance(config["workflow_runner"], HookedRunner)
    assert isinstance(config["unsandboxed_workflow_runner"], HookedRunner)
    assert config["sticky_queue_schedule_to_start_timeout"] == timedelta(
        seconds=limits.STICKY_SECONDS
    )
    names = [activity._Definition.must_from_callable(each).name for each in config["activities"]]
    assert {CALL_MODEL, RUN_TOOL, SWEEP, NOTIFY} < set(names)
    assert len(names) == len(set(names))


async def test_the_teams_own_settings_win(server: TemporalServer) -> None:
    plugin = EverlongPlugin(store="memory:", agents=[AGENT])
    client = await Client.connect(server.address, plugins=[plugin])
    config = Worker(
        client,
        task_queue="q",
        workflows=[Growing],
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=7),
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules("theirs")
        ),
    ).config(active_config=True)
    assert config["sticky_queue_schedule_to_start_timeout"] == timedelta(seconds=7)
    runner = config["workflow_runner"]
    assert isinstance(runner, SandboxedWorkflowRunner)
    assert {"theirs", "everlong"} <= runner.restrictions.passthrough_modules


async def test_without_agents_no_workflow_is_added(server: TemporalServer) -> None:
    client = await Client.connect(server.address, plugins=[EverlongPlugin(store="memory:")])
    config = Worker(
        client,
        task_queue="q",
        workflows=[Growing],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ).config(active_config=True)
    assert list(config["workflows"]) == [Growing]
    assert config["sticky_queue_schedule_to_start_timeout"] == timedelta(seconds=10)
    assert isinstance(config["workflow_runner"], HookedRunner)


@pytest.mark.guarantee(28)
@pytest.mark.parametrize("runner", [SandboxedWorkflowRunner(), UnsandboxedWorkflowRunner()])
async def test_a_replayer_writes_no_blobs_and_emits_no_spans(
    server: TemporalServer, thread_id: str, runner: WorkflowRunner
) -> None:
    counting = CountingStore()
    async with open_threads(server.address, counting) as threads:
        async with threads.worker(workflows=[Growing], activities=[grow]):
            await threads.client.execute_workflow(
                Growing.run, noise("in"), id=thread_id, task_queue=threads.task_queue
            )
        history = await threads.client.get_workflow_handle(thread_id).fetch_history()
        puts, counting.gets = counting.puts, 0
        threads.spans.clear()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(threads.spans))
        cold = EverlongPlugin(store=counting, tracer_provider=provider)
        replayer = Replayer(workflows=[Growing], plugins=[cold], workflow_runner=runner)
        await replayer.replay_workflow(history)
        assert counting.puts == puts
        assert counting.gets > 0
        assert threads.spans.get_finished_spans() == ()


class Encrypting(SimplePlugin):
    """Another plugin, which wraps whatever codec it finds."""

    def __init__(self) -> None:
        def around(converter: DataConverter | None) -> DataConverter:
            converter = converter or DataConverter.default
            return dataclasses.replace(converter, payload_codec=Chain(converter.payload_codec))

        super().__init__("test.Encrypting", data_converter=around)


class Chain(Marking):
    def __init__(self, inner: PayloadCodec | None) -> None:
        self._inner = inner

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await super().encode(await self._inner.encode(payloads) if self._inner else payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        decoded = await super().decode(payloads)
        return await self._inner.decode(decoded) if self._inner else decoded


@pytest.mark.guarantee(24)
async def test_a_plugin_with_its_own_codec_comes_first(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    plugins: list[SimplePlugin] = [Encrypting(), EverlongPlugin(store=store)]
    client = await Client.connect(server.address, plugins=plugins)
    async with Worker(client, task_queue=thread_id, workflows=[Growing], activities=[grow]):
        result = await client.execute_workflow(
            Growing.run, noise("in"), id=thread_id, task_queue=thread_id
        )
    assert result == grown(noise("in"))
    client = await Client.connect(server.address, plugins=plugins[::-1])
    with pytest.raises(ConfigError, match="Chain is around Everlong's"):
        Worker(client, task_queue=thread_id, workflows=[Growing], activities=[grow])


class TheirRunner(SandboxedWorkflowRunner):
    """Another plugin's runner, with a constructor of its own."""

    def __init__(self, secret: str) -> None:
        super().__init__()
        object.__setattr__(self, "secret", secret)


async def test_the_workflow_runner_of_another_plugin_is_kept(
    server: TemporalServer, store: BlobStore, thread_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = await Client.connect(server.address, plugins=[EverlongPlugin(store=store)])
    worker = Worker(
        client,
        task_queue=thread_id,
        workflows=[Growing],
        activities=[grow],
        workflow_runner=TheirRunner("kept"),
    )
    runner = worker.config(active_config=True)["workflow_runner"]
    assert isinstance(runner, TheirRunner)
    assert runner.secret == "kept"  # type: ignore[attr-defined]
    assert "everlong" in runner.restrictions.passthrough_modules
    assert "no resume spans" in caplog.text
    async with worker:
        await client.execute_workflow(Growing.run, "x", id=thread_id, task_queue=thread_id)


@pytest.mark.guarantee(24)
async def test_two_plugins_with_two_stores_are_refused(server: TemporalServer) -> None:
    plugins = [EverlongPlugin(store="memory:"), EverlongPlugin(store="memory:")]
    with pytest.raises(ConfigError, match="another EverlongPlugin"):
        await Client.connect(server.address, plugins=plugins)


async def test_worker_cleanup_completes_and_cancels_no_caller(
    server: TemporalServer, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = asyncio.Event()

    async def close(self: AgentActivities) -> None:
        await asyncio.sleep(0.05)
        closed.set()

    monkeypatch.setattr(AgentActivities, "close", close)
    plugin = EverlongPlugin(store="memory:", agents=[AGENT])
    client = await Client.connect(server.address, plugins=[plugin])

    async def call() -> str:
        async with Worker(client, task_queue=thread_id):
            pass
        await closed.wait()
        await asyncio.sleep(0.05)  # SDKs before 1.35 cancelled the task here.
        return "went on"

    async with asyncio.timeout(90):
        # A task, so that a stray cancellation ends it and not the test's own.
        assert await asyncio.create_task(call()) == "went on"


async def test_only_workers_with_workflows_are_asked_to_evict_a_run(
    server: TemporalServer, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(sdk_internals, "evict", lambda worker, _: asked.append(worker.task_queue))
    plugin = EverlongPlugin(store="memory:")
    client = await Client.connect(server.address, plugins=[plugin])
    queues = {kind: f"{thread_id}-{kind}" for kind in ("workflows", "activities")}
    async with (
        Worker(client, task_queue=queues["workflows"], workflows=[Growing]),
        Worker(client, task_queue=queues["activities"], activities=[grow]),
        asyncio.timeout(90),
    ):
        while len(plugin._workers) < len(queues):
            await asyncio.sleep(0.01)
        plugin._evict("a run")
    assert asked == [queues["workflows"]]


# More than are fetched side by side (16), so that some have to wait.
COUNT = 24
RESULT_BYTES = 40_000


def make_worker(client: Client, queue: str) -> Worker:
    return Worker(client, task_queue=queue, workflows=[Gatherer], activities=[numbered_result])


async def wait_until_gathered(client: Client, thread_id: str) -> None:
    handle = client.get_workflow_handle(thread_id)
    async with asyncio.timeout(60):
        while await handle.query("steps") < COUNT:
            await asyncio.sleep(0.1)


async def test_stopping_one_worker_leaves_the_prefetches_of_the_other_alone(
    server: TemporalServer, thread_id: str
) -> None:
    store = SlowStore()
    async with open_threads(server.address, store) as threads:
        async with make_worker(threads.client, thread_id):
            await threads.client.start_workflow(
                Gatherer.run, args=[COUNT, RESULT_BYTES], id=thread_id, task_queue=thread_id
            )
            await wait_until_gathered(threads.client, thread_id)
    # Another process, as far as caches go.
    async with open_threads(server.address, store) as threads:
        other = make_worker(threads.client, f"{thread_id}-other")
        async with make_worker(threads.client, thread_id):
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
