"""The views that queries read: their columns, by the types that DuckDB names them with."""

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
"""`source` is `journal` or `archive`; `data` is JSON, as in `data->>'by'`; times are UTC; `inherited` is
what a thread had from another one when it began."""

MESSAGES: Final = ("text", "tool", "call_id", "tool_calls")
"""Columns of `entries` that are read from messages: only if a statement names them."""

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
"""`source` is `server`, or `archive` for threads that the server has no history of any more."""

RESUMES: Final = (
    "CREATE VIEW resumes AS SELECT thread_id, seq, time, step_number, resume_ms, resume_cause, "
    "resume_events, thread_bytes, context_bytes FROM entries "
    "WHERE resume_ms > 0 AND NOT inherited"
)

INHERITED: Final = (
    "UPDATE entries SET inherited = seq <= coalesce((SELECT max(cast(forks.data->>'seq' AS bigint)) "
    "FROM entries AS forks WHERE forks.kind = 'fork' AND forks.thread_id = entries.thread_id), 0)"
)
"""Run once all entries are there. A journal's newest `fork` says up to where it is another thread's."""

TABLES: Final = {"entries": ENTRIES, "threads": THREADS}
NAMES: Final = frozenset({*TABLES, "resumes"})


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a statement reads."""

    tables: frozenset[str]
    messages: bool
    """Whether it names what only messages hold."""


def table_columns(table: str, messages: bool) -> Mapping[str, str]:
    """Return the columns of a table, without those of messages where a statement names none."""
    left_out = () if messages else MESSAGES
    return {name: kind for name, kind in TABLES[table].items() if name not in left_out}
