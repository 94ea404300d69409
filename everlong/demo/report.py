"""The demo's report: its figures, the checks that they have to pass, and the table."""

import dataclasses
import signal
from collections.abc import Sequence
from typing import Final

from pydantic import TypeAdapter
from rich.table import Table

from everlong.demo.agent import STEPS
from everlong.format import format_bytes, format_count
from everlong.models import Decision, Message, Status, ThreadStatus

SAVING_MIN: Final = 10.0
RESUME_MS_MAX: Final = 5000.0
APPROVER: Final = "demo"
RUNAWAY_LIMIT: Final = "no_progress_steps_max"
RUNAWAY_STEPS_MAX: Final = 20
_MESSAGE = TypeAdapter(Message)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The figures of one demo."""

    conversation: Sequence[Message]
    """The messages in the thread's journal."""
    history_bytes: int
    blob_bytes: int
    context_bytes: int
    """Bytes that all model calls have read."""
    compactions: int
    decisions: Sequence[Decision]
    """The journal's decisions on the call that needed approval."""
    by_person: bool
    """Whether a user at the terminal could decide; otherwise the demo did."""
    runaway: ThreadStatus
    """The final status of the runaway thread."""
    runs: int
    steps_at_kill: int
    killed_returncode: int | None
    resume_ms: float
    """Duration of the resume span: from the task's start to the first new command."""
    resume_events: int
    outage_seconds: float
    """Seconds from the kill until the thread was resumed, measured outside the worker."""

    @property
    def naive_bytes(self) -> int:
        """Bytes that a loop would have sent if it passed the message list to every model call."""
        return naive_bytes(self.conversation)

    @property
    def saving(self) -> float:
        """Ratio of the bytes that a naive loop sends to the bytes that were kept."""
        return self.naive_bytes / max(1, self.history_bytes + self.blob_bytes)


def naive_bytes(conversation: Sequence[Message]) -> int:
    """Return the bytes that a loop sends if it passes the message list to every model call."""
    total = before = 0
    for message in conversation:
        if message.role == "assistant":
            total += before
        before += len(_MESSAGE.dump_json(message))
    return total


def find_false_claims(report: Report, expected: Sequence[Message]) -> list[str]:
    """Check every claim of the demo; return those that do not hold."""
    naive = naive_bytes(expected)
    claims = {
        f"the journal holds {len(expected)} messages": len(report.conversation) == len(expected),
        "every message is the expected one, in order": list(report.conversation) == list(expected),
        "models read less than a naive loop sends": 0 < report.context_bytes < naive / 2,
        "the context was compacted": report.compactions > 0,
        "one call was decided, once": len(report.decisions) == 1,
        "without a user at the terminal, the demo approved it": report.by_person
        or all(each.approve and each.by == APPROVER for each in report.decisions),
        "the runaway was stopped by its policy": report.runaway.status == Status.DONE
        and report.runaway.ended is not None
        and report.runaway.ended.limit == RUNAWAY_LIMIT,
        f"the runaway took fewer than {RUNAWAY_STEPS_MAX} steps": (
            0 < report.runaway.counters.steps < RUNAWAY_STEPS_MAX
        ),
        f"at least {SAVING_MIN:.0f} times fewer bytes are kept": report.saving >= SAVING_MIN,
        "the store holds blobs": report.blob_bytes > 0,
        "the thread continued as new at least once": report.runs >= 2,
        "the worker was killed by SIGKILL": report.killed_returncode == -signal.SIGKILL,
        "the worker was killed before the end": 0 < report.steps_at_kill < STEPS,
        "a new worker replayed the thread": report.resume_events > 0,
        "the resume is shorter than the outage": report.resume_ms < report.outage_seconds * 1000,
        f"the resume took less than {RESUME_MS_MAX:.0f} ms": 0 < report.resume_ms < RESUME_MS_MAX,
    }
    return [claim for claim, holds in claims.items() if not holds]


def make_table(report: Report) -> Table:
    """Return the demo's table."""
    view = Table(title=f"One thread, {STEPS} steps, tool results of 2 KiB to 512 KiB")
    view.add_column("what")
    view.add_column("figure", justify="right")
    view.add_column("meaning")
    view.add_row("history", format_bytes(report.history_bytes), "kept by Temporal, over all runs")
    view.add_row("blobs", format_bytes(report.blob_bytes), "kept by the store, compressed")
    view.add_row(
        "naive loop",
        format_bytes(report.naive_bytes),
        f"the message list sent with every model call: {report.saving:.0f} times as much",
    )
    view.add_row(
        "context",
        format_bytes(report.context_bytes),
        f"read by {STEPS + 2} model calls in total: {format_count(report.compactions, 'compaction')}",
    )
    view.add_row("runs", str(report.runs), "continue-as-new by size policy, state carried over")
    view.add_row(
        "resume",
        f"{report.resume_ms:.0f} ms",
        f"a new worker replayed {report.resume_events} events and continued",
    )
    view.add_row(
        "outage",
        f"{report.outage_seconds:.1f} s",
        f"from SIGKILL at step {report.steps_at_kill} to the resume: detection, start of a worker",
    )
    for decided in report.decisions:
        outcome = "ran once" if decided.approve else "did not run"
        view.add_row("approval", decided.by, f"restart waited for approval, and {outcome}")
    ended = report.runaway.ended
    view.add_row(
        "runaway",
        f"{report.runaway.counters.steps} steps",
        f"a second thread, stopped by its policy: {ended.reason if ended else 'no reason'}",
    )
    return view
