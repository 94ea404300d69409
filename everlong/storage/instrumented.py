"""Who reads what: bytes and cache hits of one resume or one step, and every call to a store.

Whoever wants to know what it reads sets `READS`. Tasks that it starts count for it too, since they
begin with a copy of its context.
"""

import asyncio
import contextlib
import contextvars
import dataclasses
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from everlong.errors import BlobMissing
from everlong.storage.base import (
    BlobInfo,
    BlobStore,
    OutOfOrder,
    get_bounded,
    get_range_lister,
    put_file,
)


@dataclasses.dataclass
class Reads:
    """What was read from a store and its cache."""

    blobs: int = 0
    """Refs that were followed."""
    held: int = 0
    """Payloads that would be large in a history if they were plain: refs, and large inline values."""
    bytes: int = 0
    """Read from the store."""
    hits: int = 0
    misses: int = 0
    seconds: float = 0.0
    """What payloads that lie in the store took to decode."""
    stored: set[str] | None = None
    """Keys of the packs of a journal that were new; None where writes are not noted."""
    repeated_bytes: int = 0
    """Where they are: bytes of packs that were in the store already."""


READS: Final[contextvars.ContextVar[Reads | None]] = contextvars.ContextVar("READS", default=None)


@contextlib.contextmanager
def count_reads(*, writes: bool = False) -> Iterator[Reads]:
    """Count what the body reads and, with `writes`, which packs it stores."""
    reads = Reads(stored=set() if writes else None)
    token = READS.set(reads)
    try:
        yield reads
    finally:
        READS.reset(token)


CallObserver: TypeAlias = Callable[[str, float, BaseException | None], None]
"""Told of each call: the operation, how long it took, and what it raised."""


class InstrumentedBlobStore:
    """A `BlobStore` in front of another that tells of each call to it."""

    def __init__(self, store: BlobStore, on_call: CallObserver) -> None:
        self._store = store
        self._on_call = on_call

    def __repr__(self) -> str:
        return repr(self._store)

    async def put(self, key: str, data: bytes) -> bool | None:
        """See `BlobStore`."""
        with self._time_call("put"):
            return await self._store.put(key, data)

    async def put_file(self, key: str, path: Path) -> None:
        """See `FileUploader`."""
        with self._time_call("put"):
            await put_file(self._store, key, path)

    async def get(self, key: str) -> bytes:
        """See `BlobStore`."""
        with self._time_call("get"):
            return await self._store.get(key)

    async def get_bounded(self, key: str, bytes_max: int) -> bytes:
        """See `BoundedReader`."""
        with self._time_call("get"):
            return await get_bounded(self._store, key, bytes_max)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `BlobStore`."""
        with self._time_call("get_range"):
            return await self._store.get_range(key, start, length)

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """See `BlobStore`."""
        with self._time_call("list"):
            async for info in self._store.list(prefix):
                yield info

    @property
    def lists_ranges(self) -> bool:
        """See `RangeLister`."""
        return get_range_lister(self._store) is not None

    async def list_range(
        self, folder: str, after: str, before: str
    ) -> AsyncGenerator[BlobInfo, None]:
        """See `RangeLister`."""
        store = get_range_lister(self._store)
        if store is None:
            raise OutOfOrder
        with self._time_call("list"):
            async for info in store.list_range(folder, after, before):
                yield info

    async def delete(self, keys: Iterable[str]) -> None:
        """See `BlobStore`."""
        with self._time_call("delete"):
            await self._store.delete(keys)

    @contextlib.contextmanager
    def _time_call(self, operation: str) -> Iterator[None]:
        started = time.monotonic()
        failed: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failed = error
            raise
        finally:
            self._on_call(operation, time.monotonic() - started, failed)


def describe_outcome(error: BaseException | None) -> str:
    """Return how a call ended, in a word that there are few of."""
    match error:
        case None | GeneratorExit():  # Whoever lists may have seen enough.
            return "ok"
        case BlobMissing():
            return "missing"
        case asyncio.CancelledError():
            return "cancelled"
    return "error"
