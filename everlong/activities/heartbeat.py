"""Heartbeats of activities, and retries while the store is unavailable.

The server detects a killed worker by missing heartbeats. A timer sends them while the activity runs.
Each is a billed action, so an activity that ends within half of the heartbeat timeout sends none.

A store fault or a missing object holds a thread: the activity retries, its heartbeats carry the reason,
and it continues once the store is repaired. An activity that has had no effect yet gives up its slot
after a while, and the workflow schedules it again. One that has run a tool keeps retrying: it must not
run the tool again.
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
from everlong.activities.call_status import signal_status
from everlong.errors import (
    BlobCorrupt,
    BlobMissing,
    KeyMissing,
    RefRefused,
    StoreUnavailable,
    UnknownVersion,
)
from everlong.models import HELD, Status, make_printable

T = TypeVar("T")

_REPAIRABLE = (StoreUnavailable, BlobMissing, BlobCorrupt, KeyMissing, RefRefused, UnknownVersion)


class Heartbeat:
    """Sends the heartbeats of one activity, and retries its store calls."""

    def __init__(self, held: Callable[[str], None], interval_seconds: float) -> None:
        self._held = held
        self._held_by = ""
        self._interval_seconds = interval_seconds
        self._timer: asyncio.TimerHandle | None = None

    async def retry_or_hold(self, work: Callable[[], Awaitable[T]]) -> T:
        """Retry store work of an activity without effects so far; fail as held after a while."""
        try:
            return await self._retry(work, limits.HOLD_SECONDS_MAX, signals=False)
        except _REPAIRABLE as error:
            raise build_held_error(f"{type(error).__name__}: {error}") from None

    async def retry_until_timeout(self, work: Callable[[], Awaitable[T]]) -> T:
        """Retry store work whose loss would repeat an effect, for as long as the activity may run."""
        return await self._retry(work, limits.ACTIVITY_SECONDS_MAX, signals=True)

    async def _retry(
        self, work: Callable[[], Awaitable[T]], seconds_max: float, *, signals: bool
    ) -> T:
        """Retry store work. With `signals`, signal the thread once that this lasts."""
        begun = time.monotonic()
        deadline, signal_at = begun + seconds_max, begun + limits.HOLD_SECONDS_MAX
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
                    if signals and time.monotonic() > signal_at:
                        signals = False
                        await signal_status(Status.HELD, held_by)
                # Jitter, so that many activities do not retry at the same moment.
                await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311
                pause_seconds = min(2 * pause_seconds, limits.STORE_RETRY_SECONDS_MAX)
        finally:
            self._set_hold("")

    def start(self) -> None:
        """Schedule the first heartbeat, one interval from now, and all that follow until `stop`."""
        # A timer costs less than a task, and most activities end before the first heartbeat.
        self._timer = asyncio.get_running_loop().call_later(self._interval_seconds, self._beat)

    def stop(self) -> None:
        """Stop sending heartbeats."""
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        self.start()
        self._heartbeat()

    def _set_hold(self, held_by: str) -> None:
        """Set the reason for a hold, and send it at once if it has changed.

        The SDK delays a heartbeat if another was sent within the last 80% of the timeout.
        """
        if held_by != self._held_by:
            self._held_by = held_by
            self._heartbeat()

    def _heartbeat(self) -> None:
        """Send a heartbeat. Temporal shows its details with the pending activity."""
        activity.heartbeat(*([self._held_by] if self._held_by else []))


def build_held_error(reason: str) -> ApplicationError:
    """Return the failure that makes the workflow wait and schedule the activity again, without limit."""
    return ApplicationError(
        make_printable(reason, limits.HELD_REASON_CHARS_MAX), type=HELD, non_retryable=True
    )


@contextlib.asynccontextmanager
async def heartbeat(held: Callable[[str], None]) -> AsyncIterator[Heartbeat]:
    """Send heartbeats while the body runs. `held` is called with the error's name at each retry."""
    timeout = activity.info().heartbeat_timeout or timedelta(seconds=limits.HEARTBEAT_SECONDS)
    beat = Heartbeat(held, timeout.total_seconds() / limits.HEARTBEATS_IN_TIMEOUT)
    beat.start()
    try:
        yield beat
    finally:
        beat.stop()
