"""`python -m bench.telemetry_worker`: the worker of `everlong worker` with the benchmark's agent.

`BENCH_READ_SECONDS` delays each read of its store.
"""

import asyncio
import os
from typing import Final
from unittest import mock

from bench.thread_agent import reader
from everlong.config import load_settings
from everlong.storage import BlobStore, open_store, pack_store
from everlong.storage.instrumented import InstrumentedBlobStore
from everlong.worker import run_worker

READ_SECONDS: Final = "BENCH_READ_SECONDS"


class SlowBlobStore(InstrumentedBlobStore):
    """A `BlobStore` that waits before each read."""

    def __init__(self, store: BlobStore, read_seconds: float) -> None:
        super().__init__(store, lambda *_: None)
        self._read_seconds = read_seconds

    async def get(self, key: str) -> bytes:
        """See `BlobStore`."""
        await asyncio.sleep(self._read_seconds)
        return await super().get(key)

    async def get_bounded(self, key: str, bytes_max: int) -> bytes:
        """See `BoundedReader`."""
        await asyncio.sleep(self._read_seconds)
        return await super().get_bounded(key, bytes_max)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `BlobStore`."""
        await asyncio.sleep(self._read_seconds)
        return await super().get_range(key, start, length)


def _open_slow(url: str) -> BlobStore:
    return SlowBlobStore(open_store(url), float(os.environ[READ_SECONDS]))


async def _main() -> None:
    if READ_SECONDS not in os.environ:
        await run_worker(load_settings(), [reader()])
        return
    with mock.patch.object(pack_store, "open_store", _open_slow):
        await run_worker(load_settings(), [reader()])


if __name__ == "__main__":
    asyncio.run(_main())
