"""Spans get their trace by the run's id, in a user's own provider and under its sampler."""

import subprocess
import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import ProxyTracerProvider, StatusCode
from temporalio import workflow
from temporalio.contrib.opentelemetry import create_tracer_provider
from temporalio.testing import ActivityEnvironment

from everlong import Agent, EverlongPlugin, Reply
from everlong.activities import AgentActivities
from everlong.codecs import EverlongCodec
from everlong.models import (
    Append,
    AppendResult,
    Decision,
    Kind,
    Ref,
    SegmentRef,
    ThreadStart,
    ThreadState,
    Turn,
    build_note,
)
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import open_packs
from everlong.telemetry import Telemetry
from everlong.telemetry.spans import (
    APPROVAL,
    RecentRuns,
    TurnSpan,
    derive_trace_id,
    format_traceparent,
    parse_traceparent,
)
from everlong.testing import ScriptedModel
from everlong.workflows.thread import Thread
from tests.support.sample_payloads import noise, payload


def open_recorder(sampler: Sampler | None = None) -> tuple[Telemetry, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Telemetry(provider), exporter


@pytest.mark.guarantee(79)
def test_a_span_that_is_emitted_again_is_the_same_span() -> None:
    first, seen_first = open_recorder()
    second, seen_second = open_recorder()
    for telemetry in (first, second):
        telemetry.spans.start("invoke_agent ops", {}, run_id="run-1", key="7").end()
    [one], [other] = seen_first.get_finished_spans(), seen_second.get_finished_spans()
    assert one.context == other.context
    assert one.context is not None
    assert one.context.trace_id == derive_trace_id("run-1")
    assert (
        first.spans.build_context("run-1", "invoke_agent ops", "7").span_id == one.context.span_id
    )


def test_each_repeated_event_has_its_own_span_id() -> None:
    telemetry, seen = open_recorder()
    for _ in range(3):
        telemetry.spans.start("everlong.resume", {}, run_id="run-1").end()
    contexts = [span.context for span in seen.get_finished_spans()]
    assert len({context.span_id for context in contexts if context}) == 3
    assert {context.trace_id for context in contexts if context} == {derive_trace_id("run-1")}


def test_a_step_is_below_a_turn_that_has_not_been_emitted() -> None:
    telemetry, seen = open_recorder()
    turn = telemetry.spans.build_context("run-1", "invoke_agent ops", "1")
    telemetry.spans.start("chat m", {}, run_id="run-1", parent=turn).end()
    telemetry.spans.start("invoke_agent ops", {}, run_id="run-1", key="1").end()
    chat, invoke = seen.get_finished_spans()
    assert chat.parent is not None
    assert invoke.context is not None
    assert chat.parent.span_id == invoke.context.span_id


def test_a_teams_own_spans_keep_their_random_ids() -> None:
    telemetry, seen = open_recorder()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(seen))
    own = provider.get_tracer("team")
    telemetry.spans.start("everlong.resume", {}, run_id="run-1", key="1").end()
    own.start_span("theirs").end()
    ours, theirs = seen.get_finished_spans()
    assert ours.context is not None
    assert theirs.context is not None
    assert theirs.context.trace_id != ours.context.trace_id


@pytest.mark.guarantee(81)
@pytest.mark.parametrize("ratio", [0.1, 0.5])
def test_a_run_is_sampled_whole_at_the_teams_rate(ratio: float) -> None:
    telemetry, seen = open_recorder(ParentBased(TraceIdRatioBased(ratio)))
    for number in range(400):
        run_id = f"0199c0de-7000-7000-8000-{number:012}"
        turn = telemetry.spans.build_context(run_id, "invoke_agent ops", "1")
        telemetry.spans.start("chat m", {}, run_id=run_id, parent=turn).end()
        telemetry.spans.start("invoke_agent ops", {}, run_id=run_id, key="1").end()
    traces = [span.context.trace_id for span in seen.get_finished_spans() if span.context]
    assert all(traces.count(trace_id) == 2 for trace_id in set(traces))
    assert 0.6 * ratio < len(set(traces)) / 400 < 1.4 * ratio


