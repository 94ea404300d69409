"""Spans in memory: what a worker or a client emitted, for tests to look at."""

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class RecordedSpans:
    """A tracer provider that keeps ended spans in memory.

    A `DrivenThread` has one. For a client of your own:
    `EverlongPlugin(..., tracer_provider=spans.provider)`.
    """

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        """The provider, for `EverlongPlugin`."""
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def find(self, name: str) -> list[ReadableSpan]:
        """Return the spans of that name, in the order in which they ended.

        "chat" and "execute_tool" find the spans whose names add the model or the tool.
        """
        return [
            span for span in self.all() if span.name == name or span.name.startswith(f"{name} ")
        ]

    def all(self) -> list[ReadableSpan]:
        """Return all spans that have ended."""
        return list(self._exporter.get_finished_spans())

    def clear(self) -> None:
        """Forget the spans so far."""
        self._exporter.clear()
