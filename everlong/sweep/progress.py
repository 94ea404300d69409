"""Progress: awaits long work, reports it at intervals, and never returns before the work has ended.

The work may use the index, which the caller closes afterwards; so a cancelled caller waits too.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from everlong import limits

T = TypeVar("T")


async def with_progress(work: Awaitable[T], on_progress: Callable[[str], None], what: str) -> T:
    """Await work, and report `what` at intervals until it ends."""
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
    """Run work in a thread. If the caller is cancelled, interrupt the work and wait for its end."""
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
    """Wait for the end of work, through any number of cancellations: its resources are closed next."""
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    if not work.cancelled():
        work.exception()  # Mark it as retrieved: the caller raises its own, or asks for this one next.
