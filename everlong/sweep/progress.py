"""Waiting for what takes long: saying meanwhile that it does, and not leaving before it has ended."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from everlong import limits

T = TypeVar("T")


async def with_progress(work: Awaitable[T], on_progress: Callable[[str], None], what: str) -> T:
    """Await something that may take long, and say meanwhile that it does."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            on_progress(what)
            await asyncio.wait([task], timeout=limits.SWEEP_TELL_SECONDS)
    finally:
        task.cancel()
        await _wait_for_end(task)
    return task.result()


async def run_in_thread(
    work: Callable[[], T],
    on_progress: Callable[[str], None],
    what: str,
    interrupt: Callable[[], None],
) -> T:
    """Do something in a thread. Whoever is cancelled has it interrupted, and stays until it ends."""
    return await with_progress(_in_thread(work, interrupt), on_progress, what)


async def _in_thread(work: Callable[[], T], interrupt: Callable[[], None]) -> T:
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    finally:
        if not running.done():
            interrupt()
            await _wait_for_end(running)


async def _wait_for_end(work: asyncio.Future[Any]) -> None:
    """Wait for an end, however often one is cancelled: what it uses may be closed after this."""
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    if not work.cancelled():
        work.exception()  # Whoever waits here has one of its own, or asks for it next.
