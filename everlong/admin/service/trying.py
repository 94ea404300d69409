"""Trying a store: write, read, list, delete one small object. It is not left behind."""

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from everlong import limits, probes
from everlong.admin.service.findings import Finding, Problem, finding
from everlong.storage import BlobStore
from everlong.storage.cache import CachedBlobStore

_PROBE_BYTES: Final = 4 * limits.KIB
_RANGE: Final = (1000, 500)
_ALLOW: Final = "Allow this user or these credentials to list, read, write and delete there."


class _Tries:
    """What was tried so far: how long it took, and what went wrong."""

    def __init__(self) -> None:
        self.times: list[str] = []
        self.problems: list[Problem] = []

    async def run(self, name: str, work: Awaitable[bool], denied: Problem) -> bool:
        """Do one thing; return whether it was done."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(probes.SECONDS_MAX):
                right = await work
        except Exception as error:  # noqa: BLE001 - a team's own store may raise anything
            self._add(denied, probes.reason(error))
            return False
        seconds = time.monotonic() - began
        self.times.append(f"{name} {1000 * seconds:.1f} ms")
        if not right:
            self._add(denied, "other bytes came back than were written")
        elif seconds > limits.STORE_TRY_SECONDS:
            fix = "Look for what slows it down: payloads stay in history where it takes longer."
            self.problems.append(Problem("warning", f"to {name} took {seconds:.1f} s", fix))
        return right

    def _add(self, denied: Problem, why: str) -> None:
        self.problems.append(Problem(denied.status, f"{denied.text} ({why})", denied.fix))


async def check_store(store: BlobStore) -> Finding:
    """Write an object, read it back, list and delete it. The cache is passed by."""
    store = store.behind if isinstance(store, CachedBlobStore) else store
    key, data = new_key(), os.urandom(_PROBE_BYTES)
    start, length = _RANGE
    tries = _Tries()

    async def write() -> bool:
        await store.put(key, data)
        return True

    async def read() -> bool:
        return await store.get(key) == data

    async def read_range() -> bool:
        return await store.get_range(key, start, length) == data[start : start + length]

    async def find() -> bool:
        return [info.key async for info in store.list(key)] == [key]

    async def delete() -> bool:
        await store.delete([key])
        return True

    steps: list[tuple[str, Callable[[], Awaitable[bool]], Problem]] = [
        ("read", read, Problem("failed", "what was written cannot be read", _ALLOW)),
        ("range", read_range, Problem("failed", "a part of an object cannot be read", _ALLOW)),
        (
            "list",
            find,
            Problem("warning", "it cannot be listed, as `everlong show` does", _ALLOW),
        ),
        (
            "delete",
            delete,
            Problem("warning", "nothing can be deleted, so retention has no effect", _ALLOW),
        ),
    ]
    async with removed(store, key):
        cannot = Problem("failed", "it cannot be written to", _ALLOW)
        if await tries.run("write", write(), cannot):
            for name, step, denied in steps:
                await tries.run(name, step(), denied)
    figures = f": {', '.join(tries.times)} for 4 KiB" if tries.times else ""
    return finding("store", f"{store!r}{figures}", tries.problems)


def new_key() -> str:
    """Return a key for a probe, which no thread has."""
    return f"{probes.PREFIX}{uuid.uuid4().hex}"


@contextlib.asynccontextmanager
async def removed(store: BlobStore, key: str) -> AsyncIterator[None]:
    """Delete an object at the end, however that comes about."""
    try:
        yield
    finally:
        # Whether that is allowed is checked elsewhere.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(probes.SECONDS_MAX):
                await store.delete([key])
