"""The policy: bounds on a thread's size, lifetime and cost, as its user sets them."""

import dataclasses
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

from everlong import limits

Action = Literal["pause", "stop", "archive"]
# The longest timer that Temporal accepts: a hundred years.
Seconds = Annotated[float, Field(gt=0, le=100 * 365 * 24 * 3600.0)]

Pattern = Annotated[str, Field(min_length=1, max_length=limits.CALL_NAME_CHARS_MAX)]

LIMITS: Final = frozenset(
    {
        "steps_max",
        "tokens_max",
        "cost_usd_max",
        "thread_bytes_max",
        "step_bytes_max",
        "context_bytes_max",
        "failed_turns_max",
        "same_failure_max",
        "no_progress_steps_max",
    }
)
"""Names of the policy's fields that pause or end a thread."""

_DAY: Final = 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Bounds of a thread. The defaults suit an agent that runs for months."""

    # Rollover: when a run ends and the next begins.

    run_events_max: Annotated[int, Field(ge=50, le=40_000)] = 400
    """Continue as new at this many history events. A step of one model call and one tool is about 12
    events, so a run is about 30 steps, and a resume replays at most that."""

    run_history_bytes_max: Annotated[int, Field(ge=16 * limits.KIB, le=32 * limits.MIB)] = (
        limits.MIB
    )
    """Continue as new at this many bytes of history. The server warns at 10 MB and terminates at 50."""

    run_offloaded_bytes_max: Annotated[int, Field(ge=limits.KIB)] = 32 * limits.MIB
    """Continue as new once a replay would read this many bytes from the store: half of a worker's cache,
    so that a prefetch does not evict what it has just fetched."""

    run_blobs_max: Annotated[int, Field(ge=1)] = 256
    """Continue as new once a replay would fetch this many objects. At 60 ms each, 16 at a time, they
    take a second."""

    resume_seconds_max: Annotated[Seconds, Field(ge=0.25)] = 2.0
    """Continue as new once a resume is expected to take this long. See `expected_resume_seconds`."""

    idle_seconds: Seconds = 300.0
    """A thread that is idle for this long compacts and continues as new. Providers cache a prompt for
    five minutes, so by default a compaction does not invalidate a cached prompt."""

    # The model's context.

    compact_at_bytes: Annotated[int, Field(ge=4 * limits.KIB)] = 256 * limits.KIB
    """Compact once the context of a model call has this size. At four bytes a token that is 64,000
    tokens: half of the smallest window of current models."""

    compact_at_tokens: Annotated[int, Field(ge=1000)] = 100_000
    """Compact once a model call has read this many tokens, by its provider's count."""

    compact_to_bytes: Annotated[int, Field(ge=2 * limits.KIB)] = 64 * limits.KIB
    """Largest context that a compaction leaves. A quarter of `compact_at_bytes` delays the next
    compaction, and still keeps the model's last messages word for word."""

    summary: bool = False
    """Whether the model also writes a summary for each compaction. This costs a model call. If the call
    fails, the compaction is used without a summary."""

    # How long entries stay in the context. The journal keeps them.

    tool_result_ttl_seconds: Seconds | None = 7 * _DAY
    """Age at which a tool's result is replaced with a line that says where to find it."""
    failure_ttl_seconds: Seconds | None = _DAY
    reply_ttl_seconds: Seconds | None = None
    message_ttl_seconds: Seconds | None = None
    fact_ttl_seconds: Seconds | None = 30 * _DAY
    """TTL of facts that are remembered without one."""

    memory_facts_max: Annotated[int, Field(ge=0, le=1000)] = 64
    memory_bytes_max: Annotated[int, Field(ge=0, le=64 * limits.KIB)] = 8 * limits.KIB
    """Size of all facts together. Every context holds them: at 2,000 tokens they are an eighth of what a
    compaction leaves."""

    # Crash detection.

    heartbeat_seconds: Annotated[float, Field(ge=1, le=limits.CALL_SECONDS_MAX)] = (
        limits.HEARTBEAT_SECONDS
    )
    """Heartbeat timeout of a thread's activities. The server considers a worker dead this long after its
    last heartbeat, and another worker retries after 1 s of back-off: 6 s after a crash by default.

    Each heartbeat is a billed action. An activity that ends within half of the timeout sends none; a
    longer one sends the first then, and one more every 80% of the timeout. By default that is 2 for a
    model call of 10 s, and 150 for a tool of 10 minutes. With 30 s it is 0 and 25, and a crash is
    noticed up to 25 s later. At 50 USD a million actions, the default costs 0.0001 USD for a call of
    10 s: less than a hundredth of what the tokens of most calls cost.

    A worker whose event loop is blocked for half of the timeout is considered dead too, and its tools
    run twice. The maximum, 600 s, is the default timeout of a call."""

    # Approvals.

    approvals_needed: Annotated[
        Mapping[Pattern, Annotated[int, Field(ge=1, le=limits.APPROVALS_NEEDED_MAX)]],
        Field(max_length=limits.APPROVAL_RULES_MAX),
    ] = dataclasses.field(default_factory=dict)
    """People who must approve each call of a tool, by a pattern of its name: {"delete_*": 2}. It adds to
    what the tool's own options ask for, and takes nothing away. If several patterns fit, the highest
    number counts."""

    # Hard limits.

    turn_steps_max: Annotated[int, Field(ge=1)] = 500
    """Model calls that one message may cause. A turn that reaches this ends with a failure entry."""

    steps_max: Annotated[int, Field(ge=1)] | None = 100_000
    """Model calls of the thread. At one in ten seconds, day and night, that is eleven days."""

    tokens_max: Annotated[int, Field(ge=1)] | None = 1_000_000_000
    """Tokens read and written by all model calls: 64,000 for each of 15,000 steps."""

    cost_usd_max: Annotated[float, Field(gt=0)] | None = 1000.0
    """Cost of all model calls whose price is known."""

    thread_bytes_max: Annotated[int, Field(ge=limits.MIB)] | None = 4096 * limits.MIB
    """Bytes stored for the thread. At 10 KB a step that is 400,000 steps."""

    step_bytes_max: Annotated[int, Field(ge=limits.KIB)] | None = 64 * limits.MIB
    """Bytes stored by one step. One tool result may have 64 MiB, which compresses to about 16."""

    context_bytes_max: Annotated[int, Field(ge=4 * limits.KIB)] = limits.MIB
    """Size of one model call's context, reached only if compaction cannot shorten it. 250,000 tokens:
    more than most models take."""

    failed_turns_max: Annotated[int, Field(ge=1)] = 5
    """Turns in a row without an answer."""

    refused_calls_max: Annotated[int, Field(ge=1)] = 8
    """Steps in a row in which the model called only unknown tools, or tools with invalid arguments.
    The turn then ends with a failure entry: a model that has not recovered by then will not."""

    same_failure_max: Annotated[int, Field(ge=2)] = 5
    """Steps in a row in which the same call fails in the same way."""

    no_progress_steps_max: Annotated[int, Field(ge=2)] = 12
    """Steps in a row that only repeat one of the last eight: same calls, same results."""

    on_limit: Action = "pause"
    """What happens to a thread that reaches a limit. `pause` keeps it until an operator raises the limit
    (`configure`) and unpauses it; `stop` ends it; `archive` ends it and marks it for archiving."""

    actions: Mapping[str, Action] = dataclasses.field(default_factory=dict)
    """Other actions for single limits, by the field's name: {"cost_usd_max": "stop"}."""

    @model_validator(mode="after")
    def _check(self) -> "Policy":
        if self.compact_to_bytes >= self.compact_at_bytes:
            raise ValueError("compact_to_bytes must be less than compact_at_bytes")
        if unknown := sorted(set(self.actions) - LIMITS):
            raise ValueError(
                f"actions: {unknown[0]} is not a limit; the limits are {sorted(LIMITS)}"
            )
        return self

    def action(self, limit: str) -> Action:
        """Return the action for a limit."""
        return self.actions.get(limit, self.on_limit)

    def count_approvals(self, tool: str) -> int:
        """Return how many people must approve a call of a tool, by the patterns; 0 if none fits."""
        found = [n for each, n in self.approvals_needed.items() if fnmatchcase(tool, each)]
        return max(found, default=0)

    def fields(self) -> dict[str, Any]:
        """Return all fields. A release may change defaults; a thread keeps those it started with."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def differences(self) -> dict[str, Any]:
        """Return the fields that differ from their default: shorter, for a policy that is sent often."""
        defaults = _DEFAULT.fields()
        return {name: value for name, value in self.fields().items() if value != defaults[name]}

    def with_changes(self, changes: Mapping[str, Any]) -> "Policy":
        """Return this policy with some fields replaced. Raises `ValueError` for invalid fields."""
        if not changes:
            return self
        known = self.fields()
        if unknown := sorted(set(changes) - set(known)):
            raise ValueError(f"the policy has no {', '.join(unknown)}")
        return _POLICY.validate_python({**known, **changes})


_POLICY = TypeAdapter(Policy)
_DEFAULT = Policy()
