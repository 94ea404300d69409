"""Deadlines of the calls that wait for people: approvals and unknown outcomes."""

from datetime import timedelta

from everlong.models import ThreadState
from everlong.workflows import approvals, outcomes


def count_waiting(state: ThreadState) -> int:
    """Return the number of calls that wait for people."""
    return sum(call.waits is not None or call.unknown is not None for call in state.calls)


def find_oldest_ms(state: ThreadState) -> int | None:
    """Return the time since which the oldest of them waits; None if no call waits."""
    times = [each.asked_ms for call in state.calls if (each := call.waits or call.unknown)]
    return min(times, default=None)


def get_time_to_deadline(state: ThreadState, time_ms: int) -> timedelta | None:
    """Return the time until the first of them is overdue; None without deadlines."""
    waiting = [each for call in state.calls if (each := call.waits or call.unknown)]
    deadlines = [each.deadline_ms for each in waiting if each.deadline_ms is not None]
    return timedelta(milliseconds=max(0, min(deadlines) - time_ms)) if deadlines else None


def apply_deadlines(state: ThreadState, time_ms: int) -> ThreadState:
    """Apply the deadlines that have passed."""
    return outcomes.apply_deadlines(approvals.apply_deadlines(state, time_ms), time_ms)
