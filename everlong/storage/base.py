"""The port that every blob store implements.

An object is complete before its name appears, and a name always stands for the same content, since
names are made from digests. So a `put` of a name that exists may replace the object or leave it.
"""

import asyncio
import collections
import dataclasses
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from everlong import limits
from everlong.errors import InvalidKey, ObjectTooLarge

# About 400 bytes each for keys of the usual length, so 0.4 MB.
FAILED_PUTS_MAX: Final = 1000
KEY_CHARS_MAX: Final = 512  # S3 allows 1,024 bytes for prefix and key together.
# No segment begins with a dot: there is no way up, and no clash with a store's own hidden files.
_SAFE_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


@dataclasses.dataclass(frozen=True)
class BlobInfo:
    """One object of a listing."""

    key: str
    size_bytes: int
    modified_ms: int | None = dataclasses.field(default=None, compare=False)
    """When it was last put there, in Unix time; None in a store that does not tell."""


@runtime_checkable
class BlobStore(Protocol):
    """Named, immutable bytes. Faults of the store itself raise `StoreUnavailable`."""

    async def put(self, key: str, data: bytes) -> bool | None:
        """Store `data`; when this returns, it is durable.

        Return whether the object is new: False if there was one of that name, so that the store holds
        no more than before. None if the store cannot tell; the bytes then count as new.
        """
        ...

    async def get(self, key: str) -> bytes:
        """Return the whole object, or raise `BlobMissing`."""
        ...

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, fewer at the object's end, or raise `BlobMissing`."""
        ...

    def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """Yield the objects whose key begins with `prefix`, in no particular order."""
        ...

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects; those that do not exist are passed over."""
        ...


@runtime_checkable
class BoundedReader(Protocol):
    """A store that can refuse an object for its size before it reads it."""

    async def get_bounded(self, key: str, bytes_max: int) -> bytes:
        """Return the whole object, or raise `ObjectTooLarge` if it has more bytes than that."""
        ...


async def get_bounded(store: BlobStore, key: str, bytes_max: int) -> bytes:
    """Return an object that has to be within a bound; `ObjectTooLarge` if it is not."""
    if isinstance(store, BoundedReader):
        return await store.get_bounded(key, bytes_max)
    data = await store.get(key)
    check_object_size(key, len(data), bytes_max)
    return data


def check_object_size(key: str, size_bytes: int, bytes_max: int) -> None:
    """Refuse an object that has more bytes than its reader takes."""
    if size_bytes > bytes_max:
        raise ObjectTooLarge(
            f"{key!r} in the blob store has {size_bytes} bytes, and what leads to it allows "
            f"{bytes_max}: it is not read. No writer of Everlong's stores that; find out who did."
        )


class FailedPuts:
    """Keys whose last PUT failed. The store may hold the object all the same: only its answer was lost.

    It keeps the newest 1,000, since most keys are not put again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: collections.OrderedDict[str, None] = collections.OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        """Remember a key; the oldest is dropped if there are too many."""
        with self._lock:
            self._keys[key] = None
            self._keys.move_to_end(key)
            if len(self._keys) > FAILED_PUTS_MAX:
                self._keys.popitem(last=False)

    def discard(self, key: str) -> None:
        """Forget a key, if it is known."""
        with self._lock:
            self._keys.pop(key, None)


def check_key(key: str) -> str:
    """Return the key, or raise `InvalidKey` if it is not a plain path of safe characters."""
    if len(key) > KEY_CHARS_MAX or not _SAFE_KEY.fullmatch(key):
        raise InvalidKey(
            f"blob key {key[:80]!r} is refused: a key is segments of letters, digits, '.', '_' and "
            f"'-', joined by '/', none beginning with '.', {KEY_CHARS_MAX} characters at most"
        )
    return key


# Listing a part of a store, in the order of its keys.
#
# A store that lists in order can be listed in several streams at once, and a listing that was cut off
# goes on after the last key. A store that cannot is listed in one stream.


class OutOfOrder(Exception):
    """A store returned keys that are out of order or out of range. Its ranges prove nothing."""


@runtime_checkable
class RangeLister(Protocol):
    """A `BlobStore` that can list a range of keys."""

    @property
    def lists_ranges(self) -> bool:
        """Whether the store behind it lists in order."""
        ...

    def list_range(self, folder: str, after: str, before: str) -> AsyncGenerator[BlobInfo, None]:
        """Yield the objects of a folder with `after < key < before`, in the order of their keys.

        Raises `OutOfOrder` on the first key that shows that the store does not keep to that.
        """
        ...


def get_range_lister(store: BlobStore) -> RangeLister | None:
    """Return a store as one that lists ranges; None if it cannot."""
    return store if isinstance(store, RangeLister) and store.lists_ranges else None


# Files into a store: what is too large to hold in memory, such as an archive.
#
# A store that can takes the file from disk. Any other gets its bytes, up to what an object may hold.


@runtime_checkable
class FileUploader(Protocol):
    """A `BlobStore` that stores a file without reading it into memory."""

    async def put_file(self, key: str, path: Path) -> None:
        """Store what is in a file; when this returns, it is durable."""
        ...


async def put_file(store: BlobStore, key: str, path: Path) -> None:
    """Store what is in a file; when this returns, it is durable."""
    if isinstance(store, FileUploader):
        await store.put_file(key, path)
        return
    size_bytes = (await asyncio.to_thread(path.stat)).st_size
    if size_bytes > limits.OBJECT_BYTES_MAX:
        raise ObjectTooLarge(
            f"blob {key!r} would have {size_bytes} bytes, and {store!r} takes files only by way of "
            f"memory, up to {limits.OBJECT_BYTES_MAX}. Give that store a `put_file` of its own."
        )
    await store.put(key, await asyncio.to_thread(path.read_bytes))
