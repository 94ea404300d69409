"""Runs or checks single statements as the query engine does."""

import functools
from pathlib import Path
from typing import Any

import duckdb

from everlong.queries import Bounds, Needs, Table, sandbox
from everlong.queries.engine import open_statement
from everlong.queries.view_files import ViewFiles

ROW: dict[str, Any] = {
    "thread_id": "ops-7",
    "source": "journal",
    "seq": 1,
    "kind": "reply",
    "time": 1_794_800_000_000,
    "text": "hello",
    "tool_calls": [{"id": "c1", "tool": "restart", "arguments": "{}"}],
    "size_bytes": 10,
    "tokens": 5,
    "cost_usd": 0.5,
    "resume_ms": 12.5,
}
ENDLESS = (
    "select count(*) from range(100000000) a, range(1000000) b where a.range % 7 = b.range % 11"
)


async def run(folder: Path, sql: str, bounds: Bounds | None = None, rows: int = 3) -> Table:
    """Run a statement over some entries and a thread."""
    entries = [ROW | {"seq": number} for number in range(1, rows + 1)]
    return await run_over(folder, sql, entries, bounds)


async def run_over(
    folder: Path, sql: str, entries: list[dict[str, Any]], bounds: Bounds | None = None
) -> Table:
    folder.mkdir(exist_ok=True)
    async with open_statement(sql, folder, bounds) as statement:
        files = ViewFiles(folder, statement.needs)
        files.add("entries", entries)
        files.add("threads", [{"thread_id": "ops-7", "stored_bytes": 7}])
        return await statement.run(files.close())


async def find_needs(sql: str, folder: Path) -> Needs:
    """Return what a statement reads, as the query process reports it."""
    async with open_statement(sql, folder) as statement:
        return statement.needs


@functools.cache
def connection() -> "duckdb.DuckDBPyConnection":
    """Return a connection in this process, for statements that parse quickly."""
    return sandbox.connect()


def check(sql: str) -> Needs:
    """Return what a statement reads; raise `QueryRefused` if it may not run."""
    return sandbox.parse(connection(), sql)


def views(folder: Path, messages: bool = True) -> "duckdb.DuckDBPyConnection":
    """Return a connection in this process with the views of a statement, all empty."""
    opened = sandbox.connect()
    bounds = {"memory_bytes": 64 << 20, "disk_bytes": 64 << 20}
    sandbox.open_views(opened, folder, bounds, messages, {})
    return opened
