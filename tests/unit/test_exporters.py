import http.server
import json
import threading
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from everlong.errors import ConfigError
from everlong.interceptors.exporters import open_tracer_provider


@pytest.fixture
def otlp_receiver() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    received: list[ExportTraceServiceRequest] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", received
        server.shutdown()
        thread.join()


def emit(exporter: str) -> None:
    provider = open_tracer_provider(exporter)
    span = provider.get_tracer("test").start_span("everlong.resume", start_time=1_000_000)
    span.set_attribute("everlong.resume.events", 7)
    span.end(end_time=3_500_000)
    provider.shutdown()


def test_the_console_prints_one_json_line_a_span(capsys: pytest.CaptureFixture[str]) -> None:
    emit("console")
    assert json.loads(capsys.readouterr().out) == {
        "span": "everlong.resume",
        "duration_ms": 2.5,
        "everlong.resume.events": 7,
    }


def test_otlp_goes_to_the_standard_endpoint(
    otlp_receiver: tuple[str, list[ExportTraceServiceRequest]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, received = otlp_receiver
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    emit("otlp")
    [request] = received
    [span] = request.resource_spans[0].scope_spans[0].spans
    assert span.name == "everlong.resume"
    assert span.end_time_unix_nano - span.start_time_unix_nano == 2_500_000


def test_none_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    emit("none")
    assert capsys.readouterr().out == ""


def test_an_unknown_exporter_is_refused() -> None:
    with pytest.raises(ConfigError, match="OTEL_TRACES_EXPORTER is 'zipkin'"):
        open_tracer_provider("zipkin")
