"""Clocks. Two things that are compared are timed in turns, so that both meet the same neighbours."""

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
    """Compress with zstd at level 3, its default: what everything is compared with."""
    return _ZSTD.compress(data)


def decompress(frame: bytes) -> bytes:
    """Undo `compress`."""
    return _UNZSTD.decompress(frame)


@dataclasses.dataclass(frozen=True)
class Pair:
    """Seconds that two things took, one value for each repetition."""

    ours: Sequence[float]
    theirs: Sequence[float]

    @property
    def ours_median(self) -> float:
        """The median of the first thing."""
        return statistics.median(self.ours)

    @property
    def theirs_median(self) -> float:
        """The median of the second thing."""
        return statistics.median(self.theirs)

    @property
    def share(self) -> float:
        """The median of the first as a share of the median of the second."""
        return self.ours_median / self.theirs_median

    @property
    def share_fastest(self) -> float:
        """The same of the fastest of each: what neighbours on the machine disturb least."""
        return min(self.ours) / min(self.theirs)


async def in_turns(
    turns: range,
    ours: Callable[[int], Awaitable[object]],
    theirs: Callable[[int], object],
    *,
    prepare: Callable[[int], object] = lambda _turn: None,
) -> Pair:
    """Time two things in turns; in the odd ones the second goes first. `prepare` is not timed."""
    ours_seconds: list[float] = []
    theirs_seconds: list[float] = []
    gc.collect()
    for turn in turns:
        prepare(turn)
        if turn % 2:
            theirs_seconds.append(_seconds(theirs, turn))
        started = time.perf_counter()
        await ours(turn)
        ours_seconds.append(time.perf_counter() - started)
        if not turn % 2:
            theirs_seconds.append(_seconds(theirs, turn))
    return Pair(ours_seconds, theirs_seconds)


def _seconds(what: Callable[[int], object], turn: int) -> float:
    started = time.perf_counter()
    what(turn)
    return time.perf_counter() - started


class Stalls:
    """How long the event loop did not get to a task that only sleeps: the longest time of each watch."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Watch the event loop while the body runs."""
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
        """Beat until cancelled: that is its only end."""
        while True:
            started = time.perf_counter()
            await asyncio.sleep(_BEAT_SECONDS)
            late = time.perf_counter() - started - _BEAT_SECONDS
            self.seconds[-1] = max(self.seconds[-1], late)
