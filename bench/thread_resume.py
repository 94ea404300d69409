"""Cold resumes of an old and a young thread, each on a worker process with empty caches.

A resume replays the current run, so the old thread is first advanced until its run is as long as the
young one's. Then both get the same message, in turns.
"""

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Final

from bench import worker_log
from bench.report import Cell, Report, Series
from bench.stores import CountingStore
from bench.thread_harness import ThreadHarness
from everlong.models import ThreadStatus, thread_key
from everlong.storage.journal import Journal
from everlong.storage.pack_store import PackStore

RATIO_MAX: Final = 1.3
_RESUME_SECONDS_MAX: Final = 60.0
# About the number of events of a message that is answered at once.
_CLOSE_EVENTS: Final = 5
_STEPS_MAX: Final = 120


@dataclasses.dataclass(frozen=True)
class Resume:
    """One cold resume."""

    replayed: int
    """Number of events."""
    span_seconds: float
    """Resume span: from the start of the workflow task until workflow code is live."""
    send_seconds: float
    """External figure: until the message is in the thread's history and `send` returns its number."""
    model_seconds: float
    """Time from sending the message to the model call."""
    gets: int
    """Bytes read from the store until the model is called."""
    get_bytes: int
    needed_bytes: int
    """Stored bytes of the context: the snapshot and the entries after it."""
    context_bytes: int
    """The context as the model reads it."""


async def resume(harness: ThreadHarness, thread_id: str, number: int) -> Resume:
    """Resume a thread on a new worker with an empty cache, and no other worker running."""
    before = await harness.wait_until(thread_id, lambda status: status.status == "waiting")
    needed_bytes = await measure_stored_context(harness, thread_id, before)
    for worker in harness.workers:
        worker.stop()
    worker = await harness.start_worker()
    started = time.time()
    await harness.send(thread_id, f"say {number}")
    sent = time.time()
    await worker.wait_for_output(worker_log.format_line_end("model", number), _RESUME_SECONDS_MAX)
    events = list(worker_log.parse_events(worker.output()))
    called = next(event.at for event in events if event.what == "model")
    gets = [event.size for event in events if event.what == "get" and event.at <= called]
    after = await harness.wait_until(thread_id, lambda status: status.status == "waiting")
    sizes = {event.what: event.size for event in events}
    return Resume(
        replayed=sizes["replayed"],
        span_seconds=sizes["resumed"] / 1e6,
        send_seconds=sent - started,
        model_seconds=called - started,
        gets=len(gets),
        get_bytes=sum(gets),
        needed_bytes=needed_bytes,
        context_bytes=after.context_bytes,
    )


async def measure_stored_context(
    harness: ThreadHarness, thread_id: str, status: ThreadStatus
) -> int:
    """Return the stored bytes of a thread's context, by reading it."""
    store = CountingStore(harness.store)
    packs = PackStore(store)
    journal = Journal(packs, thread_key(harness.client.namespace, thread_id))
    first_seq = 1
    if status.snapshot is not None:
        await packs.read_body(status.snapshot.ref)
        first_seq = status.snapshot.upto_seq + 1
    entries = await journal.read(status.head, first_seq)
    await journal.bodies([entry for entry in entries if entry.body or entry.ref])
    return store.get_bytes


async def level(harness: ThreadHarness, old: str, young: str, page: int) -> None:
    """Advance the old thread by single steps until its run is as long as the young one's."""
    wanted = await harness.run_events(young)
    for number in range(_STEPS_MAX):
        events = await harness.run_events(old)
        if abs(events - wanted) <= _CLOSE_EVENTS:
            return
        far = wanted - events > 20 or events > wanted
        await harness.ask(old, f"read {page + number} to {page + number}" if far else "say 0")
    raise RuntimeError(f"the runs do not meet: {events} events, and {wanted}")


async def measure_resumes(
    harness: ThreadHarness, old: str, young: str, *, turns: int, judged: bool = True
) -> Report:
    """Resume both threads a few times, in turns."""
    report = Report(f"Cold resume, median of {turns}: the old thread and the young one")
    found: dict[str, list[Resume]] = {young: [], old: []}
    for turn in range(turns):
        for thread_id in (young, old) if turn % 2 else (old, young):
            found[thread_id].append(await resume(harness, thread_id, 1000 + turn))
    report.series.append(_build_table(found))
    for what, name in (
        ("resume span", "span_seconds"),
        ("until send returns", "send_seconds"),
        ("until the model is called", "model_seconds"),
    ):
        ratio = _compute_median(found[old], name) / _compute_median(found[young], name)
        report.add(f"{what}, old over young", ratio, "times", most=RATIO_MAX if judged else None)
    for each in (young, old):
        needed = max(one.get_bytes / one.needed_bytes for one in found[each])
        report.add(f"read over stored bytes of the context, {each}", needed, "times", most=1)
        shown = max(one.get_bytes / one.context_bytes for one in found[each])
        report.add(f"read over the context as the model reads it, {each}", shown, "times", most=1)
    return report


def _compute_median(resumes: Sequence[Resume], name: str) -> float:
    return statistics.median(float(getattr(each, name)) for each in resumes)


def _build_table(found: dict[str, list[Resume]]) -> Series:
    rows: list[tuple[Cell, ...]] = [
        (
            thread_id,
            _compute_median(resumes, "replayed"),
            1000 * _compute_median(resumes, "span_seconds"),
            1000 * _compute_median(resumes, "send_seconds"),
            1000 * _compute_median(resumes, "model_seconds"),
            _compute_median(resumes, "gets"),
            _compute_median(resumes, "get_bytes"),
            _compute_median(resumes, "needed_bytes"),
            _compute_median(resumes, "context_bytes"),
        )
        for thread_id, resumes in found.items()
    ]
    columns = (
        "thread",
        "events replayed",
        "span, ms",
        "to send, ms",
        "to model, ms",
        "GETs",
        "bytes read",
        "bytes stored of the context",
        "context bytes",
    )
    return Series("Cold resumes, medians", columns, rows)
