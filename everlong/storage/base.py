"""Blob store: the protocol that every store implements.

An object is complete before its name appears. A name always stands for the same content, because names
are made from digests, so a `put` of a name that exists may replace the object or leave it.
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

# About 400 bytes for a key of the usual length: 0.4 MB in all.
FAILED_PUTS_MAX: Final = 1000
KEY_CHARS_MAX: Final = 512  # S3 allows 1,024 bytes for prefix and key together.
# No segment begins with a dot, so a key cannot lead out of the store or name its hidden files.
_SAFE_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


@dataclasses.dataclass(frozen=True)
class BlobInfo:
    """One object of a listing."""

    key: str
    size_bytes: int
    modified_ms: int | None = dataclasses.field(default=None, compare=False)
    """Time of the last write, in Unix time; None if the store does not report it."""


@runtime_checkable
class BlobStore(Protocol):
    """Named, immutable bytes. Faults of the store itself raise `StoreUnavailable`."""

    async def put(self, key: str, data: bytes) -> bool | None:
        """Store `data`; when this returns, it is durable.

        Return whether the object is new. False means that the name existed, so the store did not
        grow. None means that the store does not report it; the bytes then count as new.
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
        """Delete the objects. Keys that do not exist are ignored."""
        ...


@runtime_checkable
class BoundedReader(Protocol):
    """A `BlobStore` that checks the size of an object before it reads the object."""

    async def get_bounded(self, key: str, bytes_max: int) -> bytes:
        """Return the whole object; more than `bytes_max` bytes raise `ObjectTooLarge`."""
        ...


async def get_bounded(store: BlobStore, key: str, bytes_max: int) -> bytes:
    """Return an object of at most `bytes_max` bytes; a larger one raises `ObjectTooLarge`."""
    if isinstance(store, BoundedReader):
        return await store.get_bounded(key, bytes_max)
    data = await store.get(key)
    check_object_size(key, len(data), bytes_max)
    return data


def check_object_size(key: str, size_bytes: int, bytes_max: int) -> None:
    """Raise `ObjectTooLarge` if an object is larger than its reader accepts."""
    if size_bytes > bytes_max:
        raise ObjectTooLarge(
            f"{key!r} in the blob store has {size_bytes} bytes, but the ref to it allows "
            f"{bytes_max}: it is not read. Everlong writes no such object; find its writer."
        )


class FailedPuts:
    """Keys whose last PUT failed. The store may still hold the object, if only its answer was lost.

    Only the newest 1,000 keys are kept, since most keys are not put again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: collections.OrderedDict[str, None] = collections.OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        """Remember a key, and drop the oldest key above the bound."""
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


# Range listings. A store that lists in key order can be listed in several streams at once, and an
# interrupted listing continues after its last key. Any other store is listed in one stream.


class OutOfOrder(Exception):
    """A store returned keys out of order or out of range, so its range listings prove nothing."""


@runtime_checkable
class RangeLister(Protocol):
    """A `BlobStore` that can list a range of keys."""

    @property
    def lists_ranges(self) -> bool:
        """Whether the store, or the store that it wraps, lists in key order."""
        ...

    def list_range(self, folder: str, after: str, before: str) -> AsyncGenerator[BlobInfo, None]:
        """Yield the objects of a folder with `after < key < before`, in the order of their keys.

        Raises `OutOfOrder` at the first key that is out of order or out of range.
        """
        ...


def get_range_lister(store: BlobStore) -> RangeLister | None:
    """Return the store as a `RangeLister`; None if it cannot list ranges."""
    return store if isinstance(store, RangeLister) and store.lists_ranges else None


# Uploads of files that are too large for memory, such as archives. A `FileUploader` reads the file from
# disk itself. Any other store receives the bytes, up to the size limit of an object.


@runtime_checkable
class FileUploader(Protocol):
    """A `BlobStore` that stores a file without reading it into memory."""

    async def put_file(self, key: str, path: Path) -> None:
        """Store the content of a file; when this returns, it is durable."""
        ...


async def put_file(store: BlobStore, key: str, path: Path) -> None:
    """Store the content of a file; when this returns, it is durable."""
    if isinstance(store, FileUploader):
        await store.put_file(key, path)
        return
    size_bytes = (await asyncio.to_thread(path.stat)).st_size
    if size_bytes > limits.OBJECT_BYTES_MAX:
        raise ObjectTooLarge(
            f"blob {key!r} would have {size_bytes} bytes, and {store!r} takes files only through "
            f"memory, up to {limits.OBJECT_BYTES_MAX}. Implement `put_file` in that store."
        )
    await store.put(key, await asyncio.to_thread(path.read_bytes))
