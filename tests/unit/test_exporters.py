"""Spans and metrics arrive where the standard variables say, and nowhere else."""

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider

from everlong.config import load_settings
from everlong.connection import open_configured_providers
from everlong.errors import ConfigError
from everlong.telemetry import exporters
from everlong.telemetry.exporters import ExportSettings, Providers, open_providers
from tests.support.otlp_receiver import ReceivedTelemetry, grpc_receiver, http_receiver

RECEIVERS: dict[str, Callable[[], AbstractContextManager[ReceivedTelemetry]]] = {
    "http/protobuf": http_receiver,
    "grpc": grpc_receiver,
}


def open_exporters(**environment: str) -> Providers:
    """Providers as our commands open them."""
    return open_configured_providers(load_settings(environment), "everlong-worker")


def emit(providers: Providers) -> None:
    """A span, and within it a value of a histogram and of a counter."""
    tracer = providers.tracer_provider.get_tracer("everlong")
    with tracer.start_as_current_span("everlong.resume") as span:
        span.set_attribute("everlong.resume.events", 7)
        labels = {"cause": "cold", "end": "caught_up"}
        providers.meters.record("everlong.resume.duration", 0.2, labels)
        providers.meters.add("everlong.holds", 2, {"error": "StoreUnavailable"})
    providers.shutdown()


def test_the_console_prints_one_json_line_a_span(capsys: pytest.CaptureFixture[str]) -> None:
    providers = open_exporters(OTEL_TRACES_EXPORTER="console")
    span = providers.tracer_provider.get_tracer("test").start_span("a", start_time=1_000_000)
    span.set_attribute("everlong.resume.events", 7)
    span.end(end_time=3_500_000)
    providers.shutdown()
    assert json.loads(capsys.readouterr().out) == {
        "span": "a",
        "duration_ms": 2.5,
        "everlong.resume.events": 7,
    }


def test_the_console_prints_one_json_line_an_export(capsys: pytest.CaptureFixture[str]) -> None:
    emit(open_exporters(OTEL_METRICS_EXPORTER="console"))
    [line] = capsys.readouterr().out.splitlines()
    assert "everlong.resume.duration" in str(json.loads(line))


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_spans_and_metrics_arrive_and_an_exemplar_leads_from_one_to_the_other(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RECEIVERS[protocol]() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=ops")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        emit(
            open_exporters(
                OTEL_TRACES_EXPORTER="otlp",
                OTEL_METRICS_EXPORTER="otlp",
                OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            )
        )
    span = received.span("everlong.resume")
    assert span.attributes == {"everlong.resume.events": 7}
    assert (span.scope, span.parent_id, span.is_error) == ("everlong", "", False)
    assert span.end_ns > span.start_ns
    metric = received.metric("everlong.resume.duration")
    [point] = metric.points
    assert (metric.kind, metric.unit) == ("histogram", "s")
    assert (point.count, point.value) == (1, 0.2)
    assert point.labels == {"cause": "cold", "end": "caught_up"}
    [exemplar] = point.exemplars
    assert (exemplar.trace_id, exemplar.span_id) == (span.trace_id, span.span_id)
    assert received.metric("everlong.holds").points[0].value == 2
    assert span.resource["service.name"] == "everlong-worker"
    assert span.resource == metric.resource
    assert {headers["x-team"] for headers in received.headers} == {"ops"}


