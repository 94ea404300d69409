"""Sandbox: a process that parses, checks and runs one statement. It is started by `sandbox_main`.

DuckDB's parser backtracks: 99 characters of nested CTEs took 52 s and 10 GB. DuckDB keeps its own
buffers within its memory limit, but not the result of a single function, such as
`repeat('x', 2000000000)`. It has not always kept the spill files of a sort within its disk limit either.
Therefore the kernel bounds the memory of this process, first to the limit of parsing and then to the
limit of the statement, and a thread watches the spill files. The parent kills this process at the time
limit, or when its client disconnects. If the parent is killed, this process ends too, and removes the
folder.

Lines of JSON, the parent's marked with `>`:

    {"ready": true}                     the process has started
    > {"sql", "bounds", "parent", "folder"}
    {"tables", "messages"}              the tables and columns to load, if the statement may run
    > {"files"}                         the parent has written the files of the tables
    {"filled": true}                    the views are there; the statement's time begins
    {"columns"}, {"row"} ..., {"truncated", "cut"}

`{"refused"}` or `{"failed", "message"}` may replace any line after the first, and is then the last line.
Values are JSON values.
"""

import contextlib
import datetime
import decimal
import json
import math
import os
import resource
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import duckdb

from everlong.errors import QueryRefused
from everlong.queries.statement import FILL_SECONDS, PARSE_SECONDS, TOO_COMPLEX, check_statement
from everlong.queries.views import INHERITED, RESUMES, TABLES, Needs, get_columns

# Python and DuckDB take 100 MiB of it before the first request.
_PARSE_BYTES: Final = 256 * 1024 * 1024
# Memory of Python and DuckDB before the first request, and of a result while it is written.
_BASE_BYTES: Final = 512 * 1024 * 1024
# A disk writes some hundred MB a second, so the bound is exceeded by some ten MB at most.
_LOOK_SECONDS: Final = 0.05
# CPU time beyond the limit of a step. A living parent kills this process earlier.
_CPU_SECONDS: Final = 3
_ERROR_CHARS_MAX: Final = 300
_FIXED: Final[dict[str, str | bool | int | float | list[str]]] = {
    "threads": 1,
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}


