"""Heartbeats, and patience with the store.

A killed worker is noticed by its heartbeats, which need no help from the code that they cover. A
fault of the store, or bytes that are missing, hold a thread here: in an activity whose heartbeats
say what it waits for, and which goes on by itself once that is mended. What it has done already,
such as a tool's effects, is not done again.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from temporalio import activity

from everlong import limits
from everlong.errors import BlobCorrupt, BlobMissing, StoreUnavailable, UnknownVersion

T = TypeVar("T")

_MENDABLE = (StoreUnavailable, BlobMissing, BlobCorrupt, UnknownVersion)


class Pulse:
    """The heartbeats of one activity, and what it waits for."""

    def __init__(self) -> None:
        self._held_by = ""

    async def patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do work on the store; while it fails in a way that can be mended, try again."""
        pause_seconds = 0.1
        try:
            while True:
                try:
                    return await work()
                except _MENDABLE as error:
                    self._held_by = f"held by {type(error).__name__}: {error}"
                    activity.logger.warning(self._held_by)
                # Jitter, so that many activities do not come back at the same moment.
                await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311
                pause_seconds = min(2 * pause_seconds, limits.STORE_RETRY_SECONDS_MAX)
        finally:
            self._held_by = ""

    async def beat(self) -> None:
        """Heartbeat until cancelled. The details are what Temporal shows of a pending activity."""
        while True:
            activity.heartbeat(*([self._held_by] if self._held_by else []))
            await asyncio.sleep(limits.HEARTBEAT_SECONDS / 3)


@contextlib.asynccontextmanager
async def pulse() -> AsyncIterator[Pulse]:
    """Heartbeat while the body runs."""
    living = Pulse()
    beats = asyncio.create_task(living.beat())
    try:
        yield living
    finally:
        beats.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beats
