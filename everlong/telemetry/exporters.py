"""Where spans and metrics go, by the standard `OTEL_` variables.

Only our own commands use this. The plugin takes the team's own providers, and installs none unasked.
Endpoints, headers, timeouts and intervals are read by the exporters themselves.
"""

import contextlib
import dataclasses
import json
import logging
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    MetricExporter,
    MetricReader,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SimpleSpanProcessor,
    SpanExporter,
)
from opentelemetry.trace import NoOpTracerProvider, TracerProvider

from everlong.errors import ConfigError
from everlong.telemetry.core import CoreMetrics
from everlong.telemetry.instrumentation import NAME, SCHEMA_URL, scope_version
from everlong.telemetry.metrics import Meters

_LOG: Final = logging.getLogger(__name__)
# The exporters try again for 20 s together if nobody answers; who stops a worker waits for 10 to 30 s.
_SHUTDOWN_SECONDS_MAX: Final = 5.0
if TYPE_CHECKING:
    from everlong.telemetry.prometheus import MetricsEndpoint

_TRACES: Final = ("none", "console", "otlp")
_METRICS: Final = ("none", "console", "otlp", "prometheus")
_PROTOCOLS: Final = ("http/protobuf", "grpc")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """What is exported, and how."""

    service_name: str
    """Used if neither `OTEL_SERVICE_NAME` nor `OTEL_RESOURCE_ATTRIBUTES` names the service."""
    traces: str = "none"
    """`OTEL_TRACES_EXPORTER`: none, console or otlp; several with commas between them."""
    metrics: str = "none"
    """`OTEL_METRICS_EXPORTER`: none, console, otlp or prometheus; several with commas."""
    traces_protocol: str = "http/protobuf"
    """`OTEL_EXPORTER_OTLP_TRACES_PROTOCOL`: http/protobuf or grpc."""
    metrics_protocol: str = "http/protobuf"
    """`OTEL_EXPORTER_OTLP_METRICS_PROTOCOL`: http/protobuf or grpc."""
    prometheus_host: str = "127.0.0.1"
    prometheus_port: int = 9464
    """Port of the Prometheus endpoint; 0 takes any free port."""
    prometheus_token: str = dataclasses.field(default="", repr=False)
    """Bearer token that a scrape must carry; empty lets every client in."""


@dataclasses.dataclass
class Providers:
    """What makes spans and metrics, and sends them. Nobody else shuts them down."""

    tracer_provider: TracerProvider
    meter_provider: MeterProvider
    endpoint: "MetricsEndpoint | None" = None
    core: CoreMetrics | None = None
    """The SDK's own metrics, if `open_core` was called."""

    @property
    def has_metrics(self) -> bool:
        """Whether metrics go anywhere."""
        return isinstance(self.meter_provider, SdkMeterProvider)

    def install(self) -> None:
        """Have all spans of this process go there, if anywhere: for a command that is all of it."""
        if isinstance(self.tracer_provider, SdkTracerProvider):
            trace.set_tracer_provider(self.tracer_provider)

    @property
    def meters(self) -> Meters:
        """Everlong's own instruments."""
        return Meters(self.meter_provider.get_meter(NAME, scope_version(), SCHEMA_URL))

    def open_core(self) -> CoreMetrics | None:
        """Return what brings the metrics of a client's runtime along; None if nobody reads them."""
        if self.core is None and self.has_metrics:
            self.core = CoreMetrics(self.meter_provider.get_meter("temporalio"))
        return self.core

    def shutdown(self) -> None:
        """Send what waits, and end all threads. It blocks, but not for long."""
        if self.core is not None:
            self.core.close()
        if self.endpoint is not None:
            self.endpoint.close()
        providers = (self.tracer_provider, self.meter_provider)
        threads = [
            threading.Thread(target=provider.shutdown, daemon=True)
            for provider in providers
            if isinstance(provider, SdkTracerProvider | SdkMeterProvider)
        ]
        deadline = time.monotonic() + _SHUTDOWN_SECONDS_MAX
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            _LOG.warning(
                "the last spans or metrics were not sent: nobody took them within %.0f s. Check "
                "OTEL_EXPORTER_OTLP_ENDPOINT.",
                _SHUTDOWN_SECONDS_MAX,
            )


