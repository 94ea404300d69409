"""Spans that outlive the process that began them.

A run of a workflow is one trace. The trace id is derived from the run id, and so are the ids of spans
that have a key. Therefore one worker can end a span that another began, and a span that is emitted again
after a crash replaces the first in the tracing backend. The next run begins its own trace, whose spans
link to the end of the previous one.
"""

import collections
import contextlib
import copy
import dataclasses
import functools
import hashlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Generic, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    NoOpTracer,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
)
from opentelemetry.util.types import AttributeValue
from temporalio.exceptions import ApplicationError

_LOG: Final = logging.getLogger(__name__)
RESUME: Final = "everlong.resume"
ACT: Final = "everlong.act"
COMPACT: Final = "everlong.compact"
OFFLOAD: Final = "everlong.offload"
CONTINUE_AS_NEW: Final = "everlong.continue_as_new"
APPROVAL: Final = "everlong.approval"
ARCHIVE: Final = "everlong.archive"
SWEEP: Final = "everlong.sweep"
NOTIFY: Final = "everlong.notify"
DECISION: Final = "everlong.decision"
INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

THREAD: Final = "gen_ai.conversation.id"
"""The attribute that finds all spans of a thread."""
RUN: Final = "everlong.run.id"
AGENT: Final = "gen_ai.agent.name"
PROVIDER: Final = "gen_ai.provider.name"
ERROR: Final = "error.type"

Attributes = Mapping[str, AttributeValue]

# The API's proxy around a replay-safe tracer around the SDK's tracer, and one more.
_WRAPPERS_MAX: Final = 4
_TYPE_CHARS_MAX: Final = 64
# A step derives the ids of its turn a dozen times.
_IDS_MAX: Final = 1024
# Bound of `RecentRuns`: a process sees new runs for as long as it lives.
_RUNS_MAX: Final = 10_000

T = TypeVar("T")

_LOG_SECONDS: Final = 60.0
_logged_at = float("-inf")


@contextlib.contextmanager
def log_errors() -> Iterator[None]:
    """Log errors of the body, at most one a minute, and continue.

    A user's span processor, sampler or metric reader may raise anything. It must not fail the step.
    """
    global _logged_at
    try:
        yield
    except Exception:  # noqa: BLE001 - it is logged, and is not our code
        if time.monotonic() - _logged_at >= _LOG_SECONDS:
            _logged_at = time.monotonic()
            _LOG.exception(
                "spans or metrics were lost: a span processor, sampler or metric reader raised an error"
            )


class Spans:
    """Emits spans to the given or the global provider.

    Errors of the provider are logged and never raised: telemetry must not fail a step.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._resolved: tuple[SdkTracer, _FixedIdGenerator] | None = None
        self.providers: dict[str, str] = {}
        """Model provider by agent name, for the agents of this process."""

    @property
    def is_silent(self) -> bool:
        """Whether no provider is set. Callers then skip building attributes."""
        return self._resolved is None and isinstance(self._unwrap(), NoOpTracer)

    def start(
        self,
        name: str,
        attributes: Attributes,
        *,
        run_id: str = "",
        key: str = "",
        parent: SpanContext | None = None,
        links: Sequence[Link] = (),
        kind: SpanKind = SpanKind.INTERNAL,
        start_ns: int | None = None,
    ) -> Span:
        """Start a span: a child of `parent`, or else a root span of the run's trace.

        With a `key`, the span id is derived from run, name and key. Omit it for spans that may repeat.
        """
        has_parent = parent is not None and parent.is_valid
        if not has_parent and self.is_silent:
            return trace.INVALID_SPAN
        context = Context()
        if parent is not None and has_parent:
            context = trace.set_span_in_context(NonRecordingSpan(parent), context)
        tracer, ids = self._resolve()
        trace_id = derive_trace_id(run_id) if run_id else None
        span_id = derive_span_id(run_id, name, key) if key else None
        with log_errors(), contextlib.nullcontext() if ids is None else ids.fix(trace_id, span_id):
            return tracer.start_span(
                name,
                context=context,
                kind=kind,
                attributes=attributes,
                links=links,
                start_time=start_ns,
            )
        return trace.INVALID_SPAN

    def end(self, span: Span, end_ns: int | None = None) -> None:
        """End a span."""
        with log_errors():
            span.end(end_ns)

    @contextlib.contextmanager
    def use(self, span: Span) -> Iterator[None]:
        """Make a span the current one, and end it with the body.

        Only the type of an error is recorded: its message may quote the conversation.
        """
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield
        except BaseException as error:
            span.set_attribute(ERROR, get_error_type(error))
            span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            self.end(span)

    def build_context(self, run_id: str, name: str, key: str) -> SpanContext:
        """Return the context of a span with a key, whether or not it has been emitted yet."""
        trace_id = derive_trace_id(run_id)
        return SpanContext(
            trace_id,
            derive_span_id(run_id, name, key),
            is_remote=True,
            trace_flags=TraceFlags(
                TraceFlags.SAMPLED if self._is_sampled(trace_id, name) else TraceFlags.DEFAULT
            ),
        )

    def link_previous_run(self, last_run_id: str) -> list[Link]:
        """Return a link to the end of the previous run; empty if there is no previous run."""
        if not last_run_id:
            return []
        return [Link(self.build_context(last_run_id, CONTINUE_AS_NEW, last_run_id))]

    def _is_sampled(self, trace_id: int, name: str) -> bool:
        """Return whether the provider's sampler would sample a trace.

        A tracer that is not the SDK's exposes no sampler, and decides for each span itself.
        """
        tracer, _ = self._resolve()
        if not isinstance(tracer, SdkTracer):
            return True
        with log_errors():
            decision = tracer.sampler.should_sample(Context(), trace_id, name).decision
            return decision is Decision.RECORD_AND_SAMPLE
        return False

    def _resolve(self) -> tuple[Tracer, "_FixedIdGenerator | None"]:
        """Return the tracer and, if it is the SDK's, the generator that fixes its ids.

        A global provider may be set after the plugin was created, and replay-safe tracers wrap another
        tracer. Both hold the inner tracer as `_tracer`.
        """
        resolved = self._resolved
        if resolved is not None:
            return resolved
        tracer = self._unwrap()
        if not isinstance(tracer, SdkTracer):
            return self._tracer, None
        chosen = copy.copy(tracer)
        ids = _FixedIdGenerator(tracer.id_generator)
        chosen.id_generator = ids
        self._resolved = chosen, ids  # One assignment: other OS threads may be here too.
        return chosen, ids

    def _unwrap(self) -> Tracer:
        tracer = self._tracer
        for _ in range(_WRAPPERS_MAX):
            tracer = getattr(tracer, "_tracer", tracer)
        return tracer


class _FixedIdGenerator(IdGenerator):
    """Returns the ids fixed for the span that this OS thread is starting, or else random ones."""

    def __init__(self, others: IdGenerator) -> None:
        self._others = others
        self._local = threading.local()

    @contextlib.contextmanager
    def fix(self, trace_id: int | None, span_id: int | None) -> Iterator[None]:
        self._local.trace_id, self._local.span_id = trace_id, span_id
        try:
            yield
        finally:
            self._local.trace_id = self._local.span_id = None

    def generate_trace_id(self) -> int:
        return getattr(self._local, "trace_id", None) or self._others.generate_trace_id()

    def generate_span_id(self) -> int:
        return getattr(self._local, "span_id", None) or self._others.generate_span_id()


def get_error_type(error: BaseException) -> str:
    """Return the name of an error's type; of an ApplicationError, the type that it carries."""
    own = error.type if isinstance(error, ApplicationError) else None
    return (own or type(error).__name__)[:_TYPE_CHARS_MAX]


