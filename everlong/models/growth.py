"""Growth: how many bytes a thread stores in an hour. The only definition of it.

The metric `everlong.thread.growth`, the search attribute `EverlongGrowthBytesPerHour`, the lists, the
pages and the gauge `everlong.threads.growth` all call `growth_per_hour`. They may differ only by when
they call it, and by how old the size is that they know.
"""

from collections.abc import Sequence
from typing import Final

_HOUR_MS: Final = 3_600_000
_WINDOW_MS_MIN: Final = 600_000
"""Ten minutes. A young thread's first 10 KB in 5 s are not 7 MB an hour."""


def growth_per_hour(
    trend: Sequence[tuple[int, int]], stored_bytes: int, now_ms: int, *, rested: bool
) -> float:
    """Return the bytes stored in an hour, given samples (Unix milliseconds, bytes), oldest first.

    It is counted from the newest sample that is an hour old, or from the oldest sample of a younger
    thread, and over ten minutes at least. It is 0 at rest, and before the first sample.
    """
    if rested or not trend:
        return 0.0
    since_ms, since_bytes = trend[0]
    for ms, size_bytes in reversed(trend):
        if now_ms - ms >= _HOUR_MS:
            since_ms, since_bytes = ms, size_bytes
            break
    elapsed_ms = max(now_ms - since_ms, _WINDOW_MS_MIN)
    return round(max(0, stored_bytes - since_bytes) * _HOUR_MS / elapsed_ms, 1)
