"""What the demo measured, and whether it is true."""

import dataclasses
import signal
from collections.abc import Sequence
from typing import Final

from pydantic import TypeAdapter
from rich.table import Table

from everlong.admin.format import bytes_text
from everlong.demo.agent import STEPS
from everlong.models import Decided, Message, ThreadStatus

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
    """What the thread's journal holds."""
    history_bytes: int
    blob_bytes: int
    context_bytes: int
    """What the model calls read, all together."""
    compactions: int
    decisions: Sequence[Decided]
    """What the journal says about the call that needed approval."""
    by_person: bool
    """Whether somebody at the terminal could decide; otherwise the demo did."""
    runaway: ThreadStatus
    """How the thread ended that would not end."""
    runs: int
    steps_at_kill: int
    killed_returncode: int | None
    resume_ms: float
    """Length of the resume span: from the task's start to the first new command."""
    resume_events: int
    outage_seconds: float
    """From the kill until the thread was resumed, by a clock outside."""

    @property
    def naive_bytes(self) -> int:
        """What a loop would have sent that passes the message list to every model call."""
        return naive_bytes(self.conversation)

    @property
    def saving(self) -> float:
        """How many times less was kept than a naive loop sends."""
        return self.naive_bytes / max(1, self.history_bytes + self.blob_bytes)


def naive_bytes(conversation: Sequence[Message]) -> int:
    """Return what a loop sends that passes the message list to every model call."""
    total = before = 0
    for message in conversation:
        if message.role == "assistant":
            total += before
        before += len(_MESSAGE.dump_json(message))
    return total


def false_claims(report: Report, expected: Sequence[Message]) -> list[str]:
    """Check everything that the demo shows; return what does not hold, in words."""
    naive = naive_bytes(expected)
    claims = {
        f"the journal holds {len(expected)} messages": len(report.conversation) == len(expected),
        "every message is the expected one, in order": list(report.conversation) == list(expected),
        "models read less than a naive loop sends": 0 < report.context_bytes < naive / 2,
        "the context was compacted": report.compactions > 0,
        "one call was decided, once": len(report.decisions) == 1,
        "the demo approved it, if nobody else was asked": report.by_person
        or all(each.approve and each.by == APPROVER for each in report.decisions),
        "the runaway was stopped by its policy": report.runaway.status == "stopped"
        and report.runaway.ended is not None
        and report.runaway.ended.limit == RUNAWAY_LIMIT,
        f"it had not taken {RUNAWAY_STEPS_MAX} steps": (
            0 < report.runaway.counters.steps < RUNAWAY_STEPS_MAX
        ),
        f"less is kept by {SAVING_MIN:.0f} times at least": report.saving >= SAVING_MIN,
        "blobs hold something": report.blob_bytes > 0,
        "the thread continued as new at least once": report.runs >= 2,
        "the worker was killed by SIGKILL": report.killed_returncode == -signal.SIGKILL,
        "it was killed before the end": 0 < report.steps_at_kill < STEPS,
        "a new worker replayed the thread": report.resume_events > 0,
        "the resume is a part of the outage": report.resume_ms < report.outage_seconds * 1000,
        f"the resume took less than {RESUME_MS_MAX:.0f} ms": 0 < report.resume_ms < RESUME_MS_MAX,
    }
    return [claim for claim, holds in claims.items() if not holds]


def table(report: Report) -> Table:
    """Return the demo's one table."""
    view = Table(title=f"One thread, {STEPS} steps, tool results of 2 KiB to 512 KiB")
    view.add_column("what")
    view.add_column("figure", justify="right")
    view.add_column("meaning")
    view.add_row("history", bytes_text(report.history_bytes), "what Temporal keeps, over all runs")
    view.add_row("blobs", bytes_text(report.blob_bytes), "what the store keeps, compressed")
    view.add_row(
        "naive loop",
        bytes_text(report.naive_bytes),
        f"the message list sent with every model call: {report.saving:.0f} times as much",
    )
    view.add_row(
        "context",
        bytes_text(report.context_bytes),
        f"what {STEPS + 2} model calls read, all together: {report.compactions} compactions",
    )
    view.add_row("runs", str(report.runs), "continue-as-new by size policy, state carried over")
    view.add_row(
        "resume",
        f"{report.resume_ms:.0f} ms",
        f"a new worker replayed {report.resume_events} events and went on",
    )
    view.add_row(
        "outage",
        f"{report.outage_seconds:.1f} s",
        f"from SIGKILL at step {report.steps_at_kill} to there: to notice it, and to start a worker",
    )
    for decided in report.decisions:
        outcome = "ran once" if decided.approve else "did not run"
        view.add_row("approval", decided.by, f"restart waited for a person, and {outcome}")
    ended = report.runaway.ended
    view.add_row(
        "runaway",
        f"{report.runaway.counters.steps} steps",
        f"a second thread, stopped by its policy: {ended.reason if ended else 'no reason'}",
    )
    return view
