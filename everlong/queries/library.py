"""Library of named queries. They skip the entries that a fork inherited from its parent."""

import dataclasses
from typing import Final


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
        "compactions",
        "Compactions, and what they saved.",
        "select thread_id, seq, time, data->>'reason' as reason, "
        "cast(data->>'before_bytes' as bigint) as before_bytes, "
        "cast(data->>'after_bytes' as bigint) as after_bytes, before_bytes - after_bytes as saved_bytes "
        "from entries where kind = 'compaction' and not inherited order by time desc limit 100",
    ),
)
