"""The cache's memory, its shared reads, and what it passes on."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from everlong.errors import BlobMissing, InvalidKey, StoreUnavailable
from everlong.storage import BlobInfo, BlobStore
from everlong.storage.cache import CachedBlobStore, CacheStats
from everlong.storage.memory import MemoryBlobStore

KIB = 1024


class WatchedStore(MemoryBlobStore):
    """Records its calls, and can be made to wait or to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.cancelled = 0
        self.open = asyncio.Event()
        self.open.set()
        self.fault: Exception | None = None

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            for _ in range(5):  # It takes a moment to close a connection.
                await asyncio.sleep(0)
            self.cancelled += 1
            raise
        if self.fault is not None:
            raise self.fault

    async def put(self, key: str, data: bytes) -> None:
        await self._called("put")
        await super().put(key, data)

    async def get(self, key: str) -> bytes:
        await self._called("get")
        return await super().get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        await self._called("get_range")
        return (await MemoryBlobStore.get(self, key))[start : start + length]

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        self.calls.append("list")
        async for info in super().list(prefix):
            yield info

    async def delete(self, keys: Any) -> None:
        await self._called("delete")
        await super().delete(keys)


@pytest.fixture
def backend() -> WatchedStore:
    return WatchedStore()


@pytest.fixture
def cached(backend: WatchedStore) -> CachedBlobStore:
    return CachedBlobStore(backend, memory_bytes_max=64 * KIB, disk_bytes_max=0)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


async def is_missing(call: Awaitable[bytes]) -> bool:
    try:
        await call
    except BlobMissing:
        return True
    return False


async def test_a_cache_is_a_store_and_exposes_its_backend(cached: CachedBlobStore) -> None:
    assert isinstance(cached, BlobStore)
    assert repr(cached) == "memory:"
    with pytest.raises(BlobMissing, match="'v1/a' is not in memory:"):
        await cached.get("v1/a")


async def test_an_object_is_read_from_the_store_once(
    cached: CachedBlobStore, backend: WatchedStore
) -> None:
    await MemoryBlobStore.put(backend, "v1/a", b"0123456789")
    assert [await cached.get("v1/a") for _ in range(3)] == [b"0123456789"] * 3
    assert backend.calls == ["get"]
    stats = cached.stats()
    assert stats == CacheStats(
        memory_hits=2,
        disk_hits=0,
        misses=1,
        bytes_read_from_store=10,
        memory_bytes=stats.memory_bytes,
    )
    assert 10 < stats.memory_bytes < 200


async def test_a_put_object_is_not_read_from_the_store(
    cached: CachedBlobStore, backend: WatchedStore
) -> None:
    mutable = bytearray(b"as it was put")
    await cached.put("v1/a", mutable)  # type: ignore[arg-type] # at run time, it happens
    mutable[:] = b"changed since"
    assert await cached.get("v1/a") == b"as it was put"
    assert backend.calls == ["put"]


async def test_a_failed_put_is_not_cached(cached: CachedBlobStore, backend: WatchedStore) -> None:
    backend.fault = StoreUnavailable("down for a test")
    with pytest.raises(StoreUnavailable):
        await cached.put("v1/a", b"x")
    backend.fault = None
    assert await is_missing(cached.get("v1/a"))


async def test_a_put_is_cached_only_once_it_is_durable(
    cached: CachedBlobStore, backend: WatchedStore
) -> None:
    backend.open.clear()
    putting = asyncio.create_task(cached.put("v1/a", b"x"))
    await wait_until(lambda: backend.calls == ["put"])
    assert cached.stats().memory_bytes == 0
    backend.open.set()
    await putting
    assert cached.stats().memory_bytes > 0


async def test_a_range_comes_from_a_cached_object_or_is_passed_on_and_not_kept(
    cached: CachedBlobStore, backend: WatchedStore
) -> None:
    await MemoryBlobStore.put(backend, "v1/a", b"0123456789")
    assert await cached.get_range("v1/a", 2, 3) == b"234"
    assert await cached.get_range("v1/a", 2, 3) == b"234"
    assert backend.calls == ["get_range", "get_range"]
    assert cached.stats() == CacheStats(0, 0, 2, 6, 0)
    await cached.get("v1/a")
    for start, length, part in ((2, 3, b"234"), (8, 100, b"89"), (20, 5, b""), (3, 0, b"")):
        assert await cached.get_range("v1/a", start, length) == part
    assert backend.calls == ["get_range", "get_range", "get"]
    assert await is_missing(cached.get_range("v1/b", 0, 1))


