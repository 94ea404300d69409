"""Query engine: runs one SQL statement over journals and archives, read-only and within bounds.

The statement runs in a sandbox process, which parses, checks and executes it: see `sandbox`. This
process never parses any part of a statement. When a query ends, also if it is cancelled, the sandbox
process is killed, which frees its memory. Then the query's scratch folder is removed. The result lists
the data that was left out.
"""

import asyncio
import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from temporalio.client import Client

from everlong.errors import QueryRefused, suggest
from everlong.queries import sandbox_main
from everlong.queries.sources import ReadBounds, SourceReader
from everlong.queries.statement import FILL_SECONDS, PARSE_SECONDS, TOO_COMPLEX
from everlong.queries.views import TABLES, Needs
from everlong.storage.pack_store import PackStore

if TYPE_CHECKING:
    from everlong.queries.view_files import ViewFiles

T = TypeVar("T")

STATEMENT_CHARS_MAX: Final = 20_000
# A process starts in 0.2 s, or in some seconds on a busy machine, independent of the statement.
_START_SECONDS: Final = 30.0
# From the end of its output to the end of a process.
_END_SECONDS: Final = 5.0
# Size of the parts that a line is read in.
_PART_BYTES: Final = 256 * 1024
# Lines other than rows; the line of columns is the longest.
_LINE_BYTES_MAX: Final = 1024 * 1024
# Bytes around each row.
_FRAME_BYTES: Final = 64
_LESS: Final = "Name fewer threads, or ask for less."
# Named threads of one query.
_THREADS_NAMED_MAX: Final = 200
# Prefix of the names of scratch folders.
SCRATCH_PREFIX: Final = "everlong-query-"


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Bounds of one query: memory, disk, time and size of the result."""

    memory_bytes: int = 256 * 1024 * 1024
    disk_bytes: int = 1024 * 1024 * 1024
    seconds: float = 30.0
    rows: int = 10_000
    result_bytes: int = 32 * 1024 * 1024
    """Bytes of the result, as JSON or as objects in this process, whichever is more."""
    value_chars: int = 0
    """Characters of one value; longer values are cut. 0 for no bound."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Result of a statement. Values are JSON values."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    truncated: bool
    """Whether there are more rows than these."""
    cut: int = 0
    """Number of values that were cut."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryRead:
    """Amount of data that a query read."""

    threads: int
    """Rows of the view `threads`."""
    journals: int
    entries: int
    message_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryResult:
    """Result of a query. Values are JSON types; times are UTC."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    seconds: float
    truncated: bool
    """Whether rows were left out."""
    read: QueryRead
    left_out: tuple[str, ...] = ()
    """Data that was not read, because of a bound or an error. The rows cover the rest."""


async def run_query(
    client: Client,
    packs: PackStore,
    sql: str,
    *,
    threads: Sequence[str] = (),
    bounds: Bounds | None = None,
    read_bounds: ReadBounds | None = None,
) -> QueryResult:
    """Run one SELECT over the views `entries`, `threads` and `resumes`.

    Only the views and columns that it uses are read: for the named threads, or for all threads within
    `read_bounds`. If the call is cancelled, the statement's process is killed and its files are removed.
    """
    if len(threads) > _THREADS_NAMED_MAX:
        raise QueryRefused(f"{len(threads)} threads are named; {_THREADS_NAMED_MAX} is the most")
    sources = SourceReader(client, packs, read_bounds or ReadBounds(), threads)
    return await _run(sources, sql, bounds or Bounds())


async def _run(sources: SourceReader, sql: str, bounds: Bounds) -> QueryResult:
    started = time.monotonic()
    # Imported here: pyarrow comes with an extra, and only queries need it.
    from everlong.queries.view_files import ViewFiles

    await asyncio.to_thread(clear_orphans)
    # The process ends before its folder is removed, so it cannot write there afterwards.
    with make_scratch_folder() as folder:
        async with open_statement(sql, folder, bounds) as statement:
            files = ViewFiles(folder, statement.needs)
            await _load_views(sources, files, statement.needs)
            found = await statement.run(await _in_thread(files.close))
    left_out = list(sources.left_out)
    if found.cut:
        left_out.append(
            f"of {found.cut} long values all but the first {bounds.value_chars:,} characters"
        )
    return QueryResult(
        columns=found.columns,
        rows=found.rows,
        seconds=time.monotonic() - started,
        truncated=found.truncated,
        read=QueryRead(
            threads=len(sources.threads),
            journals=sources.threads_read,
            entries=sources.entries_read,
            message_bytes=sources.bytes_read,
        ),
        left_out=tuple(left_out),
    )


