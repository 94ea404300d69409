"""Spans of things that outlive the process which began them.

A run of a workflow is one trace, and its id follows from the run's id. So do the ids of spans that
have a place in it: the worker that ends one need not have begun it, and one that is emitted again,
after a crash, is the same span to whoever stores it. The next run begins a trace of its own, whose
spans link to where the last one ended.
"""

import contextlib
import copy
import dataclasses
import functools
import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

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

from everlong.telemetry.instrumentation import log_errors

RESUME: Final = "everlong.resume"
ACT: Final = "everlong.act"
COMPACT: Final = "everlong.compact"
OFFLOAD: Final = "everlong.offload"
CONTINUE_AS_NEW: Final = "everlong.continue_as_new"
APPROVAL: Final = "everlong.approval"
ARCHIVE: Final = "everlong.archive"
SWEEP: Final = "everlong.sweep"
INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

THREAD: Final = "gen_ai.conversation.id"
"""The one attribute by which all that belongs to a thread is found."""
RUN: Final = "everlong.run.id"
AGENT: Final = "gen_ai.agent.name"
PROVIDER: Final = "gen_ai.provider.name"
ERROR: Final = "error.type"

Attributes = Mapping[str, AttributeValue]

# A tracer of the SDK in a replay-safe one in the API's own proxy, and one to spare.
_WRAPPERS_MAX: Final = 4
_TYPE_CHARS_MAX: Final = 64
# A step names its turn a dozen times.
_IDS_MAX: Final = 1024


class Spans:
    """Emits our spans to whatever provider there is, a team's own included.

    What is wrong with that is logged, and no more: who tells of a step must not fail it.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._resolved: tuple[SdkTracer, _FixedIdGenerator] | None = None
        self.providers: dict[str, str] = {}
        """The provider of each agent's model, by the name of an agent that this process runs."""

    @property
    def is_silent(self) -> bool:
        """Whether no provider is set, so that attributes need not be built."""
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
        """Start a span: below `parent`, or else at the top of the run's trace.

        With a `key` its id follows from run, name and key. What happens more than once has none.
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
        """Have a span be the current one, and end it with the body.

        Of an error only the type is told: what it says may be a part of a conversation.
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

    def context_for(self, run_id: str, name: str, key: str) -> SpanContext:
        """Return the place of a span that has one, whether or not it has been emitted yet."""
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
        """Return the link from a run's spans to where the last run ended, if there was one."""
        if not last_run_id:
            return []
        return [Link(self.context_for(last_run_id, CONTINUE_AS_NEW, last_run_id))]

    def _is_sampled(self, trace_id: int, name: str) -> bool:
        """Ask the team's sampler what it would say of a trace.

        A tracer that is not the SDK's has none that could be asked; it decides for each span.
        """
        tracer, _ = self._resolve()
        if not isinstance(tracer, SdkTracer):
            return True
        with log_errors():
            decision = tracer.sampler.should_sample(Context(), trace_id, name).decision
            return decision is Decision.RECORD_AND_SAMPLE
        return False

    def _resolve(self) -> tuple[Tracer, "_FixedIdGenerator | None"]:
        """Return the tracer, as one that takes ids from us if it can be.

        A global provider may be set after the plugin was made, and the SDK's replay-safe tracers
        wrap another: both have it as `_tracer`.
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
        self._resolved = chosen, ids  # At once: others may be here too.
        return chosen, ids

    def _unwrap(self) -> Tracer:
        tracer = self._tracer
        for _ in range(_WRAPPERS_MAX):
            tracer = getattr(tracer, "_tracer", tracer)
        return tracer


class _FixedIdGenerator(IdGenerator):
    """Gives the ids that were chosen for the span that this OS thread starts, else any."""

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
    """Return the name of what went wrong: a team's own, where the error was made into Temporal's."""
    own = error.type if isinstance(error, ApplicationError) else None
    return (own or type(error).__name__)[:_TYPE_CHARS_MAX]


@functools.lru_cache(_IDS_MAX)
def derive_trace_id(run_id: str) -> int:
    """Return the id of a run's trace. A digest: samplers want ids that are evenly spread."""
    return int.from_bytes(hashlib.blake2b(run_id.encode(), digest_size=16).digest()) or 1


@functools.lru_cache(_IDS_MAX)
def derive_span_id(run_id: str, name: str, key: str) -> int:
    """Return the id of a span that has a place in a run's trace."""
    name = f"{run_id}\0{name}\0{key}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) or 1


def format_traceparent(context: SpanContext) -> str:
    """Return a place as W3C's header has it; empty if there is none."""
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def parse_traceparent(text: str) -> SpanContext | None:
    """Return the place that a header names, or None for what is none."""
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


# The span of a turn: who begins one need not be who ends it.
# By the conventions: an error whose type is not known.
_OTHER: Final = "_OTHER"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TurnSpan:
    """A turn, as far as it lies in one run."""

    thread_id: str
    run_id: str
    agent: str
    number: int
    """Of the message that it answers."""

    def context(self, spans: Spans) -> SpanContext:
        """Return where its span is, or will be."""
        return spans.context_for(self.run_id, self._name, str(self.number))

    def emit(
        self,
        spans: Spans,
        began_ms: int,
        ended_ms: int,
        last_run: str,
        outcome: str,
        error_type: str = "",
    ) -> None:
        """Emit its span: it has been answered, has failed, or is continued in the next run."""
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
