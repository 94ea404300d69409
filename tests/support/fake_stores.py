"""Blob stores that count calls, delay them, or fail."""

import asyncio
import bisect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable

from everlong.errors import StoreUnavailable
from everlong.storage.base import BlobInfo
from everlong.storage.file import FileBlobStore
from everlong.storage.memory import MemoryBlobStore


class CountingStore(MemoryBlobStore):
    """Memory store that counts its calls."""

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
    """Delays each call, and records how many GETs were under way at once."""

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
    """File store that is unavailable while `down` is set."""

    down = False

    async def put(self, key: str, data: bytes) -> None:
        self._check()
        await super().put(key, data)

    async def get(self, key: str) -> bytes:
        self._check()
        return await super().get(key)

    async def get_bounded(self, key: str, bytes_max: int) -> bytes:
        self._check()
        return await super().get_bounded(key, bytes_max)

    def _check(self) -> None:
        if self.down:
            raise StoreUnavailable("the store is down for a test")


class OrderedStore(MemoryBlobStore):
    """Lists ranges in key order, as S3 does, and counts the list requests."""

    page = 1000

    def __init__(self) -> None:
        super().__init__()
        self._times: dict[str, int] = {}
        self._sorted: list[str] | None = None
        self.list_requests = 0
        self.listed: list[str] = []
        """Keys that ranges have returned."""

    @property
    def lists_ranges(self) -> bool:
        return True

    async def put(self, key: str, data: bytes) -> bool | None:
        self._sorted = None
        self._times[key] = time.time_ns() // 1_000_000
        return await super().put(key, data)

    async def delete(self, keys: Iterable[str]) -> None:
        self._sorted = None
        await super().delete(keys)

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        async for info in super().list(prefix):
            yield self.info(info.key)

    def info(self, key: str) -> BlobInfo:
        return BlobInfo(key, len(self._objects.get(key, b"")), self._times.get(key, 0))

    async def list_range(
        self, folder: str, after: str, before: str
    ) -> AsyncGenerator[BlobInfo, None]:
        while True:
            if self._sorted is None:
                self._sorted = sorted(self._objects)
            first = bisect.bisect_right(self._sorted, after)
            page = self._sorted[first : first + self.page]
            self.list_requests += 1
            for key in page:
                # Keys of other folders end the listing too: a real range has none.
                if key >= before or not key.startswith(folder):
                    return
                self.listed.append(key)
                yield self.info(key)
            if len(page) < self.page:
                return
            after = page[-1]
            await asyncio.sleep(0)
