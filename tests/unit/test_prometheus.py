"""The Prometheus endpoint: what it serves, and which requests it rejects."""

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider

from everlong.config import (
    build_embedded_environment,
    load_settings,
    point_to_embedded,
    require_metrics_host,
)
from everlong.connection import open_configured_providers
from everlong.errors import ConfigError, PortInUse
from everlong.telemetry import Meters, prometheus
from everlong.telemetry.prometheus import MetricsEndpoint

OPENMETRICS = "application/openmetrics-text;version=1.0.0"


@contextmanager
def open_endpoint(token: str = "", host: str = "127.0.0.1") -> Iterator[MetricsEndpoint]:
    shown = MetricsEndpoint(host, 0, token)
    provider = MeterProvider([shown.reader], shutdown_on_exit=False)
    meters = Meters(provider.get_meter("everlong"))
    meters.add("everlong.holds", 2, {"error": "StoreUnavailable"})
    meters.record("everlong.resume.duration", 0.2, {"cause": "cold", "end": "caught_up"})
    try:
        yield shown
    finally:
        shown.close()
        provider.shutdown()


def test_metrics_have_prometheus_names() -> None:
    with open_endpoint() as shown:
        text = httpx.get(shown.url).text
        assert 'everlong_holds_total{error="StoreUnavailable"} 2.0\n' in text
        bucket = (
            'everlong_resume_duration_seconds_bucket{cause="cold",end="caught_up",le="0.25"} 1.0'
        )
        assert bucket in text
        assert "python_gc" not in text
        assert "otel_scope" not in text
        again = httpx.get(shown.url, headers={"accept": OPENMETRICS})
        assert again.headers["content-type"].startswith("application/openmetrics-text")
        assert again.text.endswith("# EOF\n")


def test_other_paths_are_not_found() -> None:
    with open_endpoint() as shown:
        base = shown.url.removesuffix("/metrics")
        assert httpx.get(base).text == "Everlong's metrics are at /metrics\n"
        assert httpx.get(f"{base}/metrics?name=x").status_code == 200
        assert httpx.get(f"{base}/metrics/../etc/passwd").status_code == 404
        assert httpx.get(f"{base}/debug").status_code == 404
        assert httpx.post(shown.url).status_code == 501


@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer wrong"}, {"x-token": "t0ken"}])
def test_a_token_is_required(given: dict[str, str]) -> None:
    with open_endpoint(token="t0ken") as shown:
        refused = httpx.get(shown.url, headers=given)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert "everlong" not in refused.text
        allowed = httpx.get(shown.url, headers={"authorization": "Bearer t0ken"})
        assert "everlong_holds_total" in allowed.text


def test_concurrent_scrapes_get_complete_responses() -> None:
    with open_endpoint() as shown:
        texts: list[str] = []
        threads = [
            threading.Thread(target=lambda: texts.append(httpx.get(shown.url).text))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(texts) == 6
        assert all("everlong_resume_duration_seconds_count" in text for text in texts)


def test_a_silent_client_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "_CONNECTION_SECONDS_MAX", 0.2)
    with open_endpoint() as shown:
        address = httpx.URL(shown.url)
        with socket.create_connection((address.host, address.port or 0), timeout=5) as slow:
            slow.sendall(b"GET /metrics HTTP/1.1\r\n")
            assert slow.recv(100) == b""


def test_excess_connections_are_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prometheus, "_CONNECTIONS_MAX", 1)
    with open_endpoint() as shown:
        address = httpx.URL(shown.url)
        port = address.port or 0
        with socket.create_connection((address.host, port), timeout=5) as first:
            first.sendall(b"GET /metrics")
            with socket.create_connection((address.host, port), timeout=5) as second:
                assert second.recv(100) == b""
            first.sendall(b" HTTP/1.0\r\n\r\n")
            answer = http.client.HTTPResponse(first)
            answer.begin()
            assert answer.status == 200


def test_a_port_in_use_is_a_clear_error_and_leaves_nothing_behind() -> None:
    with open_endpoint() as shown:
        port = str(httpx.URL(shown.url).port)
        before = set(threading.enumerate())
        settings = load_settings(
            {
                "OTEL_METRICS_EXPORTER": "otlp,prometheus",
                "OTEL_TRACES_EXPORTER": "otlp",
                "OTEL_EXPORTER_PROMETHEUS_PORT": port,
            }
        )
        with pytest.raises(PortInUse, match=f"port {port} .* OTEL_EXPORTER_PROMETHEUS_PORT"):
            open_configured_providers(settings, "everlong-worker")
        assert set(threading.enumerate()) <= before


def test_an_address_of_another_machine_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_PROMETHEUS_HOST"):
        MetricsEndpoint("192.0.2.1", 0)


def load_exposed(**environment: str) -> str:
    settings = load_settings({"OTEL_EXPORTER_PROMETHEUS_HOST": "0.0.0.0", **environment})
    return require_metrics_host(settings)


def test_a_token_or_an_opt_out_is_required_beyond_loopback() -> None:
    with pytest.raises(ConfigError, match=r"EVERLONG_TOKEN.*EVERLONG_METRICS_ANONYMOUS=1"):
        load_exposed()
    assert load_exposed(EVERLONG_TOKEN="t") == "0.0.0.0"
    assert load_exposed(EVERLONG_METRICS_ANONYMOUS="1") == "0.0.0.0"
    for host in ("localhost", "127.0.0.1", "::1"):
        shown = load_exposed(OTEL_EXPORTER_PROMETHEUS_HOST=host)
        assert shown == ("127.0.0.1" if host == "localhost" else host)
    # Only settings with the Prometheus exporter are checked.
    settings = load_settings({"OTEL_EXPORTER_PROMETHEUS_HOST": "0.0.0.0"})
    open_configured_providers(settings, "everlong-worker").shutdown()
    wanted = load_settings(
        {"OTEL_EXPORTER_PROMETHEUS_HOST": "0.0.0.0", "OTEL_METRICS_EXPORTER": "prometheus"}
    )
    with pytest.raises(ConfigError, match="EVERLONG_TOKEN"):
        open_configured_providers(wanted, "everlong-worker")


def test_the_embedded_stack_exports_metrics_only_on_loopback() -> None:
    environment = {
        "OTEL_SDK_DISABLED": "false",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "otlp,prometheus",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_PROMETHEUS_HOST": "0.0.0.0",
        "OTEL_EXPORTER_PROMETHEUS_PORT": "9999",
        "EVERLONG_TOKEN": "t",
    }
    settings = point_to_embedded(load_settings(environment), "127.0.0.1:7233")
    child = load_settings(build_embedded_environment(settings))
    assert (child.traces_exporter, child.metrics_exporter) == ("otlp", "otlp,prometheus")
    assert (child.traces_protocol, child.metrics_protocol) == ("grpc", "http/protobuf")
    assert (require_metrics_host(child), child.metrics_port) == ("127.0.0.1", 9999)