def test_a_team_that_samples_nothing_gets_nothing() -> None:
    telemetry, seen = open_recorder(ParentBased(ALWAYS_OFF))
    turn = telemetry.spans.build_context("run-1", "invoke_agent ops", "1")
    telemetry.spans.start("chat m", {}, run_id="run-1", parent=turn).end()
    assert seen.get_finished_spans() == ()


def test_the_sdks_replay_safe_provider_is_supported() -> None:
    exporter = InMemorySpanExporter()
    provider = create_tracer_provider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    Telemetry(provider).spans.start("everlong.resume", {}, run_id="run-1", key="1").end()
    [span] = exporter.get_finished_spans()
    assert span.context is not None
    assert span.context.trace_id == derive_trace_id("run-1")


@pytest.mark.guarantee(81)
def test_no_provider_becomes_the_global_one() -> None:
    EverlongPlugin(store="memory:", tracer_provider=TracerProvider())
    assert isinstance(trace.get_tracer_provider(), ProxyTracerProvider)


@pytest.mark.parametrize("made", ["TracerProvider()", "create_tracer_provider()"])
def test_a_global_provider_may_be_set_after_the_plugin_was_made(made: str) -> None:
    # In a process of its own: a global provider cannot be replaced.
    script = """
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from everlong.telemetry import Telemetry
from everlong.telemetry.spans import derive_trace_id
from temporalio.contrib.opentelemetry import create_tracer_provider
provider = PROVIDER
telemetry = Telemetry()
telemetry.spans.start("early", {}, run_id="run-1").end()
telemetry.meters.add("everlong.holds", 1, {"error": "BlobMissing"})
exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider([reader]))
telemetry.spans.start("late", {}, run_id="run-1", key="1").end()
telemetry.meters.add("everlong.holds", 1, {"error": "BlobMissing"})
[span] = exporter.get_finished_spans()
assert span.name == "late" and span.context.trace_id == derive_trace_id("run-1")
[scope] = reader.get_metrics_data().resource_metrics[0].scope_metrics
[metric] = scope.metrics
assert metric.name == "everlong.holds" and metric.data.data_points[0].value == 1
"""
    script = script.replace("PROVIDER", made)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_traceparent_resolves_to_its_span() -> None:
    telemetry, _ = open_recorder()
    place = telemetry.spans.build_context("run-1", "chat", "1")
    found = parse_traceparent(format_traceparent(place))
    assert found is not None
    assert (found.trace_id, found.span_id, found.trace_flags) == (
        place.trace_id,
        place.span_id,
        place.trace_flags,
    )
    assert format_traceparent(trace.INVALID_SPAN_CONTEXT) == ""


