"""A store that counts its requests and bytes."""

from collections.abc import AsyncIterator, Callable, Iterable

from everlong.storage import BlobStore
from everlong.storage.base import BlobInfo

Notice = Callable[[str, int], None]


class CountingStore:
    """Forwards to another store, and counts successful PUTs and GETs and their bytes."""

    def __init__(self, inner: BlobStore, notice: Notice = lambda _name, _size: None) -> None:
        self._inner = inner
        self._notice = notice
        self.puts = self.put_bytes = 0
        self.gets = self.get_bytes = 0

    def __repr__(self) -> str:
        return repr(self._inner)

    def reopen(self) -> "CountingStore":
        """Return a new counting store over the same objects, with its counts at zero."""
        return CountingStore(self._inner, self._notice)

    async def put(self, key: str, data: bytes) -> None:
        """See `BlobStore`."""
        await self._inner.put(key, data)
        self.puts += 1
        self.put_bytes += len(data)
        self._notice("put", len(data))

    async def get(self, key: str) -> bytes:
        """See `BlobStore`."""
        return self._read(await self._inner.get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `BlobStore`."""
        return self._read(await self._inner.get_range(key, start, length))

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """See `BlobStore`."""
        async for info in self._inner.list(prefix):
            yield info

    async def delete(self, keys: Iterable[str]) -> None:
        """See `BlobStore`."""
        await self._inner.delete(keys)

    def _read(self, data: bytes) -> bytes:
        self.gets += 1
        self.get_bytes += len(data)
        self._notice("get", len(data))
        return data
