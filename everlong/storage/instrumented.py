"""Instrumentation of stores: counts the reads of one resume or step, and reports every call to a store.

A caller that wants its reads counted sets `READS`. Reads of the tasks that it starts count too, since a
task begins with a copy of its creator's context.
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
    """Counters of reads from a store and its cache."""

    blobs: int = 0
    """Number of refs that were followed."""
    large_when_plain: int = 0
    """Number of payloads that would be large in a history if plain: refs, and large inline values."""
    bytes: int = 0
    """Bytes read from the store."""
    hits: int = 0
    misses: int = 0
    seconds: float = 0.0
    """Time to decode the payloads that are in the store."""
    stored: set[str] | None = None
    """Keys of journal packs that were new; None if writes are not counted."""
    repeated_bytes: int = 0
    """Bytes of journal packs that the store already had, if writes are counted."""


READS: Final[contextvars.ContextVar[Reads | None]] = contextvars.ContextVar("READS", default=None)


@contextlib.contextmanager
def count_reads(*, writes: bool = False) -> Iterator[Reads]:
    """Count the reads of the body and, with `writes`, record the packs that it stores."""
    reads = Reads(stored=set() if writes else None)
    token = READS.set(reads)
    try:
        yield reads
    finally:
        READS.reset(token)


CallObserver: TypeAlias = Callable[[str, float, BaseException | None], None]
"""Called after each call to a store, with the operation, its seconds, and its error."""


class InstrumentedBlobStore:
    """A wrapper around a `BlobStore` that reports each call to a `CallObserver`."""

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
    """Return the outcome of a call, as one of four words that serve as a metric label."""
    match error:
        case None | GeneratorExit():  # The caller may stop a listing early.
            return "ok"
        case BlobMissing():
            return "missing"
        case asyncio.CancelledError():
            return "cancelled"
    return "error"
