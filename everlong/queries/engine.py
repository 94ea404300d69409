"""Statements over views, in a database of their own. With `running`, what knows DuckDB.

A statement is one SELECT over our views. It is parsed and run in processes of its own, read-only, with
no way to files, the network or settings, within bounds of memory, disk, rows and time. What is here
blocks: it is run in a thread.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa  # type: ignore[import-untyped] # It has no types.

from everlong.errors import QueryRefused
from everlong.queries import running
from everlong.queries.results import Bounds, Needs, Table
from everlong.queries.views import ENTRIES, INHERITED, MESSAGES, NAMES, RESUMES, TABLES

STATEMENT_CHARS_MAX: Final = 20_000
# A process takes 0.2 s to start; 2 where the machine is busy.
_START_SECONDS: Final = 2.0
# The longest statements take 2 s to be parsed.
_PARSING: Final = Bounds(seconds=5.0)
# Parsed here: 300 brackets that nobody closes take 15 MB and 0.1 s, less than a process to start.
_SHORT_CHARS_MAX: Final = 300
_FIXED: Final = {
    "threads": 1,
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
# Functions that make tables of what they are given, and read nothing.
_TABLE_FUNCTIONS: Final = frozenset(
    {"unnest", "range", "generate_series", "json_each", "json_tree", "regexp_split_to_table"}
)
_ARROW: Final = {
    "VARCHAR": pa.string(),
    "BOOLEAN": pa.bool_(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "TIMESTAMP": pa.timestamp("ms"),
    ENTRIES["tool_calls"]: pa.list_(
        pa.struct([("id", pa.string()), ("tool", pa.string()), ("arguments", pa.string())])
    ),
}


def needs_of(sql: str) -> Needs:
    """Return what a statement reads, or refuse it: it has to be one SELECT over our views."""
    if len(sql) > STATEMENT_CHARS_MAX:
        raise QueryRefused(f"the statement has over {STATEMENT_CHARS_MAX} characters")
    found = _parsed(sql)
    if len(found) != 1:
        raise QueryRefused("give one statement: one SELECT, without others after it")
    nodes = list(_nodes(found))
    _check(nodes)
    own = {each["key"].lower() for node in nodes for each in _ctes(node)}
    tables = {node["table_name"].lower() for node in nodes if node.get("type") == "BASE_TABLE"}
    unknown = sorted(tables - NAMES - own)
    if unknown:
        raise QueryRefused(
            f"there is no view {unknown[0]!r}; there are: {', '.join(sorted(NAMES))}"
        )
    base = {"entries" if each == "resumes" else each for each in tables & NAMES}
    return Needs(frozenset(base), _names_messages(nodes))


def _parsed(sql: str) -> list[Any]:
    asked = {"sql": sql, "config": _FIXED}
    if len(sql) <= _SHORT_CHARS_MAX:
        [line] = _checked(list(running.parse(asked)), _PARSING)
    else:
        [line] = _Process(asked, _PARSING).lines()
    try:
        tree = json.loads(line["tree"])
    except RecursionError:
        raise QueryRefused("the statement is nested too deeply") from None
    if tree.get("error"):
        raise QueryRefused(f"only a SELECT can be run: {tree.get('error_message', 'it is none')}")
    statements: list[Any] = tree["statements"]
    return statements


class _Process:
    """A statement, elsewhere: see `running`."""

    def __init__(self, asked: Mapping[str, Any], bounds: Bounds) -> None:
        self._bounds = bounds
        self._asked = {**asked, "parent": os.getpid(), **dataclasses.asdict(bounds)}
        # As a file, and isolated: it imports nothing but DuckDB, and no variable changes what it does.
        self._process = subprocess.Popen(
            [sys.executable, "-I", running.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env={},
        )

    def lines(self) -> list[dict[str, Any]]:
        """Return what it said to its end, or say why it did not get there."""
        try:
            said, _ = self._process.communicate(
                json.dumps(self._asked), timeout=self._bounds.seconds + _START_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise _refused(self._bounds, "time") from None
        finally:
            self._stop()
        # Without what comes after the last line's end: a process that dies may leave half a line.
        return _checked([json.loads(line) for line in said.split("\n")[:-1]], self._bounds)

    def kill(self) -> None:
        self._process.kill()

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _checked(lines: list[dict[str, Any]], bounds: Bounds) -> list[dict[str, Any]]:
    """Return what was said, if it ends as it should."""
    # A process that the kernel gave no more memory ends in the middle.
    if not lines or lines[-1].keys() == {"row"} or lines[-1].keys() == {"columns"}:
        raise _refused(bounds, "memory")
    if "failed" in lines[-1]:
        raise _refused(bounds, lines[-1]["failed"], lines[-1]["said"])
    return lines


def _refused(bounds: Bounds, why: str, said: str = "") -> QueryRefused:
    less = "Name fewer threads, or ask for less."
    whys = {
        "time": f"the query was stopped after {bounds.seconds:g} s, the most. {less}",
        "memory": f"the query needs more memory than it may have. {less}",
        "disk": (
            f"the query needs more disk than there is, or than the {bounds.disk_bytes:,} "
            f"bytes that it may have. {less}"
        ),
    }
    return QueryRefused(whys.get(why, f"the query failed: {said}"))


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of a parsed statement."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _ctes(node: dict[str, Any]) -> list[dict[str, Any]]:
    ctes = node.get("cte_map")
    found: list[dict[str, Any]] = ctes.get("map", []) if isinstance(ctes, dict) else []
    return found


def _check(nodes: Sequence[dict[str, Any]]) -> None:
    """Refuse what does more than read our views. What is forgotten here has no files to open."""
    for node in nodes:
        kind = str(node.get("type", ""))
        if kind.endswith("_QUERY_NODE"):
            raise QueryRefused("only a SELECT can be run, also inside of one")
        if kind == "TABLE_FUNCTION":
            name = str((node.get("function") or {}).get("function_name", "")).lower()
            if name not in _TABLE_FUNCTIONS:
                raise QueryRefused(f"{name}() is no view; it may read what is not a thread's")
        if kind == "BASE_TABLE" and (node.get("schema_name") or node.get("catalog_name")):
            raise QueryRefused("name views without a schema: entries, threads, resumes")


def _names_messages(nodes: Sequence[dict[str, Any]]) -> bool:
    """Tell whether a statement names what only messages hold, or rows of entries as a whole."""
    read = [
        node
        for node in nodes
        if node.get("type") == "BASE_TABLE" and node["table_name"].lower() == "entries"
    ]
    if not read:
        return False
    # Other names for columns go by their order: which ones they are depends on those that are there.
    if any(node.get("column_name_alias") for node in read):
        return True
    rows = {str(node.get("alias") or "entries").lower() for node in read}
    by_all = {id(star) for node in nodes for star in _ordered_by_all(node)}
    return any(_names_whole(node, rows) for node in nodes if id(node) not in by_all)


def _names_whole(node: dict[str, Any], rows: set[str]) -> bool:
    """Tell whether a node stands for a column of messages, or for all columns, as `rows` by name do."""
    # By its number: again that depends on the columns that are there.
    if node.get("class") in ("STAR", "POSITIONAL_REFERENCE"):
        return True
    # These go by all columns that no one names.
    if node.get("type") == "PIVOT" or node.get("ref_type") == "NATURAL":
        return True
    path = [str(name).lower() for name in node.get("column_names") or ()]
    if path and path[-1] in rows:
        return True
    joined = [str(name).lower() for name in node.get("using_columns") or ()]
    return not {*path, *joined}.isdisjoint(MESSAGES)


def _ordered_by_all(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the stars of `order by all`: they stand for what is selected."""
    stars = [each.get("expression") or {} for each in node.get("orders") or ()]
    return [star for star in stars if star.get("columns") and star.get("expr") is None]


