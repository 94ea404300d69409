"""A long thread: sizes and costs of its runs, its state and its steps, from the first to the last.

A step is a model call and the tool that it calls. A message requests a window of steps, and each window
has the same mix of result sizes.
"""

import dataclasses
import time
from typing import Final

from bench.report import Cell, Report, Series
from bench.thread_harness import Run, ThreadHarness, count_model_calls
from everlong import Policy, limits
from everlong.models import Kind, ThreadStatus, thread_key
from everlong.storage.journal import Journal
from everlong.storage.pack_store import PackStore
from everlong.testing import workload
from everlong.workflows import transitions

WINDOW: Final = 100
"""Steps of a window: a multiple of the workload's block."""
# A run exceeds its bound by at most one pass between two safe points: a model call or a tool (3 events
# and a workflow task of 3), a flush and a compaction of the same size each, and the last event.
EVENTS_OVER_MAX: Final = 3 * 6 + 1
GROWTH_MAX: Final = 1.1
_BATCH: Final = 50


@dataclasses.dataclass
class Window:
    """Costs of the steps of a window."""

    first: int
    steps: int
    seconds: float
    written_bytes: int
    state_bytes: int
    """Maximum of all samples."""
    context_bytes: int
    compactions: int
    samples: int
    history_bytes: int = 0


async def run_steps(
    harness: ThreadHarness, thread_id: str, steps: int, window: int
) -> list[Window]:
    """Run a thread for `steps` steps; return the costs of each window."""
    windows: list[Window] = []
    before = None
    for first in range(0, steps, window):
        samples: list[ThreadStatus] = []
        started = time.perf_counter()
        text = f"read {first} to {first + window - 1}"
        after = await harness.ask(thread_id, text, samples.append)
        if after.last_failure:
            raise RuntimeError(f"the turn failed: {after.last_failure}")
        written = after.counters.written_bytes - (before.counters.written_bytes if before else 0)
        made = after.counters.compactions - (before.counters.compactions if before else 0)
        windows.append(
            Window(
                first=first + 1,
                steps=window,
                seconds=time.perf_counter() - started,
                written_bytes=written,
                state_bytes=max(status.state_bytes for status in samples),
                context_bytes=max(status.context_bytes for status in samples),
                compactions=made,
                samples=len(samples),
            )
        )
        before = after
    for event, ended in count_model_calls(await harness.runs(thread_id)):
        # The model calls of a window are those of its steps, and the answer.
        number = min(ended // (window + 1), len(windows) - 1)
        windows[number].history_bytes += event.ByteSize()
    return windows


async def count_ordered_pages(harness: ThreadHarness, thread_id: str, head_of: ThreadStatus) -> int:
    """Return the number of pages in the journal, from the first on, each once and in order."""
    journal = Journal(PackStore(harness.store), thread_key(harness.client.namespace, thread_id))
    entries = await journal.read(head_of.head)
    if [entry.seq for entry in entries] != list(range(1, len(entries) + 1)):
        return 0
    found = 0
    results = [entry for entry in entries if entry.kind == Kind.TOOL_RESULT]
    for first in range(0, len(results), _BATCH):
        batch = results[first : first + _BATCH]
        for message in await journal.messages(batch, whole=True):
            begins = message.text.startswith(f"# result {found}\n")
            if not begins or len(message.text) != workload.result_bytes(found):
                return found
            found += 1
    return found


async def measure_growth(
    harness: ThreadHarness, thread_id: str, steps: int, window: int = WINDOW
) -> Report:
    """Measure a thread of `steps` steps. It needs a worker."""
    report = Report(f"A thread of {steps:,} steps, default policy")
    windows = await run_steps(harness, thread_id, steps, window)
    runs = await harness.runs(thread_id)
    status = await harness.wait_until(thread_id, lambda _: True)
    report.series.append(_build_table(windows))
    add_runs(report, runs)
    add_growth(report, windows)
    report.add("state, largest sample", max(w.state_bytes for w in windows), "bytes", most=_STATE)
    report.add("samples of it", sum(w.samples for w in windows))
    report.add(
        "pages in the journal, each once and in order",
        await count_ordered_pages(harness, thread_id, status),
        f"of {steps}",
        least=steps,
        most=steps,
    )
    report.add("steps/s", steps / sum(w.seconds for w in windows))
    return report


_STATE: Final = limits.STATE_BYTES_MAX


def add_runs(report: Report, runs: list[Run]) -> None:
    """Add the sizes of the runs. Each must be within its policy."""
    policy = Policy()
    states = [transitions.measure_state(run.start.state) for run in runs]
    report.add("runs", len(runs), least=2)
    report.add(
        "events of the longest run",
        max(len(run.events) for run in runs),
        most=policy.run_events_max + EVENTS_OVER_MAX,
    )
    report.add(
        "history of the largest run",
        max(run.history_bytes for run in runs),
        "bytes",
        most=policy.run_history_bytes_max,
    )
    report.add("state at the start of a run, largest", max(states), "bytes", most=_STATE)


def add_growth(report: Report, windows: list[Window]) -> None:
    """Compare the last window with the second."""
    early, late = windows[1], windows[-1]
    for what, name in (("history", "history_bytes"), ("written", "written_bytes")):
        for each in (early, late):
            last = each.first + each.steps - 1
            a_step = getattr(each, name) / each.steps
            report.add(f"{what} a step, steps {each.first:,} to {last:,}", a_step, "bytes")
        report.add(
            f"{what} a step, last over early",
            getattr(late, name) / getattr(early, name),
            "times",
            most=GROWTH_MAX,
        )


def _build_table(windows: list[Window]) -> Series:
    rows: list[tuple[Cell, ...]] = [
        (
            window.first + window.steps - 1,
            window.history_bytes / window.steps,
            window.written_bytes / window.steps,
            window.state_bytes,
            window.context_bytes,
            window.compactions,
            window.steps / window.seconds,
        )
        for window in windows
    ]
    columns = (
        "to step",
        "history a step",
        "written a step",
        "state, most",
        "context, most",
        "compactions",
        "steps/s",
    )
    return Series(f"Every {windows[0].steps} steps, in bytes", columns, rows)