@given(st.text(max_size=80) | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"))
def test_any_text_parses_to_a_traceparent_or_none(text: str) -> None:
    found = parse_traceparent(text)
    assert found is None or found.is_valid


def test_notes_of_runs_are_bounded_and_taken_once() -> None:
    recent: RecentRuns[int] = RecentRuns(runs_max=3)
    for number in range(5):
        recent.put(f"run-{number}", number)
    assert [recent.pop(f"run-{number}") for number in range(5)] == [None, None, 2, 3, 4]
    assert recent.pop("run-4") is None


class BrokenProcessor(SpanProcessor):
    """Raises when a span starts, and when one ends."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        raise RuntimeError("broken for a test")

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("broken for a test")


def test_a_failing_span_processor_does_not_fail_the_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(BrokenProcessor())
    spans = Telemetry(provider).spans
    spans.end(spans.start("everlong.resume", {}, run_id="run-1"))
    with spans.use(spans.start("chat", {}, run_id="run-1")):
        pass
    with pytest.raises(ValueError, match="of the body"):
        with spans.use(spans.start("chat", {}, run_id="run-1")):
            raise ValueError("of the body")
    assert len([record for record in caplog.records if "raised an error" in record.message]) <= 1


def test_observations_of_two_plugins_are_added_up() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    for payload_bytes in (1, 1000):
        meters = Telemetry(meter_provider=provider).meters
        meters.observe("everlong.offload.written", lambda size=payload_bytes: [(size, {})])  # type: ignore[misc]
    data = reader.get_metrics_data()
    assert data is not None
    [metric] = data.resource_metrics[0].scope_metrics[0].metrics
    assert [point.value for point in metric.data.data_points] == [1001]  # type: ignore[union-attr]
    provider.shutdown()


async def test_the_span_of_a_failed_offload_has_only_the_error_type() -> None:
    class Refusing(MemoryBlobStore):
        async def put(self, key: str, data: bytes) -> None:
            raise PermissionError("rosebud")

    telemetry, seen = open_recorder()
    codec = EverlongCodec(Refusing(), inline_bytes_max=0, spans=telemetry.spans)
    with pytest.raises(PermissionError):
        await codec.encode([payload(noise(20_000))])
    [span] = seen.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "PermissionError"
    assert "rosebud" not in span.to_json()


BEGAN_MS = 1_000
DECIDED = Decision(
    id="4-1", tool="pay", asked_ms=2_000, approve=True, by="alice", asked_run="run-1"
)


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "ends"])
async def test_an_approval_flushed_within_a_turn_has_its_parent_and_link(*, ends: bool) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(provider)
    agent = Agent(name="ops", model=ScriptedModel(lambda _: Reply(text="done")))
    activities = AgentActivities(open_packs("memory:"), [agent], telemetry=telemetry)
    env, turn = ActivityEnvironment(), Turn(number=3, began_ms=BEGAN_MS)
    append = Append(
        head=None,
        entries=(build_note(1, Kind.DECIDED, DECIDED, 5_000),),
        agent="ops",
        ended=turn if ends else None,
        turn=None if ends else turn,
    )
    await env.run(activities.append_journal, append)

    def place(run_id: str) -> int:
        part = TurnSpan(thread_id=env.info.workflow_id or "", run_id=run_id, agent="ops", number=3)
        return part.context(telemetry.spans).span_id

    names = [span.name.split()[0] for span in exporter.get_finished_spans()]
    assert names == ([APPROVAL, "invoke_agent"] if ends else [APPROVAL])
    approval = exporter.get_finished_spans()[0]
    assert approval.parent is not None
    assert approval.parent.span_id == place("run-1")
    links = [link.context.span_id for link in approval.links]
    assert links == [place(env.info.workflow_run_id or "")]


@pytest.mark.parametrize("in_turn", [True, False])
async def test_a_flush_names_the_current_turn(
    monkeypatch: pytest.MonkeyPatch, *, in_turn: bool
) -> None:
    info = SimpleNamespace(
        continued_run_id=None,
        workflow_start_time=datetime.fromtimestamp(BEGAN_MS / 1000, UTC),
        get_current_history_size=lambda: 0,
    )
    monkeypatch.setattr(workflow, "info", lambda: info)
    decided = build_note(1, Kind.DECIDED, DECIDED, 5_000)
    state = ThreadState(in_turn=in_turn, notes=(decided,))
    thread = Thread(ThreadStart(agent="ops", state=state))
    appends: list[Append] = []

    async def execute(name: str, argument: Append, *_: Any) -> AppendResult:
        appends.append(argument)
        ref = Ref(thread="0" * 32, digest="0" * 64, size_bytes=1, kind=Kind.SEGMENT)
        head = SegmentRef(ref=ref, first_seq=1, count=1)
        return AppendResult(head=head, written_bytes=1)

    monkeypatch.setattr(thread._executor, "execute", execute)
    assert await thread.flush()
    [append] = appends
    assert append.ended is None
    assert append.turn == (Turn(number=1, began_ms=BEGAN_MS) if in_turn else None)
