"""The resume span, compared with an external clock.

The worker is killed, a new one is started, and a message makes the thread act. A client that watches the
history by long poll records when it sees the resuming workflow task completed. The external figure is
the time from the server's start of that task until then.
"""

import asyncio
import base64
import contextlib
import dataclasses
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

from temporalio.api.history.v1 import HistoryEvent

from bench.report import Cell, Report, Series
from bench.telemetry_harness import TelemetryHarness
from everlong import Policy
from everlong.telemetry.spans import RESUME, THREAD
from tests.support.otlp_receiver import ReceivedTelemetry, Span

SHARE_MAX: Final = 0.1
OFF_SECONDS_MAX: Final = 0.03
_QUEUE_OFF_SECONDS_MAX: Final = 0.001
_SEEN_SECONDS_MAX: Final = 60.0
_POLL_SECONDS: Final = 0.02
# Random bytes as text: they do not compress, so the message goes to the store.
_LARGE_BYTES: Final = 5_500
# The run does not roll during the measurement, so each resume replays all of it.
_POLICY: Final = Policy(run_events_max=5000, resume_seconds_max=60)


@dataclasses.dataclass(frozen=True)
class Pair:
    """One resume: its span, and the external times."""

    span: Span
    scheduled_ns: int
    """When the server first scheduled the task, also if no worker took that attempt."""
    started_ns: int
    completed_ns: int
    """Start of the task, by the server's clock."""
    seen_ns: int
    """When the client saw the task completed, by the client's clock."""

    @property
    def outside_seconds(self) -> float:
        """From the server's start of the task until the client saw its end."""
        return (self.seen_ns - self.started_ns) / 1e9

    @property
    def server_seconds(self) -> float:
        """The same until the server had the completion, all by the server's clock."""
        return (self.completed_ns - self.started_ns) / 1e9

    @property
    def span_seconds(self) -> float:
        """Duration of the span."""
        return (self.span.end_ns - self.span.start_ns) / 1e9

    @property
    def off_seconds(self) -> float:
        """The external figure minus the span."""
        return self.outside_seconds - self.span_seconds

    def agrees(self, seconds: float) -> bool:
        """Return whether the span is close enough to a figure."""
        off_seconds = abs(seconds - self.span_seconds)
        return off_seconds <= max(OFF_SECONDS_MAX, SHARE_MAX * seconds)

    @property
    def queue_seconds(self) -> float:
        """Time of the task in the queue, by the server's events."""
        return (self.started_ns - self.scheduled_ns) / 1e9

    @property
    def queue_off_seconds(self) -> float:
        """`queue_seconds` minus the attribute of that name in the span."""
        return self.queue_seconds - float(self.span.attributes["everlong.resume.queue_seconds"])


class Watch:
    """Reads a history by long poll, and records when it saw each event."""

    def __init__(self, harness: TelemetryHarness, thread_id: str) -> None:
        self.seen: list[tuple[HistoryEvent, int]] = []
        self._handle = harness.client.get_workflow_handle(thread_id)

    async def run(self) -> None:
        """Watch until cancelled."""
        async for event in self._handle.fetch_history_events(wait_new_event=True):
            self.seen.append((event, time.time_ns()))

    def task_after(self, event_id: int) -> tuple[int, int, int, int] | None:
        """Return the times of the first task that was completed after an event."""
        scheduled_ns = started_ns = 0
        for event, seen_ns in self.seen:
            kind = event.WhichOneof("attributes")
            time_ns = event.event_time.ToNanoseconds()
            if event.event_id <= event_id:
                continue
            if kind == "workflow_task_scheduled_event_attributes":
                scheduled_ns = scheduled_ns or time_ns
            elif kind == "workflow_task_started_event_attributes":
                started_ns = time_ns
            elif kind == "workflow_task_completed_event_attributes":
                return scheduled_ns, started_ns, time_ns, seen_ns
        return None


async def prepare(harness: TelemetryHarness, thread_id: str, steps: int, messages: int) -> None:
    """Give a thread a history of steps, and of messages in the store."""
    await harness.start_worker()
    await harness.start(thread_id, _POLICY)
    await harness.ask(thread_id, f"read 0 to {steps - 1}")
    for number in range(messages):
        noise = random.Random(number).randbytes(_LARGE_BYTES)  # noqa: S311
        await harness.ask(thread_id, f"say {number} {base64.b64encode(noise).decode()}")