async def test_a_list_is_passed_on(cached: CachedBlobStore, backend: WatchedStore) -> None:
    await cached.put("v1/a", b"x")
    await MemoryBlobStore.put(backend, "v1/b", b"xx")
    assert [info async for info in cached.list("v1/")] == [
        BlobInfo("v1/a", 1),
        BlobInfo("v1/b", 2),
    ]
    assert backend.calls == ["put", "list"]


@pytest.mark.parametrize("key", ["..", "/etc/passwd", "a//b", "", "a\n", "x" * 600])
async def test_keys_that_could_escape_are_refused_and_reach_nothing(
    cached: CachedBlobStore, backend: WatchedStore, key: str
) -> None:
    for call in (
        cached.put(key, b"x"),
        cached.get(key),
        cached.get_range(key, 0, 1),
        cached.delete(["v1/a", key]),
    ):
        with pytest.raises(InvalidKey):
            await call
    assert backend.calls == []


@pytest.mark.guarantee(14)
async def test_memory_is_bounded_and_forgets_the_least_recently_used(
    cached: CachedBlobStore, backend: WatchedStore
) -> None:
    for name in "abcde":
        await cached.put(name, name.encode() * 12 * KIB)
        await cached.get("a")
    await cached.put("f", b"f" * 12 * KIB)  # 72 KiB of 64: "b" goes, "a" has been used since.
    assert cached.stats().memory_bytes <= 64 * KIB
    backend.calls.clear()
    for name in "acdef":
        assert await cached.get(name) == name.encode() * 12 * KIB
    assert backend.calls == []
    assert await cached.get("b") == b"b" * 12 * KIB
    assert backend.calls == ["get"]


async def test_an_object_over_a_quarter_is_not_kept_in_memory(
    cached: CachedBlobStore, backend: WatchedStore
) -> None:
    await cached.put("quarter", bytes(16 * KIB))
    await cached.put("larger", bytes(16 * KIB + 1))
    await cached.get("quarter")
    assert backend.calls == ["put", "put"]
    assert len(await cached.get("larger")) == 16 * KIB + 1
    assert backend.calls == ["put", "put", "get"]


@pytest.mark.parametrize("memory_bytes_max", [0, 100, 64 * KIB])
async def test_any_number_of_empty_objects_is_bounded_too(
    backend: WatchedStore, memory_bytes_max: int
) -> None:
    cached = CachedBlobStore(backend, memory_bytes_max=memory_bytes_max, disk_bytes_max=0)
    for number in range(1000):
        await cached.put(f"v1/{number}", b"")
        assert cached.stats().memory_bytes <= memory_bytes_max
    assert await cached.get("v1/0") == b""
    await cached.get("v1/999")
    assert backend.calls.count("get") == (1 if memory_bytes_max == 64 * KIB else 2)


@pytest.mark.guarantee(14)
async def test_concurrent_gets_are_one_read(cached: CachedBlobStore, backend: WatchedStore) -> None:
    await MemoryBlobStore.put(backend, "v1/a", b"x")
    await MemoryBlobStore.put(backend, "v1/b", b"y")
    backend.open.clear()
    gets = [asyncio.create_task(cached.get(f"v1/{name}")) for name in "ab" * 50]
    await wait_until(lambda: len(backend.calls) == 2)
    backend.open.set()
    assert await asyncio.gather(*gets) == [b"x", b"y"] * 50
    assert backend.calls == ["get", "get"]
    assert cached.stats().misses == 2


async def test_an_error_reaches_all_waiters_and_is_not_cached(
    cached: CachedBlobStore, backend: WatchedStore
) -> None:
    await MemoryBlobStore.put(backend, "v1/a", b"x")
    backend.fault = StoreUnavailable("down for a test")
    backend.open.clear()
    gets = [asyncio.create_task(cached.get("v1/a")) for _ in range(10)]
    await wait_until(lambda: bool(backend.calls))
    backend.open.set()
    results = await asyncio.gather(*gets, return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable] * 10
    assert backend.calls == ["get"]
    backend.fault = None
    assert await cached.get("v1/a") == b"x"


