"""A budget of bytes that the work of one process shares: a semaphore that counts bytes.

Each piece of work reserves once, before it begins, and waits for nothing else of the same budget while
it holds its share. So no two of them can wait for each other.
"""

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator


class ByteBudget:
    """Bytes that work under way may take together. Those who wait are served in order."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.taken_bytes = 0
        self._waiting: collections.deque[tuple[int, asyncio.Future[None]]] = collections.deque()

    @contextlib.asynccontextmanager
    async def reserve(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold a share meanwhile. What is larger than the whole budget takes all of it, alone."""
        share = min(size_bytes, self.bytes_max)
        await self._take(share)
        try:
            yield
        finally:
            self.taken_bytes -= share
            self._serve()

    async def _take(self, share: int) -> None:
        if not self._waiting and self.taken_bytes + share <= self.bytes_max:
            self.taken_bytes += share
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((share, place))
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # Served and cancelled at the same time.
                self.taken_bytes -= share
            self._serve()
            raise

    def _serve(self) -> None:
        while self._waiting:
            share, place = self._waiting[0]
            if place.done():  # Cancelled while it waited.
                self._waiting.popleft()
                continue
            if self.taken_bytes + share > self.bytes_max:
                return
            self._waiting.popleft()
            self.taken_bytes += share
            place.set_result(None)
