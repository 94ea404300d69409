"""Where spans go: nowhere, to the console as one JSON line each, or to an OTLP endpoint.

Only our own worker uses this. The plugin takes the team's own provider, and installs none unasked.
"""

import json
import sys
from collections.abc import Callable
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SimpleSpanProcessor,
)

from everlong.errors import ConfigError


def _console() -> SpanProcessor:
    return SimpleSpanProcessor(ConsoleSpanExporter(out=sys.stdout, formatter=span_line))


def _otlp() -> SpanProcessor:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(
            "OTEL_TRACES_EXPORTER=otlp needs a package: pip install 'everlong[admin]'"
        ) from error
    return BatchSpanProcessor(OTLPSpanExporter())


_PROCESSORS: Final[dict[str, Callable[[], SpanProcessor]]] = {"console": _console, "otlp": _otlp}


def open_tracer_provider(exporter: str) -> TracerProvider:
    """Return a provider for the value of `OTEL_TRACES_EXPORTER`. Shut it down before you exit."""
    provider = TracerProvider()
    if exporter == "none":
        return provider
    if exporter not in _PROCESSORS:
        raise ConfigError(
            f"OTEL_TRACES_EXPORTER is {exporter!r}; use none, {' or '.join(_PROCESSORS)}"
        )
    provider.add_span_processor(_PROCESSORS[exporter]())
    return provider


def span_line(span: ReadableSpan) -> str:
    """Return a span as one line of JSON."""
    start_ns, end_ns = span.start_time or 0, span.end_time or 0
    fields = {
        "span": span.name,
        "duration_ms": round((end_ns - start_ns) / 1e6, 1),
        **(span.attributes or {}),
    }
    return json.dumps(fields) + "\n"
