"""The contract of blob stores, 20 tests. Run it with: python -m pytest examples/own_store."""

from pathlib import Path

import pytest

from everlong.storage import BlobStore
from everlong.testing.contract import BlobStoreContract
from examples.own_store.store import SqliteStore


class TestSqliteStore(BlobStoreContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "blobs.db"

    async def new_store(self) -> BlobStore:
        return SqliteStore(self.path)

    async def close_store(self, store: BlobStore) -> None:
        assert isinstance(store, SqliteStore)
        store.close()