async def measure_spans(
    harness: TelemetryHarness,
    thread_id: str,
    received: ReceivedTelemetry,
    *,
    turns: int,
    judged: bool = True,
) -> Report:
    """Kill the worker and resume the thread on a new one, `turns` times."""
    watch = Watch(harness, thread_id)
    watching = asyncio.create_task(watch.run())
    try:
        pairs = [await _resume(harness, thread_id, watch, received, turn) for turn in range(turns)]
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    return _report(pairs, judged)


async def _resume(
    harness: TelemetryHarness, thread_id: str, watch: Watch, received: ReceivedTelemetry, turn: int
) -> Pair:
    await harness.wait_until(thread_id, lambda status: status.status == "waiting")
    events = await harness.run_events(thread_id)
    await _wait_until(lambda: len(watch.seen) >= events)
    harness.workers[-1].kill()
    await harness.start_worker()
    sent = asyncio.create_task(harness.send(thread_id, f"say {turn}"))
    await _wait_until(lambda: watch.task_after(events) is not None)
    times = watch.task_after(events)
    assert times is not None  # noqa: S101 - it was there a line ago.
    await harness.wait_for_answer(thread_id, await sent)
    await _wait_until(lambda: len(_read_spans(received, thread_id)) > turn)
    return Pair(_read_spans(received, thread_id)[turn], *times)


def _read_spans(received: ReceivedTelemetry, thread_id: str) -> list[Span]:
    return [
        span
        for span in list(received.spans)
        if span.name == RESUME and span.attributes[THREAD] == thread_id
    ]


async def _wait_until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(_SEEN_SECONDS_MAX):
        while not done():  # noqa: ASYNC110 - other threads and tasks bring it about.
            await asyncio.sleep(_POLL_SECONDS)


def _report(pairs: Sequence[Pair], judged: bool) -> Report:
    count = len(pairs)
    report = Report(f"The span of {count} resumes, against an outside clock")
    report.series.append(_build_table(pairs))
    least = count if judged else None
    within = "spans within 10% or 30 ms of the"
    seen = sum(pair.agrees(pair.outside_seconds) for pair in pairs)
    report.add(f"{within} time that the client saw it", seen, f"of {count}", least=least)
    agreeing = sum(pair.agrees(pair.server_seconds) for pair in pairs)
    report.add(f"{within} first new event's time", agreeing, f"of {count}", least=least)
    worst = max(pairs, key=lambda pair: abs(pair.off_seconds))
    report.add("outside beyond the span, worst", 1000 * worst.off_seconds, "ms")
    report.add("... median", 1000 * _compute_median([pair.off_seconds for pair in pairs]), "ms")
    to_server = [1000 * (pair.server_seconds - pair.span_seconds) for pair in pairs]
    report.add(
        "... of it, until the server has the completion, median", _compute_median(to_server), "ms"
    )
    report.add("... ... worst", max(to_server), "ms")
    to_client = [(pair.seen_ns - pair.completed_ns) / 1e6 for pair in pairs]
    report.add(
        "... of it, until the client has seen that, median", _compute_median(to_client), "ms"
    )
    exact = sum(pair.span.start_ns == pair.started_ns for pair in pairs)
    report.add("spans that begin as the server's task does", exact, f"of {count}", least=count)
    queue_off = max(abs(pair.queue_off_seconds) for pair in pairs)
    most = 1000 * _QUEUE_OFF_SECONDS_MAX
    report.add(
        "queue_seconds against the events, worst difference", 1000 * queue_off, "ms", most=most
    )
    return report


def _compute_median(values: Sequence[float]) -> float:
    return statistics.median(values)


def _build_table(pairs: Sequence[Pair]) -> Series:
    rows: list[tuple[Cell, ...]] = [
        (
            str(number),
            pair.span.attributes["everlong.resume.events"],
            pair.span.attributes["everlong.resume.blobs"],
            1000 * pair.outside_seconds,
            1000 * pair.server_seconds,
            1000 * pair.span_seconds,
            1000 * pair.off_seconds,
            100 * pair.off_seconds / pair.outside_seconds,
            1000 * pair.queue_seconds,
            1000 * float(pair.span.attributes["everlong.resume.queue_seconds"]),
        )
        for number, pair in enumerate(pairs, 1)
    ]
    columns = (
        "resume",
        "events",
        "blobs",
        "outside, ms",
        "server, ms",
        "span, ms",
        "difference, ms",
        "%",
        "queue by events, ms",
        "queue_seconds, ms",
    )
    return Series("Each resume", columns, rows)
