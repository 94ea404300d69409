"""Spans of single steps: their trace, their attributes, and the content that they omit."""

from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import StatusCode
from temporalio.client import Client
from temporalio.contrib.opentelemetry import TracingInterceptor
from temporalio.worker import Worker

from everlong import Agent, EverlongPlugin, Policy, Reply, tool
from everlong.client.status import list_pending as read_pending
from everlong.client.thread import ThreadHandle
from everlong.client.updates import send
from everlong.client.wait import wait_for_status
from everlong.embedded import TemporalServer
from everlong.errors import ModelRefused
from everlong.models import Message
from everlong.storage import BlobStore
from everlong.storage.instrumented import READS
from everlong.telemetry.spans import ACT, APPROVAL, CONTINUE_AS_NEW, RESUME
from everlong.testing import ScriptedModel
from tests.support.sample_payloads import noise, payload
from tests.support.scripted_agents import build_one_call_model, call, results
from tests.support.telemetry_reader import find_spans, values
from tests.support.threads import open_threads

SECRET = "the word is rosebud"


@tool
def whisper() -> str:
    """Return a secret that must not appear in telemetry."""
    return SECRET


@tool(attempts_max=2)
def broken() -> str:
    """Fail."""
    raise ValueError(SECRET)


whispering = Agent(name="ops", model=build_one_call_model("whisper"), tools=[whisper])


@pytest.mark.guarantee(80)
async def test_spans_hold_no_message_text(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, whispering) as threads, threads.worker():
        number = await threads.send(thread_id, f"please: {SECRET}")
        await threads.wait_for_answers(thread_id, number)
        exported = "".join(span.to_json() for span in threads.spans.get_finished_spans())
        assert "execute_tool whisper" in exported
        assert "rosebud" not in exported
        assert "rosebud" not in str(threads.metrics.get_metrics_data())
        [execute] = find_spans(threads, "execute_tool")
        assert execute.attributes is not None
        assert execute.attributes["gen_ai.tool.call.id"] == "call-0"
        assert execute.attributes["gen_ai.conversation.id"] == thread_id


