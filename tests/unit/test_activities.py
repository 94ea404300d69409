"""Activities without a workflow, including the work of another worker."""

import asyncio
import dataclasses
import threading
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from everlong import Agent, Reply, Tool, limits, tool
from everlong.activities import AgentActivities, model_calls
from everlong.models import (
    HELD,
    Collect,
    Context,
    Entry,
    Kind,
    Message,
    ModelCall,
    SegmentRef,
    ToolResult,
    ToolRun,
    Turn,
    build_entry,
    thread_key,
)
from everlong.storage.journal import Journal
from everlong.storage.pack_store import PackStore, open_packs
from everlong.telemetry import Telemetry
from everlong.testing import ScriptedModel
from tests.support.fake_stores import CountingStore
from tests.support.journal_builder import entry
from tests.support.scripted_agents import call

ASKED = build_entry(1, Kind.MESSAGE, Message(role="user", text="go"), 1)


def context(head: SegmentRef | None = None) -> Context:
    return Context(agent="ops", head=head, snapshot=None, now_ms=5, policy={})


def build_calling_model(name: str, **arguments: object) -> ScriptedModel:
    return ScriptedModel(lambda _: Reply(tool_calls=(call(0, name, **arguments),)))


@pytest.mark.guarantee(64)
async def test_an_outdated_worker_does_not_run_a_tool_unapproved(
    tmp_path: Path,
) -> None:
    """A release adds a tool, or makes it require approval, while workers of the last one still run."""
    ran: list[str] = []

    @tool(needs_approval=True)
    def restart(service: str) -> str:
        """Restart a service."""
        ran.append(service)
        return "restarted"

    packs, env = open_packs(tmp_path.as_uri()), ActivityEnvironment()
    model = build_calling_model("restart", service="prod")
    old = AgentActivities(packs, [Agent(name="ops", model=model)])
    new = AgentActivities(packs, [Agent(name="ops", model=model, tools=[restart])])
    turn = await env.run(old.call_model, ModelCall(context=context(), tail=(ASKED,)))
    [wanted] = turn.tool_calls
    assert not wanted.options.needs_approval
    run = ToolRun(context=context(turn.head), call_id=wanted.call_id, tool=wanted.tool)
    result = await env.run(new.run_tool, run)
    assert (ran, result.outcome) == ([], "failed")
    assert "call it again" in str(result.entry.body)
    turn = await env.run(new.call_model, ModelCall(context=context(), tail=(ASKED,)))
    assert turn.tool_calls[0].options.needs_approval
    approved = ToolRun(
        context=context(turn.head), call_id=wanted.call_id, tool=wanted.tool, approved=True
    )
    assert (await env.run(new.run_tool, approved)).outcome == "ok"
    assert ran == ["prod"]


@pytest.mark.guarantee(64)
async def test_hanging_rules_do_not_block_the_store_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "APPROVAL_RULE_SECONDS_MAX", 0.05)
    let_go = threading.Event()

    @tool(needs_approval=lambda: let_go.wait(60))
    def act() -> str:
        """Act."""
        return ""

    agent = Agent(name="ops", model=build_calling_model("act"), tools=[act])
    activities = AgentActivities(open_packs(tmp_path.as_uri()), [agent])
    env, asked = ActivityEnvironment(), ModelCall(context=context(), tail=(ASKED,))
    try:
        for _ in range(40):  # More than asyncio has threads of its own.
            turn = await asyncio.wait_for(env.run(activities.call_model, asked), 10)
            assert turn.tool_calls[0].options.needs_approval
    finally:
        let_go.set()


