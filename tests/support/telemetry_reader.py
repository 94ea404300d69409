"""Reads exported telemetry: spans by name, metrics by label."""

from collections.abc import Iterable
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from tests.support.threads import Threads


def find_spans(threads: Threads, name: str) -> list[ReadableSpan]:
    spans = threads.spans.get_finished_spans()
    return [span for span in spans if span.name.partition(" ")[0] == name]


def values(threads: Threads, name: str) -> dict[frozenset[tuple[str, Any]], Any]:
    """Return each value of a metric by its labels; the sum for a histogram."""
    data = threads.metrics.get_metrics_data()
    points: Iterable[Any] = [
        point
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    ]
    return {
        frozenset(point.attributes.items()): getattr(point, "value", None)
        if hasattr(point, "value")
        else point.sum
        for point in points
    }
