"""Step recorder: spans by the GenAI conventions, and metrics, of the activities of a thread.

A turn spans many activities and workers, so the id of its span, `invoke_agent`, is derived from the run
and the turn. Steps become its children before the activity that ends the turn emits it. No span holds
contents of the conversation unless `record_contents` is on.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal

from opentelemetry import context as otel
from opentelemetry import trace
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
)
from temporalio import activity

from everlong import limits
from everlong.agents import Agent, Tool
from everlong.models import (
    Compact,
    CompactResult,
    Context,
    Entry,
    Kind,
    ModelCall,
    Outcome,
    SentTime,
    ToolCall,
    Turn,
)
from everlong.storage.instrumented import Reads, count_reads
from everlong.telemetry import Telemetry
from everlong.telemetry.spans import (
    ACT,
    AGENT,
    APPROVAL,
    ERROR,
    EXECUTE_TOOL,
    OFFLOAD,
    RUN,
    THREAD,
    Attributes,
    TurnSpan,
    parse_traceparent,
)

_OPERATION: Final = "gen_ai.operation.name"
_CUSTOM: Final = "custom"
_PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gen_ai",
    "google-gla": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "grok": "x_ai",
    "mistral": "mistral_ai",
    "openai-chat": "openai",
    "openai-responses": "openai",
    "xai": "x_ai",
}
"""Provider names of the conventions by pydantic-ai prefix, where the two differ."""
# A description is written for a model and may be pages long.
_DESCRIPTION_CHARS_MAX: Final = 1000
_LOOPS: Final = frozenset({"failed_turns_max", "same_failure_max", "no_progress_steps_max"})


CompactionOutcome = Literal["compacted", "tail", "halved", "no_shrink", "unchanged"]
"""`compacted`: with notes. `tail`: with the last messages alone, which kept more than notes. `halved`:
to half of the budget, since the budget freed less than a fifth. `no_shrink`: not used, since that freed
less than a fifth too. `unchanged`: the context is small enough."""


@dataclasses.dataclass(frozen=True)
class ContextSize:
    """The size of a context."""

    size_bytes: int
    messages: int

    @property
    def tokens(self) -> int:
        """An estimate: one token for each four bytes."""
        return -(-self.size_bytes // 4)


class StepRecorder:
    """Records the steps of all threads of a worker."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.telemetry = telemetry
        self._spans = telemetry.spans
        self._meters = telemetry.meters

    @contextlib.contextmanager
    def record_step(self, step: str, context: Context) -> Iterator[Reads]:
        """Yield the read counter of a step, and record the bytes read."""
        with count_reads(writes=True) as reads:
            yield reads
        if self._meters.is_silent:
            return
        labels = {"agent": context.agent, "step": step}
        within = self._build_exemplar_context(context.agent, context.turn)
        self._meters.record("everlong.step.read", reads.bytes, labels, within)

    def record_written(self, step: str, agent: str, turn: Turn | None, size_bytes: int) -> None:
        """Record the bytes that a step has written."""
        if self._meters.is_silent:
            return
        labels = {"agent": agent, "step": step}
        self._meters.record(
            "everlong.step.written", size_bytes, labels, self._build_exemplar_context(agent, turn)
        )

    @contextlib.contextmanager
    def open_span(
        self,
        name: str,
        context: Context,
        attributes: Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
        start_ns: int | None = None,
    ) -> Iterator[Span]:
        """Emit a span for a part of a step: a child of the current span, or else of the turn's."""
        if self._spans.is_silent:
            yield trace.INVALID_SPAN
            return
        current = trace.get_current_span().get_span_context()
        turn = self._get_turn_context(context)
        links = [] if turn is not None else self._spans.link_previous_run(context.last_run)
        if current.is_valid and turn is not None:
            links = [Link(turn)]
        span = self._spans.start(
            name,
            {**_build_identity(context.agent), **attributes},
            run_id=_get_run_id(),
            parent=current if current.is_valid else turn,
            links=links,
            kind=kind,
            start_ns=start_ns,
        )
        with self._spans.use(span):
            yield span

    @contextlib.contextmanager
    def record_tool_call(
        self, context: Context, call: ToolCall, *, tool: Tool | None, child_id: str = ""
    ) -> Iterator[Callable[[Outcome, str], None]]:
        """Emit the span of a tool call. The body calls the yielded function with the outcome.

        `tool` is None for a name that the model invented. The name is then content, and not recorded.
        """
        if self._spans.is_silent:
            yield _ignore_outcome
            return
        attributes: dict[str, Any] = {
            _OPERATION: EXECUTE_TOOL,
            **({"everlong.child.id": child_id} if child_id else {}),
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.type": "function",
            "everlong.attempt": activity.info().attempt,
        }
        name = ""
        if tool is not None:
            name = attributes["gen_ai.tool.name"] = call.tool
            attributes["gen_ai.tool.description"] = tool.description[:_DESCRIPTION_CHARS_MAX]
        with self.open_span(f"{EXECUTE_TOOL} {name}".strip(), context, attributes) as span:
            records_contents = self.telemetry.record_contents and span.is_recording()
            if records_contents:
                arguments = call.arguments[: limits.CONTENTS_BYTES_MAX]
                span.set_attribute("gen_ai.tool.call.arguments", arguments)

            def set_outcome(outcome: Outcome, text: str) -> None:
                span.set_attribute("everlong.tool.outcome", outcome)
                if outcome != "ok":
                    span.set_attribute(ERROR, outcome)
                    span.set_status(Status(StatusCode.ERROR))
                if records_contents:
                    result = text[: limits.CONTENTS_BYTES_MAX]
                    span.set_attribute("gen_ai.tool.call.result", result)

            yield set_outcome

    @contextlib.contextmanager
    def record_offload(self, context: Context) -> Iterator[Callable[[int, int], None]]:
        """Emit the span of an offload if the body calls the yielded function with bytes written."""
        started_ns = time.time_ns()

        def set_sizes(size_bytes: int, written_bytes: int) -> None:
            if written_bytes and not self._spans.is_silent:
                sizes = {
                    "everlong.offload.payload_bytes": size_bytes,
                    "everlong.offload.written_bytes": written_bytes,
                }
                with self.open_span(OFFLOAD, context, sizes, start_ns=started_ns):
                    pass

        yield set_sizes

    def record_act(self, kind: str, sent: Sequence[SentTime], context: Context) -> None:
        """Record that a step begins to act on messages or decisions. Only the first attempt records."""
        if not sent or activity.info().attempt > 1:
            return
        now_ns = time.time_ns()
        turn = self._get_turn_context(context)
        for each in sent:
            sent_ns = min(each.ms * 1_000_000, now_ns)
            span = self._spans.start(
                ACT,
                {**_build_identity(context.agent), "everlong.act.kind": kind},
                run_id=_get_run_id(),
                key=f"{kind} {each.ms} {each.trace}",
                parent=parse_traceparent(each.trace),
                links=[] if turn is None else [Link(turn)],
                start_ns=sent_ns,
            )
            self._spans.end(span, now_ns)
            self._meters.record(
                "everlong.act.duration",
                (now_ns - sent_ns) / 1e9,
                {"agent": context.agent, "kind": kind},
                trace.set_span_in_context(span, otel.Context()),
            )

    def record_sizes(self, call: ModelCall, context_bytes: int, compact_at_bytes: int) -> None:
        """Record the sizes of a thread at a model call."""
        if self._meters.is_silent:
            return
        agent = call.context.agent
        within = self._build_exemplar_context(agent, call.context.turn)
        classes = {
            "operational": call.state_bytes,
            "context": context_bytes,
            "journal": call.thread_bytes,
        }
        for name, size_bytes in classes.items():
            labels = {"agent": agent, "class": name}
            self._meters.record("everlong.thread.size", size_bytes, labels, within)
        growth, labels = call.growth_bytes_per_hour, {"agent": agent}
        self._meters.record("everlong.thread.growth", growth, labels, within)
        over_bytes = max(0, context_bytes - compact_at_bytes)
        self._meters.record("everlong.compaction.lag.size", over_bytes, labels, within)

    def record_compaction(
        self,
        span: Span,
        compact: Compact,
        done: CompactResult,
        *,
        outcome: CompactionOutcome,
        strategy: str,
        before: ContextSize,
        after: ContextSize,
    ) -> None:
        """Record the result of a compaction."""
        due_ms = compact.due_ms
        lag_seconds = 0.0 if due_ms is None else max(0.0, time.time() - due_ms / 1000)
        span.set_attributes(
            {
                "everlong.compact.reason": compact.reason,
                "everlong.compact.before_bytes": done.before_bytes,
                "everlong.compact.after_bytes": done.after_bytes,
                "everlong.compact.written_bytes": done.written_bytes,
                "everlong.compact.lag_seconds": lag_seconds,
                "everlong.compact.summarised": done.summarised,
                "everlong.compact.outcome": outcome,
                "everlong.compact.strategy": strategy,
                "everlong.compact.before_messages": before.messages,
                "everlong.compact.after_messages": after.messages,
                "everlong.compact.before_tokens": compact.context_tokens or before.tokens,
                "everlong.compact.after_tokens": after.tokens,
            }
        )
        labels = {"agent": compact.context.agent, "reason": compact.reason}
        self._meters.record("everlong.compaction.lag", lag_seconds, labels)
        self._meters.add("everlong.compactions", 1, {**labels, "outcome": outcome})
        removed_bytes = max(0, done.before_bytes - done.after_bytes)
        self._meters.add("everlong.compaction.removed", removed_bytes, labels)

    def count_hold(self, error: str) -> None:
        """Count a step that has to wait for the store."""
        self._meters.add("everlong.holds", 1, {"error": error})

    def record_entries(self, entries: Sequence[Entry], agent: str, turn: Turn | None) -> None:
        """Record journalled decisions and limit hits."""
        for entry in entries:
            data = entry.data or {}
            # With a grant, no person was asked.
            if entry.kind == Kind.DECIDED and not data.get("escalated") and not data.get("grant"):
                self._record_approval(data, entry.time_ms, agent, turn)
            elif entry.kind == Kind.LIMIT:
                limit = {"agent": agent, "limit": str(data.get("limit", ""))}
                labels = {**limit, "action": str(data.get("action", ""))}
                self._meters.add("everlong.limit.hits", 1, labels)
                if limit["limit"] in _LOOPS:
                    self._meters.add("everlong.failure.loops", 1, limit)

    def record_turn_end(
        self, agent: str, turn: Turn | None, last_run: str, outcome: str, error_type: str = ""
    ) -> None:
        """Emit the span of a turn, or of its part in this run."""
        if turn is not None:
            now_ms = time.time_ns() // 1_000_000
            part = _build_turn_span(agent, turn)
            part.emit(self._spans, turn.began_ms, now_ms, last_run, outcome, error_type)

    def _record_approval(
        self, data: dict[str, Any], decided_ms: int, agent: str, turn: Turn | None
    ) -> None:
        asked_ms = int(data.get("asked_ms", decided_ms))
        # The span belongs to the run that asked, under that run's part of the turn: the later run
        # did not exist when the wait began.
        asked_run = str(data.get("asked_run") or _get_run_id())
        expired = data.get("by") == "deadline"
        decision = "expired" if expired else "approved" if data.get("approve") else "denied"
        span = self._spans.start(
            APPROVAL,
            {
                **_build_identity(agent),
                RUN: asked_run,
                "everlong.approval.id": str(data.get("id", "")),
                "everlong.approval.decision": decision,
                "gen_ai.tool.name": str(data.get("tool", "")),
            },
            run_id=asked_run,
            key=str(data.get("id", "")),
            parent=None
            if turn is None
            else _build_turn_span(agent, turn, asked_run).context(self._spans),
            links=self._link_later_part(agent, turn, asked_run),
            start_ns=asked_ms * 1_000_000,
        )
        self._spans.end(span, max(asked_ms, decided_ms) * 1_000_000)
        self._meters.record(
            "everlong.approval.wait",
            max(0, decided_ms - asked_ms) / 1000,
            {"agent": agent, "decision": decision},
            trace.set_span_in_context(span, otel.Context()),
        )

    def _link_later_part(self, agent: str, turn: Turn | None, asked_run: str) -> list[Link]:
        """Return a link to the part of the turn that continues in a later run, if it does."""
        if turn is None or asked_run == _get_run_id():
            return []
        return [Link(_build_turn_span(agent, turn).context(self._spans))]

    def _build_exemplar_context(self, agent: str, turn: Turn | None) -> otel.Context | None:
        """Return the context whose span, the turn's, becomes the exemplar of a value."""
        if turn is None:
            return None
        place = _build_turn_span(agent, turn).context(self._spans)
        return trace.set_span_in_context(NonRecordingSpan(place), otel.Context())

    def _get_turn_context(self, context: Context) -> SpanContext | None:
        turn = context.turn
        return None if turn is None else _build_turn_span(context.agent, turn).context(self._spans)


def _build_turn_span(agent: str, turn: Turn, run_id: str = "") -> TurnSpan:
    """Return the span of a turn in a run, by default the activity's."""
    info = activity.info()
    return TurnSpan(
        thread_id=info.workflow_id or "",
        run_id=run_id or _get_run_id(),
        agent=agent,
        number=turn.number,
    )


def get_provider_and_model(agent: Agent) -> tuple[str, str]:
    """Return the provider and the model of an agent, as the GenAI conventions name them.

    The provider of a user's own model class is `custom`.
    """
    model = agent.model
    name = model if isinstance(model, str) else getattr(model, "model_id", "")
    if not isinstance(name, str) or not name:
        return _CUSTOM, type(model).__name__
    provider, colon, rest = name.partition(":")
    return (_PROVIDERS.get(provider, provider), rest) if colon else (_CUSTOM, name)


def _ignore_outcome(outcome: Outcome, text: str) -> None:
    """Stand in for `set_outcome` where there is no span."""


def _build_identity(agent: str) -> dict[str, str]:
    info = activity.info()
    return {THREAD: info.workflow_id or "", RUN: _get_run_id(), AGENT: agent}


def _get_run_id() -> str:
    return activity.info().workflow_run_id or ""
