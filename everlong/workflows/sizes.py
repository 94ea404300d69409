"""When a thread's size is worth telling: pure functions of its state.

An upsert of search attributes is an event. So there is one when a thread has grown by a quarter, and by
1 MiB at least; when it has grown at all and an hour has passed; when it comes to rest; and when a resume
takes half or double of what the last did.
"""

from typing import Final

from everlong import limits
from everlong.models import PublishedSize, ThreadState

_GROWN: Final = 1.25
_GROWN_BYTES_MIN: Final = limits.MIB
_HOUR_MS: Final = 3_600_000
# Over less than this, a rate says little.
_WINDOW_MS_MIN: Final = 60_000


def growth(state: ThreadState, now_ms: int) -> float:
    """Return what the thread stores an hour, since its size was last looked at.

    It is 0 at rest, and as long as there is nothing to compare with.
    """
    last = state.published_size
    if state.rested or last is None:
        return 0.0
    elapsed_ms = max(now_ms - last.ms, _WINDOW_MS_MIN)
    grown_bytes = max(0, state.counters.written_bytes - last.thread_bytes)
    return round(grown_bytes * _HOUR_MS / elapsed_ms, 1)


def is_due(state: ThreadState, now_ms: int) -> bool:
    """Whether what was published of a thread's size has become untrue enough."""
    size_bytes = state.counters.written_bytes
    last = state.published_size
    if last is None:
        return size_bytes > 0
    if state.rested and not last.rested:
        return True
    if size_bytes > last.thread_bytes and now_ms - last.ms >= _HOUR_MS:
        return True
    enough_bytes = max(last.thread_bytes * _GROWN, last.thread_bytes + _GROWN_BYTES_MIN)
    if size_bytes >= enough_bytes:
        return True
    slower = state.resume_ms > 2 * last.resume_ms
    return slower or 0 < state.resume_ms < last.resume_ms / 2


def published(state: ThreadState, now_ms: int) -> PublishedSize:
    """Return what to remember of a size that is published now."""
    return PublishedSize(
        ms=now_ms,
        thread_bytes=state.counters.written_bytes,
        resume_ms=state.resume_ms,
        rested=state.rested,
    )