async def _load_views(sources: SourceReader, files: "ViewFiles", needs: Needs) -> None:
    if needs.tables:
        await sources.list_threads()
    if "threads" in needs.tables:
        await _in_thread(files.add, "threads", sources.threads)
    if "entries" in needs.tables:
        async for rows in sources.read_entries(needs.messages):
            await _in_thread(files.add, "entries", rows)


async def _in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run a function in an OS thread. A cancelled query waits for it: it writes to its folder."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


@contextlib.contextmanager
def make_scratch_folder() -> Iterator[Path]:
    """Make a folder for one query, and remove it afterwards.

    The folder holds message content, so it must be removed also after its process was killed. The owning
    process holds a lock on it; `clear_orphans` removes the folders without a lock.
    """
    # It gets its final name once it is locked, so that no other process takes it for an orphan.
    made = Path(tempfile.mkdtemp(prefix=f".{SCRATCH_PREFIX}"))
    folder = made.with_name(made.name.removeprefix("."))
    with _open_folder(made) as descriptor:
        try:
            # On a file system without locks, no other process gets a lock either.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield made.rename(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def clear_orphans() -> None:
    """Remove the folders of processes that have ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*"):
        # Another process holds it, or it belongs to another user, or it was removed meanwhile.
        with contextlib.suppress(OSError), _open_folder(folder) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_uid == os.geteuid():
                shutil.rmtree(folder)


@contextlib.contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.asynccontextmanager
async def open_statement(
    sql: str, folder: Path, bounds: Bounds | None = None
) -> AsyncIterator["SandboxedStatement"]:
    """Start a sandbox process that parses and checks a statement; kill it at the end.

    Raises `QueryRefused` if the statement is not one SELECT over our views.
    """
    if len(sql) > STATEMENT_CHARS_MAX:
        raise QueryRefused(f"the statement has over {STATEMENT_CHARS_MAX} characters")
    if not sql.isascii() and sql.encode(errors="replace").decode() != sql:
        raise QueryRefused("the statement is not valid Unicode")
    child = await _Child.start()
    try:
        yield await SandboxedStatement.parse(child, sql, folder, bounds or Bounds())
    finally:
        await child.stop()


class SandboxedStatement:
    """A checked statement in its process. `run` takes the tables that it `needs`, as files."""

    def __init__(self, child: "_Child", needs: Needs, bounds: Bounds) -> None:
        self._child = child
        self._bounds = bounds
        self.needs = needs

    @classmethod
    async def parse(
        cls, child: "_Child", sql: str, folder: Path, bounds: Bounds
    ) -> "SandboxedStatement":
        """Return the statement once it is parsed and checked."""
        not_started = "the query's process did not start; try again"
        async with _limit_time(_START_SECONDS, not_started):
            if await child.read(_LINE_BYTES_MAX) is None:
                raise QueryRefused(not_started)
        asked = {
            "sql": sql,
            "bounds": dataclasses.asdict(bounds),
            "parent": os.getpid(),
            "folder": str(folder),
        }
        async with _limit_time(PARSE_SECONDS, TOO_COMPLEX):
            await child.write(asked)
            line = await child.read(_LINE_BYTES_MAX)
        if line is None:
            raise QueryRefused(TOO_COMPLEX)
        if "refused" in line:
            raise QueryRefused(line["refused"])
        return cls(child, Needs(frozenset(line["tables"]), line["messages"]), bounds)

    async def run(self, files: Mapping[str, str]) -> Table:
        """Run the statement over the files of its tables."""
        bounds = self._bounds
        async with _limit_time(FILL_SECONDS, f"the query's data takes too long to load. {_LESS}"):
            await self._child.write({"files": dict(files)})
            self._raise_if_failed(await self._child.read(_LINE_BYTES_MAX))
        stopped = f"the query was stopped after {bounds.seconds:g} s, its limit. {_LESS}"
        async with _limit_time(bounds.seconds, stopped):
            columns = self._raise_if_failed(await self._child.read(_LINE_BYTES_MAX))["columns"]
            left_bytes = bounds.result_bytes + _FRAME_BYTES * bounds.rows + _LINE_BYTES_MAX
            rows: list[tuple[Any, ...]] = []
            while "row" in (line := self._raise_if_failed(await self._child.read(left_bytes))):
                left_bytes -= self._child.line_bytes
                rows.append(tuple(line["row"]))
        return Table(tuple(columns), tuple(rows), line["truncated"], line["cut"])

    def _raise_if_failed(self, line: dict[str, Any] | None) -> dict[str, Any]:
        """Return a line; raise if it reports a failure, or if the process ended without a line."""
        # A process that the kernel refuses more memory ends without a line.
        why = "memory" if line is None else line.get("failed")
        if line is not None and why is None:
            return line
        message = (line or {}).get("message", "")
        reasons = {
            "memory": f"the query needs more memory than its limit. {_LESS}",
            "disk": (
                f"the query needs more disk than is free, or than its limit of "
                f"{self._bounds.disk_bytes:,} bytes. {_LESS}"
            ),
            "filling": f"the query's data does not fit ({message}). {_LESS}",
        }
        raise QueryRefused(reasons.get(str(why), _describe_failure(message)))


def _describe_failure(message: str) -> str:
    """Return the text for a statement that DuckDB refused; it names the nearest column."""
    unknown = re.search(r'column "([^"]+)" not found', message)
    if unknown is None:
        return f"the query failed: {message}"
    columns = sorted({name for table in TABLES.values() for name in table})
    return (
        f"no column is named {unknown[1][:60]!r}.{suggest(unknown[1], columns)} Columns: "
        f"{', '.join(columns)}"
    )


@contextlib.asynccontextmanager
async def _limit_time(seconds: float, text: str) -> AsyncIterator[None]:
    """Raise `QueryRefused` with this text after a timeout."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise QueryRefused(text) from None


