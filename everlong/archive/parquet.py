"""Parquet files of archives. The only module of archives that imports pyarrow.

All functions block, so callers run them in a thread. A file is written and read a row group at a time:
a group holds 1,024 entries, or 8 MiB of text and one message more.
"""

import contextlib
import dataclasses
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped] # It has no types.
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyarrow.parquet import encryption

from everlong.archive.rows import Row
from everlong.errors import BlobCorrupt
from everlong.models import StepInfo, ToolCall

GROUP_ROWS_MAX: Final = 1024
GROUP_BYTES_MAX: Final = 8 * 1024 * 1024
FACTS: Final = "everlong"
# zstd finds repetition within a page, so pages are large. CPU time relative to level 3, and size
# relative to gzip'd JSON, by level in one run: 3: 1.0 and 1.03; 6: 1.8 and 0.99; 9: 3.3 and 0.95;
# 12: 7.0 and 0.90. In another run: 13: 26 and 0.88; 15: 59 and 0.83. At level 9 a thread of 2,000 steps
# takes 2.6 s; the next twentieth of the size would double that.
_PAGE_BYTES: Final = 4 * 1024 * 1024
_LEVEL: Final = 9

_CALLS: Final = pa.list_(
    pa.struct([("id", pa.string()), ("tool", pa.string()), ("arguments", pa.string())])
)
_STEP: Final = {
    "step_number": pa.int64(),
    "thread_bytes": pa.int64(),
    "context_bytes": pa.int64(),
    "resume_ms": pa.float64(),
    "resume_cause": pa.string(),
    "resume_events": pa.int64(),
}
SCHEMA: Final = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("time", pa.timestamp("ms", "UTC"), nullable=False),
        ("role", pa.string()),
        ("text", pa.string()),
        ("tool", pa.string()),
        ("call_id", pa.string()),
        ("tool_calls", _CALLS),
        ("body", pa.string()),
        ("shown", pa.string()),
        ("data", pa.string()),
        ("snapshot", pa.string()),
        pa.field("size_bytes", pa.int64(), nullable=False),
        ("original_bytes", pa.int64()),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("cost_usd", pa.float64(), nullable=False),
        *_STEP.items(),
    ]
)
_MESSAGE: Final = ("role", "text", "tool", "call_id", "tool_calls", "body", "shown", "snapshot")
META: Final = tuple(name for name in SCHEMA.names if name not in _MESSAGE)
"""The columns of entries without their messages."""
_FEW_VALUES: Final = ["kind", "role", "tool", "resume_cause"]


def to_table(rows: Sequence[Row]) -> "pa.Table":
    """Return rows as an Arrow table."""
    columns: dict[str, Any] = {
        name: [getattr(row, name) for row in rows]
        for name in SCHEMA.names
        if name not in {"time", "tool_calls", *_STEP}
    }
    columns["time"] = [row.time_ms for row in rows]
    columns["tool_calls"] = [_to_calls(row) for row in rows]
    for name in _STEP:
        field = name.removeprefix("step_")
        columns[name] = [None if row.step is None else getattr(row.step, field) for row in rows]
    arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _to_calls(row: Row) -> list[dict[str, str]] | None:
    return [dataclasses.asdict(call) for call in row.tool_calls] or None


def to_rows(table: "pa.Table") -> list[Row]:
    """Return the rows of a table, which may lack some columns."""
    names = [name for name in table.column_names if name not in {"time", "tool_calls", *_STEP}]
    columns: dict[str, list[Any]] = {name: table.column(name).to_pylist() for name in names}
    if "time" in table.column_names:
        columns["time_ms"] = table.column("time").cast(pa.int64()).to_pylist()
    if "tool_calls" in table.column_names:
        columns["tool_calls"] = [
            tuple(ToolCall(**call) for call in calls or ())
            for calls in table.column("tool_calls").to_pylist()
        ]
    if "step_number" in table.column_names:
        columns["step"] = _to_steps({name: table.column(name).to_pylist() for name in _STEP})
    return [
        Row(**dict(zip(columns, values, strict=True)))
        for values in zip(*columns.values(), strict=True)
    ]


