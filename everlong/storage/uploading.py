"""Files into a store: what is too large to hold in memory, such as an archive.

A store that can takes the file from disk. Any other gets its bytes, up to what an object may hold.
"""

import asyncio
from pathlib import Path
from typing import Protocol, runtime_checkable

from everlong import limits
from everlong.errors import ObjectTooLarge
from everlong.storage.blobs import BlobStore


@runtime_checkable
class TakesFiles(Protocol):
    """A `BlobStore` that stores a file without reading it into memory."""

    async def put_file(self, key: str, path: Path) -> None:
        """Store what is in a file; when this returns, it is durable."""
        ...


async def put_file(store: BlobStore, key: str, path: Path) -> None:
    """Store what is in a file; when this returns, it is durable."""
    if isinstance(store, TakesFiles):
        await store.put_file(key, path)
        return
    size_bytes = (await asyncio.to_thread(path.stat)).st_size
    if size_bytes > limits.OBJECT_BYTES_MAX:
        raise ObjectTooLarge(
            f"blob {key!r} would have {size_bytes} bytes, and {store!r} takes files only by way of "
            f"memory, up to {limits.OBJECT_BYTES_MAX}. Give that store a `put_file` of its own."
        )
    await store.put(key, await asyncio.to_thread(path.read_bytes))
