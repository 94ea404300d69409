"""Query engine: runs one statement in a sandbox process, which parses, checks and executes it.

This process never parses any part of a statement. However a query ends, also if it is cancelled, the
sandbox process is killed, and its memory is freed. See `sandbox`.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from everlong.errors import QueryRefused
from everlong.queries import sandbox_main
from everlong.queries.bounds import FILL_SECONDS, PARSE_SECONDS, Bounds
from everlong.queries.statement import TOO_COMPLEX
from everlong.queries.views import Needs

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


@dataclasses.dataclass(frozen=True)
class Table:
    """Result of a statement. Values are JSON values."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    truncated: bool
    """Whether there are more rows than these."""
    cut: int = 0
    """Number of values that were cut."""


@contextlib.asynccontextmanager
async def open_statement(
    sql: str, folder: Path, bounds: Bounds | None = None
) -> AsyncIterator["Statement"]:
    """Start a sandbox process that parses and checks a statement; kill it at the end.

    Raises `QueryRefused` if the statement is not one SELECT over our views.
    """
    if len(sql) > STATEMENT_CHARS_MAX:
        raise QueryRefused(f"the statement has over {STATEMENT_CHARS_MAX} characters")
    if not sql.isascii() and sql.encode(errors="replace").decode() != sql:
        raise QueryRefused("the statement is not valid Unicode")
    child = await _Child.start()
    try:
        yield await Statement.parse(child, sql, folder, bounds or Bounds())
    finally:
        await child.stop()


class Statement:
    """A checked statement in its process. `run` takes the tables that it `needs`, as files."""

    def __init__(self, child: "_Child", needs: Needs, bounds: Bounds) -> None:
        self._child = child
        self._bounds = bounds
        self.needs = needs

    @classmethod
    async def parse(cls, child: "_Child", sql: str, folder: Path, bounds: Bounds) -> "Statement":
        """Return the statement once it is parsed and checked."""
        not_started = "the query's process did not start; try again"
        async with _within(_START_SECONDS, not_started):
            if await child.read(_LINE_BYTES_MAX) is None:
                raise QueryRefused(not_started)
        asked = {
            "sql": sql,
            "bounds": dataclasses.asdict(bounds),
            "parent": os.getpid(),
            "folder": str(folder),
        }
        async with _within(PARSE_SECONDS, TOO_COMPLEX):
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
        async with _within(FILL_SECONDS, f"the query's data takes too long to load. {_LESS}"):
            await self._child.write({"files": dict(files)})
            self._raise_if_failed(await self._child.read(_LINE_BYTES_MAX))
        stopped = f"the query was stopped after {bounds.seconds:g} s, its limit. {_LESS}"
        async with _within(bounds.seconds, stopped):
            columns = self._raise_if_failed(await self._child.read(_LINE_BYTES_MAX))["columns"]
            left_bytes = bounds.result_bytes + _FRAME_BYTES * bounds.rows + _LINE_BYTES_MAX
            rows: list[tuple[Any, ...]] = []
            while "row" in (line := self._raise_if_failed(await self._child.read(left_bytes))):
                left_bytes -= self._child.line_bytes
                rows.append(tuple(line["row"]))
        return Table(tuple(columns), tuple(rows), line["truncated"], line["cut"])

    def _raise_if_failed(self, line: dict[str, Any] | None) -> dict[str, Any]:
        """Return a line. Raises if it reports a failure, or if the process ended without a line."""
        # A process that the kernel refuses more memory ends without a line.
        why = "memory" if line is None else line.get("failed")
        if line is not None and why is None:
            return line
        said = (line or {}).get("said", "")
        whys = {
            "memory": f"the query needs more memory than its limit. {_LESS}",
            "disk": (
                f"the query needs more disk than is free, or than its limit of "
                f"{self._bounds.disk_bytes:,} bytes. {_LESS}"
            ),
            "filling": f"the query's data does not fit ({said}). {_LESS}",
        }
        raise QueryRefused(whys.get(str(why), f"the query failed: {said}"))


@contextlib.asynccontextmanager
async def _within(seconds: float, text: str) -> AsyncIterator[None]:
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
        # Run as a file and isolated (-I), so that no environment variable and no folder changes what it
        # does. In a new session, so that Ctrl-C at a terminal reaches it only through this process.
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
