"""Blob stores that count or fail, for the tests."""

import asyncio

from everlong.errors import StoreUnavailable
from everlong.storage.files import FileBlobStore
from everlong.storage.memory import MemoryBlobStore


class CountingStore(MemoryBlobStore):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.puts = 0
        self.gets = 0

    async def put(self, key: str, data: bytes) -> None:
        self.puts += 1
        await super().put(key, data)

    async def get(self, key: str) -> bytes:
        self.gets += 1
        return await super().get(key)


class SlowStore(CountingStore):
    """Takes a while for each call, and notes how many GETs were under way at once."""

    def __init__(self, get_seconds: float = 0.0, put_seconds: float = 0.0) -> None:
        super().__init__()
        self._get_seconds = get_seconds
        self._put_seconds = put_seconds
        self._under_way = 0
        self.most_at_once = 0

    async def put(self, key: str, data: bytes) -> None:
        await asyncio.sleep(self._put_seconds)
        await super().put(key, data)

    async def get(self, key: str) -> bytes:
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            await asyncio.sleep(self._get_seconds)
            return await super().get(key)
        finally:
            self._under_way -= 1


class FlakyStore(FileBlobStore):
    """A file store that takes and gives nothing while `down` is set."""

    down = False

    async def put(self, key: str, data: bytes) -> None:
        self._check()
        await super().put(key, data)

    async def get(self, key: str) -> bytes:
        self._check()
        return await super().get(key)

    def _check(self) -> None:
        if self.down:
            raise StoreUnavailable("the store is down for a test")