@pytest.mark.guarantee(47)
async def test_recall_of_lost_bytes_holds_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HOLD_SECONDS_MAX", 0.1)
    env, packs = ActivityEnvironment(), open_packs(tmp_path.as_uri())
    journal = Journal(packs, thread_key(env.info.namespace, env.info.workflow_id or ""))
    long = Message(role="user", text="x" * 5000)
    entry, _ = await journal.write_body_entry(Kind.MESSAGE, long, 1, seq=1)
    head, _ = await journal.append(None, [entry])
    wanted = call(0, "recall", seq=1)
    asking = Message(role="assistant", tool_calls=(wanted,))
    head, _ = await journal.append(head, [build_entry(2, Kind.REPLY, asking, 2)])
    assert entry.ref is not None
    [lost] = tmp_path.glob(f"v1/*/{entry.ref.digest}*")
    kept = lost.read_bytes()
    lost.unlink()
    agent = Agent(name="ops", model=build_calling_model("recall"))
    activities = AgentActivities(open_packs(tmp_path.as_uri()), [agent])
    run = ToolRun(context=context(head), call_id=wanted.id, tool="recall")
    with pytest.raises(ApplicationError, match="BlobMissing") as held:
        await env.run(activities.run_tool, run)
    assert held.value.type == HELD
    lost.write_bytes(kept)
    assert (await env.run(activities.run_tool, run)).outcome == "ok"


@pytest.mark.parametrize("failed", [False, True], ids=["answer", "failure"])
async def test_the_answer_of_a_sub_agent_is_read_from_the_end_of_its_journal(
    *, failed: bool
) -> None:
    """However long its journal is, and whether it has ever failed."""
    store, env = CountingStore(), ActivityEnvironment()
    packs = PackStore(store)
    child = Journal(packs, thread_key(env.info.namespace, "child"))
    head: SegmentRef | None = None
    for first in range(1, 2000, 20):
        texts = (entry(seq, f"text {seq}") for seq in range(first, first + 20))
        head, _ = await child.append(head, list(texts))
    ending = (Kind.FAILURE, "no more money") if failed else (Kind.REPLY, "all is well")
    assert head is not None
    head, _ = await child.append(
        head, [entry(2001, "late", Kind.REPLY), entry(2002, *ending[::-1])]
    )
    activities = AgentActivities(packs, [])
    store.gets = 0
    result = await env.run(
        activities.store_child_answer,
        Collect(child_id="child", head=head, call_id="c1", tool="ask"),
    )
    assert store.gets == 1
    assert result.outcome == ("failed" if failed else "ok")
    assert ending[1] in str(result.entry.body)


async def test_a_result_is_stored_once_and_a_lost_attempt_is_counted_by_its_retry(
    tmp_path: Path,
) -> None:
    @tool
    def read() -> str:
        """Read a long text."""
        return "".join(map(str, range(5000)))

    packs = open_packs(tmp_path.as_uri())
    activities = AgentActivities(
        packs, [Agent(name="ops", model=build_calling_model("read"), tools=[read])]
    )

    async def ran(attempt: int) -> ToolResult:
        env = ActivityEnvironment()
        env.info = dataclasses.replace(env.info, attempt=attempt)
        return await env.run(activities.run_tool, run)

    turn = await ActivityEnvironment().run(
        activities.call_model, ModelCall(context=context(), tail=(ASKED,))
    )
    run = ToolRun(context=context(turn.head), call_id="call-0", tool="read")
    first = await ran(attempt=1)
    on_disk = sum(path.stat().st_size for path in tmp_path.glob("v1/*/*.pack"))
    assert turn.written_bytes + first.written_bytes == on_disk == packs.stats.written_bytes
    assert (await ran(attempt=1)).written_bytes == 0
    # The first attempt's result was lost with its worker: the retry counts what it stored.
    assert (await ran(attempt=2)).written_bytes == first.written_bytes
    assert packs.stats.written_bytes == on_disk


