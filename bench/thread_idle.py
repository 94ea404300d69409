"""A thread that waits for a person, idle for long, and then approved: how much a resume replays."""

import time
from typing import Final

from bench import probe
from bench.report import Report
from bench.thread_bed import Bed
from everlong import Policy
from everlong.models import DECIDE_UPDATE, PENDING_QUERY, Approval, Decide

REPLAYED_MAX: Final = 15
_RESUME_SECONDS_MAX: Final = 60.0


async def approved_after_idling(bed: Bed, thread_id: str, pages: int) -> tuple[int, float]:
    """Return the events that the resume replayed, and the seconds from the approval to the next call."""
    await bed.start_worker()
    await bed.start(thread_id, Policy(idle_seconds=1.0))
    await bed.send(thread_id, f"read 0 to {pages - 1} then publish")
    asked = await bed.until(thread_id, lambda status: status.pending == 1)
    await bed.until(thread_id, lambda status: status.counters.runs > asked.counters.runs)
    handle = bed.client.get_workflow_handle(thread_id)
    [approval] = await handle.query(PENDING_QUERY, result_type=list[Approval])
    bed.stop_workers()
    worker = await bed.start_worker()
    started = time.time()
    decide = Decide(id=approval.id, approve=True, by="bench")
    await handle.execute_update(DECIDE_UPDATE, decide)
    await worker.wait_for_output(probe.line_of("model", 0), _RESUME_SECONDS_MAX)
    told = list(probe.events(worker.output()))
    called = next(event.at for event in told if event.what == "model")
    replayed = next(event.size for event in told if event.what == "replayed")
    await bed.until(thread_id, lambda status: status.counters.answered == 1)
    worker.stop()
    return replayed, called - started


async def measure_idle(bed: Bed, *, pages: int) -> Report:
    """Measure it once: the figure is a count."""
    report = Report(f"Approved after an idle time, {pages} steps into the thread")
    replayed, seconds = await approved_after_idling(bed, "idle", pages)
    report.add("events replayed", replayed, most=REPLAYED_MAX)
    report.add("from the approval to the next model call", seconds, "s")
    return report
