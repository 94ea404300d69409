"""The providers of an application: what Everlong's plugin takes, or finds if they are set globally."""

import os

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor


def open_providers() -> tuple[TracerProvider, MeterProvider]:
    """Return providers that export to OTEL_EXPORTER_OTLP_ENDPOINT, if it is set."""
    resource = Resource.create({"service.name": "everlong-example"})
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return TracerProvider(resource=resource), MeterProvider(resource=resource)
    tracer_provider = TracerProvider(resource=resource)
    tracer_provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    return tracer_provider, MeterProvider([reader], resource=resource)
