"""Heartbeats, and patience with the store.

The server notices a killed worker by missing heartbeats. They run beside the code that they cover and
need no help from it. Each is a billed action, so an activity that ends within half of the heartbeat
timeout sends none.

A fault of the store, or bytes that are missing, hold a thread: its activity waits, its heartbeats say
for what, and it goes on by itself once that is mended. One that has done nothing yet gives up its
place after a while and is tried again; one that has run a tool waits on, and does not run it again.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
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

_REPAIRABLE = (StoreUnavailable, BlobMissing, BlobCorrupt, KeyMissing, RefRefused, UnknownVersion)


class Heartbeat:
    """The heartbeats of one activity, and what it waits for."""

    def __init__(self, held: Callable[[str], None], interval_seconds: float) -> None:
        self._held = held
        self._held_by = ""
        self._interval_seconds = interval_seconds
        self._timer: asyncio.TimerHandle | None = None

    async def retry_or_hold(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do work on the store before anything else was done; fail as held if it cannot be."""
        try:
            return await self._retry(work, limits.HOLD_SECONDS_MAX)
        except _REPAIRABLE as error:
            raise build_held_error(f"{type(error).__name__}: {error}") from None

    async def retry_until_timeout(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do work on the store that must not be lost: as long as the activity may run."""
        return await self._retry(work, limits.ACTIVITY_SECONDS_MAX)

    async def _retry(self, work: Callable[[], Awaitable[T]], seconds_max: float) -> T:
        deadline = time.monotonic() + seconds_max
        pause_seconds = 0.1
        try:
            while True:
                try:
                    return await work()
                except _REPAIRABLE as error:
                    if time.monotonic() > deadline:
                        raise
                    held_by = f"held by {type(error).__name__}: {error}"
                    activity.logger.warning(held_by)
                    self._held(type(error).__name__)
                    self._set_hold(held_by)
                # Jitter, so that many activities do not come back at the same moment.
                await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311
                pause_seconds = min(2 * pause_seconds, limits.STORE_RETRY_SECONDS_MAX)
        finally:
            self._set_hold("")

    def start(self) -> None:
        """Heartbeat until stopped, for the first time after one interval."""
        # A timer, and no task: most activities end before the first heartbeat.
        self._timer = asyncio.get_running_loop().call_later(self._interval_seconds, self._beat)

    def stop(self) -> None:
        """Send no more heartbeats."""
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        self.start()
        self._heartbeat()

    def _set_hold(self, held_by: str) -> None:
        """Heartbeat at once if what the activity waits for has changed.

        The SDK delays it if another heartbeat was sent within the last 80% of the timeout.
        """
        if held_by != self._held_by:
            self._held_by = held_by
            self._heartbeat()

    def _heartbeat(self) -> None:
        """Heartbeat. The details are what Temporal shows of a pending activity."""
        activity.heartbeat(*([self._held_by] if self._held_by else []))


def build_held_error(reason: str) -> ApplicationError:
    """Return the failure upon which the workflow waits and tries again, without end."""
    return ApplicationError(
        printable(reason, limits.HELD_REASON_CHARS_MAX), type=HELD, non_retryable=True
    )


@contextlib.asynccontextmanager
async def heartbeat(held: Callable[[str], None]) -> AsyncIterator[Heartbeat]:
    """Heartbeat while the body runs. `held` is told what it has to wait for, each time."""
    timeout = activity.info().heartbeat_timeout or timedelta(seconds=limits.HEARTBEAT_SECONDS)
    beat = Heartbeat(held, timeout.total_seconds() / limits.HEARTBEATS_IN_TIMEOUT)
    beat.start()
    try:
        yield beat
    finally:
        beat.stop()
