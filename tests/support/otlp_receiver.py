"""OTLP receiver on loopback, over HTTP and gRPC, that keeps all spans and metrics."""

import contextlib
import dataclasses
import gzip
import http.server
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc  # type: ignore[import-untyped] # It has no types, nor have those that it generates.
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclasses.dataclass(frozen=True)
class Span:
    """Received span."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty for a root."""
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    """Trace and span ids."""
    start_ns: int
    end_ns: int
    is_error: bool
    resource: dict[str, Any]
    scope: str


@dataclasses.dataclass(frozen=True)
class Exemplar:
    value: float
    trace_id: str
    span_id: str


@dataclasses.dataclass(frozen=True)
class Point:
    """Value of a metric for one set of labels; the sum for a histogram."""

    labels: dict[str, Any]
    value: float
    count: int
    """How many values a histogram has; 0 for others."""
    buckets: list[float]
    exemplars: list[Exemplar]


@dataclasses.dataclass(frozen=True)
class Metric:
    name: str
    unit: str
    kind: str
    """As OTLP has it: gauge, sum or histogram."""
    points: list[Point]
    resource: dict[str, Any]
    scope: str


class ReceivedTelemetry:
    """Spans and metrics received so far."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.exports: list[Metric] = []
        """Each metric of each export, in order."""
        self.headers: list[dict[str, str]] = []
        """The headers of each request, in lower case."""
        self.url = ""

    def span(self, name: str) -> Span:
        """Return the only span of a name."""
        [found] = [span for span in self.spans if span.name == name]
        return found

    def metric(self, name: str) -> Metric:
        """Return the newest export of a metric."""
        return [metric for metric in self.exports if metric.name == name][-1]

    def metric_names(self) -> set[str]:
        return {metric.name for metric in self.exports}

    def wait(self, done: Callable[["ReceivedTelemetry"], bool], seconds_max: float = 10.0) -> None:
        deadline = time.monotonic() + seconds_max
        while not done(self):
            names = sorted({span.name for span in self.spans})
            assert time.monotonic() < deadline, (names, sorted(self.metric_names()))
            time.sleep(0.02)

    def take_traces(self, request: trace_service_pb2.ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += [
                    _span(span, _dict(resource.resource.attributes), scope.scope.name)
                    for span in scope.spans
                ]

    def take_metrics(self, request: metrics_service_pb2.ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                self.exports += [
                    _metric(metric, _dict(resource.resource.attributes), scope.scope.name)
                    for metric in scope.metrics
                ]


@contextlib.contextmanager
def http_receiver(prefix: str = "") -> Iterator[ReceivedTelemetry]:
    """Receive OTLP as protobuf over HTTP, at the standard paths of `url`, below a prefix."""
    received = ReceivedTelemetry()

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.headers.append({key.lower(): value for key, value in self.headers.items()})
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == f"{prefix}/v1/traces":
                received.take_traces(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
            elif self.path == f"{prefix}/v1/metrics":
                received.take_metrics(
                    metrics_service_pb2.ExportMetricsServiceRequest.FromString(body)
                )
            else:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        received.url = f"http://127.0.0.1:{server.server_address[1]}{prefix}"
        try:
            yield received
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def grpc_receiver() -> Iterator[ReceivedTelemetry]:
    """Receive OTLP over gRPC."""
    received = ReceivedTelemetry()

    class Traces(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
            received.headers.append(dict(context.invocation_metadata()))
            received.take_traces(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
            received.headers.append(dict(context.invocation_metadata()))
            received.take_metrics(request)
            return metrics_service_pb2.ExportMetricsServiceResponse()

    pool = ThreadPoolExecutor(2)
    server = grpc.server(pool)
    add_traces: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add_metrics: Any = metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server
    add_traces(Traces(), server)
    add_metrics(Metrics(), server)
    received.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield received
    finally:
        server.stop(grace=1).wait()
        pool.shutdown()


def _span(span: trace_pb2.Span, resource: dict[str, Any], scope: str) -> Span:
    return Span(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        attributes=_dict(span.attributes),
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        is_error=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        resource=resource,
        scope=scope,
    )


def _metric(metric: metrics_pb2.Metric, resource: dict[str, Any], scope: str) -> Metric:
    kind = metric.WhichOneof("data") or ""
    points = [_point(point) for point in getattr(metric, kind).data_points]
    return Metric(metric.name, metric.unit, kind, points, resource, scope)


def _point(point: metrics_pb2.NumberDataPoint | metrics_pb2.HistogramDataPoint) -> Point:
    exemplars = [
        Exemplar(_number(each), each.trace_id.hex(), each.span_id.hex()) for each in point.exemplars
    ]
    labels = _dict(point.attributes)
    if isinstance(point, metrics_pb2.HistogramDataPoint):
        return Point(labels, point.sum, point.count, list(point.explicit_bounds), exemplars)
    return Point(labels, _number(point), 0, [], exemplars)


def _number(point: metrics_pb2.NumberDataPoint | metrics_pb2.Exemplar) -> float:
    return float(getattr(point, point.WhichOneof("value") or "as_int"))


def _dict(pairs: "list[KeyValue] | Any") -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None
