"""One statement, in a process of its own. It is run as a file, with nothing of ours to import.

DuckDB holds its own buffers to its limit of memory, and not what a function makes in one go, as
`repeat('x', 2000000000)` does; nor does it hold what a sort spills to its limit of disk. So the kernel
bounds the memory of this process, and what is spilled is watched. Whatever is taken here is given back
when the process ends, and its parent ends it when its time is over. If the parent is killed, this
process ends too, and takes the folder with it.

From stdin: one JSON object. To stdout: a JSON line with the columns, one for each row, and one that
says how it ended. Values are what JSON has. Without a `path` the statement is only parsed, and the one
line has its tree: what makes a parser take all memory is no statement yet.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import duckdb

# What Python and DuckDB take before anything is asked, and what a result takes on its way out.
_BASE_BYTES: Final = 512 * 1024 * 1024
# A disk takes some hundred MB in a second, so a bound is overrun by some ten at most.
_LOOK_SECONDS: Final = 0.05
# Beyond the statement's time: by then a parent that lives has ended this process.
_CPU_SECONDS: Final = 3


class _Watch:
    """Stops a statement that spills too much."""

    def __init__(self, connection: "duckdb.DuckDBPyConnection", spill: Path, most: int) -> None:
        self._connection = connection
        self._spill = spill
        self._most = most
        self._over = threading.Event()
        self.found = ""

    def run(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            if self.found or _size(self._spill) > self._most:
                # Again and again: an interrupt between two parts of a statement is forgotten.
                self.found = "disk"
                self._connection.interrupt()

    def end(self) -> None:
        self._over.set()


def _size(folder: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):  # Gone since, or not there yet.
        for each in os.scandir(folder):
            with contextlib.suppress(OSError):
                total += each.stat().st_size
    return total


def bound(asked: dict[str, Any]) -> None:
    """Have the kernel hold this process to what it may take."""
    data_bytes = _BASE_BYTES + asked["memory_bytes"]
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    # One file can have no more; all of them together are watched.
    resource.setrlimit(resource.RLIMIT_FSIZE, (asked["disk_bytes"], asked["disk_bytes"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    cpu_seconds = math.ceil(asked["seconds"]) + _CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))


def end_with(parent: int, folder: Path | None) -> None:
    """Wait until the parent is no more, then remove what it left, and end."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def parse(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what the statement says, as DuckDB's JSON."""
    with duckdb.connect(config=asked["config"]) as connection:
        try:
            statement = "select json_serialize_sql(cast(? as varchar))"
            row = connection.execute(statement, [asked["sql"]]).fetchone()
            yield {"tree": row[0] if row else "{}"}
        except (duckdb.Error, MemoryError):
            yield {"failed": "memory", "said": ""}


def run(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run the statement; yield its columns, its rows, and how it ended."""
    path, config = asked["path"], asked["config"]
    with duckdb.connect(path, read_only=True, config=config) as connection:
        # Times are UTC, and so is now(), wherever this runs.
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        watch = _Watch(connection, Path(config["temp_directory"]), asked["disk_bytes"])
        threading.Thread(target=watch.run, daemon=True).start()
        try:
            yield from _rows(connection, asked)
        except duckdb.InterruptException:
            yield {"failed": watch.found or "time", "said": ""}
        except (duckdb.OutOfMemoryException, MemoryError):
            yield {"failed": "memory", "said": ""}
        except duckdb.IOException:
            # Nothing but its own files is read or written, so one of them was to be too large, or the
            # disk is full. What DuckDB says has the path in it.
            yield {"failed": "disk", "said": ""}
        except duckdb.Error as error:
            # The first line: what comes after it quotes data and paths.
            said = str(error).splitlines()[0][:300]
            yield {"failed": "memory" if "bad_alloc" in said else "statement", "said": said}
        finally:
            watch.end()


def _rows(
    connection: "duckdb.DuckDBPyConnection", asked: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    cursor = connection.execute(asked["sql"])
    yield {"columns": [str(each[0]) for each in cursor.description or ()]}
    left_bytes = asked["result_bytes"]
    for _ in range(asked["rows"]):
        row = cursor.fetchone()
        if row is None:
            yield {"truncated": False}
            return
        line = {"row": [plain(value) for value in row]}
        left_bytes -= len(json.dumps(line))
        if left_bytes < 0:
            yield {"truncated": True}
            return
        yield line
    yield {"truncated": cursor.fetchone() is not None}


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
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
            return [plain(each) for each in value]
        case dict():
            return {str(key): plain(each) for key, each in value.items()}
    return str(value)


def main() -> None:
    """Do what stdin asks for."""
    asked = json.load(sys.stdin)
    bound(asked)
    folder = Path(asked["path"]).parent if "path" in asked else None
    threading.Thread(target=end_with, args=(asked["parent"], folder), daemon=True).start()
    for line in run(asked) if "path" in asked else parse(asked):
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
