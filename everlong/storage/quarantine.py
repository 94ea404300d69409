"""Quarantine: where a sweep puts what it takes, until it is deleted for good (docs/retention.md).

A copy's key tells what it is a copy of and since when. No two moves write the same key, so whoever
deletes an old copy cannot meet one that is being made. A read that misses an object looks here, and
puts it back.
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
# What a sweep may take. Everything else is missing if it is missing.
_SWEPT: Final = ("v1/", "archive/")
_LOG: Final = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Copy:
    """A quarantined object."""

    key: str
    """Where it lies now."""
    original: str
    """Where it lay."""
    quarantined_ms: int
    size_bytes: int


def build_copy_key(original: str, quarantined_ms: int, sweep_id: str) -> str:
    """Return where a sweep puts an object that it takes."""
    return f"{PREFIX}{original}.{quarantined_ms:013d}-{sweep_id}"


def parse_copy(info: BlobInfo) -> Copy | None:
    """Return what a listed object is a copy of; None if it is none."""
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
    """Move an object; return whether it was moved. Without its bytes it goes by way of a file.

    It is deleted only once its copy has been read back. Whoever is killed in between leaves both.
    Whoever was held up for long leaves both as well: others may have put the object back by now, and
    be about to drop the copy.
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
    """Put an object back; return whether the copy was there. It stays, until its own time is over."""
    try:
        if copy.size_bytes > limits.SWEEP_PART_BYTES:
            return await _copy(store, copy.key, copy.original)
        await store.put(copy.original, await store.get(copy.key))
    except BlobMissing:
        return False
    return True


async def exists(store: BlobStore, key: str) -> bool:
    """Tell whether there is an object."""
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
    """Have each part of an object be taken; return the digest of the whole."""
    digest, start = hashlib.sha256(), 0
    while part := await store.get_range(key, start, limits.SWEEP_PART_BYTES):
        take(part)
        digest.update(part)
        start += len(part)
    return digest.digest()


class RestoringBlobStore:
    """A `BlobStore` in front of another that finds what has been quarantined. A hit costs nothing.

    `called` is told of each object that was put back, as the operation `restore`. With `read_only`
    nothing is put back.
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
        """The store itself."""
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
                    await self._put_back(copy)
                    return data
            # Somebody else may have put it back since it was missed, and deleted the copy.
            return await read(key)
        except BlobMissing:
            return None
        except StoreError:
            # Whatever is wrong here, the object is missing: that is what its reader is told. But who
            # only looks, as a sweep does, must not take it for lost.
            if self._read_only:
                raise
            return None

    async def _put_back(self, copy: Copy) -> None:
        started = time.monotonic()
        if self._read_only:
            return
        # Who may not write, to the store or to a temporary file, may still read.
        with contextlib.suppress(StoreError, OSError):
            if await restore(self._store, copy):
                _LOG.warning("%r was read from quarantine and put back", copy.original)
                if self._on_call is not None:
                    self._on_call("restore", time.monotonic() - started, None)


def unwrap_store(store: BlobStore) -> BlobStore:
    """Return a store without the cache and what restores: a sweep has to see what is there."""
    while isinstance(store, CachedBlobStore | RestoringBlobStore):
        store = store.inner
    return store
