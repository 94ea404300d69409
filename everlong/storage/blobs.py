"""The port that every blob store implements.

An object is complete before its name appears, and a name always stands for the same content, since
names are made from digests. So a `put` of a name that exists may replace the object or leave it.
"""

import dataclasses
import re
from collections.abc import AsyncIterator, Iterable
from typing import Final, Protocol, runtime_checkable

from everlong.errors import InvalidKey

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


def checked_key(key: str) -> str:
    """Return the key, or raise `InvalidKey` if it is not a plain path of safe characters."""
    if len(key) > KEY_CHARS_MAX or not _SAFE_KEY.fullmatch(key):
        raise InvalidKey(
            f"blob key {key[:80]!r} is refused: a key is segments of letters, digits, '.', '_' and "
            f"'-', joined by '/', none beginning with '.', {KEY_CHARS_MAX} characters at most"
        )
    return key