class Database:
    """The views of one query, in a directory that is gone with it."""

    def __init__(self, folder: Path, needs: Needs, bounds: Bounds) -> None:
        self._folder = folder
        self._bounds = bounds
        self._path = folder / "views.duckdb"
        self._running: _Process | None = None
        left_out = () if needs.messages else MESSAGES
        self._columns = {
            table: {name: kind for name, kind in columns.items() if name not in left_out}
            for table, columns in TABLES.items()
        }
        self._filling = duckdb.connect(str(self._path), config=self._config())
        for table, columns in self._columns.items():
            said = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
            self._filling.execute(f"CREATE TABLE {table} ({said})")
        self._filling.execute(RESUMES)

    def _config(self) -> dict[str, Any]:
        return {
            **_FIXED,
            "memory_limit": f"{self._bounds.memory_bytes // 1024}KiB",
            "temp_directory": str(self._folder / "spill"),
            "max_temp_directory_size": f"{self._bounds.disk_bytes // 1024}KiB",
        }

    def add(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to a view. Times are Unix milliseconds."""
        columns = self._columns[table]
        batch = pa.table(
            {
                name: pa.array([row.get(name) for row in rows], _ARROW[kind])
                for name, kind in columns.items()
            }
        )
        with _translated():
            self._filling.register("batch", batch)
            self._filling.execute(f"INSERT INTO {table} SELECT * FROM batch")  # noqa: S608 - ours
            self._filling.unregister("batch")

    def run(self, sql: str) -> Table:
        """Run the statement, once all is there."""
        with _translated():
            self._filling.execute(INHERITED)
        self._filling.close()
        asked = {"path": str(self._path), "config": self._config(), "sql": sql}
        self._running = _Process(asked, self._bounds)
        lines = self._running.lines()
        rows = tuple(tuple(line["row"]) for line in lines[1:-1])
        return Table(tuple(lines[0]["columns"]), rows, lines[-1]["truncated"])

    def close(self) -> None:
        """Let go of the file, and stop what runs."""
        self._filling.close()
        if self._running is not None:
            self._running.kill()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        # Its kind alone: the rest quotes data and paths.
        raise QueryRefused(
            f"what the query reads does not fit ({type(error).__name__}). Name fewer threads, or ask "
            "for less."
        ) from None