class _Child:
    """The sandbox process of one query, and the lines of its output."""

    def __init__(self, started: asyncio.subprocess.Process) -> None:
        if started.stdin is None or started.stdout is None:
            raise RuntimeError("a process was started without pipes")
        self._process = started
        self._stdin = started.stdin
        self._stdout = started.stdout
        self.line_bytes = 0
        """Length of the last line."""

    @classmethod
    async def start(cls) -> "_Child":
        # Run as a file and isolated (-I), so that environment variables and folders have no effect on
        # it. In a new session, so that Ctrl-C at a terminal reaches it only through this process.
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                sandbox_main.__file__,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=_PART_BYTES,
                env={},
                start_new_session=True,
            )
        )

    async def write(self, asked: Mapping[str, Any]) -> None:
        # If the process has ended, the next read returns no line, and the caller raises then.
        with contextlib.suppress(ConnectionError):
            self._stdin.write(json.dumps(asked).encode() + b"\n")
            await self._stdin.drain()

    async def read(self, bytes_max: int) -> dict[str, Any] | None:
        """Return the next line; None if the process has ended, also in the middle of a line."""
        parts: list[bytes] = []
        self.line_bytes = 0
        while not parts or not parts[-1].endswith(b"\n"):
            try:
                part = await self._stdout.readuntil(b"\n")
            except asyncio.LimitOverrunError as over:
                part = await self._stdout.readexactly(over.consumed)
            except asyncio.IncompleteReadError:
                return None
            self.line_bytes += len(part)
            if self.line_bytes > bytes_max:
                raise QueryRefused(f"the query's result is too large. {_LESS}")
            parts.append(part)
        line: dict[str, Any] = json.loads(b"".join(parts))
        return line

    async def stop(self) -> None:
        """Kill the process, and wait for its end."""
        # A process that has closed its output has ended, and asyncio warns if it is killed.
        if not self._stdout.at_eof():
            self._kill()
        self._stdin.close()
        # Drain the pipe: asyncio does not read a full pipe to its end, and it would stay open.
        while await self._stdout.read(_PART_BYTES):
            pass
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._kill()
            await self._process.wait()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