async def test_a_cancelled_waiter_does_not_fail_the_others(
    cached: CachedBlobStore, backend: WatchedStore
) -> None:
    await MemoryBlobStore.put(backend, "v1/a", b"x")
    backend.open.clear()
    gets = [asyncio.create_task(cached.get("v1/a")) for _ in range(3)]
    await wait_until(lambda: bool(backend.calls))
    gets[0].cancel()  # The one that began the read.
    gets[2].cancel()
    await wait_until(lambda: gets[0].done() and gets[2].done())
    backend.open.set()
    assert await gets[1] == b"x"
    assert gets[0].cancelled()
    assert gets[2].cancelled()
    assert (backend.calls, backend.cancelled) == (["get"], 0)


@pytest.mark.parametrize("started", [True, False])
async def test_when_all_are_cancelled_the_read_ends_before_they_do(
    cached: CachedBlobStore, backend: WatchedStore, started: bool
) -> None:
    await MemoryBlobStore.put(backend, "v1/a", b"x")
    backend.open.clear()
    before = asyncio.all_tasks()
    gets = [asyncio.create_task(cached.get("v1/a")) for _ in range(3)]
    await (wait_until(lambda: bool(backend.calls)) if started else asyncio.sleep(0))
    for get in gets:
        get.cancel()
    await asyncio.wait(gets)
    assert asyncio.all_tasks() == before, "a read runs on"
    assert all(get.cancelled() for get in gets)
    assert backend.cancelled == len(backend.calls)
    backend.open.set()
    assert await cached.get("v1/a") == b"x"


async def test_a_get_after_all_were_cancelled_reads_again(
    cached: CachedBlobStore, backend: WatchedStore
) -> None:
    await MemoryBlobStore.put(backend, "v1/a", b"x")
    backend.open.clear()
    first = asyncio.create_task(cached.get("v1/a"))
    await wait_until(lambda: bool(backend.calls))
    first.cancel()
    await asyncio.sleep(0)
    second = asyncio.create_task(cached.get("v1/a"))
    await wait_until(lambda: len(backend.calls) == 2)
    assert not first.done(), "the two reads were to overlap"
    await wait_until(first.done)
    third = asyncio.create_task(cached.get("v1/a"))
    await asyncio.sleep(0)
    backend.open.set()
    assert (await second, await third) == (b"x", b"x")
    assert first.cancelled()
    assert backend.calls == ["get", "get"]


async def test_an_error_without_waiters_is_not_logged_as_lost(
    backend: WatchedStore,
) -> None:
    class Stubborn(WatchedStore):
        async def get(self, key: str) -> bytes:
            try:
                await asyncio.Event().wait()
            finally:
                raise StoreUnavailable("instead of ending quietly")

    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    cached = CachedBlobStore(Stubborn(), memory_bytes_max=KIB, disk_bytes_max=0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await cached.get("v1/a")
    gc.collect()
    await asyncio.sleep(0)
    assert reports == []


async def test_a_deleted_object_is_not_served_again(
    cached: CachedBlobStore, backend: WatchedStore
) -> None:
    for name in "abc":
        await cached.put(name, b"x")
    await cached.delete(iter(["a", "b", "never-there"]))
    assert await is_missing(cached.get("a"))
    assert await is_missing(cached.get_range("b", 0, 1))
    assert await cached.get("c") == b"x"


async def test_a_failed_delete_keeps_nothing_cached(
    cached: CachedBlobStore, backend: WatchedStore
) -> None:
    await cached.put("a", b"x")
    backend.fault = StoreUnavailable("down for a test")
    with pytest.raises(StoreUnavailable):
        await cached.delete(["a"])
    assert cached.stats().memory_bytes == 0
    backend.fault = None
    assert await cached.get("a") == b"x"


class SlowAnswer(WatchedStore):
    """Has the answer to a get at once, and gives it late."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = asyncio.Event()

    async def get(self, key: str) -> bytes:
        data = await super().get(key)
        await self.answer.wait()
        return data


@pytest.mark.parametrize("disk", [False, True])
async def test_a_running_read_does_not_restore_a_deleted_object(tmp_path: Path, disk: bool) -> None:
    behind = SlowAnswer()
    bounds = {"memory_bytes_max": 0 if disk else 64 * KIB, "disk_bytes_max": 64 * KIB}
    cached = CachedBlobStore(behind, disk=tmp_path if disk else None, **bounds)
    await MemoryBlobStore.put(behind, "a", b"x")
    early = asyncio.create_task(cached.get("a"))
    await wait_until(lambda: behind.calls == ["get"])
    await cached.delete(["a"])
    assert await is_missing(cached.get("a")), "joined a read that began before the delete"
    behind.answer.set()
    assert await early == b"x"
    assert await is_missing(cached.get("a")), "the read before the delete was kept"
