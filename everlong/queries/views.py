"""Views that queries read: their columns, with DuckDB's names of the types."""

import dataclasses
from collections.abc import Mapping
from typing import Final

ENTRIES: Final = {
    "thread_id": "VARCHAR",
    "source": "VARCHAR",
    "seq": "BIGINT",
    "kind": "VARCHAR",
    "time": "TIMESTAMP",
    "role": "VARCHAR",
    "text": "VARCHAR",
    "tool": "VARCHAR",
    "call_id": "VARCHAR",
    "tool_calls": "STRUCT(id VARCHAR, tool VARCHAR, arguments VARCHAR)[]",
    "data": "VARCHAR",
    "size_bytes": "BIGINT",
    "tokens": "BIGINT",
    "cost_usd": "DOUBLE",
    "step_number": "BIGINT",
    "thread_bytes": "BIGINT",
    "context_bytes": "BIGINT",
    "resume_ms": "DOUBLE",
    "resume_cause": "VARCHAR",
    "resume_events": "BIGINT",
    "inherited": "BOOLEAN",
}
"""`source` is `journal` or `archive`; `data` is JSON, as in `data->>'by'`; times are UTC; `inherited`
marks the entries that a fork shares with its parent."""

MESSAGES: Final = ("text", "tool", "call_id", "tool_calls")
"""Columns of `entries` that come from messages, which are read only if a statement names one."""

THREADS: Final = {
    "thread_id": "VARCHAR",
    "source": "VARCHAR",
    "agent": "VARCHAR",
    "status": "VARCHAR",
    "reason": "VARCHAR",
    "started": "TIMESTAMP",
    "closed": "TIMESTAMP",
    "steps": "BIGINT",
    "messages": "BIGINT",
    "runs": "BIGINT",
    "tokens": "BIGINT",
    "cost_usd": "DOUBLE",
    "stored_bytes": "BIGINT",
    "context_bytes": "BIGINT",
    "growth_bytes_per_hour": "DOUBLE",
    "pending_approvals": "BIGINT",
    "resume_ms": "DOUBLE",
    "archive_id": "VARCHAR",
    "archive_bytes": "BIGINT",
}
"""`source` is `server`, or `archive` for threads whose history the server no longer retains."""

RESUMES: Final = (
    "CREATE VIEW resumes AS SELECT thread_id, seq, time, step_number, resume_ms, resume_cause, "
    "resume_events, thread_bytes, context_bytes FROM entries "
    "WHERE resume_ms > 0 AND NOT inherited"
)

INHERITED: Final = (
    "UPDATE entries SET inherited = seq <= coalesce((SELECT max(cast(forks.data->>'seq' AS bigint)) "
    "FROM entries AS forks WHERE forks.kind = 'fork' AND forks.thread_id = entries.thread_id), 0)"
)
"""Run once all entries are loaded. A journal's newest `fork` has the last seq from its parent."""

TABLES: Final = {"entries": ENTRIES, "threads": THREADS}
NAMES: Final = frozenset({*TABLES, "resumes"})


@dataclasses.dataclass(frozen=True)
class Needs:
    """The tables that a statement reads."""

    tables: frozenset[str]
    messages: bool
    """Whether it names columns that come from messages."""


def table_columns(table: str, messages: bool) -> Mapping[str, str]:
    """Return the columns of a table, without those of messages if the statement names none."""
    left_out = () if messages else MESSAGES
    return {name: kind for name, kind in TABLES[table].items() if name not in left_out}