def open_providers(exports: ExportSettings) -> Providers:
    """Return providers for what is to be exported. Where that is nothing, they do nothing."""
    traces = _parse_names("OTEL_TRACES_EXPORTER", exports.traces, _TRACES)
    metrics = _parse_names("OTEL_METRICS_EXPORTER", exports.metrics, _METRICS)
    if "otlp" in traces:
        _check_protocol("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", exports.traces_protocol)
    if "otlp" in metrics:
        _check_protocol("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", exports.metrics_protocol)
    resource = _build_resource(exports.service_name)
    providers = Providers(NoOpTracerProvider(), NoOpMeterProvider())
    with contextlib.ExitStack() as undo:
        undo.callback(providers.shutdown)
        if traces:
            tracer_provider = SdkTracerProvider(resource=resource, shutdown_on_exit=False)
            providers.tracer_provider = tracer_provider
            for name in traces:
                tracer_provider.add_span_processor(_build_processor(name, exports.traces_protocol))
        if metrics:
            readers: list[MetricReader] = []
            if "prometheus" in metrics:
                # Here: a web server's classes cannot be imported in the SDK's sandbox.
                from everlong.telemetry.prometheus import MetricsEndpoint

                providers.endpoint = MetricsEndpoint(
                    exports.prometheus_host, exports.prometheus_port, exports.prometheus_token
                )
                readers.append(providers.endpoint.reader)
            for name in metrics:
                if name != "prometheus":
                    exporter = _build_metric_exporter(name, exports.metrics_protocol)
                    readers.append(PeriodicExportingMetricReader(exporter))
            providers.meter_provider = SdkMeterProvider(
                readers, resource=resource, shutdown_on_exit=False
            )
        undo.pop_all()
    return providers


def format_span(span: ReadableSpan) -> str:
    """Return a span as one line of JSON."""
    start_ns, end_ns = span.start_time or 0, span.end_time or 0
    fields = {
        "span": span.name,
        "duration_ms": round((end_ns - start_ns) / 1e6, 1),
        **(span.attributes or {}),
    }
    return json.dumps(fields) + "\n"


def _parse_names(variable: str, value: str, known: Sequence[str]) -> list[str]:
    """Return the names of a list, each once; an empty list for `none`."""
    names = list(dict.fromkeys(name.strip().lower() for name in value.split(",") if name.strip()))
    if not set(names) <= set(known):
        choices = f"{', '.join(known[:-1])} or {known[-1]}"
        raise ConfigError(f"{variable} is {value[:60]!r}; use {choices}")
    if "none" in names and len(names) > 1:
        raise ConfigError(f"{variable} is {value[:60]!r}; use none alone, or leave it out")
    return [name for name in names if name != "none"]


def _check_protocol(variable: str, protocol: str) -> None:
    if protocol not in _PROTOCOLS:
        raise ConfigError(
            f"{variable} (or OTEL_EXPORTER_OTLP_PROTOCOL) is {protocol[:60]!r}; use "
            f"{' or '.join(_PROTOCOLS)}"
        )


def _build_resource(service_name: str) -> Resource:
    """Return who exports. Each process has an id: counters of two with the same would be mixed."""
    found = Resource.create()
    missing: dict[str, str] = {}
    if str(found.attributes[SERVICE_NAME]).startswith("unknown_service"):
        missing[SERVICE_NAME] = service_name
    if SERVICE_INSTANCE_ID not in found.attributes:
        missing[SERVICE_INSTANCE_ID] = str(uuid.uuid4())
    return found.merge(Resource(missing))


def _build_processor(name: str, protocol: str) -> SpanProcessor:
    if name == "console":
        return SimpleSpanProcessor(ConsoleSpanExporter(out=sys.stdout, formatter=format_span))
    # Sent from a thread of its own: an endpoint that is slow holds up no event loop.
    return BatchSpanProcessor(_build_span_exporter(protocol))


def _build_span_exporter(protocol: str) -> SpanExporter:
    with _translate_errors():
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc

            return grpc.OTLPSpanExporter()
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as http

        return http.OTLPSpanExporter()


def _build_metric_exporter(name: str, protocol: str) -> MetricExporter:
    if name == "console":
        return ConsoleMetricExporter(
            out=sys.stdout, formatter=lambda data: data.to_json(indent=None) + "\n"
        )
    with _translate_errors():
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc import metric_exporter as grpc

            return grpc.OTLPMetricExporter()
        from opentelemetry.exporter.otlp.proto.http import metric_exporter as http

        return http.OTLPMetricExporter()


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Say what is missing or wrong where an OTLP exporter cannot be made."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            "exporting to otlp needs a package: pip install 'everlong[admin]'"
        ) from error
    except Exception as error:  # The exporters' own have nothing in common.
        raise ConfigError(
            f"an OTEL_EXPORTER_OTLP_ variable is not taken: {type(error).__name__}: "
            f"{str(error)[:200]}"
        ) from error