async def test_spans_hold_message_text_if_enabled(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with (
        open_threads(server.address, store, whispering, record_contents=True) as threads,
        threads.worker(),
    ):
        number = await threads.send(thread_id, "please")
        await threads.wait_for_answers(thread_id, number)
        [execute] = find_spans(threads, "execute_tool")
        assert execute.attributes is not None
        assert execute.attributes["gen_ai.tool.call.result"] == SECRET
        chat = find_spans(threads, "chat")[-1]
        assert chat.attributes is not None
        assert SECRET in str(chat.attributes["gen_ai.input.messages"])
        assert '"role":"assistant"' in str(chat.attributes["gen_ai.output.messages"])


async def test_the_senders_trace_links_to_the_turn(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, whispering) as threads, threads.worker():
        tracer = TracerProvider().get_tracer("team")
        with tracer.start_as_current_span("a web request") as request:
            number = await threads.send(thread_id, "please")
        await threads.wait_for_answers(thread_id, number)
        [act] = find_spans(threads, ACT)
        [turn] = find_spans(threads, "invoke_agent")
        [chat, _] = find_spans(threads, "chat")
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


@pytest.mark.guarantee(81)
async def test_the_teams_own_tracing_still_works(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    provider = TracerProvider()
    tracing = TracingInterceptor(provider.get_tracer("team"))
    async with open_threads(server.address, store, whispering, interceptors=[tracing]) as threads:
        provider.add_span_processor(SimpleSpanProcessor(threads.spans))
        async with threads.worker():
            number = await threads.send(thread_id, "please")
            await threads.wait_for_answers(thread_id, number)
        places = {
            span.context.span_id: span.name
            for span in threads.spans.get_finished_spans()
            if span.context
        }
        [turn] = find_spans(threads, "invoke_agent")
        for name, activity in (
            ("chat", "RunActivity:everlong.call_model"),
            ("execute_tool", "RunActivity:everlong.run_tool"),
        ):
            for span in find_spans(threads, name):
                assert span.parent is not None
                assert places[span.parent.span_id] == activity
                assert [link.context.span_id for link in span.links] == [turn.context.span_id]


@pytest.mark.guarantee(80)
async def test_the_span_of_a_failed_turn_has_no_message_text(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    def script(turn: Sequence[Message]) -> Reply:
        if results(turn):
            raise ModelRefused(SECRET)
        return Reply(tool_calls=(call(0, "broken"),))

    agent = Agent(name="ops", model=ScriptedModel(script), tools=[broken])
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        number = await threads.send(thread_id, "please")
        await threads.wait_for_answers(thread_id, number)
        [turn] = find_spans(threads, "invoke_agent")
        assert turn.status.status_code is StatusCode.ERROR
        assert turn.attributes is not None
        assert turn.attributes["everlong.turn.outcome"] == "failed"
        assert turn.attributes["error.type"] == "ModelRefused"
        assert turn.attributes["gen_ai.provider.name"] == "custom"
        failed = [
            span
            for span in (*find_spans(threads, "chat"), *find_spans(threads, "execute_tool"))
            if span.status.status_code is StatusCode.ERROR
        ]
        types = [(span.attributes or {})["error.type"] for span in failed]
        assert types == ["ModelRefused", "ValueError", "ValueError"]  # One span for each try.
        exported = "".join(span.to_json() for span in threads.spans.get_finished_spans())
        assert "rosebud" not in exported


@pytest.mark.guarantee(79)
async def test_a_stopped_turn_has_a_span(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    @tool(needs_approval=True)
    def wait() -> str:
        """Wait for an approval."""
        return "done"

    agent = Agent(name="ops", model=build_one_call_model("wait"), tools=[wait])
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.send(thread_id, "please")
        await wait_for_status(
            threads.client, thread_id, lambda status: status.pending == 1, seconds_max=90
        )
        await ThreadHandle(threads.client, thread_id).stop(by="ada")
        await threads.client.get_workflow_handle(thread_id).result()
        [turn] = find_spans(threads, "invoke_agent")
        assert turn.attributes is not None
        assert turn.attributes["everlong.turn.outcome"] == "failed"


async def test_spans_hold_no_tool_name_invented_by_a_model(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    agent = Agent(name="ops", model=build_one_call_model("rosebud"))
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        number = await threads.send(thread_id, "please")
        await threads.wait_for_answers(thread_id, number)
        [execute] = find_spans(threads, "execute_tool")
        assert execute.name == "execute_tool"
        assert "rosebud" not in execute.to_json()


class Raising(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("broken for a test")


async def test_a_tool_runs_once_even_if_spans_cannot_be_exported(
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
    agent = Agent(name="ops", model=build_one_call_model("pay"), tools=[pay])
    plugin = EverlongPlugin(store=store, agents=[agent], tracer_provider=provider)
    client = await Client.connect(server.address, plugins=[plugin])
    async with Worker(client, task_queue=thread_id):
        await send(client, thread_id, "please", task_queue=thread_id, agent="ops")
        await wait_for_status(
            client, thread_id, lambda status: status.counters.answered == 1, seconds_max=90
        )
    assert len(runs) == 1


async def test_a_worker_does_not_inherit_the_trace_of_its_start(
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
                await threads.wait_for_answers(thread_id, number)
            async with threads.worker():  # Cold.
                await threads.wait_for_answers(thread_id, number)
        [turn] = find_spans(threads, "invoke_agent")
        for span in find_spans(threads, "chat"):
            assert span.parent is not None
            assert turn.context is not None
            assert span.parent.span_id == turn.context.span_id
        [resume] = find_spans(threads, RESUME)
        assert (resume.attributes or {})["everlong.resume.read_seconds"] < 10  # type: ignore[operator]


async def test_a_turn_that_rolls_has_a_span_in_each_run(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    @tool(needs_approval=True)
    def wait() -> str:
        """Wait for an approval."""
        return "done"

    agent = Agent(
        name="ops",
        model=build_one_call_model("wait"),
        tools=[wait],
        policy=Policy(idle_seconds=0.5),
    )
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.send(thread_id, "please")
        await wait_for_status(
            threads.client, thread_id, lambda status: status.counters.runs == 2, seconds_max=90
        )
        await ThreadHandle(threads.client, thread_id).stop(by="ada")
        await threads.client.get_workflow_handle(thread_id).result()
        first, second = find_spans(threads, "invoke_agent")
        outcomes = [(each.attributes or {})["everlong.turn.outcome"] for each in (first, second)]
        assert outcomes == ["continued", "failed"]
        [roll] = find_spans(threads, CONTINUE_AS_NEW)
        assert roll.context is not None
        assert [link.context.span_id for link in second.links] == [roll.context.span_id]
        [chat] = find_spans(threads, "chat")
        assert chat.parent is not None
        assert first.context is not None
        assert chat.parent.span_id == first.context.span_id
        assert (first.start_time or 0) <= (chat.start_time or 0) <= (first.end_time or 0)


@pytest.mark.guarantee(79)
async def test_an_approval_span_belongs_to_the_run_that_asked(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    @tool(needs_approval=True)
    def wait() -> str:
        """Wait for a person."""
        return "done"

    agent = Agent(
        name="ops",
        model=build_one_call_model("wait"),
        tools=[wait],
        policy=Policy(idle_seconds=0.5),
    )
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        number = await threads.send(thread_id, "please")
        await wait_for_status(
            threads.client, thread_id, lambda status: status.counters.runs == 2, seconds_max=90
        )
        [pending] = await read_pending(threads.client, thread_id)
        await ThreadHandle(threads.client, thread_id).decide(pending.id, approve=True, by="ada")
        await threads.wait_for_answers(thread_id, number)
        first, second = find_spans(threads, "invoke_agent")
        [approval] = find_spans(threads, APPROVAL)
        assert first.context is not None
        assert second.context is not None
        assert approval.context is not None
        assert approval.parent is not None
        assert approval.parent.span_id == first.context.span_id
        assert approval.context.trace_id == first.context.trace_id != second.context.trace_id
        assert (approval.attributes or {})["everlong.run.id"] == (first.attributes or {})[
            "everlong.run.id"
        ]
        assert [link.context.span_id for link in approval.links] == [second.context.span_id]
        asked_ns = approval.start_time or 0
        assert (first.start_time or 0) <= asked_ns <= (first.end_time or 0)
        assert asked_ns < (second.start_time or 0) <= (approval.end_time or 0)


async def test_a_message_links_to_one_turn_however_often_the_model_is_called(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    asked: list[int] = []

    def script(turn: Sequence[Message]) -> Reply:
        asked.append(1)
        if len(asked) == 1:
            raise RuntimeError("for a test")
        return Reply(text="done")

    agent = Agent(name="ops", model=ScriptedModel(script))
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        number = await threads.send(thread_id, "please")
        await threads.wait_for_answers(thread_id, number)
        first, second = find_spans(threads, "chat")
        [act] = find_spans(threads, ACT)
        assert (act.end_time or 0) <= (first.start_time or 0) < (second.start_time or 0)


async def test_the_span_of_the_call_names_the_sub_agents_thread(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    helper = Agent(
        name="helper", description="Helps.", model=ScriptedModel(lambda _: Reply(text="helped"))
    )

    def script(turn: Sequence[Message]) -> Reply:
        if results(turn):
            return Reply(text="done")
        return Reply(tool_calls=(call(0, "helper", request="help"),))

    boss = Agent(name="ops", model=ScriptedModel(script), tools=[helper])
    async with open_threads(server.address, store, boss) as threads, threads.worker():
        number = await threads.send(thread_id, "please")
        await threads.wait_for_answers(thread_id, number)
        [asked] = find_spans(threads, "execute_tool")
        child_id = (asked.attributes or {})["everlong.child.id"]
        turns = {
            (turn.attributes or {})["gen_ai.conversation.id"]
            for turn in find_spans(threads, "invoke_agent")
        }
        assert turns == {thread_id, child_id}
