"""Metrics of the SDK's Core, forwarded to an OpenTelemetry meter.

Core writes updates into a bounded buffer, and a thread drains it every 5 seconds. It must be a thread,
not a task: the buffer fills up exactly when the event loop is blocked.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from temporalio.runtime import (
    BUFFERED_METRIC_KIND_COUNTER,
    BUFFERED_METRIC_KIND_GAUGE,
    BufferedMetric,
    BufferedMetricKind,
    BufferedMetricUpdate,
    LoggingConfig,
    MetricBuffer,
    MetricBufferDurationFormat,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

_LOG: Final = logging.getLogger(__name__)
Labels: TypeAlias = Mapping[str, str | int | float | bool]
Recorder: TypeAlias = Callable[[float, Labels], None]

# A step of a thread makes about 60 updates, and a worker some tens of steps a second: 100,000 are
# half a minute of such load. An update takes about 100 bytes.
UPDATES_MAX: Final = 100_000
# Updates of one counter or gauge in the same drain are recorded as one value, so a longer interval
# records less. With a drain each second, 1% of a profiled worker's time was spent here.
DRAIN_SECONDS: Final = 5.0
_SECONDS: Final = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    *(300.0, 1800.0),
)
# Added before each drain. If it is missing from the drained updates, the buffer was full.
_SENTINEL: Final = "everlong_beat"
# Core logs a line for each update that does not fit. This is switched off: `_warn_of_loss` warns once.
_FILTER: Final = (
    TelemetryFilter(core_level="WARN", other_level="ERROR").formatted()
    + ",temporalio_sdk_core::telemetry::metrics=off"
)


class _Gauge:
    """The last value of a gauge for each set of labels, reported at every collection.

    OpenTelemetry's own gauge loses its value at each collection before SDK 1.45. Core sets most gauges
    rarely, so they would be missing from most scrapes.
    """

    def __init__(self) -> None:
        self._values: dict[frozenset[tuple[str, object]], tuple[float, Labels]] = {}

    def set(self, value: float, labels: Labels) -> None:
        """Keep a value. Core has a bounded number of label sets: task queues and worker types."""
        self._values[frozenset(labels.items())] = (value, labels)

    def observe(self, _: CallbackOptions) -> list[Observation]:
        """Return all values. Called in the thread of the collecting reader."""
        return [Observation(value, labels) for value, labels in list(self._values.values())]


class CoreMetrics:
    """A runtime for clients that forwards Core's metrics to a meter until `close`."""

    def __init__(self, meter: Meter, *, updates_max: int = UPDATES_MAX) -> None:
        self._meter = meter
        self._buffer = MetricBuffer(updates_max, MetricBufferDurationFormat.SECONDS)
        self.runtime = Runtime(
            telemetry=TelemetryConfig(
                logging=LoggingConfig(filter=_FILTER),
                metrics=self._buffer,
                # Our OpenTelemetry resource already names the service.
                attach_service_name=False,
            )
        )
        self._sentinel = self.runtime.metric_meter.create_counter(_SENTINEL)
        # Keyed by `id(metric)`. The metric is kept alive here, so its id is never reused.
        self._recorders: dict[int, tuple[BufferedMetric, BufferedMetricKind, Recorder | None]] = {}
        self._has_lost = False
        self._draining = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="everlong-core-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and drain the buffer a last time. Stop workers first."""
        self._closing.set()
        self._thread.join()
        self.drain()

    def drain(self) -> int:
        """Record all buffered updates on the meter; return their number."""
        with self._draining:
            self._sentinel.add(1)
            try:
                updates = self._buffer.retrieve_updates()
            except BaseException as error:
                if type(error).__name__ != "PanicException":
                    raise
                # Core panics on a metric whose definition itself did not fit into the buffer.
                self._warn_of_loss()
                return 0
            if not self._record(updates):
                self._warn_of_loss()
            return len(updates)

    def _record(self, updates: Sequence[BufferedMetricUpdate]) -> bool:
        """Record updates; return whether the sentinel was among them."""
        has_sentinel = False
        # Recording a value takes 10 to 20 us, so a counter or gauge is recorded once per drain. Keys are
        # object ids: Core has one object for each metric and for each set of labels.
        merged: dict[tuple[int, int], tuple[Recorder, float, Labels]] = {}
        for update in updates:
            metric, labels, value = update.metric, update.attributes, update.value
            known = self._recorders.get(id(metric))
            if known is None:
                known = self._recorders[id(metric)] = (metric, *self._create_recorder(metric))
            _, kind, record = known
            if record is None:
                has_sentinel = has_sentinel or metric.name == _SENTINEL
            elif kind == BUFFERED_METRIC_KIND_GAUGE:
                merged[id(metric), id(labels)] = (record, value, labels)
            elif kind == BUFFERED_METRIC_KIND_COUNTER:
                _, before, _ = merged.get((id(metric), id(labels)), (record, 0, labels))
                merged[id(metric), id(labels)] = (record, before + value, labels)
            else:
                record(value, labels)
        for record, value, labels in merged.values():
            record(value, labels)
        return has_sentinel

    def _run(self) -> None:
        while not self._closing.wait(DRAIN_SECONDS):
            self.drain()

    def _warn_of_loss(self) -> None:
        if not self._has_lost:
            self._has_lost = True
            _LOG.warning(
                "some metrics of the Temporal SDK were lost: more updates came in 5 s than its buffer "
                "holds. Counters of temporal_ metrics are too low from now on."
            )

    def _create_recorder(
        self, metric: BufferedMetric
    ) -> tuple[BufferedMetricKind, Recorder | None]:
        """Return a metric's kind and the function that records a value; None to skip the metric."""
        kind, name = metric.kind, metric.name
        unit, description = metric.unit or "", metric.description or ""
        if name == _SENTINEL:
            return kind, None
        try:
            if kind == BUFFERED_METRIC_KIND_COUNTER:
                return kind, self._meter.create_counter(name, unit, description).add
            if kind == BUFFERED_METRIC_KIND_GAUGE:
                gauge = _Gauge()
                self._meter.create_observable_gauge(name, [gauge.observe], unit, description)
                return kind, gauge.set
            buckets = _SECONDS if unit == "s" else None
            histogram = self._meter.create_histogram(
                name, unit, description, explicit_bucket_boundaries_advisory=buckets
            )
        except Exception as error:  # noqa: BLE001 - a user's own metric may have a name that OpenTelemetry rejects
            _LOG.warning("the metric %r is not exported: %s", name[:100], error)
            return kind, None
        return kind, histogram.record
