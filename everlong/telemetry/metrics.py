"""Metrics: the table of all metrics, and the meters that record them.

Dashboards and documents are checked against the table. A thread id is never a label: a fleet has
millions of threads. Exemplars lead from a value to a trace.
"""

import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, TypeAlias

from opentelemetry.context import Context
from opentelemetry.metrics import (
    CallbackOptions,
    Counter,
    Histogram,
    Meter,
    Observation,
    get_meter_provider,
)

from everlong.storage.instrumented import describe_outcome
from everlong.telemetry.spans import log_errors

Labels: TypeAlias = Mapping[str, str]
ObserveCallback: TypeAlias = Callable[[], Iterable[tuple[float, Labels]]]

_SECONDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    *(300.0, 1800.0),
)
# Up to a week, since people decide approvals.
_WAITS: Final = (1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14400.0, 86400.0, 259200.0, 604800.0)
_BYTES: Final = tuple(float(4**power) for power in range(4, 17))  # 256 B to 4 GiB.
_TOKENS: Final = tuple(float(4**power) for power in range(14))


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric by its OpenTelemetry name."""

    name: str
    kind: Literal["histogram", "counter", "observed_counter", "observed_gauge"]
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    source: Literal["worker", "admin"] = "worker"


METRICS: Final = (
    Metric(
        "everlong.resume.duration",
        "histogram",
        "s",
        "Duration of a resume, from the start of the task on the server to the first activation that "
        "was not replayed, by cause and by what it served.",
        ("cause", "end"),
        _SECONDS,
    ),
    Metric(
        "everlong.act.duration",
        "histogram",
        "s",
        "Time from a message or a decision to the step that acts on it.",
        ("agent", "kind"),
        _SECONDS,
    ),
    Metric(
        "everlong.step.read",
        "histogram",
        "By",
        "Bytes read from the store by one step.",
        ("agent", "step"),
        _BYTES,
    ),
    Metric(
        "everlong.step.written",
        "histogram",
        "By",
        "Bytes by which one step grew the store. Repeats of stored content count 0.",
        ("agent", "step"),
        _BYTES,
    ),
    Metric(
        "everlong.thread.size",
        "histogram",
        "By",
        "Size of a thread at each of its model calls, by class: operational, context, journal.",
        ("agent", "class"),
        _BYTES,
    ),
    Metric(
        "everlong.thread.growth",
        "histogram",
        "By/h",
        "Growth of a thread at each of its model calls, in bytes stored per hour.",
        ("agent",),
        _BYTES,
    ),
    Metric(
        "everlong.compaction.lag",
        "histogram",
        "s",
        "Time from when the policy required a compaction to its end.",
        ("agent", "reason"),
        _SECONDS,
    ),
    Metric(
        "everlong.compaction.lag.size",
        "histogram",
        "By",
        "Bytes by which a context exceeded the policy's bound at a model call; 0 if it did not.",
        ("agent",),
        _BYTES,
    ),
    Metric(
        "everlong.compactions",
        "counter",
        "{compaction}",
        "Compactions by outcome: compacted, tail, halved, no_shrink, unchanged.",
        ("agent", "reason", "outcome"),
    ),
    Metric(
        "everlong.compaction.removed",
        "counter",
        "By",
        "Bytes that compactions removed from contexts.",
        ("agent", "reason"),
    ),
    Metric(
        "everlong.offload.payload",
        "observed_counter",
        "By",
        "Bytes to store, by the codec (payload) or for threads (journal): new, deduplicated, or kept "
        "inline while the store was down.",
        ("outcome", "source"),
    ),
    Metric(
        "everlong.offload.written",
        "observed_counter",
        "By",
        "Compressed bytes by which the store grew: payloads of the codec, journals of threads. `kind` "
        "is payload, segment, snapshot, or the kind of a message with an object of its own.",
        ("source", "kind"),
    ),
    Metric(
        "everlong.encoder.dropped",
        "observed_counter",
        "By",
        "Payload bytes dropped from the encoder's full memory. Their digests were kept.",
    ),
    Metric(
        "everlong.encoder.forgotten",
        "observed_counter",
        "{thread}",
        "Threads dropped from the encoder's full memory.",
    ),
    Metric(
        "everlong.encoder.rewritten",
        "observed_counter",
        "By",
        "Bytes that forgotten threads wrote again with their next payload.",
    ),
    Metric(
        "everlong.cache.reads",
        "observed_counter",
        "{read}",
        "Reads of stored objects, by tier: memory, disk or store.",
        ("tier",),
    ),
    Metric(
        "everlong.limit.hits",
        "counter",
        "{hit}",
        "Threads that reached a limit of their policy.",
        ("action", "agent", "limit"),
    ),
    Metric(
        "everlong.failure.loops",
        "counter",
        "{loop}",
        "Threads that failed repeatedly or made no progress.",
        ("agent", "limit"),
    ),
    Metric(
        "everlong.approval.wait",
        "histogram",
        "s",
        "Time from the request for an approval to the decision: approved, denied or expired.",
        ("agent", "decision"),
        _WAITS,
    ),
    Metric(
        "everlong.store.duration",
        "histogram",
        "s",
        "Duration of one call to the blob store, including retries of its client.",
        ("operation", "outcome"),
        _SECONDS,
    ),
    Metric(
        "everlong.store.errors",
        "counter",
        "{error}",
        "Failed calls to the blob store, by Everlong's error name.",
        ("error", "operation"),
    ),
    Metric(
        "everlong.holds",
        "counter",
        "{hold}",
        "Waits of steps for the store, by error.",
        ("error",),
    ),
    Metric(
        "everlong.notifications",
        "counter",
        "{message}",
        "Messages to sinks, by outcome: sent, failed (and tried again), given_up, dropped.",
        ("sink", "outcome"),
    ),
    Metric(
        "everlong.sweep.duration",
        "histogram",
        "s",
        "Duration of one sweep of the namespace. An incomplete sweep deleted nothing.",
        ("outcome",),
        _SECONDS,
    ),
    Metric(
        "everlong.sweep.moved",
        "counter",
        "By",
        "Stored bytes that sweeps quarantined, restored or purged.",
        ("outcome",),
    ),
    Metric(
        "everlong.cost",
        "counter",
        "{USD}",
        "Cost of model calls, where the price is known.",
        ("agent", "model"),
    ),
    Metric(
        "gen_ai.client.token.usage",
        "histogram",
        "{token}",
        "Tokens of one model call.",
        (
            "gen_ai.agent.name",
            "gen_ai.operation.name",
            "gen_ai.provider.name",
            "gen_ai.request.model",
            "gen_ai.token.type",
        ),
        _TOKENS,
    ),
    Metric(
        "gen_ai.client.operation.duration",
        "histogram",
        "s",
        "Duration of one model call.",
        (
            "error.type",
            "gen_ai.agent.name",
            "gen_ai.operation.name",
            "gen_ai.provider.name",
            "gen_ai.request.model",
        ),
        _SECONDS,
    ),
    Metric(
        "everlong.threads",
        "observed_gauge",
        "{thread}",
        "Threads by status, as the server's visibility lists them.",
        ("status",),
        source="admin",
    ),
    Metric(
        "everlong.threads.stored",
        "observed_gauge",
        "By",
        "Bytes stored by running threads: the sum, and the largest.",
        ("stat",),
        source="admin",
    ),
    Metric(
        "everlong.threads.growth",
        "observed_gauge",
        "By/h",
        "Growth of running threads as in lists: the sum, and the fastest.",
        ("stat",),
        source="admin",
    ),
    Metric(
        "everlong.approvals.pending",
        "observed_gauge",
        "{approval}",
        "Approvals that wait for a person.",
        source="admin",
    ),
    Metric(
        "everlong.approvals.age",
        "observed_gauge",
        "s",
        "Age of the oldest pending approval.",
        source="admin",
    ),
)
_BY_NAME: Final = {metric.name: metric for metric in METRICS}
_OBSERVED: Final[weakref.WeakKeyDictionary[Meter, dict[str, list[ObserveCallback]]]] = (
    weakref.WeakKeyDictionary()
)
_OBSERVING: Final = threading.Lock()


def _is_api_default(found: object) -> bool:
    """Return whether a meter or provider is the API's default, which records nothing by itself."""
    return type(found).__module__.startswith("opentelemetry.metrics")


