"""In-memory blob store, for tests and trials."""

from collections.abc import AsyncIterator, Iterable

from everlong.errors import BlobMissing
from everlong.storage.base import BlobInfo, check_key


class MemoryBlobStore:
    """A `BlobStore` whose objects are lost when its process ends."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}

    def __repr__(self) -> str:
        return "memory:"

    async def put(self, key: str, data: bytes) -> bool | None:
        """See `BlobStore`."""
        is_new = check_key(key) not in self._objects
        self._objects[key] = bytes(data)
        return is_new

    async def get(self, key: str) -> bytes:
        """See `BlobStore`."""
        try:
            return self._objects[check_key(key)]
        except KeyError:
            raise BlobMissing(
                f"blob {key!r} is not in {self!r}, which keeps objects only until its process ends"
            ) from None

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `BlobStore`."""
        return (await self.get(key))[start : start + length]

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """See `BlobStore`."""
        check_key(f"{prefix}x")
        for key, data in list(self._objects.items()):
            if key.startswith(prefix):
                yield BlobInfo(key, len(data))

    async def delete(self, keys: Iterable[str]) -> None:
        """See `BlobStore`."""
        for key in keys:
            self._objects.pop(check_key(key), None)
