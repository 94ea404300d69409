"""A thread that is approved after a long idle time: the number of events that its resume replays."""

import time
from typing import Final

from bench import worker_log
from bench.report import Report
from bench.thread_harness import ThreadHarness
from everlong import Policy
from everlong.models import DECIDE_UPDATE, PENDING_QUERY, Approval, Decide

REPLAYED_MAX: Final = 15
_RESUME_SECONDS_MAX: Final = 60.0


async def approve_after_idle(
    harness: ThreadHarness, thread_id: str, pages: int
) -> tuple[int, float]:
    """Return the number of replayed events, and the seconds from the approval to the next model call."""
    await harness.start_worker()
    await harness.start(thread_id, Policy(idle_seconds=1.0))
    await harness.send(thread_id, f"read 0 to {pages - 1} then publish")
    asked = await harness.wait_until(thread_id, lambda status: status.pending == 1)
    await harness.wait_until(thread_id, lambda status: status.counters.runs > asked.counters.runs)
    handle = harness.client.get_workflow_handle(thread_id)
    [approval] = await handle.query(PENDING_QUERY, result_type=list[Approval])
    harness.stop_workers()
    worker = await harness.start_worker()
    started = time.time()
    decide = Decide(id=approval.id, approve=True, by="bench")
    await handle.execute_update(DECIDE_UPDATE, decide)
    await worker.wait_for_output(worker_log.format_line_end("model", 0), _RESUME_SECONDS_MAX)
    events = list(worker_log.parse_events(worker.output()))
    called = next(event.at for event in events if event.what == "model")
    replayed = next(event.size for event in events if event.what == "replayed")
    await harness.wait_until(thread_id, lambda status: status.counters.answered == 1)
    worker.stop()
    return replayed, called - started


async def measure_idle(harness: ThreadHarness, *, pages: int) -> Report:
    """Measure once: the figure is a count, which does not vary."""
    report = Report(f"Approved after an idle time, {pages} steps into the thread")
    replayed, seconds = await approve_after_idle(harness, "idle", pages)
    report.add("events replayed", replayed, most=REPLAYED_MAX)
    report.add("from the approval to the next model call", seconds, "s")
    return report
