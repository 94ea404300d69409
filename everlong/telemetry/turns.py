"""The span of a turn: who begins one need not be who ends it."""

import dataclasses
from typing import Final

from opentelemetry.trace import SpanContext, Status, StatusCode

from everlong.telemetry.spans import AGENT, ERROR, INVOKE_AGENT, PROVIDER, RUN, THREAD, Spans

# By the conventions: an error whose type is not known.
_OTHER: Final = "_OTHER"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TurnPart:
    """A turn, as far as it lies in one run."""

    thread_id: str
    run_id: str
    agent: str
    number: int
    """Of the message that it answers."""

    def place(self, spans: Spans) -> SpanContext:
        """Return where its span is, or will be."""
        return spans.place(self.run_id, self._name, str(self.number))

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
            links=spans.links_to(last_run),
            start_ns=min(began_ms, ended_ms) * 1_000_000,
        )
        if outcome == "failed":
            span.set_attribute(ERROR, error_type or _OTHER)
            span.set_status(Status(StatusCode.ERROR))
        spans.end(span, ended_ms * 1_000_000)

    @property
    def _name(self) -> str:
        return f"{INVOKE_AGENT} {self.agent}"
