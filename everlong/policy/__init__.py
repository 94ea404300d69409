"""Pure decisions about a thread: same input, same answer, on every machine and replay."""

from everlong.policy.limits import (
    LimitHit,
    ObservedCall,
    RepeatedFailure,
    RollReason,
    RunSize,
    Streaks,
    Usage,
    count_step,
    count_turn,
    estimate_resume_seconds,
    find_limit_hit,
    find_roll_reason,
)
from everlong.policy.policy import Action, Policy
from everlong.policy.retention import (
    QUARANTINE_SECONDS_MIN,
    Retention,
    parse_retention,
    parse_seconds,
)

__all__ = [
    "QUARANTINE_SECONDS_MIN",
    "Action",
    "LimitHit",
    "ObservedCall",
    "Policy",
    "RepeatedFailure",
    "Retention",
    "RollReason",
    "RunSize",
    "Streaks",
    "Usage",
    "count_step",
    "count_turn",
    "estimate_resume_seconds",
    "find_limit_hit",
    "find_roll_reason",
    "parse_retention",
    "parse_seconds",
]
