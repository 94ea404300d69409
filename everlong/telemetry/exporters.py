"""Exporters of spans and metrics, chosen by the standard `OTEL_` variables.

Only Everlong's own commands use this module. The plugin uses the providers that the application passes
or has set globally, and never installs one. The exporters themselves read their endpoints, headers,
timeouts and intervals from the environment.
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
from everlong.telemetry import Meters, Telemetry
from everlong.telemetry.sdk_core_metrics import CoreMetrics

if TYPE_CHECKING:
    from everlong.telemetry.prometheus import MetricsEndpoint

_LOG: Final = logging.getLogger(__name__)
# Exporters retry an unreachable endpoint for 20 s in all, but supervisors kill a worker 10 to 30 s after
# they have asked it to stop.
_SHUTDOWN_SECONDS_MAX: Final = 5.0
_TRACES: Final = ("none", "console", "otlp")
_METRICS: Final = ("none", "console", "otlp", "prometheus")
_PROTOCOLS: Final = ("http/protobuf", "grpc")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """Which exporters to open, with their protocols and the Prometheus address."""

    service_name: str
    """Used if neither `OTEL_SERVICE_NAME` nor `OTEL_RESOURCE_ATTRIBUTES` names the service."""
    traces: str = "none"
    """`OTEL_TRACES_EXPORTER`: none, console or otlp; comma-separated."""
    metrics: str = "none"
    """`OTEL_METRICS_EXPORTER`: none, console, otlp or prometheus; comma-separated."""
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
    """Tracer and meter provider of a command, with all that feeds and serves them.

    The command that opened them must call `shutdown`; they have no exit handler.
    """

    tracer_provider: TracerProvider
    meter_provider: MeterProvider
    endpoint: "MetricsEndpoint | None" = None
    core: CoreMetrics | None = None
    """Metrics of the SDK's Core; None until `open_core` is called."""

    @property
    def has_metrics(self) -> bool:
        """Whether any metrics exporter is configured."""
        return isinstance(self.meter_provider, SdkMeterProvider)

    def install(self) -> None:
        """Make the tracer provider the global one, if it exports. Only for a process that is ours."""
        if isinstance(self.tracer_provider, SdkTracerProvider):
            trace.set_tracer_provider(self.tracer_provider)

    @property
    def meters(self) -> Meters:
        """Everlong's own instruments."""
        return Telemetry(meter_provider=self.meter_provider).meters

    def open_core(self) -> CoreMetrics | None:
        """Return the bridge for Core's metrics, opened once; None if no exporter would read them."""
        if self.core is None and self.has_metrics:
            self.core = CoreMetrics(self.meter_provider.get_meter("temporalio"))
        return self.core

    def shutdown(self) -> None:
        """Flush and stop all exporters. Blocks for at most 5 seconds."""
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
                "the last spans or metrics were not sent: the endpoint did not accept them within "
                "%.0f s. Check OTEL_EXPORTER_OTLP_ENDPOINT.",
                _SHUTDOWN_SECONDS_MAX,
            )


def open_providers(exports: ExportSettings) -> Providers:
    """Return providers with the chosen exporters. A signal without exporters gets a no-op provider."""
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
                # Imported here: the workflow sandbox cannot import the classes of `http.server`.
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
    """Format a span as one line of JSON."""
    start_ns, end_ns = span.start_time or 0, span.end_time or 0
    fields = {
        "span": span.name,
        "duration_ms": round((end_ns - start_ns) / 1e6, 1),
        **(span.attributes or {}),
    }
    return json.dumps(fields) + "\n"


def _parse_names(variable: str, value: str, known: Sequence[str]) -> list[str]:
    """Parse a comma-separated list of exporters, without duplicates; `none` gives an empty list."""
    names = list(dict.fromkeys(name.strip().lower() for name in value.split(",") if name.strip()))
    if not set(names) <= set(known):
        choices = f"{', '.join(known[:-1])} or {known[-1]}"
        raise ConfigError(f"{variable} is {value[:60]!r}; use {choices}")
    if "none" in names and len(names) > 1:
        raise ConfigError(f"{variable} is {value[:60]!r}; use none alone, or remove it")
    return [name for name in names if name != "none"]


def _check_protocol(variable: str, protocol: str) -> None:
    if protocol not in _PROTOCOLS:
        raise ConfigError(
            f"{variable} (or OTEL_EXPORTER_OTLP_PROTOCOL) is {protocol[:60]!r}; use "
            f"{' or '.join(_PROTOCOLS)}"
        )


def _build_resource(service_name: str) -> Resource:
    """Return the resource. Each process needs its own instance id, or backends mix up counters."""
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
    # The batch processor exports from its own thread, so a slow endpoint does not block the event loop.
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
    """Raise ConfigError where an OTLP exporter cannot be created."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            "exporting to otlp needs a package: pip install 'everlong[admin]'"
        ) from error
    except Exception as error:  # The exporters' errors have no common base class.
        raise ConfigError(
            f"an OTEL_EXPORTER_OTLP_ variable is invalid: {type(error).__name__}: "
            f"{str(error)[:200]}"
        ) from error
