"""The cache's directory: what is in it, what is wrong with a file, and how much it holds."""

import asyncio
import errno
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from everlong.storage import cache_disk
from everlong.storage.cache import CachedBlobStore
from tests.support.fake_stores import CountingStore

KIB = 1024
BOUND = 256 * KIB


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache"


@pytest.fixture
def backend() -> CountingStore:
    return CountingStore()


def open_cache(
    behind: CountingStore, disk: Path, *, memory: int = 0, bound: int = BOUND
) -> CachedBlobStore:
    return CachedBlobStore(behind, memory_bytes_max=memory, disk=disk, disk_bytes_max=bound)


def files(disk: Path) -> list[Path]:
    return sorted(path for path in disk.rglob("*") if path.is_file())


def blocks(disk: Path) -> int:
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in files(disk))


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


async def test_an_object_is_found_by_the_next_process(disk: Path, backend: CountingStore) -> None:
    await open_cache(backend, disk).put("v1/put", b"x" * 1000)
    await CountingStore.put(backend, "v1/got", b"y" * 1000)
    await open_cache(backend, disk).get("v1/got")
    assert backend.gets == 1
    next_one = open_cache(backend, disk, memory=64 * KIB)
    for _ in range(3):
        assert await next_one.get("v1/put") == b"x" * 1000
        assert await next_one.get_range("v1/got", 990, 100) == b"y" * 10
    assert backend.gets == 1
    stats = next_one.stats()
    assert (stats.memory_hits, stats.disk_hits, stats.misses) == (4, 2, 0)


async def test_concurrent_ranges_of_one_object_read_its_file_once(
    disk: Path, backend: CountingStore
) -> None:
    await open_cache(backend, disk).put("v1/a", bytes(range(256)) * 100)
    cached = open_cache(backend, disk)
    parts = await asyncio.gather(*(cached.get_range("v1/a", start, 1) for start in range(50)))
    assert b"".join(parts) == bytes(range(50))
    assert (cached.stats().disk_hits, backend.gets) == (1, 0)


async def test_an_empty_object_is_cached_too(disk: Path, backend: CountingStore) -> None:
    await open_cache(backend, disk).put("v1/empty", b"")
    assert await open_cache(backend, disk).get("v1/empty") == b""
    assert backend.gets == 0


@pytest.mark.guarantee(14)
async def test_the_directory_is_private_to_its_user(disk: Path, backend: CountingStore) -> None:
    await open_cache(backend, disk).put("v1/a", b"x")
    assert disk.stat().st_mode & 0o777 == 0o700
    for path in disk.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    (root,) = disk.iterdir()
    disk.chmod(0o755)  # Its content stays private although the folder was opened.
    root.chmod(0o770)
    assert await open_cache(backend, disk).get("v1/a") == b"x"
    assert root.stat().st_mode & 0o777 == 0o700


async def test_a_link_in_place_of_the_directory_is_not_followed(
    disk: Path, backend: CountingStore, tmp_path: Path
) -> None:
    await open_cache(backend, disk).put("v1/a", b"x")
    (root,) = disk.iterdir()
    root.rename(tmp_path / "elsewhere")
    root.symlink_to(tmp_path / "elsewhere")
    assert await open_cache(backend, disk).get("v1/a") == b"x"
    assert backend.gets == 1


async def test_no_file_name_reveals_a_key(disk: Path, backend: CountingStore) -> None:
    await open_cache(backend, disk).put("v1/secret-name", b"x")
    (path,) = files(disk)
    assert "secret" not in str(path.relative_to(disk))
    assert len(path.parent.name) == 2


@pytest.mark.guarantee(14)
async def test_a_flip_of_any_byte_is_a_miss_that_heals(disk: Path, backend: CountingStore) -> None:
    data = bytes(range(100))
    await open_cache(backend, disk).put("v1/a", data)
    (path,) = files(disk)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        )
        damaged = open_cache(backend, disk)
        assert await damaged.get("v1/a") == data
        assert damaged.stats().misses == 1, f"byte {place} is not covered"
        assert path.read_bytes() == whole
        assert await damaged.get("v1/a") == data
        assert damaged.stats().disk_hits == 1


