"""A cache in front of a blob store: this process's memory, then a directory that processes share.

A name always stands for the same content, so cached objects never become stale. The wrapped store is
authoritative: any fault of a tier is a miss, never an error and never wrong bytes.
"""

import asyncio
import collections
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from everlong import limits
from everlong.storage.base import (
    BlobInfo,
    BlobStore,
    check_key,
    check_object_size,
    get_bounded,
    put_file,
)
from everlong.storage.cache_disk import DiskTier
from everlong.storage.instrumented import READS

# Memory of an entry in addition to its bytes and key: 150 bytes as measured. With this charge, many
# small or even empty objects are bounded too.
_ENTRY_BYTES: Final = 160
# An object of more than a quarter of the memory would evict most others.
_MEMORY_SHARES: Final = 4

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class CacheStats:
    """Counters of a cache since it was created. Gets that share one read count as one."""

    memory_hits: int
    disk_hits: int
    misses: int
    """Reads passed on to the store, including reads of ranges."""
    bytes_read_from_store: int
    memory_bytes: int
    """Size of the memory tier now, with the overhead of its entries."""


class CachedBlobStore:
    """A `BlobStore` that caches another. Any OS thread and any event loop may use it.

    An object that was deleted through it is not returned again, unless the disk refuses the deletion.
    Another process may still return the object from its own memory.
    """

    def __init__(
        self,
        store: BlobStore,
        *,
        memory_bytes_max: int,
        disk: Path | None = None,
        disk_bytes_max: int,
    ) -> None:
        self._store = store
        self._memory = _MemoryTier(memory_bytes_max)
        self._disk = None if disk is None else DiskTier(disk, disk_bytes_max)
        self._reads: _SharedReads[bytes] = _SharedReads()
        self._lookups: _SharedReads[bytes | None] = _SharedReads()
        self._lock = threading.Lock()
        self._deletes = 0
        self._misses = 0
        self._bytes_read = 0

    def __repr__(self) -> str:
        return repr(self._store)

    @property
    def inner(self) -> BlobStore:
        """The wrapped store, for callers that need its actual content."""
        return self._store

    async def put(self, key: str, data: bytes) -> bool | None:
        """See `BlobStore`."""
        deletes, data = self._deletes, bytes(data)
        is_new = await self._store.put(check_key(key), data)
        await self._keep(key, data, deletes)
        return is_new

    async def put_file(self, key: str, path: Path) -> None:
        """See `FileUploader`. Files are not cached: they are read in ranges."""
        await put_file(self._store, check_key(key), path)
        await self.forget([key])

    async def get(self, key: str) -> bytes:
        """See `BlobStore`. Concurrent gets of one key, in one event loop, are one read."""
        data = self._memory.get(check_key(key))
        if data is not None:
            _record_read(hits=1)
            return data
        return await self._reads.join(key, self._deletes, lambda: self._read(key, None))

    async def get_bounded(self, key: str, bytes_max: int) -> bytes:
        """See `BoundedReader`. Concurrent gets with the same bound are one read."""
        data = self._memory.get(check_key(key))
        if data is not None:
            _record_read(hits=1)
        else:
            data = await self._reads.join(
                f"{key} {bytes_max}",
                self._deletes,
                lambda: self._read(key, bytes_max),
            )
        check_object_size(key, len(data), bytes_max)
        return data

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `BlobStore`. A range is not cached: it is not the whole object."""
        data = self._memory.get(check_key(key))
        if data is None and self._disk is not None:
            data = await self._lookups.join(key, self._deletes, lambda: self._look_up(key))
        if data is not None:
            _record_read(hits=1)
            return data[start : start + length]
        self._count(misses=1)
        part = await self._store.get_range(key, start, length)
        self._count(bytes_read=len(part))
        _record_read(misses=1, size_bytes=len(part))
        return part

    def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """See `BlobStore`."""
        return self._store.list(prefix)

    async def delete(self, keys: Iterable[str]) -> None:
        """See `BlobStore`. Cached copies are dropped even if the deletion fails."""
        gone = [check_key(key) for key in keys]
        try:
            await self._store.delete(gone)
        finally:
            # A concurrent read may cache an object after it was deleted here. So a counter is raised
            # before each tier is cleared. A read that began before sees the change after it has cached
            # the object, and removes it. A read that begins later finds nothing behind that tier.
            self._count(deletes=1)
            try:
                if self._disk is not None:
                    await asyncio.to_thread(self._disk.remove, gone)
            finally:
                self._count(deletes=1)
                self._memory.remove(gone)

    async def forget(self, keys: Iterable[str]) -> None:
        """Drop cached copies, after a reader found one damaged. The store is not changed."""
        gone = [check_key(key) for key in keys]
        self._count(deletes=1)
        if self._disk is not None:
            await asyncio.to_thread(self._disk.remove, gone)
        self._count(deletes=1)
        self._memory.remove(gone)

    def stats(self) -> CacheStats:
        """Return the counters as they are now."""
        return CacheStats(
            memory_hits=self._memory.hits,
            disk_hits=0 if self._disk is None else self._disk.hits,
            misses=self._misses,
            bytes_read_from_store=self._bytes_read,
            memory_bytes=self._memory.bytes,
        )

    async def _read(self, key: str, bytes_max: int | None) -> bytes:
        deletes = self._deletes
        data = await self._look_up(key)
        if data is None:
            self._count(misses=1)
            if bytes_max is None:
                data = await self._store.get(key)
            else:
                data = await get_bounded(self._store, key, bytes_max)
            self._count(bytes_read=len(data))
            _record_read(misses=1, size_bytes=len(data))
            await self._keep(key, data, deletes)
        else:
            _record_read(hits=1)
        return data

    async def _look_up(self, key: str) -> bytes | None:
        """Return an object from the disk tier, and cache it in memory."""
        if self._disk is None:
            return None
        deletes = self._deletes
        data = await _run_briefly(self._disk.read, key)
        if data is not None:
            self._keep_in_memory(key, data, deletes)
        return data

    async def _keep(self, key: str, data: bytes, deletes: int) -> None:
        self._keep_in_memory(key, data, deletes)
        if self._disk is not None:
            await _run_briefly(self._keep_on_disk, self._disk, key, data, deletes)

    def _keep_in_memory(self, key: str, data: bytes, deletes: int) -> None:
        self._memory.put(key, data)
        if self._deletes != deletes:
            self._memory.remove([key])

    def _keep_on_disk(self, disk: DiskTier, key: str, data: bytes, deletes: int) -> None:
        disk.write(key, data)
        if self._deletes != deletes:
            disk.remove([key])

    def _count(self, *, misses: int = 0, bytes_read: int = 0, deletes: int = 0) -> None:
        with self._lock:
            self._misses += misses
            self._bytes_read += bytes_read
            self._deletes += deletes


def _record_read(*, hits: int = 0, misses: int = 0, size_bytes: int = 0) -> None:
    """Add to the read counters of the current context. A shared read counts for its first caller."""
    reads = READS.get()
    if reads is not None:
        reads.hits += hits
        reads.misses += misses
        reads.bytes += size_bytes


async def _run_briefly(work: Callable[..., T], *arguments: Any) -> T | None:
    """Use the disk with a short timeout: a slow disk must not use up the time of the store."""
    try:
        async with asyncio.timeout(limits.CACHE_SECONDS_MAX):
            return await asyncio.to_thread(work, *arguments)
    except TimeoutError:
        return None


class _SharedRead(Generic[T]):
    """One read, with the number of its waiters."""

    task: asyncio.Task[T]

    def __init__(self) -> None:
        self.waiters = 0


class _SharedReads(Generic[T]):
    """Reads in progress, each shared by all callers of the same event loop that want the same object."""

    def __init__(self) -> None:
        self._in_progress: dict[tuple[object, str, int], _SharedRead[T]] = {}

    async def join(self, key: str, since: int, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `read`, or of a read in progress with the same key and delete count.

        A read whose last waiter was cancelled is cancelled and awaited.
        """
        slot = (asyncio.get_running_loop(), key, since)
        shared = self._in_progress.get(slot)
        if shared is None:
            # Registered first: an eager task may finish before `create_task` returns.
            shared = self._in_progress[slot] = _SharedRead()
            shared.task = asyncio.create_task(self._fly(slot, shared, read))
            shared.task.add_done_callback(_consume_error)
        task = shared.task
        shared.waiters += 1
        try:
            # Unlike awaiting the task, this does not cancel it when the waiter is cancelled.
            await asyncio.wait([task])
            return task.result()
        finally:
            shared.waiters -= 1
            if not shared.waiters and not task.done():
                self._end(slot, shared)
                task.cancel()
                await asyncio.wait([task])

    async def _fly(
        self,
        slot: tuple[object, str, int],
        shared: _SharedRead[T],
        read: Callable[[], Coroutine[Any, Any, T]],
    ) -> T:
        try:
            return await read()
        finally:
            self._end(slot, shared)

    def _end(self, slot: tuple[object, str, int], shared: _SharedRead[T]) -> None:
        """Stop further joins. A cancelled read may already have a successor in its slot."""
        if self._in_progress.get(slot) is shared:
            del self._in_progress[slot]


def _consume_error(task: asyncio.Task[Any]) -> None:
    """Retrieve an error that has no waiter, so that asyncio does not log it as lost."""
    if not task.cancelled():
        task.exception()


class _MemoryTier:
    """LRU cache of whole objects, bounded in bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._objects: collections.OrderedDict[str, bytes] = collections.OrderedDict()
        self.bytes = 0
        self.hits = 0

    def get(self, key: str) -> bytes | None:
        with self._lock:
            data = self._objects.get(key)
            if data is not None:
                self._objects.move_to_end(key)
                self.hits += 1
            return data

    def put(self, key: str, data: bytes) -> None:
        charge = _ENTRY_BYTES + len(key) + len(data)
        with self._lock:
            self._forget(key)
            if len(data) * _MEMORY_SHARES > self._bytes_max or charge > self._bytes_max:
                return
            self._objects[key] = data
            self.bytes += charge
            while self.bytes > self._bytes_max:
                self._forget(next(iter(self._objects)))

    def remove(self, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                self._forget(key)

    def _forget(self, key: str) -> None:
        data = self._objects.pop(key, None)
        if data is not None:
            self.bytes -= _ENTRY_BYTES + len(key) + len(data)
