"""Views that queries read, and the library of named queries over them. Types have DuckDB's names."""

import dataclasses
from collections.abc import Mapping
from typing import Final

from everlong.errors import QueryRefused, suggest

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


def get_columns(table: str, messages: bool) -> Mapping[str, str]:
    """Return the columns of a table, without those of messages if the statement names none."""
    left_out = () if messages else MESSAGES
    return {name: kind for name, kind in TABLES[table].items() if name not in left_out}


@dataclasses.dataclass(frozen=True)
class NamedQuery:
    """A query and its description."""

    name: str
    about: str
    sql: str


LIBRARY: Final = (
    NamedQuery(
        "biggest-results",
        "The largest tool results.",
        "select thread_id, seq, time, tool, size_bytes from entries where kind = 'tool_result' "
        "and not inherited order by size_bytes desc limit 20",
    ),
    NamedQuery(
        "cost-by-day",
        "What model calls cost, by day.",
        "select cast(time as date) as day, count(*) as calls, sum(tokens) as tokens, "
        "round(sum(cost_usd), 4) as cost_usd from entries where kind = 'reply' "
        "and not inherited group by day order by day desc limit 90",
    ),
    NamedQuery(
        "slowest-resumes",
        "The resumes that took longest.",
        "select thread_id, seq, time, resume_ms, resume_cause, resume_events, thread_bytes "
        "from resumes order by resume_ms desc limit 20",
    ),
    NamedQuery(
        "approvals",
        "What was approved or denied, by whom, and why.",
        "select thread_id, time, data->>'tool' as tool, "
        "case when (data->>'escalated') = 'true' then 'escalated' "
        "when (data->>'approve') = 'true' then 'approved' else 'denied' end as verdict, "
        "data->>'by' as decided_by, data->>'reason' as reason "
        "from entries where kind = 'decided' and not inherited order by time desc limit 100",
    ),
    NamedQuery(
        "tool-failures",
        "Tools by how often they fail.",
        "select tool, count(*) as calls, count(*) filter (starts_with(text, 'error: ')) as failed, "
        "round(100.0 * failed / calls, 1) as percent from entries where kind = 'tool_result' "
        "and not inherited group by tool order by failed desc, calls desc limit 50",
    ),
    NamedQuery(
        "growing",
        "The threads that grow fastest.",
        "select thread_id, agent, status, stored_bytes, growth_bytes_per_hour, steps from threads "
        "where closed is null order by growth_bytes_per_hour desc nulls last limit 20",
    ),
    NamedQuery(
        "written-by-day",
        "What threads wrote, by day, kind and tool: uncompressed, also what a sweep has freed since.",
        "select cast(time as date) as day, kind, tool, count(*) as entries, "
        "sum(size_bytes) as written_bytes from entries where not inherited group by all "
        "order by day desc, written_bytes desc limit 100",
    ),
    NamedQuery(
        "compactions",
        "Compactions, and what they saved.",
        "select thread_id, seq, time, data->>'reason' as reason, "
        "cast(data->>'before_bytes' as bigint) as before_bytes, "
        "cast(data->>'after_bytes' as bigint) as after_bytes, before_bytes - after_bytes as saved_bytes "
        "from entries where kind = 'compaction' and not inherited order by time desc limit 100",
    ),
)


def find_named_query(name: str) -> NamedQuery:
    """Return a query of the library."""
    for each in LIBRARY:
        if each.name == name:
            return each
    names = ", ".join(each.name for each in LIBRARY)
    hint = suggest(name, [each.name for each in LIBRARY])
    raise QueryRefused(f"there is no query {name!r} in the library.{hint} It has: {names}")
