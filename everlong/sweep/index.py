"""Sweep index: a SQLite cache of the links of runs and packs. It is recreated if lost or damaged.

With the index, a sweep reads only the runs and packs that are new since the last sweep, and a killed
sweep continues where it was. The index holds names, ids and sizes; no content. The part that was read
from histories and packs is also saved in the store: see `stored_index`.

`with_progress` awaits long work and reports it at intervals. It never returns before the work has ended,
also if the caller is cancelled: the work may use the index, which the caller closes afterwards.
"""

import asyncio
import contextlib
import fcntl
import os
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from everlong import limits
from everlong.storage.pack_store import NO_THREAD

T = TypeVar("T")

_VERSION: Final = 3
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS identity (value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT PRIMARY KEY, workflow_id TEXT NOT NULL, root TEXT NOT NULL, thread TEXT NOT NULL,
    is_open INT NOT NULL, last_event INT NOT NULL DEFAULT 0, is_final INT NOT NULL DEFAULT 0,
    listed INT NOT NULL
);
CREATE INDEX IF NOT EXISTS runs_by_thread ON runs (thread);
CREATE TABLE IF NOT EXISTS threads (
    thread TEXT PRIMARY KEY, workflow_id TEXT NOT NULL, root TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS links (
    holder BLOB NOT NULL, name BLOB NOT NULL, thread TEXT NOT NULL, is_leaf INT NOT NULL,
    is_vouched INT NOT NULL, PRIMARY KEY (holder, name, thread)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS links_by_name ON links (name);
CREATE TABLE IF NOT EXISTS scanned (
    name BLOB PRIMARY KEY, is_decoded INT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS schedules (
    schedule_id TEXT PRIMARY KEY, workflow_id TEXT NOT NULL, thread TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS asked (thread TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS objects (
    key TEXT PRIMARY KEY, thread TEXT NOT NULL, name BLOB NOT NULL, size_bytes INT NOT NULL,
    modified_ms INT NOT NULL, class TEXT NOT NULL DEFAULT '', is_new INT NOT NULL, listed INT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS objects_by_name ON objects (name);
CREATE INDEX IF NOT EXISTS objects_by_thread ON objects (thread, is_new);
CREATE TABLE IF NOT EXISTS listing (
    number INT NOT NULL, sweep TEXT NOT NULL, began_ms INT NOT NULL, is_done INT NOT NULL
);
CREATE TABLE IF NOT EXISTS cursors (
    folder TEXT NOT NULL, before TEXT NOT NULL, after TEXT NOT NULL, kept TEXT NOT NULL,
    parts INT NOT NULL, PRIMARY KEY (folder, before)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS saved (shard TEXT PRIMARY KEY, key TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS touched (thread TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TEMP TABLE quiet (thread TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID;
CREATE TEMP TABLE due (run_id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TEMP TABLE copies (
    key TEXT PRIMARY KEY, original TEXT NOT NULL, thread TEXT NOT NULL, name BLOB NOT NULL,
    quarantined_ms INT NOT NULL, size_bytes INT NOT NULL
) WITHOUT ROWID;
CREATE INDEX temp.copies_by_original ON copies (original, key);
CREATE INDEX temp.copies_by_name ON copies (name);
CREATE INDEX temp.copies_by_thread ON copies (thread);
CREATE TEMP VIEW places AS SELECT thread FROM objects UNION SELECT thread FROM copies;
CREATE TEMP TABLE owned (thread TEXT PRIMARY KEY, workflow_id TEXT NOT NULL) WITHOUT ROWID;
CREATE TEMP TABLE restored (original TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TEMP TABLE seeds (
    name BLOB NOT NULL, is_leaf INT NOT NULL, PRIMARY KEY (name, is_leaf)
) WITHOUT ROWID;
CREATE TEMP TABLE roots (holder BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TEMP TABLE marked (
    id INTEGER PRIMARY KEY, name BLOB NOT NULL, is_leaf INT NOT NULL, UNIQUE (name, is_leaf)
);
CREATE TEMP TABLE swept (
    thread TEXT PRIMARY KEY, objects INT NOT NULL, bytes INT NOT NULL
) WITHOUT ROWID;
CREATE TEMP TABLE held (root TEXT PRIMARY KEY, since_ms INT NOT NULL) WITHOUT ROWID;
"""
# Page cache of SQLite, in KiB. Object names come in random order, and with the default of 2 MB each
# insert would read and write pages of the index by name.
_CACHE_KIB: Final = 64 * 1024
# New names, and everything that they reach by known links. A leaf is not followed, though its object
# may have links: a segment of which an entry uses only a body.
_REACH: Final = """
INSERT OR IGNORE INTO marked (name, is_leaf)
WITH RECURSIVE reached (name, is_leaf) AS (
    SELECT name, is_leaf FROM seeds
    WHERE NOT EXISTS (
        SELECT 1 FROM marked WHERE marked.name = seeds.name AND marked.is_leaf = seeds.is_leaf)
    UNION
    SELECT links.name, links.is_leaf FROM reached JOIN links ON links.holder = reached.name
    WHERE NOT reached.is_leaf AND NOT EXISTS (
        SELECT 1 FROM marked WHERE marked.name = links.name AND marked.is_leaf = links.is_leaf)
)
SELECT name, is_leaf FROM reached
"""
_UNSCANNED: Final = """
SELECT id, name FROM marked WHERE id > ? AND NOT is_leaf AND CASE
WHEN EXISTS (SELECT 1 FROM objects WHERE objects.name = marked.name)
  OR EXISTS (SELECT 1 FROM copies WHERE copies.name = marked.name)
THEN name NOT IN (SELECT name FROM scanned)
WHEN name IN (SELECT name FROM scanned)
THEN EXISTS (SELECT 1 FROM links WHERE links.name = marked.name AND is_vouched
    AND NOT links.is_leaf AND thread NOT IN ('', ?))
ELSE EXISTS (SELECT 1 FROM links WHERE links.name = marked.name AND thread != '') END
ORDER BY id LIMIT ?
"""
# From a name upwards, along vouched links only.
_VOUCHED: Final = """
WITH RECURSIVE above (holder) AS (
    SELECT holder FROM links WHERE name = ? AND is_vouched AND NOT is_leaf
    UNION
    SELECT links.holder FROM above JOIN links ON links.name = above.holder
    WHERE links.is_vouched AND NOT links.is_leaf
)
SELECT holder FROM above WHERE holder IN (SELECT holder FROM roots)
"""


class Link(NamedTuple):
    """A name that a holder (a run, a pack, a schedule) contains."""

    name: bytes
    thread: str = ""
    """Key of the thread that the object is stored under; empty if the link does not say it."""
    is_leaf: bool = False
    """Whether the named object is known to have no links of its own."""
    is_vouched: bool = False
    """Whether a structure of Everlong names it, and not just some text: then it must exist."""


class SweepIndex:
    """A SQLite file, used by one sweep at a time. A concurrent sweep gets a temporary file."""

    def __init__(self, directory: Path | None, identity: str) -> None:
        self._files = contextlib.ExitStack()
        path = None if directory is None else self._lock_file(directory)
        if path is None:
            folder = self._files.enter_context(tempfile.TemporaryDirectory(prefix="everlong-"))
            path = Path(folder, "sweep.sqlite")
        try:
            self._db = self._open(path, identity)
        except sqlite3.DatabaseError:
            for each in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
                each.unlink(missing_ok=True)
            self._db = self._open(path, identity)

    def close(self) -> None:
        """Close and unlock the file."""
        self._db.close()
        self._files.close()

    def _lock_file(self, directory: Path) -> Path | None:
        """Return the file in a directory, unless another sweep is using it."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = self._files.enter_context((directory / "sweep.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return None
        return directory / "sweep.sqlite"

    @staticmethod
    def _open(path: Path, identity: str) -> sqlite3.Connection:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            # After a kill, also of the machine, the file is consistent. The last moments may be missing.
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            if db.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
                raise sqlite3.DatabaseError("the index is damaged")
            db.executescript(_SCHEMA)
            wanted = f"{_VERSION} {identity}"
            found = db.execute("SELECT value FROM identity").fetchall()
            if not found:
                db.execute("INSERT INTO identity VALUES (?)", (wanted,))
            elif found != [(wanted,)]:
                raise sqlite3.DatabaseError("the index is of another store, or of other code")
        except BaseException:
            db.close()
            raise
        return db

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all writes of the body, or on an error none. The body must not await."""
        self._db.execute("BEGIN")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:  # After some errors SQLite has rolled back already.
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    async def compute(self, work: Callable[[], T], on_progress: Callable[[str], None]) -> T:
        """Run long work on the index in a thread. The caller must not use the index meanwhile."""
        running = _run_in_thread(work, self._db.interrupt)
        return await with_progress(running, on_progress, "following known links")

    def run(self, statement: str, *values: Any) -> list[Any]:
        """Run a statement; return its rows."""
        return self._db.execute(statement, values).fetchall()

    def run_named(self, statement: str, values: Mapping[str, Any]) -> list[Any]:
        """Run a statement with named values; return its rows."""
        return self._db.execute(statement, values).fetchall()

    def run_many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run a statement for each row, in a transaction."""
        with self.transaction():
            self._db.executemany(statement, rows)

    def run_each(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run a statement for each row, inside a `transaction`."""
        self._db.executemany(statement, rows)

    def stream(self, statement: str, *values: Any) -> Iterator[Any]:
        """Run a statement; yield its rows without loading them all."""
        yield from self._db.execute(statement, values)

    @property
    def is_empty(self) -> bool:
        """Whether no history has been read yet, as in a new file."""
        return self.scalar("SELECT 1 FROM runs UNION ALL SELECT 1 FROM scanned LIMIT 1") is None

    def touch(self, thread: str) -> None:
        """Note that a thread's data has changed since the index was saved in the store."""
        self.run("INSERT OR IGNORE INTO touched VALUES (?)", thread)

    def scalar(self, statement: str, *values: Any) -> Any:
        """Run a statement; return the first column of its first row, or None."""
        row = self._db.execute(statement, values).fetchone()
        return row[0] if row else None

    def add_links(self, holder: str | bytes, links: Iterable[Link]) -> None:
        """Add the links of a run or a pack. A link that is not a leaf never becomes one."""
        self._db.executemany(
            "INSERT INTO links VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
            "is_leaf = MIN(is_leaf, excluded.is_leaf), "
            "is_vouched = MAX(is_vouched, excluded.is_vouched)",
            [(holder, *link) for link in links],
        )

    def read_links(self, holder: str | bytes) -> set[Link]:
        """Return the links of a run or a pack."""
        rows = self.run(
            "SELECT name, thread, is_leaf, is_vouched FROM links WHERE holder = ?", holder
        )
        return {
            Link(name, thread, bool(leaf), bool(vouched)) for name, thread, leaf, vouched in rows
        }

    def add_scanned(self, name: bytes, links: Iterable[Link], *, is_decoded: bool) -> None:
        """Add all links of a pack. A pack never changes, but decoding a payload may find more links."""
        with self.transaction():
            self.add_links(name, links)
            self.note_scanned(name, is_decoded=is_decoded)

    def note_scanned(self, name: bytes, *, is_decoded: bool) -> None:
        """Note that all links of a pack are known."""
        self.run(
            "INSERT INTO scanned VALUES (?, ?) ON CONFLICT DO UPDATE "
            "SET is_decoded = MAX(is_decoded, excluded.is_decoded)",
            name,
            is_decoded,
        )

    def is_decoded(self, name: bytes) -> bool:
        """Return whether a pack was decoded as a ref's payload: then all its links are known."""
        return self.scalar("SELECT 1 FROM scanned WHERE name = ? AND is_decoded", name) is not None

    def has_thread(self, thread: str) -> bool:
        """Return whether a thread belongs to this namespace."""
        found = self.run(
            "SELECT 1 FROM threads WHERE thread = ? UNION SELECT 1 FROM owned WHERE thread = ?",
            thread,
            thread,
        )
        return bool(found)

    def delete_links(self, holder: str) -> None:
        """Remove the links of a holder."""
        self.run("DELETE FROM links WHERE holder = ?", holder)

    def reach(self, links: Iterable[Link]) -> None:
        """Mark names, and everything that they reach by known links."""
        with self.transaction():
            self.run("DELETE FROM seeds")
            self._db.executemany(
                "INSERT OR IGNORE INTO seeds VALUES (?, ?)",
                [(link.name, link.is_leaf) for link in links],
            )
            self.run(_REACH)

    def reach_from_roots(self) -> None:
        """Clear all marks, and mark everything that runs and other roots reach."""
        with self.transaction():
            self.run("DELETE FROM marked")
            self.run("DELETE FROM seeds")
            self.run(
                "INSERT OR IGNORE INTO seeds "
                "SELECT name, is_leaf FROM links JOIN roots USING (holder)"
            )
            self.run(_REACH)

    def find_unscanned(self, after: int, count: int) -> list[tuple[int, bytes]]:
        """Return marked packs whose links are not known, with their ids.

        Packs whose links are known and that are no longer in the store are included: the scan then
        reports them as lost.
        """
        return self.run(_UNSCANNED, after, NO_THREAD, count)

    def find_places(self, name: bytes) -> list[str]:
        """Return the keys of the threads that a pack may be stored under."""
        linked = self.run(
            "SELECT DISTINCT thread FROM links WHERE name = ? AND thread != '' AND NOT is_leaf",
            name,
        )
        listed = self.run(
            "SELECT thread FROM objects WHERE name = ? UNION SELECT thread FROM copies WHERE name = ?",
            name,
            name,
        )
        return list(dict.fromkeys(thread for (thread,) in [*listed, *linked]))

    def find_vouching_holder(self, name: bytes) -> str:
        """Return a run or schedule that reaches a pack by vouched links; empty if none does.

        Text that only looks like a ref proves nothing, and neither does a pack that only text names.
        """
        found: str | None = self.scalar(_VOUCHED, name)
        return found or ""

    def find_naming_holder(self, name: bytes, thread: str) -> str:
        """Return a holder that names a pack together with its thread; empty if none does."""
        statement = "SELECT holder FROM links WHERE name = ? AND thread = ? AND NOT is_leaf LIMIT 1"
        holder: str | bytes = self.scalar(statement, name, thread) or ""
        return f"pack {holder.hex()}" if isinstance(holder, bytes) else holder

    def finish(self, named_ms: int) -> None:
        """After a complete mark: clear `is_new` of objects, and remove data of deleted objects.

        An unmarked object that was written after `named_ms` stays new: its name may be on the way into a
        history that was already read.
        """
        with self.transaction():
            self.run("INSERT OR IGNORE INTO touched SELECT thread FROM objects WHERE is_new")
            self.run(
                "UPDATE objects SET is_new = 0 "
                "WHERE is_new AND (modified_ms <= ? OR name IN (SELECT name FROM marked))",
                named_ms,
            )
            self.run(
                "DELETE FROM scanned WHERE name NOT IN (SELECT name FROM marked) "
                "AND name NOT IN (SELECT name FROM objects) AND name NOT IN (SELECT name FROM copies)"
            )
            self.run(
                "DELETE FROM links WHERE typeof(holder) = 'blob' "
                "AND holder NOT IN (SELECT name FROM scanned)"
            )


async def with_progress(work: Awaitable[T], on_progress: Callable[[str], None], what: str) -> T:
    """Await work, and report `what` at intervals until it ends."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            on_progress(what)
            await asyncio.wait([task], timeout=limits.SWEEP_PROGRESS_SECONDS)
    finally:
        task.cancel()
        await _wait_for_end(task)
    return task.result()


async def _run_in_thread(work: Callable[[], T], interrupt: Callable[[], None]) -> T:
    """Run work in a thread. If the caller is cancelled, interrupt the work and wait for its end."""
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    finally:
        if not running.done():
            interrupt()
            await _wait_for_end(running)


async def _wait_for_end(work: asyncio.Future[Any]) -> None:
    """Wait for the end of work through any number of cancellations: its resources are closed next."""
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    if not work.cancelled():
        work.exception()  # Mark it as retrieved: the caller raises its own, or asks for this one next.