async def test_a_short_result_becomes_an_object_only_if_it_is_excerpted(
    tmp_path: Path,
) -> None:
    @tool
    def read() -> str:
        """Read a page."""
        return "a page. " * 100

    @tool(max_result_bytes=512)
    def glance() -> str:
        """Read the same page, and show the model a part of it."""
        return "a page. " * 100

    packs = open_packs(tmp_path.as_uri())

    async def stored_by(function: Tool, inline_bytes_max: int) -> tuple[int, Entry]:
        agent = Agent(name="ops", model=build_calling_model(function.name), tools=[function])
        activities, env = AgentActivities(packs, [agent]), ActivityEnvironment()
        turn = await env.run(activities.call_model, ModelCall(context=context(), tail=(ASKED,)))
        objects = len(list(tmp_path.glob("v1/*/*.pack")))
        run = ToolRun(
            context=context(turn.head),
            call_id="call-0",
            tool=function.name,
            inline_bytes_max=inline_bytes_max,
        )
        result = await env.run(activities.run_tool, run)
        return len(list(tmp_path.glob("v1/*/*.pack"))) - objects, result.entry

    objects, entry = await stored_by(read, limits.STEP_RESULTS_BYTES_MAX)
    assert objects == 0
    assert entry.body is not None
    objects, entry = await stored_by(glance, limits.STEP_RESULTS_BYTES_MAX)
    assert objects == 1
    assert entry.original is not None
    [whole] = await Journal(packs, entry.original.thread).messages([entry], whole=True)
    assert whole.text == "a page. " * 100
    # As one of 20 calls of a step.
    objects, entry = await stored_by(read, limits.ENTRY_BODY_BYTES_MAX)
    assert objects == 1
    assert entry.body is None


@tool
def look() -> str:
    """Look around."""
    return "a room"


def build_answering_model(**fields: str) -> Agent:
    model = ScriptedModel(lambda _: Reply(text="done", tokens=3, input_tokens=2, **fields))  # type: ignore[arg-type]
    return Agent(name="ops", model=model, tools=[look], instructions="be brief")


async def test_spans_follow_the_genai_conventions(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    agent = build_answering_model(model="m-1-2026", response_id="resp-7", finish_reason="stop")
    reader = InMemoryMetricReader()
    telemetry = Telemetry(provider, MeterProvider([reader]), record_contents=True)
    packs = open_packs(tmp_path.as_uri())
    activities = AgentActivities(packs, [agent], telemetry=telemetry)
    asked = dataclasses.replace(context(), turn=Turn(number=1, began_ms=1))
    env = ActivityEnvironment()
    await env.run(activities.call_model, ModelCall(context=asked, tail=(ASKED,)))
    looking = AgentActivities(
        packs,
        [Agent(name="ops", model=build_calling_model("look"), tools=[look])],
        telemetry=telemetry,
    )
    turn = await env.run(looking.call_model, ModelCall(context=asked, tail=(ASKED,)))
    await env.run(
        looking.run_tool, ToolRun(context=context(turn.head), call_id="call-0", tool="look")
    )
    spans: dict[str, ReadableSpan] = {}
    for span in exporter.get_finished_spans():
        spans.setdefault(span.name.partition(" ")[0], span)
    chat, invoke, execute = spans["chat"], spans["invoke_agent"], spans["execute_tool"]
    expected = {
        "gen_ai.provider.name": "custom",
        "gen_ai.output.type": "text",
        "gen_ai.response.model": "m-1-2026",
        "gen_ai.response.id": "resp-7",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.system_instructions": "be brief",
    }
    assert expected.items() <= dict(chat.attributes or {}).items()
    assert (invoke.attributes or {})["gen_ai.provider.name"] == "custom"
    assert "error.type" not in (invoke.attributes or {})
    assert (execute.attributes or {})["gen_ai.tool.description"] == "Look around."
    for span in spans.values():
        scope = span.instrumentation_scope
        assert scope is not None
        assert (scope.name, scope.schema_url) == (
            "everlong",
            "https://opentelemetry.io/schemas/1.41.0",
        )
        assert scope.version
    data = reader.get_metrics_data()
    assert data is not None
    measured = data.resource_metrics[0].scope_metrics[0].scope
    assert measured.version
    assert measured.schema_url == "https://opentelemetry.io/schemas/1.41.0"


@pytest.mark.parametrize("provider", [None, TracerProvider(sampler=ALWAYS_OFF)])
async def test_span_contents_are_built_only_for_recording_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: TracerProvider | None
) -> None:
    built: list[object] = []
    monkeypatch.setattr(model_calls, "format_contents", built.append)
    telemetry = Telemetry(provider, record_contents=True)
    activities = AgentActivities(
        open_packs(tmp_path.as_uri()), [build_answering_model()], telemetry=telemetry
    )
    turn = await ActivityEnvironment().run(
        activities.call_model, ModelCall(context=context(), tail=(ASKED,))
    )
    assert turn.written_bytes
    assert built == []
