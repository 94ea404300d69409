"""Telemetry: Everlong's OpenTelemetry spans and metrics."""

import functools
from importlib import metadata
from typing import Final

from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.trace import TracerProvider, get_tracer

from everlong.telemetry.metrics import METRICS, Meters, Metric
from everlong.telemetry.spans import Spans

__all__ = ["METRICS", "Meters", "Metric", "Spans", "Telemetry"]

_NAME: Final = "everlong"
# Version of the semantic conventions that our attribute names follow, GenAI included.
_SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.0"


@functools.cache
def _read_version() -> str:
    """Return the version of the installed package; empty if it is not installed."""
    try:
        return metadata.version(_NAME)
    except metadata.PackageNotFoundError:
        return ""


class Telemetry:
    """A worker's spans and meters. They record nothing without a provider, given or global."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        record_contents: bool = False,
    ) -> None:
        version = _read_version()
        self.spans = Spans(get_tracer(_NAME, version, tracer_provider, _SCHEMA_URL))
        self.meters = Meters(get_meter(_NAME, version, meter_provider, _SCHEMA_URL))
        self.record_contents = record_contents
        """Whether spans carry the inputs and outputs of models and tools. Off by default."""
