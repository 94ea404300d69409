"""Prometheus endpoint: serves GET `/metrics` from a thread.

It serves only the metrics of this process. Connections are bounded in number and in time, so clients
cannot exhaust the process with many or slow connections.
"""

import contextlib
import errno
import hmac
import http.server
import inspect
import socket
import socketserver
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics.export import MetricReader

from everlong.errors import ConfigError, EverlongError, PortInUse

if TYPE_CHECKING:  # The package comes with the extra `admin`.
    from prometheus_client import CollectorRegistry

# A Prometheus server holds one connection, and a fleet has a few Prometheus servers.
_CONNECTIONS_MAX: Final = 8
# Prometheus' default scrape timeout. Slower connections are closed.
_CONNECTION_SECONDS_MAX: Final = 10.0
_HINT: Final = b"Everlong's metrics are at /metrics\n"


class MetricsEndpoint:
    """A metric reader and the HTTP server that serves it until `close`."""

    def __init__(self, host: str, port: int, token: str = "") -> None:
        try:
            from prometheus_client import CollectorRegistry

            create_reader = _get_reader_factory()
        except ImportError as error:
            raise ConfigError(
                "OTEL_METRICS_EXPORTER=prometheus needs a package: pip install 'everlong[admin]'"
            ) from error
        # Not the package's global registry, which may hold metrics of other libraries in this process.
        self._registry = CollectorRegistry()
        self._collecting = threading.Lock()
        self._server = _Server(host, port, token, self)
        self.reader: MetricReader = create_reader(self._registry)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="everlong-metrics", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """URL of the metrics."""
        host, port = self._server.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else host
        return f"http://{shown!s}:{port}/metrics"

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics in the format that `accept` asks for, and its content type."""
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        # Two concurrent collections would each get a part of the metrics.
        with self._collecting:
            return encode(self._registry), content_type

    def close(self) -> None:
        """Stop listening. A request in progress is answered, or closed at its timeout."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _get_reader_factory() -> "Callable[[CollectorRegistry], MetricReader]":
    """Return a function that creates a reader whose metrics are in a given registry."""
    from opentelemetry.exporter import prometheus

    known = inspect.signature(prometheus.PrometheusMetricReader).parameters
    # Scope labels would double the labels that every query has to group by.
    options: dict[str, Any] = {"scope_info_enabled": False} if "scope_info_enabled" in known else {}

    def create_reader(registry: "CollectorRegistry") -> MetricReader:
        if "registry" in known:
            return prometheus.PrometheusMetricReader(registry=registry, **options)
        # Before 0.63b0 a reader uses its module's REGISTRY. That is safe: a process has one endpoint.
        vars(prometheus)["REGISTRY"] = registry
        return prometheus.PrometheusMetricReader(**options)

    return create_reader


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, host: str, port: int, token: str, endpoint: MetricsEndpoint) -> None:
        self.endpoint = endpoint
        self.expected = f"Bearer {token}".encode() if token else b""
        self._places = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        host = "127.0.0.1" if host == "localhost" else host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise _translate_error(error, host, port) from error

    def server_bind(self) -> None:
        # Skips HTTPServer.server_bind, which looks up the host's name and may wait for DNS.
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        timer = threading.Timer(_CONNECTION_SECONDS_MAX, _disconnect, [request])
        timer.daemon = True
        timer.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: clients may disconnect at any time."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    server_version = "everlong"
    sys_version = ""
    timeout = _CONNECTION_SECONDS_MAX

    def do_GET(self) -> None:
        expected = self.server.expected
        given = self.headers.get("authorization", "").encode("latin-1", "replace")
        if expected and not hmac.compare_digest(given, expected):
            self._answer(HTTPStatus.UNAUTHORIZED, b"a bearer token is required\n")
            return
        path = self.path.partition("?")[0]
        if path == "/metrics":
            text, content_type = self.server.endpoint.render(self.headers.get("accept", ""))
            self._answer(HTTPStatus.OK, text, content_type)
        elif path == "/":
            self._answer(HTTPStatus.OK, _HINT)
        else:
            self._answer(HTTPStatus.NOT_FOUND, _HINT)

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str = "text/plain") -> None:
        self.send_response(status)
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing: scrapes come every few seconds."""


def _disconnect(request: socket.socket) -> None:
    with contextlib.suppress(OSError):  # The client has disconnected already.
        request.shutdown(socket.SHUT_RDWR)


def _translate_error(error: OSError, host: str, port: int) -> EverlongError:
    if error.errno == errno.EADDRINUSE:
        return PortInUse(
            f"port {port} for metrics is in use on {host}. Stop what listens there, or set "
            "OTEL_EXPORTER_PROMETHEUS_PORT to another one; each process needs its own."
        )
    return ConfigError(
        f"metrics cannot be served on {host} port {port}: {error.strerror}. Set "
        "OTEL_EXPORTER_PROMETHEUS_HOST to an address of this machine, and the port above 1024."
    )
