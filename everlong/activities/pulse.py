"""Heartbeats, and patience with the store.

A killed worker is noticed by its heartbeats, which need no help from the code that they cover. A
fault of the store, or bytes that are missing, hold a thread: its activity waits, its heartbeats say
for what, and it goes on by itself once that is mended. One that has done nothing yet gives up its
place after a while and is tried again; one that has run a tool waits on, and does not run it again.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from everlong import limits
from everlong.errors import (
    BlobCorrupt,
    BlobMissing,
    KeyMissing,
    RefRefused,
    StoreUnavailable,
    UnknownVersion,
)
from everlong.models import HELD, printable

T = TypeVar("T")

_MENDABLE = (StoreUnavailable, BlobMissing, BlobCorrupt, KeyMissing, RefRefused, UnknownVersion)


class Pulse:
    """The heartbeats of one activity, and what it waits for."""

    def __init__(self, held: Callable[[str], None]) -> None:
        self._held = held
        self._held_by = ""

    async def briefly(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do work on the store before anything else was done; fail as held if it cannot be."""
        try:
            return await self._retried(work, limits.HOLD_SECONDS_MAX)
        except _MENDABLE as error:
            raise held(f"{type(error).__name__}: {error}") from None

    async def patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do work on the store that must not be lost: as long as the activity may run."""
        return await self._retried(work, limits.ACTIVITY_SECONDS_MAX)

    async def _retried(self, work: Callable[[], Awaitable[T]], seconds_max: float) -> T:
        deadline = time.monotonic() + seconds_max
        pause_seconds = 0.1
        try:
            while True:
                try:
                    return await work()
                except _MENDABLE as error:
                    if time.monotonic() > deadline:
                        raise
                    self._held_by = f"held by {type(error).__name__}: {error}"
                    activity.logger.warning(self._held_by)
                    self._held(type(error).__name__)
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


def held(reason: str) -> ApplicationError:
    """Return the failure upon which the workflow waits and tries again, without end."""
    return ApplicationError(
        printable(reason, limits.HELD_REASON_CHARS_MAX), type=HELD, non_retryable=True
    )


@contextlib.asynccontextmanager
async def pulse(held: Callable[[str], None]) -> AsyncIterator[Pulse]:
    """Heartbeat while the body runs. `held` is told what it has to wait for, each time."""
    living = Pulse(held)
    beats = asyncio.create_task(living.beat())
    try:
        yield living
    finally:
        beats.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beats
