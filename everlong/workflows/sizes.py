"""When a thread publishes its size: pure functions of its state.

Publishing writes a card, which is a memo, and search attributes: two events. So a thread publishes when
it has grown by a quarter, and by 64 KiB at least, or made a quarter more steps; when it has grown at all
and an hour has passed; when it waits after a step, or has compacted; when it comes to rest, or ends; and
when a resume takes half or double of what the last did.
"""

from typing import Final

from everlong import limits
from everlong.models import PublishedSize, ThreadState, growth_per_hour

_GROWN: Final = 1.25
# Up to 4 GiB that is some 55 cards in all.
_GROWN_BYTES_MIN: Final = 64 * limits.KIB
_GROWN_STEPS_MIN: Final = 8
_HOUR_MS: Final = 3_600_000


def growth(state: ThreadState, now_ms: int) -> float:
    """Return the thread's growth in bytes per hour, as `growth_per_hour` defines it."""
    return growth_per_hour(state.trend, state.counters.written_bytes, now_ms, rested=state.rested)


def is_due(state: ThreadState, now_ms: int, *, waits: bool) -> bool:
    """Whether what the thread last published has become untrue enough."""
    last = state.published_size
    size_bytes, steps = state.counters.written_bytes, state.counters.steps
    if last is None:
        return size_bytes > 0
    if state.rested and not last.rested:
        return True
    if waits and (steps > last.steps or state.context_bytes != last.context_bytes):
        return True
    if size_bytes > last.thread_bytes and (state.stopping or now_ms - last.ms >= _HOUR_MS):
        return True
    return _has_grown(state, last) or _has_other_resumes(state, last)


def _has_grown(state: ThreadState, last: PublishedSize) -> bool:
    size_bytes, steps = state.counters.written_bytes, state.counters.steps
    return steps >= max(last.steps * _GROWN, last.steps + _GROWN_STEPS_MIN) or size_bytes >= max(
        last.thread_bytes * _GROWN, last.thread_bytes + _GROWN_BYTES_MIN
    )


def _has_other_resumes(state: ThreadState, last: PublishedSize) -> bool:
    slower = state.resume_ms > 2 * last.resume_ms
    return slower or 0 < state.resume_ms < last.resume_ms / 2


def trend(state: ThreadState, now_ms: int) -> tuple[tuple[int, int], ...]:
    """Return sizes that were published, with the one that is now: of the thread's whole life.

    Where there are too many, the one goes whose neighbours are closest for its age. So there is always
    one of some hours ago, and one of some days, however long the life is.
    """
    samples = (*state.trend, (now_ms, state.counters.written_bytes))
    if len(samples) <= limits.TREND_MAX:
        return samples
    inner = range(1, len(samples) - 1)
    ages = [max(1, now_ms - ms) for ms, _ in samples]
    crowded = min(inner, key=lambda at: (ages[at - 1] - ages[at + 1]) / ages[at])
    return samples[:crowded] + samples[crowded + 1 :]


def published(state: ThreadState, now_ms: int) -> PublishedSize:
    """Return what to remember of a size that is published now."""
    return PublishedSize(
        ms=now_ms,
        thread_bytes=state.counters.written_bytes,
        context_bytes=state.context_bytes,
        steps=state.counters.steps,
        resume_ms=state.resume_ms,
        rested=state.rested,
    )
