"""A blob store in a SQLite file: five methods, and errors that say what happened."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from everlong.errors import BlobMissing, StoreUnavailable
from everlong.storage.base import BlobInfo, check_key

T = TypeVar("T")
PAGE = 1_000
TABLE = "CREATE TABLE IF NOT EXISTS blobs (key TEXT PRIMARY KEY, data BLOB, modified_ms INTEGER)"


class SqliteStore:
    """Objects in one table. Each `put` is a transaction, so a reader sees no object or the whole one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")  # A commit is on disk when it returns.
        self._database.execute(TABLE)

    def __repr__(self) -> str:
        return f"sqlite:{self._path}"  # Errors name the store by this.

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    async def put(self, key: str, data: bytes) -> bool | None:
        """Store an object; a name that exists stands for the same content. True if it is new."""
        row = (check_key(key), data, time.time_ns() // 1_000_000)

        def insert(database: sqlite3.Connection) -> bool:
            with database:  # Commits.
                done = database.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)", row)
            return done.rowcount == 1

        return await self._call(insert)

    async def get(self, key: str) -> bytes:
        """Return an object."""
        return await self._read("SELECT data FROM blobs WHERE key = ?", (check_key(key),))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of an object, as a slice would."""
        statement = "SELECT coalesce(substr(data, ? + 1, ?), x'') FROM blobs WHERE key = ?"
        return await self._read(statement, (start, length, check_key(key)))

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """Yield the objects under a prefix, a page at a time."""
        check_key(f"{prefix}x")
        statement = (
            "SELECT key, length(data), modified_ms FROM blobs "
            "WHERE key > ? AND key >= ? AND key < ? ORDER BY key LIMIT ?"
        )
        last, end = "", f"{prefix}~"  # "~" sorts after every character of a key.
        while rows := await self._call(_select(statement, (last, prefix, end, PAGE))):
            for row in rows:
                yield BlobInfo(*row)
            last = rows[-1][0]

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, if they exist."""
        rows = [(check_key(key),) for key in keys]

        def delete(database: sqlite3.Connection) -> None:
            with database:
                database.executemany("DELETE FROM blobs WHERE key = ?", rows)

        await self._call(delete)

    async def _read(self, statement: str, values: tuple[object, ...]) -> bytes:
        rows = await self._call(_select(statement, values))
        if not rows:
            raise BlobMissing(f"blob {values[-1]!r} is not in {self!r}")
        return bytes(rows[0][0])

    async def _call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a transaction in an OS thread, so that it does not block the event loop."""

        def run() -> T:
            with self._lock:
                return work(self._database)

        try:
            return await asyncio.to_thread(run)
        except sqlite3.Error as error:
            # Retryable: workers try again, and nothing is lost meanwhile.
            raise StoreUnavailable(f"{self!r}: {error}") from error


def _select(statement: str, values: Sequence[object]) -> Callable[[sqlite3.Connection], list[Any]]:
    return lambda database: database.execute(statement, values).fetchall()
