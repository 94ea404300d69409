"""Pure decisions about a thread: same input, same answer, on every machine and replay."""

from everlong.policy.continue_as_new import (
    RollReason,
    RunSize,
    estimate_resume_seconds,
    find_roll_reason,
)
from everlong.policy.limit_check import (
    LimitHit,
    ObservedCall,
    RepeatedFailure,
    Streaks,
    Usage,
    count_step,
    count_turn,
    find_limit_hit,
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
