"""Heartbeats that need no help from the code they cover."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from temporalio import activity

from everlong import limits


@contextlib.asynccontextmanager
async def heartbeating() -> AsyncIterator[None]:
    """Heartbeat while the body runs, so that a killed worker is noticed within seconds."""
    beats = asyncio.create_task(_beat())
    try:
        yield
    finally:
        beats.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beats


async def _beat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(limits.HEARTBEAT_SECONDS / 3)
