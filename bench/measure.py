"""Timers. Two candidates are timed in turns, so that other load on the machine affects both alike."""

import asyncio
import contextlib
import dataclasses
import gc
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

import zstandard

_ZSTD: Final = zstandard.ZstdCompressor(level=3)
_UNZSTD: Final = zstandard.ZstdDecompressor()
_BEAT_SECONDS: Final = 0.002


def compress(data: bytes) -> bytes:
    """Compress with zstd at level 3, its default: the baseline of all comparisons."""
    return _ZSTD.compress(data)


def decompress(frame: bytes) -> bytes:
    """Undo `compress`."""
    return _UNZSTD.decompress(frame)


@dataclasses.dataclass(frozen=True)
class Pair:
    """Durations of two candidates in seconds, one value for each repetition."""

    ours: Sequence[float]
    theirs: Sequence[float]

    @property
    def ours_median(self) -> float:
        """The median of the first candidate."""
        return statistics.median(self.ours)

    @property
    def theirs_median(self) -> float:
        """The median of the second candidate."""
        return statistics.median(self.theirs)

    @property
    def share(self) -> float:
        """Ratio of the first median to the second."""
        return self.ours_median / self.theirs_median

    @property
    def share_fastest(self) -> float:
        """Ratio of the fastest values, which other load disturbs least."""
        return min(self.ours) / min(self.theirs)


async def time_in_turns(
    turns: range,
    ours: Callable[[int], Awaitable[object]],
    theirs: Callable[[int], object],
    *,
    prepare: Callable[[int], object] = lambda _turn: None,
) -> Pair:
    """Time two candidates in turns; in odd turns the second goes first. `prepare` is not timed."""
    ours_seconds: list[float] = []
    theirs_seconds: list[float] = []
    gc.collect()
    for turn in turns:
        prepare(turn)
        if turn % 2:
            theirs_seconds.append(_time(theirs, turn))
        started = time.perf_counter()
        await ours(turn)
        ours_seconds.append(time.perf_counter() - started)
        if not turn % 2:
            theirs_seconds.append(_time(theirs, turn))
    return Pair(ours_seconds, theirs_seconds)


def _time(what: Callable[[int], object], turn: int) -> float:
    started = time.perf_counter()
    what(turn)
    return time.perf_counter() - started


class Stalls:
    """Stalls of the event loop: the longest delay of a sleeping task in each watch."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Measure stalls while the body runs."""
        self.seconds.append(0.0)
        task = asyncio.create_task(self._beat())
        await asyncio.sleep(0)
        try:
            yield
            await asyncio.sleep(_BEAT_SECONDS)  # One more beat, to notice a stall at the very end.
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _beat(self) -> None:
        """Sleep in a loop until cancelled, and record delays."""
        while True:
            started = time.perf_counter()
            await asyncio.sleep(_BEAT_SECONDS)
            late = time.perf_counter() - started - _BEAT_SECONDS
            self.seconds[-1] = max(self.seconds[-1], late)
