"""Prometheus names of our metrics, and of SDK Core's that alerts and dashboards use."""

import re
from typing import Final

from everlong.telemetry.metrics import METRICS, Metric

_UNITS: Final = {"s": "seconds", "By": "bytes", "By/h": "bytes_per_hour"}
_SUFFIXES: Final = {
    "histogram": ("_bucket", "_count", "_sum"),
    "counter": ("_total",),
    "observed_counter": ("_total",),
    "observed_gauge": ("",),
}

CORE: Final = {
    "temporal_activity_schedule_to_start_latency_seconds_bucket": {"namespace", "task_queue"},
    "temporal_num_pollers": {"namespace", "poller_type", "task_queue"},
    "temporal_sticky_cache_size": {"namespace", "task_queue"},
    "temporal_worker_task_slots_available": {"namespace", "task_queue", "worker_type"},
    "temporal_workflow_task_execution_latency_seconds_bucket": {"task_queue", "workflow_type"},
    "temporal_workflow_task_replay_latency_seconds_bucket": {"task_queue", "workflow_type"},
    "temporal_workflow_task_schedule_to_start_latency_seconds_bucket": {"namespace", "task_queue"},
}
"""Metrics of SDK Core, with labels that they have. A test looks for them on a real endpoint."""


def base_name(metric: Metric) -> str:
    """Return a metric's Prometheus name without the suffix of its kind; `{annotations}` are dropped."""
    unit = _UNITS[metric.unit] if not metric.unit.startswith("{") else ""
    return "_".join(filter(None, (_plain(metric.name), unit)))


def series_names(metric: Metric) -> set[str]:
    """Return the names of its series."""
    return {base_name(metric) + suffix for suffix in _SUFFIXES[metric.kind]}


def series_labels() -> dict[str, set[str]]:
    """Return every series that a panel or an alert may name, with its labels."""
    ours = {
        name: {_plain(label) for label in metric.labels}
        for metric in METRICS
        for name in series_names(metric)
    }
    return ours | CORE


def _plain(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]+", "_", name)
