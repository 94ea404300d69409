"""Every blob store keeps the one contract."""

import time
import uuid
from pathlib import Path

import pytest

from everlong.storage import BlobStore, open_store
from everlong.storage.cache import CachedBlobStore
from everlong.testing.contract import BlobStoreContract
from examples.own_store.test_store import TestSqliteStore
from tests.support.s3_server import S3Server

__all__ = ["TestSqliteStore"]  # Run here, too: the example's own test.


class TestMemory(BlobStoreContract):
    async def new_store(self) -> BlobStore:
        return open_store("memory:")


@pytest.mark.guarantee(15)
class TestFile(BlobStoreContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.root = tmp_path

    async def new_store(self) -> BlobStore:
        return open_store((self.root / "blobs").as_uri())


@pytest.mark.parametrize("memory_bytes_max", [0, 1 << 20])
class TestCached(BlobStoreContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path, memory_bytes_max: int) -> None:
        self.root, self.memory_bytes_max = tmp_path, memory_bytes_max

    async def new_store(self) -> BlobStore:
        return CachedBlobStore(
            open_store((self.root / "blobs").as_uri()),
            memory_bytes_max=self.memory_bytes_max,
            disk=self.root / "cache",
            disk_bytes_max=1 << 26,
        )


@pytest.mark.guarantee(15)
@pytest.mark.server
class TestS3(BlobStoreContract):
    @pytest.fixture(autouse=True)
    def place(self, s3: S3Server) -> None:
        self.server = s3

    async def new_store(self) -> BlobStore:
        return open_store(self.server.url(f"contract/{uuid.uuid4().hex}"))


@pytest.mark.server
@pytest.mark.parametrize("kind", ["file", "s3"])
async def test_files_and_buckets_know_when_an_object_was_put(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    url = (tmp_path / "blobs").as_uri()
    if kind == "s3":
        url = request.getfixturevalue("s3").url(f"contract/{uuid.uuid4().hex}")
    store = open_store(url)
    await store.put("v1/a", b"x")
    [info] = [info async for info in store.list("v1/")]
    assert info.modified_ms is not None
    assert abs(info.modified_ms - 1000 * time.time()) < 60_000
