"""What a user may set about a thread's size, life and cost."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

from everlong import limits

Action = Literal["pause", "stop", "archive"]
# A timer takes no more than this: a hundred years.
Seconds = Annotated[float, Field(gt=0, le=100 * 365 * 24 * 3600.0)]

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
"""Fields of the policy that pause or end a thread."""

_DAY: Final = 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Bounds of a thread. The defaults suit an agent that runs for months."""

    # When a run ends and the next begins.

    run_events_max: Annotated[int, Field(ge=50, le=40_000)] = 400
    """Continue as new from this many history events. A step of one model call and one tool is about
    12 events, so a run is about 30 steps, and a resume replays at most that."""

    run_history_bytes_max: Annotated[int, Field(ge=16 * limits.KIB, le=32 * limits.MIB)] = (
        limits.MIB
    )
    """Continue as new from this many bytes of history. The server warns at 10 MB and kills at 50."""

    run_offloaded_bytes_max: Annotated[int, Field(ge=limits.KIB)] = 32 * limits.MIB
    """Continue as new once a replay would read this much from the store: half of a worker's cache, so
    that a prefetch does not push out what it has fetched."""

    run_blobs_max: Annotated[int, Field(ge=1)] = 256
    """Continue as new once a replay would fetch this many objects: 16 at a time and 60 ms each, they
    take a second."""

    resume_seconds_max: Annotated[Seconds, Field(ge=0.25)] = 2.0
    """Continue as new once a resume is expected to take this long: see `expected_resume_seconds`."""

    idle_seconds: Seconds = 300.0
    """A thread that has had nothing to do for so long compacts and continues as new. Five minutes is
    how long providers keep a prompt cached: what compaction changes is no longer in their cache."""

    # The model's context.

    compact_at_bytes: Annotated[int, Field(ge=4 * limits.KIB)] = 256 * limits.KIB
    """Compact once the context of a model call has this size. At four bytes a token that is 64,000
    tokens: half of the smallest window of current models."""

    compact_at_tokens: Annotated[int, Field(ge=1000)] = 100_000
    """Compact once a model call has read this many tokens, as its provider counts them."""

    compact_to_bytes: Annotated[int, Field(ge=2 * limits.KIB)] = 64 * limits.KIB
    """What compaction leaves, at most. A quarter: the next one is then as far away as possible, and
    what the model read last is still there word by word."""

    summary: bool = False
    """Whether the model also writes a summary for each compaction. It costs a model call. If it
    fails, the compaction stands without it."""

    # How long things stay in the context. They stay in the journal.

    tool_result_ttl_seconds: Seconds | None = 7 * _DAY
    """After this, a tool's result is no more than a line that says where to find it."""
    failure_ttl_seconds: Seconds | None = _DAY
    reply_ttl_seconds: Seconds | None = None
    message_ttl_seconds: Seconds | None = None
    fact_ttl_seconds: Seconds | None = 30 * _DAY
    """Of facts that are remembered without a TTL of their own."""

    memory_facts_max: Annotated[int, Field(ge=0, le=1000)] = 64
    memory_bytes_max: Annotated[int, Field(ge=0, le=64 * limits.KIB)] = 8 * limits.KIB
    """All facts together. They are in every context: at 2,000 tokens they are an eighth of what a
    compaction leaves."""

    # Crashes.

    heartbeat_seconds: Annotated[float, Field(ge=1, le=limits.CALL_SECONDS_MAX)] = (
        limits.HEARTBEAT_SECONDS
    )
    """Heartbeat timeout of a thread's activities. The server takes a worker for dead this long after its
    last sign of life and has another one try again, with 1 s of back-off: 6 s after a crash by default.

    Each heartbeat is a billed action. An activity that ends within half of the timeout sends none; a
    longer one sends the first then, and one more every 80% of the timeout. By default that is 2 for a
    model call of 10 s, and 150 for a tool of 10 minutes. With 30 s it is 0 and 25, and a crash is
    noticed up to 25 s later. At 50 USD a million actions, the default costs 0.0001 USD for a call of
    10 s: less than a hundredth of what the tokens of most calls cost.

    A worker whose event loop is blocked for half of the timeout is taken for dead too, and its tools run
    twice. 600 s, the most, is how long a call may take by default."""

    # Hard limits.

    turn_steps_max: Annotated[int, Field(ge=1)] = 500
    """Model calls that one message may cause. A turn that reaches it ends with a failure entry."""

    steps_max: Annotated[int, Field(ge=1)] | None = 100_000
    """Model calls of the thread. At one in ten seconds, day and night, that is eleven days."""

    tokens_max: Annotated[int, Field(ge=1)] | None = 1_000_000_000
    """Tokens that all model calls read and wrote: 64,000 for each of 15,000 steps."""

    cost_usd_max: Annotated[float, Field(gt=0)] | None = 1000.0
    """Where prices are known."""

    thread_bytes_max: Annotated[int, Field(ge=limits.MIB)] | None = 4096 * limits.MIB
    """Stored for the thread. At 10 KB a step that is 400,000 steps."""

    step_bytes_max: Annotated[int, Field(ge=limits.KIB)] | None = 64 * limits.MIB
    """Stored by one step. One tool result may have 64 MiB, which compresses to about 16."""

    context_bytes_max: Annotated[int, Field(ge=4 * limits.KIB)] = limits.MIB
    """Context of one model call, for what compaction cannot shorten. 250,000 tokens: more than most
    models take."""

    failed_turns_max: Annotated[int, Field(ge=1)] = 5
    """Turns in a row without an answer."""

    refused_calls_max: Annotated[int, Field(ge=1)] = 8
    """Steps in a row in which the model called tools that do not exist or with arguments that do not
    fit. The turn ends with a failure entry: a model that has not found out by then will not."""

    same_failure_max: Annotated[int, Field(ge=2)] = 5
    """Steps in a row in which the same call fails in the same way."""

    no_progress_steps_max: Annotated[int, Field(ge=2)] = 12
    """Steps in a row that only repeat one of the last eight: same calls, same results."""

    on_limit: Action = "pause"
    """What happens to a thread that reaches a limit. `pause` keeps all as it is until somebody raises
    the limit (`configure`) and unpauses it; `stop` ends it; `archive` does too, and marks it as one to
    be archived."""

    actions: Mapping[str, Action] = dataclasses.field(default_factory=dict)
    """Other actions for single limits, by the field's name: {"cost_usd_max": "stop"}."""

    @model_validator(mode="after")
    def _check(self) -> "Policy":
        if self.compact_to_bytes >= self.compact_at_bytes:
            raise ValueError("compact_to_bytes has to be less than compact_at_bytes")
        if unknown := sorted(set(self.actions) - LIMITS):
            raise ValueError(f"actions: {unknown[0]} is no limit; those are {sorted(LIMITS)}")
        return self

    def action(self, limit: str) -> Action:
        """Return what happens when that limit is reached."""
        return self.actions.get(limit, self.on_limit)

    def fields(self) -> dict[str, Any]:
        """Return all fields. Defaults may change with a release; a thread keeps what it began with."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def differences(self) -> dict[str, Any]:
        """Return the fields that are not at their default: short, where a policy is sent often."""
        defaults = _DEFAULT.fields()
        return {name: value for name, value in self.fields().items() if value != defaults[name]}

    def with_changes(self, changes: Mapping[str, Any]) -> "Policy":
        """Return this policy with some fields replaced; raise `ValueError` for what is wrong."""
        if not changes:
            return self
        known = self.fields()
        if unknown := sorted(set(changes) - set(known)):
            raise ValueError(f"the policy has no {', '.join(unknown)}")
        return _POLICY.validate_python({**known, **changes})


_POLICY = TypeAdapter(Policy)
_DEFAULT = Policy()
