"""Listing a part of a store, in the order of its keys.

A store that lists in order can be listed in several streams at once, and a listing that was cut off
goes on after the last key. A store that cannot is listed in one stream.
"""

from collections.abc import AsyncGenerator
from typing import Protocol, runtime_checkable

from everlong.storage.blobs import BlobInfo, BlobStore


class OutOfOrder(Exception):
    """A store returned keys that are out of order or out of range. Its ranges prove nothing."""


@runtime_checkable
class ListsRanges(Protocol):
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


def ranges_of(store: BlobStore) -> ListsRanges | None:
    """Return a store as one that lists ranges; None if it cannot."""
    return store if isinstance(store, ListsRanges) and store.lists_ranges else None
