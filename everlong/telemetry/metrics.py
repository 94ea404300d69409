"""Table of all metrics, and the meters made from it. Dashboards and docs are checked against it.

A thread id is never a label: a fleet has millions of threads. Exemplars lead from a value to a trace.
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

from everlong.telemetry.instrumentation import log_errors

Labels: TypeAlias = Mapping[str, str]
ObserveCallback: TypeAlias = Callable[[], Iterable[tuple[float, Labels]]]

_SECONDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    *(300.0, 1800.0),
)
# Up to a week: people decide about approvals.
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
        "From the start of the task on the server to the first activation that was not replayed, "
        "by what caused the resume and by what it served.",
        ("cause", "end"),
        _SECONDS,
    ),
    Metric(
        "everlong.act.duration",
        "histogram",
        "s",
        "From when a message or a decision was sent to when the thread acted on it.",
        ("agent", "kind"),
        _SECONDS,
    ),
    Metric(
        "everlong.step.read",
        "histogram",
        "By",
        "Read from the store by one step.",
        ("agent", "step"),
        _BYTES,
    ),
    Metric(
        "everlong.step.written",
        "histogram",
        "By",
        "By how much one step made the store grow. Repeats of what is stored count as 0.",
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
        "Growth of a thread, at each of its model calls: bytes stored in an hour.",
        ("agent",),
        _BYTES,
    ),
    Metric(
        "everlong.compaction.lag",
        "histogram",
        "s",
        "From when the policy wanted a compaction to when it was done.",
        ("agent", "reason"),
        _SECONDS,
    ),
    Metric(
        "everlong.compaction.lag.size",
        "histogram",
        "By",
        "By how much a context was over the policy's bound, at each model call; 0 if it was not.",
        ("agent",),
        _BYTES,
    ),
    Metric(
        "everlong.compaction.removed",
        "counter",
        "By",
        "What compactions took out of contexts.",
        ("agent", "reason"),
    ),
    Metric(
        "everlong.offload.payload",
        "observed_counter",
        "By",
        "Bytes that were to be stored, by the codec (payload) or for threads (journal): new, "
        "deduplicated, or inline while the store was down.",
        ("outcome", "source"),
    ),
    Metric(
        "everlong.offload.written",
        "observed_counter",
        "By",
        "By how much the store grew, compressed: payloads of the codec, and journals of threads.",
        ("source",),
    ),
    Metric(
        "everlong.encoder.dropped",
        "observed_counter",
        "By",
        "Payload bytes that the encoder's memory had no room for. Digests of them were kept.",
    ),
    Metric(
        "everlong.encoder.forgotten",
        "observed_counter",
        "{thread}",
        "Threads that the encoder's memory had no room for.",
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
        "Reads of stored objects, by what answered them: memory, disk or store.",
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
        "Threads that were found to fail again and again, or to make no progress.",
        ("agent", "limit"),
    ),
    Metric(
        "everlong.approval.wait",
        "histogram",
        "s",
        "From when a person was asked to the decision: approved, denied, or expired.",
        ("agent", "decision"),
        _WAITS,
    ),
    Metric(
        "everlong.store.duration",
        "histogram",
        "s",
        "One call to the blob store, retries of its client included.",
        ("operation", "outcome"),
        _SECONDS,
    ),
    Metric(
        "everlong.store.errors",
        "counter",
        "{error}",
        "Calls to the blob store that failed, by our error's name.",
        ("error", "operation"),
    ),
    Metric(
        "everlong.holds",
        "counter",
        "{hold}",
        "Times that a step had to wait for the store, by what was wrong.",
        ("error",),
    ),
    Metric(
        "everlong.sweep.duration",
        "histogram",
        "s",
        "One sweep of the namespace; incomplete is one that deleted nothing.",
        ("outcome",),
        _SECONDS,
    ),
    Metric(
        "everlong.sweep.moved",
        "counter",
        "By",
        "What sweeps did with stored bytes: quarantined, restored, or purged.",
        ("outcome",),
    ),
    Metric(
        "everlong.cost",
        "counter",
        "{USD}",
        "What model calls cost, where the price is known.",
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
        "What running threads have stored: all together, and the largest.",
        ("stat",),
        source="admin",
    ),
    Metric(
        "everlong.threads.growth",
        "observed_gauge",
        "By/h",
        "Growth of running threads as lists show it: all together, and the fastest.",
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
        "How long the oldest of them has waited.",
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
            self._histogram(name).record(value, labels, context)

    def _histogram(self, name: str) -> Histogram:
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
            self._counter(name).add(value, labels, context)

    def _counter(self, name: str) -> Counter:
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