@functools.lru_cache(_IDS_MAX)
def derive_trace_id(run_id: str) -> int:
    """Return the trace id of a run. A digest, since samplers rely on evenly distributed ids."""
    return int.from_bytes(hashlib.blake2b(run_id.encode(), digest_size=16).digest()) or 1


@functools.lru_cache(_IDS_MAX)
def derive_span_id(run_id: str, name: str, key: str) -> int:
    """Return the id of a span with a key."""
    name = f"{run_id}\0{name}\0{key}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) or 1


def format_traceparent(context: SpanContext) -> str:
    """Return a span context as a W3C traceparent; empty if it is not valid."""
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def parse_traceparent(text: str) -> SpanContext | None:
    """Return the span context of a W3C traceparent; None if the text is not valid."""
    parts = text.split("-")
    if len(parts) != 4 or [len(part) for part in parts] != [2, 32, 16, 2]:
        return None
    try:
        context = SpanContext(
            int(parts[1], 16),
            int(parts[2], 16),
            is_remote=True,
            trace_flags=TraceFlags(int(parts[3], 16)),
        )
    except ValueError:
        return None
    return context if context.is_valid else None


# The conventions' value for an error of unknown type.
_OTHER: Final = "_OTHER"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TurnSpan:
    """The span of a turn, or of the part of a turn that is in one run."""

    thread_id: str
    run_id: str
    agent: str
    number: int
    """Number of the message that the turn answers."""

    def context(self, spans: Spans) -> SpanContext:
        """Return the context of the span, whether or not it has been emitted yet."""
        return spans.build_context(self.run_id, self._name, str(self.number))

    def emit(
        self,
        spans: Spans,
        began_ms: int,
        ended_ms: int,
        last_run: str,
        outcome: str,
        error_type: str = "",
    ) -> None:
        """Emit the span. The turn was answered, failed, or is continued in the next run."""
        if spans.is_silent:
            return
        provider = spans.providers.get(self.agent)
        span = spans.start(
            self._name,
            {
                THREAD: self.thread_id,
                RUN: self.run_id,
                AGENT: self.agent,
                **({PROVIDER: provider} if provider else {}),
                "gen_ai.operation.name": INVOKE_AGENT,
                "everlong.turn.number": self.number,
                "everlong.turn.outcome": outcome,
            },
            run_id=self.run_id,
            key=str(self.number),
            links=spans.link_previous_run(last_run),
            start_ns=min(began_ms, ended_ms) * 1_000_000,
        )
        if outcome == "failed":
            span.set_attribute(ERROR, error_type or _OTHER)
            span.set_status(Status(StatusCode.ERROR))
        spans.end(span, ended_ms * 1_000_000)

    @property
    def _name(self) -> str:
        return f"{INVOKE_AGENT} {self.agent}"


@dataclasses.dataclass(frozen=True)
class ResumeSummary:
    """Duration, cause and replayed events of a run's last resume."""

    ms: float = 0.0
    cause: str = ""
    events: int = 0


class RecentRuns(Generic[T]):
    """One value for each of the most recent runs. Safe to use from any OS thread."""

    def __init__(self, runs_max: int = _RUNS_MAX) -> None:
        self._runs_max = runs_max
        self._values: collections.OrderedDict[str, T] = collections.OrderedDict()
        self._lock = threading.Lock()

    def put(self, run_id: str, value: T) -> None:
        """Set the value of a run. The least recently set run is dropped if the map is full."""
        with self._lock:
            self._values[run_id] = value
            self._values.move_to_end(run_id)
            if len(self._values) > self._runs_max:
                self._values.popitem(last=False)

    def pop(self, run_id: str) -> T | None:
        """Remove and return the value of a run; None if it has none."""
        with self._lock:
            return self._values.pop(run_id, None)
