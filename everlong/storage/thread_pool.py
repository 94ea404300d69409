"""Threads for work on bytes: compressing, digesting, comparing.

They are apart from asyncio's own, which wait for files: a disk that hangs takes those, and what has to
be done without it still goes on.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_THREADS: Final = min(8, (os.cpu_count() or 1) + 2)


class _Pools:
    """Made when they are first used, and again in a forked child, which has no threads."""

    def __init__(self) -> None:
        # Jobs in the first pool wait for subtasks in the second; one pool could deadlock.
        self.whole = ThreadPoolExecutor(_THREADS, thread_name_prefix="everlong-bytes")
        self.parts = ThreadPoolExecutor(_THREADS, thread_name_prefix="everlong-frame")


_pools = _Pools()


def _renew() -> None:
    global _pools
    _pools = _Pools()


os.register_at_fork(after_in_child=_renew)


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do work on bytes without holding the event loop up."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_pools.whole, lambda: work(*args, **kwargs))


def side_by_side(work: Callable[..., T], *arguments: Iterable[object]) -> list[T]:
    """Do parts of a piece of work at the same time. zstd, digests and AES need no common lock."""
    return list(_pools.parts.map(work, *arguments))
