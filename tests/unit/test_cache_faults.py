"""Faults of the cache's disk: the backend serves, and faults are logged at intervals."""

import errno
import logging
import os
import resource
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from everlong import limits
from everlong.errors import BlobMissing
from everlong.storage import cache_disk
from everlong.storage.cache import CachedBlobStore
from tests.support.fake_stores import CountingStore

KIB = 1024


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def backend() -> CountingStore:
    return CountingStore()


def open_cache(behind: CountingStore, disk: Path) -> CachedBlobStore:
    return CachedBlobStore(behind, memory_bytes_max=0, disk=disk, disk_bytes_max=256 * KIB)


def files(disk: Path) -> list[Path]:
    return sorted(path for path in disk.rglob("*") if path.is_file())


async def check_reads(cached: CachedBlobStore, behind: CountingStore, name: str) -> None:
    """Everything works, from the store behind."""
    await cached.put(f"v1/{name}", name.encode())
    before = behind.gets
    assert await cached.get(f"v1/{name}") == name.encode()
    assert behind.gets == before + 1
    assert await cached.get_range(f"v1/{name}", 0, 1) == name.encode()[:1]
    assert f"v1/{name}" in [info.key async for info in cached.list("v1/")]
    await cached.delete([f"v1/{name}"])
    with pytest.raises(BlobMissing):
        await cached.get(f"v1/{name}")


async def test_a_deleted_directory_is_bypassed_until_it_returns(
    disk: Path, backend: CountingStore, caplog: pytest.LogCaptureFixture
) -> None:
    cached = open_cache(backend, disk)
    await cached.put("v1/a", b"x")
    disk.rename(disk.with_name("unmounted"))
    for name in ("one", "two", "three"):
        await check_reads(cached, backend, name)
    assert not disk.exists()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{disk} is not used: No such file" in record.getMessage()
    disk.with_name("unmounted").rename(disk)
    before = backend.gets
    assert await cached.get("v1/a") == b"x"
    assert backend.gets == before


async def test_an_emptied_directory_is_filled_again(
    disk: Path, backend: CountingStore, caplog: pytest.LogCaptureFixture
) -> None:
    cached = open_cache(backend, disk)
    await cached.put("v1/a", b"x")
    shutil.rmtree(next(disk.iterdir()))
    assert [await cached.get("v1/a") for _ in range(2)] == [b"x", b"x"]
    assert backend.gets == 1
    assert caplog.records == []


@pytest.mark.parametrize("what", ["a file", "under a file"])
async def test_a_directory_that_cannot_be_created_is_bypassed(
    tmp_path: Path, backend: CountingStore, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    (tmp_path / "file").touch()
    cached = open_cache(backend, tmp_path / ("file" if what == "a file" else "file/cache"))
    await check_reads(cached, backend, "one")
    assert len(caplog.records) == 1


async def test_a_read_only_disk_still_serves_its_objects(
    disk: Path,
    backend: CountingStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await open_cache(backend, disk).put("v1/a", b"x")
    os.utime(files(disk)[0], (0, 0))

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(cache_disk, "_create", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    cached = open_cache(backend, disk)
    assert await cached.get("v1/a") == b"x"
    assert backend.gets == 0
    await check_reads(cached, backend, "one")
    assert [record.getMessage().count("Read-only") for record in caplog.records] == [1]


@pytest.fixture
def no_space() -> Iterator[None]:
    """No file may be longer than one block: for the writer, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.guarantee(14)
@pytest.mark.usefixtures("no_space")
async def test_a_full_disk_is_bypassed_and_nothing_is_left(
    disk: Path, backend: CountingStore, caplog: pytest.LogCaptureFixture
) -> None:
    cached = open_cache(backend, disk)
    for number in range(3):
        await cached.put(f"v1/{number}", bytes(8 * KIB))
        assert await cached.get(f"v1/{number}") == bytes(8 * KIB)
    assert backend.gets == 3
    assert files(disk) == []
    assert len(caplog.records) == 1


async def test_faults_are_logged_again_after_a_minute(
    tmp_path: Path,
    backend: CountingStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").touch()
    cached = open_cache(backend, tmp_path / "file")
    for now in (1000.0, 1059.0, 1061.0):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        cached._disk.write("v1/a", b"x")  # type: ignore[union-attr] # there is one
    assert len(caplog.records) == 2


async def test_reads_do_not_wait_for_a_slow_disk(
    disk: Path, backend: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = open_cache(backend, disk)
    await cached.put("v1/a", b"x")
    monkeypatch.setattr(limits, "CACHE_SECONDS_MAX", 0.05)

    def slow(*_: object) -> None:
        time.sleep(3)

    monkeypatch.setattr(cache_disk.DiskTier, "read", slow)
    monkeypatch.setattr(cache_disk.DiskTier, "write", slow)
    started = time.monotonic()
    await cached.put("v1/b", b"y")
    assert await cached.get("v1/a") == b"x"
    assert time.monotonic() - started < 2.5
    assert backend.gets == 1
