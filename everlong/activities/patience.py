"""Waiting for a store that is down, without doing again what has been done."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio import activity

from everlong import limits
from everlong.errors import StoreUnavailable

T = TypeVar("T")


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Do work on the store; while that is unavailable, try again for a bounded time."""
    deadline = time.monotonic() + limits.STORE_SECONDS_MAX
    pause_seconds = 0.1
    while True:
        try:
            return await work()
        except StoreUnavailable as error:
            if time.monotonic() > deadline:
                raise
            activity.logger.warning("waiting for the blob store: %s", error)
        # Jitter, so that many activities do not come back to a store at the same moment.
        await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311
        pause_seconds = min(2 * pause_seconds, limits.STORE_RETRY_SECONDS_MAX)