class Meters:
    """Instruments of the table, created at first use."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    @property
    def is_silent(self) -> bool:
        """Whether no provider is set. Callers then skip building labels and exemplars."""
        # The API's proxy meter delegates to the global provider once that is set.
        return _is_api_default(self._meter) and _is_api_default(get_meter_provider())

    def record(
        self, name: str, value: float, labels: Labels | None = None, context: Context | None = None
    ) -> None:
        """Record a histogram value. The span in `context` becomes its exemplar."""
        with log_errors():
            self._get_histogram(name).record(value, labels, context)

    def _get_histogram(self, name: str) -> Histogram:
        histogram = self._histograms.get(name)
        if histogram is None:
            metric = _BY_NAME[name]
            histogram = self._histograms[name] = self._meter.create_histogram(
                name,
                unit=metric.unit,
                description=metric.description,
                explicit_bucket_boundaries_advisory=metric.buckets,
            )
        return histogram

    def add(
        self,
        name: str,
        value: float = 1,
        labels: Labels | None = None,
        context: Context | None = None,
    ) -> None:
        """Add to a counter."""
        with log_errors():
            self._get_counter(name).add(value, labels, context)

    def _get_counter(self, name: str) -> Counter:
        counter = self._counters.get(name)
        if counter is None:
            metric = _BY_NAME[name]
            counter = self._counters[name] = self._meter.create_counter(
                name, unit=metric.unit, description=metric.description
            )
        return counter

    def observe(self, name: str, observed: ObserveCallback) -> None:
        """Call `observed` at every collection.

        A meter has each instrument once, so the values of several plugins in a process are summed.
        """
        with _OBSERVING:
            sources = _OBSERVED.setdefault(self._meter, {}).setdefault(name, [])
            sources.append(observed)
            if len(sources) > 1:
                return
        metric = _BY_NAME[name]

        def callback(_: CallbackOptions) -> Iterable[Observation]:
            sums: dict[tuple[tuple[str, str], ...], float] = {}
            for source in list(sources):
                for value, labels in source():
                    key = tuple(sorted(labels.items()))
                    sums[key] = sums.get(key, 0) + value
            return [Observation(value, dict(key)) for key, value in sums.items()]

        create = (
            self._meter.create_observable_counter
            if metric.kind == "observed_counter"
            else self._meter.create_observable_gauge
        )
        create(name, [callback], unit=metric.unit, description=metric.description)


def record_store_call(
    meters: Meters, operation: str, seconds: float, error: BaseException | None
) -> None:
    """Record a call to the store."""
    outcome = describe_outcome(error)
    labels = {"operation": operation, "outcome": outcome}
    meters.record("everlong.store.duration", seconds, labels)
    if error is not None and outcome in ("error", "cancelled"):
        # A cancelled call mostly took too long, so it counts as an error.
        kind = type(error).__name__ if outcome == "error" else outcome
        meters.add("everlong.store.errors", 1, {"operation": operation, "error": kind})
