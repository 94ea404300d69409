"""Quarantine: holds the objects that a sweep removed, until they are deleted (docs/concepts/sweeps.md).

The key of a copy names the original key and the time of the move. No two moves write the same key, so a
process that deletes an old copy never deletes a copy that another process is writing. A read that misses
an object looks for a copy here, and restores it.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
import re
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

from everlong import limits
from everlong.errors import BlobMissing, StoreError
from everlong.storage.base import BlobInfo, BlobStore, get_bounded, put_file
from everlong.storage.cache import CachedBlobStore
from everlong.storage.instrumented import CallObserver

PREFIX: Final = "quarantine/"
_COPY: Final = re.compile(rf"{PREFIX}(?P<key>.+)\.(?P<ms>[0-9]{{13}})-(?P<sweep>[0-9a-f]{{8}})")
# Prefixes that a sweep may remove. Objects elsewhere are never looked up in quarantine.
_SWEPT: Final = ("v1/", "archive/")
_LOG: Final = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Copy:
    """A quarantined object."""

    key: str
    """Key of the copy."""
    original: str
    """Key of the object that was moved."""
    quarantined_ms: int
    size_bytes: int


def build_copy_key(original: str, quarantined_ms: int, sweep_id: str) -> str:
    """Return the key of the copy that a sweep makes of an object."""
    return f"{PREFIX}{original}.{quarantined_ms:013d}-{sweep_id}"


def parse_copy(info: BlobInfo) -> Copy | None:
    """Parse a listed object as a copy; None if its key is not one of a copy."""
    found = _COPY.fullmatch(info.key)
    if found is None:
        return None
    return Copy(info.key, found["key"], int(found["ms"]), info.size_bytes)


async def list_copies(store: BlobStore, original: str) -> list[Copy]:
    """Return the copies of one object, the newest first."""
    found = [parse_copy(info) async for info in store.list(f"{PREFIX}{original}.")]
    copies = [each for each in found if each is not None and each.original == original]
    return sorted(copies, key=lambda each: each.quarantined_ms, reverse=True)


async def quarantine(store: BlobStore, original: str, data: bytes | None, copy: str) -> bool:
    """Move an object; return whether it was moved. If `data` is None, it is copied through a file.

    The object is deleted only after its copy has been read back, so a process that is killed in between
    leaves both. A move that was delayed for too long also leaves both: another process may have restored
    the object since, and may be about to delete the copy.
    """
    if data is None:
        is_same = await _copy(store, original, copy)
    else:
        await store.put(copy, data)
        is_same = await store.get(copy) == data
    if not is_same:
        await store.delete([copy])
        return False
    moved = parse_copy(BlobInfo(copy, 0))
    oldest_ms = time.time() * 1000 - 1000 * limits.SWEEP_MOVE_SECONDS_MAX
    if moved is None or moved.quarantined_ms < oldest_ms:
        return False
    await store.delete([original])
    return True


async def restore(store: BlobStore, copy: Copy) -> bool:
    """Restore an object; return whether the copy existed. The copy stays until its retention ends."""
    try:
        if copy.size_bytes > limits.SWEEP_PART_BYTES:
            return await _copy(store, copy.key, copy.original)
        await store.put(copy.original, await store.get(copy.key))
    except BlobMissing:
        return False
    return True


async def exists(store: BlobStore, key: str) -> bool:
    """Return whether an object exists."""
    try:
        await store.get_range(key, 0, 1)
    except BlobMissing:
        return False
    return True


async def _copy(store: BlobStore, key: str, to: str) -> bool:
    """Copy an object that may be too large for memory; return whether the copy reads the same."""
    with tempfile.TemporaryDirectory(prefix="everlong-") as folder:
        path = Path(folder, "object")
        with await asyncio.to_thread(path.open, "wb") as file:
            digest = await _read_parts(store, key, file.write)
        await put_file(store, to, path)
    return await _read_parts(store, to, len) == digest


async def _read_parts(store: BlobStore, key: str, take: Callable[[bytes], object]) -> bytes:
    """Pass each part of an object to `take`; return the digest of the whole object."""
    digest, start = hashlib.sha256(), 0
    while part := await store.get_range(key, start, limits.SWEEP_PART_BYTES):
        take(part)
        digest.update(part)
        start += len(part)
    return digest.digest()


class RestoringBlobStore:
    """A wrapper around a `BlobStore` that restores quarantined objects when they are read.

    A read of an object that is not in quarantine costs nothing. `on_call` is called for each restored
    object, with the operation `restore`. With `read_only`, copies are read but not restored.
    """

    def __init__(
        self, store: BlobStore, on_call: CallObserver | None = None, *, read_only: bool = False
    ) -> None:
        self._store = store
        self._on_call = on_call
        self._read_only = read_only

    def __repr__(self) -> str:
        return repr(self._store)

    @property
    def inner(self) -> BlobStore:
        """The wrapped store."""
        return self._store

    async def put(self, key: str, data: bytes) -> bool | None:
        """See `BlobStore`."""
        return await self._store.put(key, data)

    async def put_file(self, key: str, path: Path) -> None:
        """See `FileUploader`."""
        await put_file(self._store, key, path)

    async def get(self, key: str) -> bytes:
        """See `BlobStore`."""
        return await self._read(key, self._store.get)

    async def get_bounded(self, key: str, bytes_max: int) -> bytes:
        """See `BoundedReader`."""
        return await self._read(key, lambda place: get_bounded(self._store, place, bytes_max))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `BlobStore`."""
        return await self._read(key, lambda place: self._store.get_range(place, start, length))

    def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """See `BlobStore`."""
        return self._store.list(prefix)

    async def delete(self, keys: Iterable[str]) -> None:
        """See `BlobStore`."""
        await self._store.delete(keys)

    async def _read(self, key: str, read: Callable[[str], Awaitable[bytes]]) -> bytes:
        try:
            return await read(key)
        except BlobMissing:
            data = await self._find(key, read)
            if data is None:
                raise
            return data

    async def _find(self, key: str, read: Callable[[str], Awaitable[bytes]]) -> bytes | None:
        if not key.startswith(_SWEPT):
            return None
        try:
            for copy in await list_copies(self._store, key):
                with contextlib.suppress(BlobMissing):
                    data = await read(copy.key)
                    await self._restore_copy(copy)
                    return data
            # Another process may have restored it since the miss, and deleted the copy.
            return await read(key)
        except BlobMissing:
            return None
        except StoreError:
            # A reader gets the original error: the object is missing. But a read-only user, such as a
            # sweep, must not conclude from a failed lookup that the object is lost.
            if self._read_only:
                raise
            return None

    async def _restore_copy(self, copy: Copy) -> None:
        started = time.monotonic()
        if self._read_only:
            return
        # A process without write access, to the store or to temporary files, may still read.
        with contextlib.suppress(StoreError, OSError):
            if await restore(self._store, copy):
                _LOG.warning("%r was read from quarantine and restored", copy.original)
                if self._on_call is not None:
                    self._on_call("restore", time.monotonic() - started, None)


def unwrap_store(store: BlobStore) -> BlobStore:
    """Return a store without its cache and its restoring wrapper: a sweep needs its actual content."""
    while isinstance(store, CachedBlobStore | RestoringBlobStore):
        store = store.inner
    return store
