"""View files: the rows that a statement reads, as Parquet files for the sandbox process."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped] # It has no types.
import pyarrow.parquet as pq  # type: ignore[import-untyped] # It has no types.

from everlong.queries.views import ENTRIES, Needs, get_columns

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


class ViewFiles:
    """The files of one query, in its folder. The methods block, so callers run them in a thread."""

    def __init__(self, folder: Path, needs: Needs) -> None:
        self._folder = folder
        self._needs = needs
        self._writers: dict[str, Any] = {}

    def add(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to a table. Times are Unix milliseconds."""
        columns = get_columns(table, self._needs.messages)
        batch = pa.table(
            {
                name: pa.array([row.get(name) for row in rows], _ARROW[kind])
                for name, kind in columns.items()
            }
        )
        if table not in self._writers:
            self._writers[table] = pq.ParquetWriter(self._path(table), batch.schema)
        self._writers[table].write_table(batch)

    def close(self) -> dict[str, str]:
        """Complete the files; return the path for each table."""
        for writer in self._writers.values():
            writer.close()
        return {table: str(self._path(table)) for table in self._writers}

    def _path(self, table: str) -> Path:
        return self._folder / f"{table}.parquet"