async def test_a_file_of_any_other_length_is_a_miss(disk: Path, backend: CountingStore) -> None:
    await open_cache(backend, disk).put("v1/a", b"0123456789")
    (path,) = files(disk)
    whole = path.read_bytes()
    for content in (*(whole[:end] for end in range(len(whole))), whole + b"\0", bytes(BOUND + 1)):
        path.write_bytes(content)
        damaged = open_cache(backend, disk)
        assert await damaged.get_range("v1/a", 0, 4) == b"0123"
        assert not path.exists()
        assert damaged.stats().misses == 1


async def test_another_objects_file_is_a_miss(disk: Path, backend: CountingStore) -> None:
    await open_cache(backend, disk).put("v1/a", b"of a")
    (first,) = files(disk)
    await open_cache(backend, disk).put("v1/b", b"of b")
    (second,) = set(files(disk)) - {first}
    shutil.copy(first, second)
    assert await open_cache(backend, disk).get("v1/b") == b"of b"
    assert backend.gets == 1


@pytest.mark.parametrize("kind", ["link", "pipe"])
async def test_a_path_that_is_no_file_is_a_miss_that_heals(
    disk: Path, backend: CountingStore, kind: str
) -> None:
    await open_cache(backend, disk).put("v1/a", b"x")
    (path,) = files(disk)
    path.rename(disk / "moved")
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(disk / "moved")
    assert await open_cache(backend, disk).get("v1/a") == b"x"
    assert await open_cache(backend, disk).get("v1/a") == b"x"
    assert backend.gets == 1


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
async def test_a_file_that_cannot_be_read_is_a_miss_that_heals(
    disk: Path, backend: CountingStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    cached = open_cache(backend, disk)
    await cached.put("v1/a", b"x")

    def refuse(path: str, flags: int) -> int:
        raise OSError(code, "for a test")

    with monkeypatch.context() as patch:
        patch.setattr(cache_disk, "_open_plain", refuse)
        assert await cached.get_range("v1/a", 0, 1) == b"x"
    assert files(disk) == []


async def test_a_file_over_the_bound_is_not_even_read(disk: Path, backend: CountingStore) -> None:
    await open_cache(backend, disk).put("v1/a", b"x")
    (path,) = files(disk)
    os.truncate(path, 1 << 40)  # A terabyte, without a byte on the disk.
    assert await open_cache(backend, disk).get_range("v1/a", 0, 1) == b"x"
    assert not path.exists()


async def test_a_cached_object_is_not_written_again(disk: Path, backend: CountingStore) -> None:
    await open_cache(backend, disk).put("v1/a", b"x")
    (path,) = files(disk)
    before = path.stat().st_ino
    age(path, 3600)
    await open_cache(backend, disk).put("v1/a", b"x")
    assert path.stat().st_ino == before
    assert time.time() - path.stat().st_mtime < 60, "but it is young again"
    # One digest never names two contents. If it did, the last one would count.
    await open_cache(backend, disk).put("v1/a", b"y")
    assert await open_cache(backend, disk).get("v1/a") == b"y"
    assert backend.gets == 0


@pytest.mark.guarantee(14)
async def test_the_oldest_are_deleted_down_to_four_fifths(
    disk: Path, backend: CountingStore
) -> None:
    cached = open_cache(backend, disk)
    for number in range(16):  # 16 KiB each with its checksum: the bound.
        await cached.put(f"v1/{number}", bytes(16 * KIB - 32))
        for path in files(disk):
            age(path, time.time() - path.stat().st_mtime + 100)
    assert blocks(disk) == BOUND
    assert len(await open_cache(backend, disk).get("v1/1")) == 16 * KIB - 32  # A hit: young again.
    await cached.put("v1/16", bytes(100))
    assert blocks(disk) == 12 * 16 * KIB + 4 * KIB  # The next would be more than 204.8 KiB.
    reader = open_cache(backend, disk)
    for number in range(17):
        await reader.get_range(f"v1/{number}", 0, 1)
    assert reader.stats().disk_hits == 13
    assert all([(await reader.get_range(f"v1/{number}", 0, 1)) for number in (1, 5, 16)])
    assert reader.stats().disk_hits == 16


async def test_a_hit_refreshes_a_file_once_a_minute_at_most(
    disk: Path, backend: CountingStore
) -> None:
    await open_cache(backend, disk).put("v1/a", b"x")
    (path,) = files(disk)
    for seconds, refreshed in ((50, False), (70, True), (-3600, True)):
        age(path, seconds)
        before = path.stat().st_mtime
        await open_cache(backend, disk).get("v1/a")
        assert (path.stat().st_mtime != before) == refreshed
        assert time.time() - path.stat().st_mtime < 60


async def test_an_object_that_would_push_out_the_rest_is_not_kept(
    disk: Path, backend: CountingStore
) -> None:
    cached = open_cache(backend, disk)
    await cached.put("v1/small", bytes(100))
    await cached.put("v1/large", bytes(BOUND))
    assert len(await cached.get("v1/large")) == BOUND
    assert len(await cached.get("v1/small")) == 100
    assert (cached.stats().disk_hits, cached.stats().misses) == (1, 1)


async def test_many_small_files_are_bounded_by_the_blocks_they_take(
    disk: Path, backend: CountingStore
) -> None:
    cached = open_cache(backend, disk)
    for number in range(150):
        await cached.put(f"v1/{number}", b"x")
        assert number % 5 or blocks(disk) <= BOUND
    assert len(files(disk)) >= 48


async def test_files_being_written_count_too(
    disk: Path, backend: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = open_cache(backend, disk)
    await cached.put("v1/kept", bytes(100))
    create, gate = cache_disk._create, threading.Event()

    def create_slowly(path: Path) -> int:
        assert gate.wait(timeout=10)
        return create(path)

    with monkeypatch.context() as patch:
        patch.setattr(cache_disk, "_create", create_slowly)
        slow = asyncio.create_task(cached.put("v1/slow", bytes(120 * KIB)))
        async with asyncio.timeout(30):
            while not cached._disk._pending:  # type: ignore[union-attr] # there is one
                await asyncio.sleep(0.001)
    await cached.put("v1/no-room", bytes(120 * KIB))
    assert len(files(disk)) == 1, "the one that was there, and still is"
    for number in range(8):
        await cached.put(f"v1/{number}", bytes(30 * KIB))
    gate.set()
    await slow
    assert blocks(disk) <= BOUND
    await cached.get("v1/slow")
    assert cached.stats().disk_hits == 1


async def test_old_files_of_killed_writers_are_removed(disk: Path, backend: CountingStore) -> None:
    await open_cache(backend, disk).put("v1/a", b"x")
    (path,) = files(disk)
    old, fresh = path.with_name(".old"), path.with_name(".fresh")
    for scratch in (old, fresh):
        scratch.write_bytes(b"half")
    age(old, 3700)
    age(fresh, 3500)
    await open_cache(backend, disk).put("v1/b", b"x")
    assert not old.exists()
    assert fresh.exists()


async def test_a_long_lived_process_scans_again(
    disk: Path, backend: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = open_cache(backend, disk)
    await cached.put("v1/a", b"x")
    (path,) = files(disk)
    path.with_name(".old").write_bytes(b"half")
    age(path.with_name(".old"), 3700)
    await cached.put("v1/b", b"x")
    assert path.with_name(".old").exists()
    monkeypatch.setattr(cache_disk, "_SCAN_SECONDS", 0.0)
    await cached.put("v1/c", b"x")
    assert not path.with_name(".old").exists()