def _to_steps(columns: dict[str, list[Any]]) -> list[StepInfo | None]:
    fields = [name.removeprefix("step_") for name in columns]
    return [
        None if values[0] is None else StepInfo(**dict(zip(fields, values, strict=True)))
        for values in zip(*columns.values(), strict=True)
    ]


class ArchiveWriter:
    """Writes rows to a file. With a key, the whole file is sealed by Parquet's own encryption."""

    def __init__(self, path: Path, facts: str, key: bytes | None) -> None:
        sealed = {} if key is None else {"encryption_properties": _make_sealing(key)}
        self._writer = pq.ParquetWriter(
            path,
            SCHEMA,
            compression="zstd",
            compression_level=_LEVEL,
            use_dictionary=_FEW_VALUES,
            write_statistics=list(META),
            data_page_size=_PAGE_BYTES,
            write_page_checksum=True,
            store_schema=False,
            **sealed,
        )
        self._facts = facts
        self._rows: list[Row] = []
        self._bytes = 0

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows, and write a row group when it is full."""
        for row in rows:
            self._rows.append(row)
            self._bytes += (row.original_bytes or 0) + row.size_bytes + len(row.snapshot or "")
            if len(self._rows) >= GROUP_ROWS_MAX or self._bytes >= GROUP_BYTES_MAX:
                self._write()

    def _write(self) -> None:
        if self._rows:
            self._writer.write_table(to_table(self._rows), row_group_size=len(self._rows))
        self._rows, self._bytes = [], 0

    def close(self) -> None:
        """Write the last row group and the footer."""
        self._write()
        self._writer.add_key_value_metadata({FACTS: self._facts})
        self._writer.close()


def _make_sealing(key: bytes) -> Any:
    return encryption.create_encryption_properties(footer_key=key)


class ArchiveFile:
    """A file of rows. Only the requested row groups and columns are read."""

    meta: Final = META

    def __init__(self, source: io.RawIOBase | Path, key: bytes | None) -> None:
        file = source if isinstance(source, Path) else pa.PythonFile(source, mode="r")
        opening = None if key is None else encryption.create_decryption_properties(footer_key=key)
        with _translate_errors():
            self._file = pq.ParquetFile(
                file,
                decryption_properties=opening,
                page_checksum_verification=True,
                pre_buffer=True,
            )
            metadata = self._file.metadata
            self.rows: int = metadata.num_rows
            self.names: list[str] = self._file.schema_arrow.names
            counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
            self.facts = (metadata.metadata or {}).get(FACTS.encode(), b"")
        self.groups: list[tuple[int, int]] = []
        first_seq = 1
        for count in counts:
            self.groups.append((first_seq, count))
            first_seq += count

    def tables(
        self, first_seq: int, last_seq: int, columns: Sequence[str] | None = None
    ) -> "Iterator[pa.Table]":
        """Yield the rows of a range, a row group at a time."""
        for index, (group_seq, count) in enumerate(self.groups):
            if group_seq > last_seq or group_seq + count <= first_seq:
                continue
            with _translate_errors():
                table = self._file.read_row_group(
                    index, None if columns is None else list(columns), use_threads=False
                )
            start = max(0, first_seq - group_seq)
            yield table.slice(start, last_seq + 1 - group_seq - start)

    def read(
        self, first_seq: int, last_seq: int, columns: Sequence[str] | None = None
    ) -> list[Row]:
        """Return the rows of a range."""
        found: list[Row] = []
        for table in self.tables(first_seq, last_seq, columns):
            with _translate_errors():
                found += to_rows(table)
        return found


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate errors of unreadable bytes to `BlobCorrupt`. The store's own errors pass unchanged."""
    try:
        yield
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        # Not chained: the messages may quote file content.
        raise BlobCorrupt(
            f"an archive's file cannot be read ({type(error).__name__}): it is damaged, or sealed with "
            "another key. Restore it from a backup of the store."
        ) from None


def export(source: ArchiveFile, path: Path) -> int:
    """Write a plain copy of a file, readable without a key; return the number of rows."""
    writer = ArchiveWriter(path, source.facts.decode(), None)
    for first_seq, count in source.groups:
        writer.add(source.read(first_seq, first_seq + count - 1))
    writer.close()
    return source.rows
