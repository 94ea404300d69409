"""A resume with a slow store, drawn from its exported spans: the longest bar must be the store's.

The worker that resumes the thread waits before each read of its store. Nothing else is slowed down.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from bench.report import Report
from bench.telemetry_harness import TelemetryHarness
from bench.telemetry_worker import READ_SECONDS
from everlong.interceptors.resume import PARTS
from everlong.telemetry.spans import RESUME, THREAD
from tests.support.otlp_receiver import ReceivedTelemetry, Span

DELAY_SECONDS: Final = 1.0
_SHARE_MIN: Final = 0.5
_COLUMNS: Final = 48
_SEEN_SECONDS_MAX: Final = 60.0
_POLL_SECONDS: Final = 0.02


def draw(spans: Sequence[Span]) -> list[str]:
    """Draw spans as a waterfall, ordered by start: name, bar and milliseconds."""
    if not spans:
        return []
    begins_ns = min(span.start_ns for span in spans)
    whole_ns = max(1, max(span.end_ns for span in spans) - begins_ns)
    names = {span.span_id: span.name for span in spans}
    labels = [f"{'  ' if span.parent_id in names else ''}{span.name}" for span in spans]
    width = max(map(len, labels))
    # Spans that start at once: parents come first, then siblings by their end.
    order = sorted(
        zip(spans, labels, strict=True),
        key=lambda each: (each[0].start_ns, each[0].parent_id in names, each[0].end_ns),
    )
    lines: list[str] = []
    for span, label in order:
        first = round(_COLUMNS * (span.start_ns - begins_ns) / whole_ns)
        last = round(_COLUMNS * (span.end_ns - begins_ns) / whole_ns)
        bar = "#" * (last - first) or "|"
        taken_ms = (span.end_ns - span.start_ns) / 1e6
        lines.append(f"{label:{width}} {' ' * first + bar:{_COLUMNS + 1}} {taken_ms:8.1f} ms")
    return lines


async def measure_slow_store(
    harness: TelemetryHarness, thread_id: str, received: ReceivedTelemetry, *, judged: bool = True
) -> Report:
    """Kill the worker, and resume the thread on one with a slow store."""
    await harness.wait_until(thread_id, lambda status: status.status == "waiting")
    before = len(_read_resumes(received, thread_id))
    harness.workers[-1].kill()
    harness.exports = {**harness.exports, READ_SECONDS: str(DELAY_SECONDS)}
    await harness.start_worker()
    number = await harness.send(thread_id, "say 0")
    await harness.wait_for_answer(thread_id, number)
    async with asyncio.timeout(_SEEN_SECONDS_MAX):
        while len(_read_resumes(received, thread_id)) <= before:  # noqa: ASYNC110 - another thread receives
            await asyncio.sleep(_POLL_SECONDS)
    return _report(list(received.spans), _read_resumes(received, thread_id)[before], judged)


def _report(spans: Sequence[Span], resume: Span, judged: bool) -> Report:
    """Draw one resume, and compare its child spans with its attributes."""
    queue = [
        span
        for span in spans
        if span.name == f"{RESUME}.queue"
        and (span.trace_id, span.end_ns) == (resume.trace_id, resume.start_ns)
    ]
    children = [span for span in spans if span.parent_id == resume.span_id]
    report = Report(f"A resume with {1000 * DELAY_SECONDS:.0f} ms added to each read of the store")
    report.notes += ["the waterfall:", *draw([*queue, resume, *children])]
    whole_ns = resume.end_ns - resume.start_ns
    report.add("the span", whole_ns / 1e6, "ms")
    taken_ns = {
        name: sum(
            span.end_ns - span.start_ns for span in children if span.name == f"{RESUME}.{name}"
        )
        for name in PARTS
    }
    longest = max(taken_ns, key=lambda name: taken_ns[name])
    report.add("the longest child is the store: read", int(longest == "read"), least=1)
    share = taken_ns["read"] / whole_ns
    report.add("... its share of the span", share, least=_SHARE_MIN if judged else None)
    apart_ns = [
        abs(taken_ns[name] - 1e9 * resume.attributes.get(f"{RESUME}.{name}_seconds", 0.0))
        for name in PARTS
    ]
    report.add(
        "children against attributes, worst difference", max(apart_ns) / 1e6, "ms", most=0.001
    )
    rest_ns = abs(whole_ns - sum(taken_ns.values()))
    report.add("the children's sum against the span", rest_ns / 1e6, "ms", most=0.001)
    return report


def _read_resumes(received: ReceivedTelemetry, thread_id: str) -> list[Span]:
    return [
        span
        for span in list(received.spans)
        if span.name == RESUME
        and span.attributes[THREAD] == thread_id
        and span.attributes["everlong.resume.end"] == "live"
    ]
