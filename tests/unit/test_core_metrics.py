"""Metrics of the SDK's runtime reach our meter, whole and cheaply."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    Histogram,
    HistogramDataPoint,
    InMemoryMetricReader,
    NumberDataPoint,
)

from everlong.telemetry import sdk_core_metrics
from everlong.telemetry.sdk_core_metrics import CoreMetrics

POINT = NumberDataPoint | HistogramDataPoint


class ObservedMetrics:
    """A runtime, and what its metrics have come to."""

    def __init__(self, updates_max: int) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.core = CoreMetrics(self.provider.get_meter("temporalio"), updates_max=updates_max)
        self.meter = self.core.runtime.metric_meter

    def points(self) -> dict[str, dict[str, POINT]]:
        """Points by metric, and by the value of their only label."""
        found: dict[str, dict[str, POINT]] = {}
        data = self.reader.get_metrics_data()
        for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
            for point in metric.data.data_points:
                assert isinstance(point, POINT)
                label = "".join(str(value) for value in (point.attributes or {}).values())
                found.setdefault(metric.name, {})[label] = point
        return found

    def value(self, name: str, label: str = "") -> float:
        point = self.points()[name][label]
        assert isinstance(point, NumberDataPoint)
        return point.value


@contextmanager
def open_metrics(updates_max: int = 10_000) -> Iterator[ObservedMetrics]:
    metrics = ObservedMetrics(updates_max)
    try:
        yield metrics
    finally:
        metrics.core.close()
        metrics.provider.shutdown()


def test_counters_add_up_gauges_are_the_last_and_durations_are_seconds() -> None:
    with open_metrics() as metrics:
        counter = metrics.meter.create_counter("requests")
        gauge = metrics.meter.create_gauge("slots")
        latency = metrics.meter.create_histogram_timedelta("latency", unit="s")
        for number in range(1, 4):
            for label in ("a", "b"):
                counter.add(number, {"kind": label})
                gauge.set(number, {"kind": label})
            latency.record(timedelta(milliseconds=20 * number))
            if number == 2:
                metrics.core.drain()
        metrics.core.close()
        assert [metrics.value("requests", label) for label in "ab"] == [6, 6]
        assert [metrics.value("slots", label) for label in "ab"] == [3, 3]
        point = metrics.points()["latency"][""]
        assert isinstance(point, HistogramDataPoint)
        assert (point.count, round(point.sum, 6)) == (3, 0.12)
        counts = dict(zip(point.explicit_bounds, point.bucket_counts, strict=False))
        assert {bound: count for bound, count in counts.items() if count} == {
            0.025: 1,
            0.05: 1,
            0.1: 1,
        }
        assert set(metrics.points()) == {"requests", "slots", "latency"}


def test_new_values_appear_without_a_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk_core_metrics, "DRAIN_SECONDS", 0.01)
    with open_metrics() as metrics:
        metrics.meter.create_counter("requests").add(1)
        for _ in range(500):
            if "requests" in metrics.points():
                break
            metrics.core._closing.wait(0.01)
        assert metrics.value("requests") == 1


def test_a_full_buffer_is_logged_once(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.WARNING), open_metrics(updates_max=20) as metrics:
        counter = metrics.meter.create_counter("requests")
        for _ in range(10):
            counter.add(1)
        metrics.core.drain()
        assert caplog.messages == []
        for _ in range(3):
            for _ in range(100):
                counter.add(1)
            metrics.core.drain()
        assert 10 < metrics.value("requests") < 310
        # A metric that the full buffer had no place for must not stop the others.
        for _ in range(100):
            counter.add(1)
        lost = metrics.meter.create_counter("lost")
        metrics.core.drain()
        lost.add(1)
        metrics.core.drain()
        before = metrics.value("requests")
        counter.add(1)
        metrics.core.drain()
        assert metrics.value("requests") == before + 1
        [message] = caplog.messages
        assert "temporal_ metrics are too low" in message
    assert "metrics buffer is full" not in capfd.readouterr().out


def test_a_refused_metric_name_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), open_metrics() as metrics:
        metrics.meter.create_counter("größe").add(1)
        metrics.meter.create_counter("requests").add(1)
        metrics.core.drain()
        assert metrics.value("requests") == 1
        assert "größe" in caplog.text


def test_histograms_of_other_units_have_the_usual_buckets() -> None:
    with open_metrics() as metrics:
        metrics.meter.create_histogram("sizes", unit="By").record(700)
        metrics.core.drain()
        data = metrics.reader.get_metrics_data()
        assert data
        [metric] = data.resource_metrics[0].scope_metrics[0].metrics
        assert isinstance(metric.data, Histogram)
        assert 750 in metric.data.data_points[0].explicit_bounds
