"""The port that every blob store implements.

An object is complete before its name appears, and a name always stands for the same content, since
names are made from digests. So a `put` of a name that exists may replace the object or leave it.
"""

import collections
import dataclasses
import re
import threading
from collections.abc import AsyncIterator, Iterable
from typing import Final, Protocol, runtime_checkable

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
class BoundedReads(Protocol):
    """A store that can refuse an object for its size before it reads it."""

    async def get_bounded(self, key: str, bytes_max: int) -> bytes:
        """Return the whole object, or raise `ObjectTooLarge` if it has more bytes than that."""
        ...


async def get_bounded(store: BlobStore, key: str, bytes_max: int) -> bytes:
    """Return an object that has to be within a bound; `ObjectTooLarge` if it is not."""
    if isinstance(store, BoundedReads):
        return await store.get_bounded(key, bytes_max)
    data = await store.get(key)
    check_bounded(key, len(data), bytes_max)
    return data


def check_bounded(key: str, size_bytes: int, bytes_max: int) -> None:
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


def checked_key(key: str) -> str:
    """Return the key, or raise `InvalidKey` if it is not a plain path of safe characters."""
    if len(key) > KEY_CHARS_MAX or not _SAFE_KEY.fullmatch(key):
        raise InvalidKey(
            f"blob key {key[:80]!r} is refused: a key is segments of letters, digits, '.', '_' and "
            f"'-', joined by '/', none beginning with '.', {KEY_CHARS_MAX} characters at most"
        )
    return key