def test_the_settings_for_langfuse_and_phoenix_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of docs/how-to/observe.md: a path, basic authentication, a project."""
    with http_receiver("/api/public/otel") as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        headers = "Authorization=Basic cGstbGY6c2s9PQ==,x-langfuse-ingestion-version=4"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", headers)
        project = "openinference.project.name"
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"{project}=everlong")
        emit(open_exporters(OTEL_TRACES_EXPORTER="otlp"))
    [sent] = received.headers
    assert sent["authorization"] == "Basic cGstbGY6c2s9PQ=="
    assert sent["x-langfuse-ingestion-version"] == "4"
    assert received.span("everlong.resume").resource[project] == "everlong"


def test_a_protocol_of_one_signal_is_for_that_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with http_receiver() as over_http, grpc_receiver() as over_grpc:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", over_http.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", over_grpc.url)
        emit(
            open_exporters(
                OTEL_TRACES_EXPORTER="otlp",
                OTEL_METRICS_EXPORTER="otlp",
                OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="grpc",
            )
        )
    assert [span.name for span in over_grpc.spans] == ["everlong.resume"]
    assert over_grpc.metric_names() == set()
    assert over_http.spans == []
    assert "everlong.resume.duration" in over_http.metric_names()


@pytest.mark.parametrize(
    ("variable", "value"),
    [("OTEL_SERVICE_NAME", "mine"), ("OTEL_RESOURCE_ATTRIBUTES", "service.name=mine,team=ops")],
)
def test_the_teams_service_name_wins(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_receiver() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        monkeypatch.setenv(variable, value)
        emit(open_exporters(OTEL_TRACES_EXPORTER="otlp"))
    resource = received.span("everlong.resume").resource
    assert resource["service.name"] == "mine"
    # Without an id, the counters of two workers would be taken for one.
    assert resource["service.instance.id"]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"},
        {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_METRICS_EXPORTER": "otlp,prometheus",
            "OTEL_SDK_DISABLED": "true",
        },
    ],
    ids=["unset", "none", "disabled"],
)
def test_disabled_exports_cost_nothing(environment: dict[str, str]) -> None:
    before = set(threading.enumerate())
    providers = open_exporters(**environment)
    assert isinstance(providers.tracer_provider, NoOpTracerProvider)
    assert isinstance(providers.meter_provider, NoOpMeterProvider)
    assert (providers.has_metrics, providers.open_core(), providers.endpoint) == (False, None, None)
    assert set(threading.enumerate()) <= before
    emit(providers)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"OTEL_TRACES_EXPORTER": "zipkin"},
            "OTEL_TRACES_EXPORTER is 'zipkin'; use none, console or otlp",
        ),
        (
            {"OTEL_METRICS_EXPORTER": "otlp,statsd"},
            "OTEL_METRICS_EXPORTER is 'otlp,statsd'; use none, console, otlp or prometheus",
        ),
        ({"OTEL_METRICS_EXPORTER": "none,otlp"}, "use none alone"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            "is 'http/json'; use http/protobuf or grpc",
        ),
        (
            {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "thrift"},
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL .* is 'thrift'",
        ),
        ({"OTEL_EXPORTER_PROMETHEUS_PORT": "http"}, "OTEL_EXPORTER_PROMETHEUS_PORT is 'http'"),
        ({"OTEL_EXPORTER_PROMETHEUS_PORT": "65536"}, "OTEL_EXPORTER_PROMETHEUS_PORT is '65536'"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ",".join(value.values()),
)
def test_unknown_values_are_refused_by_name(environment: dict[str, str], message: str) -> None:
    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match=message):
        open_exporters(**environment)
    assert set(threading.enumerate()) <= before


def test_invalid_exporter_variables_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "brotli")
    for exports in (
        ExportSettings(service_name="x", traces="otlp", traces_protocol="grpc"),
        ExportSettings(service_name="x", metrics="otlp", metrics_protocol="grpc"),
    ):
        with pytest.raises(ConfigError, match=r"OTEL_EXPORTER_OTLP_ .* invalid: .*brotli"):
            open_providers(exports)


def test_a_silent_endpoint_does_not_delay_shutdown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = set(threading.enumerate())
    monkeypatch.setattr(exporters, "_SHUTDOWN_SECONDS_MAX", 0.1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        providers = open_exporters(OTEL_TRACES_EXPORTER="otlp", OTEL_METRICS_EXPORTER="otlp")
        started = time.monotonic()
        emit(providers)
        assert time.monotonic() - started < 2.5
        assert "OTEL_EXPORTER_OTLP_ENDPOINT" in caplog.text
        while not set(threading.enumerate()) <= before:
            assert time.monotonic() - started < 30
            time.sleep(0.02)