class _Watch:
    """Stops a statement whose spill files exceed the disk limit."""

    def __init__(self, connection: "duckdb.DuckDBPyConnection", spill: Path, most: int) -> None:
        self._connection = connection
        self._spill = spill
        self._most = most
        self._over = threading.Event()
        self.found = ""

    def run(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            if self.found or _measure_bytes(self._spill) > self._most:
                # Repeatedly: DuckDB drops an interrupt between two parts of a statement.
                self.found = "disk"
                self._connection.interrupt()

    def end(self) -> None:
        self._over.set()


def _measure_bytes(folder: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):  # Removed meanwhile, or not created yet.
        for each in os.scandir(folder):
            with contextlib.suppress(OSError):
                total += each.stat().st_size
    return total


def bound_parsing(bounds: Mapping[str, Any]) -> None:
    """Limit this process to the resources of parsing, within the statement's bounds."""
    data_bytes = max(_PARSE_BYTES, _limit_bytes(bounds))
    resource.setrlimit(resource.RLIMIT_DATA, (_PARSE_BYTES, data_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, bounds["disk_bytes"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = PARSE_SECONDS + FILL_SECONDS + bounds["seconds"] + 3 * _CPU_SECONDS
    parse_seconds = math.ceil(PARSE_SECONDS) + _CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (parse_seconds, math.ceil(most)))


def bound_running(bounds: Mapping[str, Any]) -> None:
    """Raise the limits of this process to those of the statement."""
    data_bytes = _limit_bytes(bounds)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    # The kernel limits one file; `_Watch` limits all files together.
    resource.setrlimit(resource.RLIMIT_FSIZE, (bounds["disk_bytes"], bounds["disk_bytes"]))
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))


def _limit_bytes(bounds: Mapping[str, Any]) -> int:
    return _BASE_BYTES + int(bounds["memory_bytes"])


def exit_with_parent(parent: int, folder: Path) -> None:
    """Wait until the parent has ended, then remove its folder and exit."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def connect() -> "duckdb.DuckDBPyConnection":
    """Return a connection to an in-memory database: it parses, and the views are attached to it."""
    return duckdb.connect(config=_FIXED)


def parse(connection: "duckdb.DuckDBPyConnection", sql: str) -> Needs:
    """Return the tables that a statement reads; raise `QueryRefused` if it may not run."""
    try:
        statement = "select json_serialize_sql(cast(? as varchar))"
        row = connection.execute(statement, [sql]).fetchone()
        return check_statement(json.loads(row[0] if row else "{}"))
    except RecursionError:
        raise QueryRefused("the statement is nested too deeply") from None
    except (duckdb.Error, MemoryError):
        raise QueryRefused(TOO_COMPLEX) from None
    except (AttributeError, KeyError, TypeError, ValueError):
        raise QueryRefused("the statement could not be checked") from None


def open_views(
    connection: "duckdb.DuckDBPyConnection",
    folder: Path,
    bounds: Mapping[str, Any],
    messages: bool,
    files: Mapping[str, str],
) -> None:
    """Load the files into tables, and lock the connection so that it can only read them."""
    connection.execute(f"SET memory_limit = '{bounds['memory_bytes'] // 1024}KiB'")
    connection.execute(f"SET temp_directory = {_quote(folder / 'spill')}")
    connection.execute(f"SET max_temp_directory_size = '{bounds['disk_bytes'] // 1024}KiB'")
    path = _quote(folder / "views.duckdb")
    connection.execute(f"ATTACH {path} AS views")
    connection.execute("USE views")
    for table in TABLES:
        columns = get_columns(table, messages)
        schema = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
        connection.execute(f"CREATE TABLE {table} ({schema})")
        if table in files:
            read = f"INSERT INTO {table} BY NAME SELECT * FROM read_parquet(?)"  # noqa: S608 - ours
            connection.execute(read, [files[table]])
            Path(files[table]).unlink()
    connection.execute(RESUMES)
    connection.execute(INHERITED)
    connection.execute("USE memory")
    connection.execute("DETACH views")
    connection.execute(f"ATTACH {path} AS views (READ_ONLY)")
    connection.execute("USE views")
    # Times are UTC, and so is now(), in any time zone.
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _quote(path: Path) -> str:
    text = str(path).replace("'", "''")
    return f"'{text}'"


def run(
    connection: "duckdb.DuckDBPyConnection", sql: str, folder: Path, bounds: Mapping[str, Any]
) -> Iterator[str]:
    """Run the statement; yield lines: its columns, its rows, and its outcome."""
    watch = _Watch(connection, folder / "spill", bounds["disk_bytes"])
    threading.Thread(target=watch.run, daemon=True).start()
    try:
        yield from _iter_rows(connection, sql, bounds)
    except duckdb.InterruptException:
        yield json.dumps({"failed": watch.found or "time", "message": ""})
    except (duckdb.Error, MemoryError) as error:
        yield json.dumps(_describe_failure(error))
    finally:
        watch.end()


def _describe_failure(error: Exception) -> dict[str, Any]:
    """Return the failure of a statement, or of loading its views."""
    if isinstance(error, duckdb.OutOfMemoryException | MemoryError):
        is_spill = "failed to offload" in str(error)
        return {"failed": "disk" if is_spill else "memory", "message": ""}
    if isinstance(error, duckdb.IOException):
        # The process reads and writes only its own files. So one of them has exceeded its limit, or the
        # disk is full. DuckDB's message is not passed on, since it contains the path.
        return {"failed": "disk", "message": ""}
    # Only the first line: the others quote data and paths.
    message = (str(error).splitlines() or [""])[0][:_ERROR_CHARS_MAX]
    return {"failed": "memory" if "bad_alloc" in message else "statement", "message": message}


def _iter_rows(
    connection: "duckdb.DuckDBPyConnection", sql: str, bounds: Mapping[str, Any]
) -> Iterator[str]:
    cursor = connection.execute(sql)
    yield json.dumps({"columns": [str(each[0]) for each in cursor.description or ()]})
    left_bytes, cut = bounds["result_bytes"], 0
    for _ in range(bounds["rows"]):
        row = cursor.fetchone()
        if row is None:
            yield json.dumps({"truncated": False, "cut": cut})
            return
        values = [to_json_value(value) for value in row]
        if bounds["value_chars"]:
            cut += truncate_values(values, bounds["value_chars"])
        line = json.dumps({"row": values})
        left_bytes -= max(len(line), estimate_bytes(values))
        if left_bytes < 0:
            yield json.dumps({"truncated": True, "cut": cut})
            return
        yield line
    yield json.dumps({"truncated": cursor.fetchone() is not None, "cut": cut})


def truncate_values(values: list[Any], chars_max: int) -> int:
    """Cut long values in place; return how many were cut. A long list or object becomes a text."""
    cut = 0
    for index, value in enumerate(values):
        if isinstance(value, str | list | dict):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            if len(text) > chars_max:
                values[index] = text[:chars_max]
                cut += 1
    return cut


def estimate_bytes(value: Any) -> int:
    """Return the approximate size of a value as Python objects."""
    match value:
        case str():
            return 64 + len(value)
        case list():
            return 64 + sum(8 + estimate_bytes(each) for each in value)
        case dict():
            return 240 + sum(64 + len(key) + estimate_bytes(each) for key, each in value.items())
    return 32


def to_json_value(value: Any) -> Any:
    """Return a value as a JSON value."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case decimal.Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case datetime.datetime():
            if value.tzinfo is not None:
                value = value.astimezone(datetime.UTC).replace(tzinfo=None)
            return value.isoformat(timespec="milliseconds") + "Z"
        case bytes() | bytearray():
            return bytes(value).hex()
        case list() | tuple():
            return [to_json_value(each) for each in value]
        case dict():
            return {str(key): to_json_value(each) for key, each in value.items()}
    return str(value)


def _send(line: str) -> None:
    sys.stdout.write(line + "\n")


def _receive() -> Any:
    """Flush the output to the parent, and return its next line."""
    sys.stdout.flush()
    return json.loads(sys.stdin.readline())


def main() -> None:
    """Serve the parent's requests, and exit."""
    _serve()
    sys.stdout.flush()
    # The parent kills this process once it has read the last line, or closes the pipe.
    sys.stdin.readline()
    # Exit at once: watcher threads still run, and DuckDB need not clean up.
    os._exit(0)


def _serve() -> None:
    _send(json.dumps({"ready": True}))
    asked = _receive()
    folder, bounds, sql = Path(asked["folder"]), asked["bounds"], asked["sql"]
    threading.Thread(target=exit_with_parent, args=(asked["parent"], folder), daemon=True).start()
    connection = connect()
    bound_parsing(bounds)
    try:
        needs = parse(connection, sql)
    except QueryRefused as error:
        _send(json.dumps({"refused": str(error)}))
        return
    _send(json.dumps({"tables": sorted(needs.tables), "messages": needs.messages}))
    files = _receive()["files"]
    bound_running(bounds)
    try:
        open_views(connection, folder, bounds, needs.messages, files)
    except (duckdb.Error, MemoryError) as error:
        # Only the error's type: its message quotes data and paths.
        _send(json.dumps({"failed": "filling", "message": type(error).__name__}))
        return
    _send(json.dumps({"filled": True}))
    sys.stdout.flush()
    for line in run(connection, sql, folder, bounds):
        _send(line)
