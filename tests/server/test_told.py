"""What is told of single steps: in whose trace, with what in it, and what is kept back."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import StatusCode
from temporalio import workflow
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, TypedSearchAttributes
from temporalio.contrib.opentelemetry import TracingInterceptor
from temporalio.worker import Worker

from everlong import Agent, EverlongPlugin, Policy, Reply, tool
from everlong.admin import service
from everlong.embedded import TemporalServer
from everlong.errors import ModelRefused
from everlong.models import Message
from everlong.storage import BlobInfo, BlobStore
from everlong.storage.counting import READS
from everlong.telemetry.spans import ACT, CONTINUE_AS_NEW, RESUME
from everlong.testing import ScriptedModel
from tests.agents import call, one_call, reading_agent, results
from tests.conftest import Threads, open_threads
from tests.payloads import noise, payload

SECRET = "the word is rosebud"


@tool
def whisper() -> str:
    """Say something that nobody else should hear."""
    return SECRET


@tool(attempts_max=2)
def broken() -> str:
    """Fail."""
    raise ValueError(SECRET)


whispering = Agent(name="ops", model=one_call("whisper"), tools=[whisper])


def named(threads: Threads, name: str) -> list[ReadableSpan]:
    spans = threads.spans.get_finished_spans()
    return [span for span in spans if span.name.partition(" ")[0] == name]


def values(threads: Threads, name: str) -> dict[frozenset[tuple[str, Any]], Any]:
    """Each value of a metric by its labels: the sum, for a histogram."""
    data = threads.metrics.get_metrics_data()
    points: Iterable[Any] = [
        point
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    ]
    return {
        frozenset(point.attributes.items()): getattr(point, "value", None)
        if hasattr(point, "value")
        else point.sum
        for point in points
    }


async def test_nothing_that_was_said_is_told(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, whispering) as threads, threads.worker():
        number = await threads.send(thread_id, f"please: {SECRET}")
        await threads.answered(thread_id, number)
        told = "".join(span.to_json() for span in threads.spans.get_finished_spans())
        assert "execute_tool whisper" in told
        assert "rosebud" not in told
        assert "rosebud" not in str(threads.metrics.get_metrics_data())
        [execute] = named(threads, "execute_tool")
        assert execute.attributes is not None
        assert execute.attributes["gen_ai.tool.call.id"] == "call-0"
        assert execute.attributes["gen_ai.conversation.id"] == thread_id


async def test_what_was_said_is_told_where_that_is_switched_on(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with (
        open_threads(server.address, store, whispering, record_contents=True) as threads,
        threads.worker(),
    ):
        number = await threads.send(thread_id, "please")
        await threads.answered(thread_id, number)
        [execute] = named(threads, "execute_tool")
        assert execute.attributes is not None
        assert execute.attributes["gen_ai.tool.call.result"] == SECRET
        chat = named(threads, "chat")[-1]
        assert chat.attributes is not None
        assert SECRET in str(chat.attributes["gen_ai.input.messages"])
        assert '"role":"assistant"' in str(chat.attributes["gen_ai.output.messages"])


async def test_the_senders_trace_shows_when_the_thread_acted(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, whispering) as threads, threads.worker():
        tracer = TracerProvider().get_tracer("team")
        with tracer.start_as_current_span("a web request") as request:
            number = await threads.send(thread_id, "please")
        await threads.answered(thread_id, number)
        [act] = named(threads, ACT)
        [turn] = named(threads, "invoke_agent")
        [chat, _] = named(threads, "chat")
        assert act.parent is not None
        assert act.parent.span_id == request.get_span_context().span_id
        assert act.parent.trace_id == request.get_span_context().trace_id
        assert [link.context.span_id for link in act.links] == [turn.context.span_id]
        assert act.start_time is not None
        assert act.end_time is not None
        assert chat.start_time is not None
        assert act.start_time < act.end_time <= chat.start_time
        labels = frozenset({"agent": "ops", "kind": "message"}.items())
        [seconds] = [values(threads, "everlong.act.duration")[labels]]
        assert seconds == pytest.approx((act.end_time - act.start_time) / 1e9)


async def test_a_teams_own_tracing_goes_on_around_ours(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    provider = TracerProvider()
    tracing = TracingInterceptor(provider.get_tracer("team"))
    async with open_threads(server.address, store, whispering, interceptors=[tracing]) as threads:
        provider.add_span_processor(SimpleSpanProcessor(threads.spans))
        async with threads.worker():
            number = await threads.send(thread_id, "please")
            await threads.answered(thread_id, number)
        places = {
            span.context.span_id: span.name
            for span in threads.spans.get_finished_spans()
            if span.context
        }
        [turn] = named(threads, "invoke_agent")
        for name, activity in (
            ("chat", "RunActivity:everlong.call_model"),
            ("execute_tool", "RunActivity:everlong.run_tool"),
        ):
            for span in named(threads, name):
                assert span.parent is not None
                assert places[span.parent.span_id] == activity
                assert [link.context.span_id for link in span.links] == [turn.context.span_id]


async def test_a_turn_that_fails_is_told_as_failed_without_its_words(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    def script(turn: Sequence[Message]) -> Reply:
        if results(turn):
            raise ModelRefused(SECRET)
        return Reply(tool_calls=(call(0, "broken"),))

    agent = Agent(name="ops", model=ScriptedModel(script), tools=[broken])
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        number = await threads.send(thread_id, "please")
        await threads.answered(thread_id, number)
        [turn] = named(threads, "invoke_agent")
        assert turn.status.status_code is StatusCode.ERROR
        assert turn.attributes is not None
        assert turn.attributes["everlong.turn.outcome"] == "failed"
        failed = [
            span
            for span in (*named(threads, "chat"), *named(threads, "execute_tool"))
            if span.status.status_code is StatusCode.ERROR
        ]
        types = [(span.attributes or {})["error.type"] for span in failed]
        assert types == ["ModelRefused", "ValueError", "ValueError"]  # Each try is told of.
        told = "".join(span.to_json() for span in threads.spans.get_finished_spans())
        assert "rosebud" not in told


async def test_a_turn_that_is_stopped_is_told_of(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    @tool(needs_approval=True)
    def wait() -> str:
        """Wait for somebody."""
        return "done"

    agent = Agent(name="ops", model=one_call("wait"), tools=[wait])
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.send(thread_id, "please")
        await service.wait_for_status(
            threads.client, thread_id, lambda status: status.pending == 1, seconds_max=30
        )
        await service.stop(threads.client, thread_id, by="ada")
        await threads.client.get_workflow_handle(thread_id).result()
        [turn] = named(threads, "invoke_agent")
        assert turn.attributes is not None
        assert turn.attributes["everlong.turn.outcome"] == "failed"


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
        self._told = False

    @workflow.run
    async def run(self, text: str) -> int:
        await workflow.wait_condition(lambda: self._told)
        return len(text)

    @workflow.signal
    def go(self) -> None:
        self._told = True


async def test_a_slow_store_is_what_a_resume_says_it_waited_for(
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
        [resume] = named(threads, RESUME)
        told = resume.attributes or {}
        assert told["everlong.resume.blobs"] == 1
        assert told["everlong.resume.cache.misses"] == 1
        assert told["everlong.resume.bytes"] > 1000  # type: ignore[operator]
        assert 0.3 <= told["everlong.resume.read_seconds"] < 1.5  # type: ignore[operator]
        parts = [
            told[f"everlong.resume.{part}_seconds"]
            for part in ("history", "read", "replay", "command")
        ]
        whole = ((resume.end_time or 0) - (resume.start_time or 0)) / 1e9
        assert sum(parts) == pytest.approx(whole, rel=0.1)  # type: ignore[arg-type]
        gets = frozenset({"operation": "get", "outcome": "ok"}.items())
        assert values(threads, "everlong.store.duration")[gets] >= 0.3


async def test_sizes_limits_and_tokens_are_measured(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    agent = reading_agent(5, policy=Policy(steps_max=3, idle_seconds=1.0))
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.send(thread_id, "read")
        await service.wait_for_status(
            threads.client,
            thread_id,
            lambda status: status.pause is not None and status.tail_entries == 0,
            seconds_max=30,
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


async def test_a_name_that_a_model_made_up_is_not_told(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    agent = Agent(name="ops", model=one_call("rosebud"))
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        number = await threads.send(thread_id, "please")
        await threads.answered(thread_id, number)
        [execute] = named(threads, "execute_tool")
        assert execute.name == "execute_tool"
        assert "rosebud" not in execute.to_json()


class Raising(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("broken for a test")


async def test_a_tool_is_run_once_though_spans_cannot_be_taken(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    runs: list[int] = []

    @tool
    def pay() -> str:
        """Pay."""
        runs.append(1)
        return "paid"

    provider = TracerProvider()
    provider.add_span_processor(Raising())
    agent = Agent(name="ops", model=one_call("pay"), tools=[pay])
    plugin = EverlongPlugin(store=store, agents=[agent], tracer_provider=provider)
    client = await Client.connect(server.address, plugins=[plugin])
    async with Worker(client, task_queue=thread_id):
        await service.send(client, thread_id, "please", task_queue=thread_id, agent="ops")
        await service.wait_for_status(
            client, thread_id, lambda status: status.counters.answered == 1, seconds_max=30
        )
    assert len(runs) == 1


async def test_what_a_worker_was_started_in_is_not_what_it_does(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    """Neither the span that was current then, nor what the same task had read."""
    tracer = TracerProvider().get_tracer("team")
    async with open_threads(server.address, store, whispering, inline_bytes_max=100) as threads:
        [ref] = await threads.plugin.codec.encode([payload(noise(20_000))])
        await threads.plugin.codec.decode([ref])
        reads = READS.get()
        assert reads is not None
        reads.seconds = 100.0
        with tracer.start_as_current_span("start up"):
            async with threads.worker():
                number = await threads.send(thread_id, "please")
                await threads.answered(thread_id, number)
            async with threads.worker():  # Cold.
                await threads.answered(thread_id, number)
        [turn] = named(threads, "invoke_agent")
        for span in named(threads, "chat"):
            assert span.parent is not None
            assert turn.context is not None
            assert span.parent.span_id == turn.context.span_id
        [resume] = named(threads, RESUME)
        assert (resume.attributes or {})["everlong.resume.read_seconds"] < 10  # type: ignore[operator]


async def test_a_turn_that_rolls_while_it_waits_is_told_of_in_each_run(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    @tool(needs_approval=True)
    def wait() -> str:
        """Wait for somebody."""
        return "done"

    agent = Agent(name="ops", model=one_call("wait"), tools=[wait], policy=Policy(idle_seconds=0.5))
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.send(thread_id, "please")
        await service.wait_for_status(
            threads.client, thread_id, lambda status: status.counters.runs == 2, seconds_max=30
        )
        await service.stop(threads.client, thread_id, by="ada")
        await threads.client.get_workflow_handle(thread_id).result()
        first, second = named(threads, "invoke_agent")
        outcomes = [(each.attributes or {})["everlong.turn.outcome"] for each in (first, second)]
        assert outcomes == ["continued", "failed"]
        [roll] = named(threads, CONTINUE_AS_NEW)
        assert roll.context is not None
        assert [link.context.span_id for link in second.links] == [roll.context.span_id]
        [chat] = named(threads, "chat")
        assert chat.parent is not None
        assert first.context is not None
        assert chat.parent.span_id == first.context.span_id
        assert (first.start_time or 0) <= (chat.start_time or 0) <= (first.end_time or 0)


async def test_sizes_and_waits_are_search_attributes(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    @tool(needs_approval=True)
    def wait() -> str:
        """Wait for somebody."""
        return "done"

    async def attributes() -> TypedSearchAttributes:
        handle = threads.client.get_workflow_handle(thread_id)
        return (await handle.describe()).typed_search_attributes

    stored = SearchAttributeKey.for_int("EverlongStateBytes")
    asked_at = SearchAttributeKey.for_datetime("EverlongAskedAt")
    last_resume = SearchAttributeKey.for_float("EverlongLastResumeMs")
    agent = Agent(name="ops", model=one_call("wait"), tools=[wait])
    async with open_threads(server.address, store, agent) as threads:
        async with threads.worker():
            await threads.send(thread_id, "please")
            await service.wait_for_status(
                threads.client, thread_id, lambda status: status.pending == 1, seconds_max=30
            )
            now = await attributes()
            [approval] = await service.pending(threads.client, thread_id)
            assert now.get(stored, 0) > 0
            asked = now.get(asked_at)
            assert asked is not None
            assert asked.timestamp() * 1000 == pytest.approx(approval.asked_ms, abs=1)
            assert now.get(last_resume) is None
        async with threads.worker():
            await service.decide(threads.client, thread_id, approval.id, approve=True, by="ada")
            await threads.answered(thread_id, 1)
            now = await attributes()
            assert now.get(asked_at) is None
            [resume] = [
                span
                for span in named(threads, RESUME)
                if (span.attributes or {})["everlong.resume.end"] == "live"
            ]
            lasted_ms = ((resume.end_time or 0) - (resume.start_time or 0)) / 1e6
            assert now.get(last_resume, 0.0) == pytest.approx(lasted_ms, abs=0.1)
