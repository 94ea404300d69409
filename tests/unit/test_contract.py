"""The exported contract is used as its docstring says, and it notices stores that break it."""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import pytest

from everlong.errors import BlobMissing
from everlong.storage.base import BlobInfo, BlobStore
from everlong.storage.memory import MemoryBlobStore
from everlong.testing.contract import BlobStoreContract

SUITE = """
import pytest
from everlong.storage.file import FileBlobStore
from everlong.testing.contract import BlobStoreContract

class TestMyStore(BlobStoreContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.root = tmp_path

    async def new_store(self):
        return FileBlobStore(self.root)
"""


class Unnamed(MemoryBlobStore):
    __repr__ = object.__repr__


class Short(MemoryBlobStore):
    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return (await super().get_range(key, start, length))[:1000]


class Eager(MemoryBlobStore):
    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await super().get_range(key, start, length) if length else b""


class Nameless(MemoryBlobStore):
    async def get(self, key: str) -> bytes:
        try:
            return await super().get(key)
        except BlobMissing:
            raise BlobMissing("it is gone") from None


class Segments(MemoryBlobStore):
    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        async for info in super().list(prefix):
            if not prefix or prefix.endswith("/") or info.key == prefix:
                yield info


class OnePage(MemoryBlobStore):
    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        left = 1000
        async for info in super().list(prefix):
            left -= 1
            if left >= 0:
                yield info


class Strict(MemoryBlobStore):
    async def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            await self.get(key)
            await super().delete([key])


class Trusting(MemoryBlobStore):
    async def get(self, key: str) -> bytes:
        return self._objects.get(key, b"")


class Hasty(MemoryBlobStore):
    async def delete(self, keys: Iterable[str]) -> None:
        for key in list(keys)[:1000]:
            await super().delete([key])


def names() -> list[str]:
    return [name for name in dir(BlobStoreContract) if name.startswith("test_")]


def find_failures(factory: Callable[[], BlobStore]) -> set[str]:
    """Names of the tests that a store does not pass."""

    class Suite(BlobStoreContract):
        async def new_store(self) -> BlobStore:
            return factory()

    failed = set()
    for name in names():
        try:
            getattr(Suite(), name)()
        except (AssertionError, BlobMissing):
            failed.add(name)
    return failed


@pytest.mark.guarantee(15)
@pytest.mark.parametrize(
    ("store", "test"),
    [
        (Unnamed, "test_the_store_is_a_blob_store"),
        (Short, "test_a_large_object_comes_back_whole_and_in_ranges"),
        (Eager, "test_a_missing_object_is_named"),
        (Nameless, "test_a_missing_object_is_named"),
        (Segments, "test_list_yields_keys_and_sizes_under_a_prefix"),
        (OnePage, "test_many_objects_are_listed_once_each_and_deleted_at_once"),
        (Strict, "test_delete_ignores_missing_objects"),
        (Trusting, "test_keys_that_could_escape_are_refused"),
        (Hasty, "test_many_objects_are_listed_once_each_and_deleted_at_once"),
    ],
)
def test_a_store_that_breaks_the_contract_is_detected(
    store: Callable[[], BlobStore], test: str
) -> None:
    assert test in find_failures(store)


def test_a_subclass_has_to_make_a_store() -> None:
    with pytest.raises(NotImplementedError, match="new_store"):
        BlobStoreContract().test_get_returns_what_was_put()


def test_plain_pytest_runs_it_without_plugins(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(SUITE, encoding="utf-8")
    options = ["-q", "-p", "no:asyncio", "-p", "no:anyio", "-p", "no:cacheprovider", "-W", "error"]
    options += ["--rootdir", str(tmp_path), "-k", "ranges or slice or unnamed or refused"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_the_module_does_not_import_pytest() -> None:
    code = "import sys, everlong.testing.contract; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
