"""Telemetry: Everlong's OpenTelemetry spans and metrics."""

from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.trace import TracerProvider, get_tracer

from everlong.telemetry.instrumentation import NAME, SCHEMA_URL, scope_version
from everlong.telemetry.metrics import METRICS, Meters, Metric
from everlong.telemetry.spans import Spans

__all__ = ["METRICS", "Meters", "Metric", "Spans", "Telemetry"]


class Telemetry:
    """A worker's spans and meters. They record nothing without a provider, given or global."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        record_contents: bool = False,
    ) -> None:
        version = scope_version()
        self.spans = Spans(get_tracer(NAME, version, tracer_provider, SCHEMA_URL))
        self.meters = Meters(get_meter(NAME, version, meter_provider, SCHEMA_URL))
        self.record_contents = record_contents
        """Whether spans carry the inputs and outputs of models and tools. Off by default."""
