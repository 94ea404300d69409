"""State: a thread's operational state, and the requests to a thread with their answers."""

import dataclasses
import operator
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, PlainSerializer
from pydantic.dataclasses import dataclass

from everlong import limits
from everlong.models.grants import Always, Grant
from everlong.models.journal import (
    OPTIONAL,
    Bytes,
    Entry,
    Ref,
    SegmentRef,
    SnapshotRef,
)
from everlong.models.notices import Notice
from everlong.models.status import Status
from everlong.models.tools import Call, SentTime
from everlong.policy import LimitHit, Policy, Streaks

# Copies of dataclasses with other values, without validation.

T = TypeVar("T")


def replace_values(instance: T, **values: Any) -> T:
    """Return a copy of a pydantic dataclass with other values, without validation.

    `dataclasses.replace` validates all fields again, which takes 25 microseconds for a thread's state;
    this takes 4. A workflow replaces its state about seven times for each activity, with values that it
    made itself. Values from outside were validated when they were read.
    """
    found = instance.__dict__
    if unknown := values.keys() - found.keys():
        raise TypeError(f"{type(instance).__name__} has no field {min(unknown)!r}")
    copy: T = object.__new__(type(instance))
    copy.__dict__.update(found, **values)
    return copy


Who = Annotated[str, Field(max_length=64)]
Why = Annotated[str, Field(max_length=300)]


@dataclass(frozen=True, kw_only=True)
class SendMessage:
    """Argument of the `send` update: a short text, or the ref of a long one."""

    text: str = ""
    id: Annotated[str, Field(pattern=r"^[ -~]{0,64}$")] = ""
    """Id that the sender chose. A message that is sent again with the same id is not queued twice."""
    ref: Ref | None = None
    """The body of a long message, stored under the thread's key before it is sent."""
    original: Ref | None = None
    """The whole message, if the body is only its beginning and end."""
    stored_bytes: Annotated[Bytes, Field(exclude_if=operator.not_)] = 0
    """Bytes that the sender stored for the message; the thread counts them."""
    agent: Annotated[str, Field(max_length=64)] = ""
    """The agent that the message is for; threads of other agents refuse it. Empty for any agent."""
    by: Who = ""
    """The sender, for the journal; empty if unknown."""
    sent: SentTime | None = None
    """Time at which it was sent. The thread sets it."""
    until_answered: Annotated[bool, Field(exclude_if=operator.not_)] = False
    """Whether the update completes with the turn instead of at once. It may also complete earlier."""


@dataclass(frozen=True, kw_only=True)
class TurnEnd:
    """Result of a `send` update with `until_answered`. Without a head, the turn has not ended."""

    number: int
    """Number of the message."""
    seq: int = 0
    """Seq of the reply or the failure that ended the turn."""
    head: SegmentRef | None = None
    """Head of a journal with that entry."""


@dataclass(frozen=True, kw_only=True)
class Decide:
    """Argument of the `decide` update: a person's answer to a call that needs approval."""

    id: str
    """The approval's id, as `pending` lists it."""
    approve: bool
    by: Who
    reason: Why = ""
    arguments: Annotated[dict[str, Any] | None, OPTIONAL] = None
    """All arguments to run the call with, instead of the model's; None to run it as it is."""
    always: Annotated[Always | None, OPTIONAL] = None
    """What the approval allows beyond this call; None for nothing."""


@dataclass(frozen=True, kw_only=True)
class Resolve:
    """Argument of the `resolve` update: a person's answer to the question what became of a call."""

    id: str
    """The outcome's id, as `outcomes` lists it."""
    outcome: Literal["done", "not_done", "retry"]
    """`retry`: the call is run again, with the same idempotency key."""
    result: Annotated[str, Field(max_length=limits.OUTCOME_RESULT_BYTES_MAX)] = ""
    """Result of a call that is done, for the model."""
    by: Who
    reason: Why = ""


@dataclass(frozen=True, kw_only=True)
class Configure:
    """Argument of the `configure` update: fields of the policy and their new values."""

    changes: dict[str, Any]
    by: Who = ""
    reason: Why = ""


@dataclass(frozen=True, kw_only=True)
class Control:
    """Argument of the signals `pause`, `unpause`, `compact` and `stop`. All fields are optional.

    A signal cannot be refused, so texts that are too long are cut.
    """

    by: str = ""
    reason: str = ""
    archive: bool = False
    """Whether `stop` ends the thread as `archived`."""


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Counts and costs of a thread since it began, across its runs."""

    runs: int = 1
    steps: int = 0
    """Completed model calls."""
    tool_calls: int = 0
    messages: int = 0
    """Messages received. `send` returns this number."""
    answered: int = 0
    """Messages whose turn has ended. Message n is answered once this is at least n."""
    compactions: int = 0
    written_bytes: Bytes = 0
    """Bytes that the thread's own steps have stored, after compression."""
    context_bytes: Bytes = 0
    """Sum of the contexts of all model calls: the bytes that a list-passing loop would have sent."""
    tokens: int = 0
    """Tokens that all model calls have read and written, by their provider's count."""
    cost_usd: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Pause:
    """Why a thread takes no steps."""

    by: str = ""
    reason: str = ""
    limit: LimitHit | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The end of a message's turn."""

    number: int
    """Number of the message."""
    seq: int
    """Seq of the reply or the failure that ended the turn."""


@dataclass(frozen=True, kw_only=True)
class FailedTurn:
    """A turn that has ended without an answer, until the reason is journalled."""

    seq: int
    """Seq of the failure entry."""
    reason: str
    error_type: str = ""
    """The reason as a name of low cardinality, for the turn's span."""


@dataclass(frozen=True, kw_only=True)
class ReceivedMessage:
    """A message that was queued, with the id that its sender chose."""

    id: str
    number: int


@dataclass(frozen=True, kw_only=True)
class PublishedSize:
    """A thread's size when it was last published."""

    ms: int
    thread_bytes: Bytes = 0
    context_bytes: Bytes = 0
    steps: int = 0
    resume_ms: Annotated[float, Field(ge=0)] = 0.0
    rested: bool = False


@dataclass(frozen=True, kw_only=True)
class ThreadCard:
    """A thread's figures, published as a memo, so that a list of threads need not query each thread."""

    ms: int
    """Time at which the card was written, in Unix milliseconds."""
    steps: int = 0
    messages: int = 0
    runs: int = 1
    tokens: int = 0
    cost_usd: float = 0.0
    operational_bytes: Bytes = 0
    context_bytes: Bytes = 0
    stored_bytes: Bytes = 0
    read_bytes: Bytes = 0
    """Sum of the contexts of all model calls: the bytes that a list-passing loop would have sent."""
    lag_bytes: Bytes = 0
    """Bytes by which the context exceeds the policy's bound."""
    lag_since_ms: int | None = None
    resume_ms: Annotated[float, Field(ge=0)] = 0.0
    since_ms: int | None = None
    """Start of the counts for a fork or a thread from an archive, in Unix milliseconds."""
    trend: tuple[tuple[int, int], ...] = ()
    """Samples of the size, from earlier cards: Unix milliseconds, bytes stored."""
    rested: bool = False
    """Whether the thread was at rest, so it does not grow."""


@dataclass(frozen=True, kw_only=True)
class ThreadState:
    """Operational state: all values that the next run needs, passed on by continue-as-new."""

    head: SegmentRef | None = None
    """The journal's newest segment."""
    snapshot: SnapshotRef | None = None
    """The base of the context, if it has been compacted."""
    tail: tuple[Entry, ...] = ()
    """Entries that the next model call will journal."""
    notes: tuple[Entry, ...] = ()
    """Entries without a message, such as decisions, until they get a seq and move to the tail."""
    inbox: tuple[SendMessage, ...] = ()
    """Messages that wait for their turn, oldest first."""
    calls: tuple[Call, ...] = ()
    """Tool calls of the newest reply, until all of them have a result."""
    decided: tuple[str, ...] = ()
    """Ids of the newest decided approvals and outcomes, each with a digest of its request."""
    grants: Annotated[tuple[Grant, ...], Field(exclude_if=operator.not_)] = ()
    """Permissions for later calls of this thread, oldest first."""
    configured: tuple[str, ...] = ()
    """Digests of the newest requests that changed the policy."""
    answers: tuple[Answer, ...] = ()
    """The turns that ended last."""
    received: tuple[ReceivedMessage, ...] = ()
    """The newest messages that had an id."""
    failed_turn: FailedTurn | None = None
    pause: Pause | None = None
    stopping: bool = False
    """Whether the thread is about to end."""
    archiving: bool = False
    """Whether it ends as `archived`."""
    ended: LimitHit | None = None
    """The limit that ended the thread."""
    context_bytes: Bytes = 0
    """Size of the last model call's context."""
    context_tokens: int = 0
    """Tokens of that context, by its provider's count; 0 if unknown."""
    compaction_due_ms: int | None = None
    """Time since which the policy demands a compaction; None if none is due."""
    compact_asked: bool = False
    """Whether a client requested a compaction that has not happened yet."""
    compacted_bytes: Bytes = 0
    """Size of the context after the last compaction. The next one requires that it has grown."""
    child_checks: int = 0
    """Number of checks of the pending sub-agents since the last result."""
    next_expiry_ms: int | None = None
    """Time at which the next part of the context expires."""
    rested: bool = False
    """Whether the thread has rested (compacted, continued as new) since its last step."""
    holds: Annotated[int, Field(ge=0)] = 0
    """Number of holds in a row. The pause before the next try grows with it."""
    in_turn: bool = False
    turn_ms: int = 0
    """Start of the current turn, or of its part in this run, in Unix milliseconds."""
    carried_after: str = ""
    """Id of the run before the last one, if a turn continued across both."""
    acts_on: tuple[SentTime, ...] = ()
    """Times of the message and the decisions that the next model call acts on."""
    turn_steps: int = 0
    """Model calls of the current turn."""
    reply_seq: int = 0
    """Seq of the newest reply."""
    step_bytes: Bytes = 0
    """Bytes that the last step stored."""
    streaks: Streaks = dataclasses.field(default_factory=Streaks)
    counters: Counters = dataclasses.field(default_factory=Counters)
    last_failure: str = ""
    """Why the last turn ended without an answer, if it did."""
    published: str = ""
    """Status, reason and pending approvals, as the search attributes have them."""
    attributes: bool = False
    """Whether the server is known to have our search attributes."""
    published_size: PublishedSize | None = None
    """The size that was published last."""
    resume_ms: Annotated[float, Field(ge=0)] = 0.0
    """Duration of the last resume that a worker reported."""
    since_ms: int | None = None
    """Start of the counts for a fork or a thread from an archive, in Unix milliseconds."""
    trend: tuple[tuple[int, int], ...] = ()
    """Samples of the size, as in `ThreadCard`."""
    notify: Annotated[int, Field(ge=0, exclude_if=operator.not_)] = 0
    """Events that sinks want of this thread, as `notices.build_mask` returns them."""
    notices: Annotated[tuple[Notice, ...], Field(exclude_if=operator.not_)] = ()
    """Events that the notifier does not have yet."""
    warned: Annotated[tuple[str, ...], Field(exclude_if=operator.not_)] = ()
    """Limits whose use has been reported, each with its bound."""


@dataclass(frozen=True, kw_only=True)
class Unjournalled:
    """Answer of the `unjournalled` query: what a thread holds that its journal does not have yet.

    It has at most the size of the operational state.
    """

    head: SegmentRef | None = None
    """Head of the journal that the entries continue."""
    entries: tuple[Entry, ...] = ()
    """Entries that the next model call will journal. Notes among them may still get another seq."""
    calls: tuple[Call, ...] = ()
    """Tool calls of the newest reply, until all of them have a result."""
    inbox: tuple[SendMessage, ...] = ()
    """Messages that wait for their turn, oldest first."""
    messages: int = 0
    """Messages received so far: the number of the last one."""


@dataclass(frozen=True, kw_only=True)
class Parent:
    """The thread that waits for this one's answer."""

    thread_id: str
    depth: Annotated[int, Field(ge=1)] = 1


@dataclass(frozen=True, kw_only=True)
class ThreadStart:
    """Argument of the `everlong.Agent` workflow. A new thread needs only the agent's name."""

    agent: str
    """Name of an agent that the workers of this task queue run."""
    policy: Annotated[Policy | None, PlainSerializer(lambda policy: policy and policy.fields())] = (
        None
    )
    """The thread's policy; None until a worker has reported the agent's own. All fields are written,
    since a later release may have other defaults."""
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Changes that were configured before the agent's policy was known."""
    state: ThreadState = dataclasses.field(default_factory=ThreadState)
    """Operational state. Empty for a new thread; continue-as-new and forks set it."""
    parent: Parent | None = None
    """Parent of a sub-agent's thread, which ends with its first answer."""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """A call that has failed and is tried again. Only the server knows this, not the thread."""

    call: str
    """`model`, `tool`, `agent`, `journal` or `compaction`."""
    attempt: int
    """Number of the attempt that runs, or comes next."""
    attempts_max: int
    """0 without a limit."""
    error: str
    """Failure of the last attempt."""
    next_ms: int | None
    """Time of the next attempt, in Unix milliseconds; None while one runs."""


@dataclass(frozen=True, kw_only=True)
class ThreadStatus:
    """Answer of the `status` query, and the result of a thread that was stopped."""

    agent: str
    status: Status
    reason: str = ""
    """What it is held on, which call is tried again, the limit that paused or ended it, `person`, or how
    Temporal ended it: the second word of the status, as `EverlongReason`."""
    counters: Counters
    head: SegmentRef | None
    waiting_messages: int
    last_failure: str
    stopping: bool = False
    """Whether the thread ends at its next safe point, or has ended."""
    held_by: str = ""
    """Text of a hold, for example bytes that the store has lost; empty if the thread is not held."""
    retries: tuple[Retry, ...] = ()
    """Calls that are tried again. A client adds them to the thread's answer."""
    pause: Pause | None = None
    ended: LimitHit | None = None
    snapshot: SnapshotRef | None = None
    tail_entries: int = 0
    """Entries that are not journalled yet; the next model call or the end of the thread adds them."""
    pending: int = 0
    """Number of calls that wait for a person: approvals and unknown outcomes."""
    outcomes: Annotated[int, Field(ge=0)] = 0
    """Number of those whose outcome is unknown."""
    children: tuple[str, ...] = ()
    """Ids of the sub-agents' threads that the thread waits for."""
    answers: tuple[Answer, ...] = ()
    streaks: Streaks = dataclasses.field(default_factory=Streaks)
    state_bytes: Bytes = 0
    """Size of the operational state."""
    context_bytes: Bytes = 0
    compaction_lag_bytes: Bytes = 0
    """Bytes by which the context exceeds the policy's bound."""
    compaction_due_ms: int | None = None
    """Time since which it does, in Unix milliseconds."""
    policy: Policy = dataclasses.field(default_factory=Policy)
    policy_from: Literal["thread", "agent", "default"] = "thread"
    """`thread`: the thread has recorded it. `agent`: from its agent on the worker that has answered,
    and it will be recorded with the first reply. `default`: that worker does not have the agent."""


# Growth: the bytes that a thread stores in an hour. This is its only definition.
#
# The metric `everlong.thread.growth`, the search attribute `EverlongGrowthBytesPerHour`, the lists, the
# pages and the gauge `everlong.threads.growth` all call `compute_growth_per_hour`. They may differ only
# by when they call it, and by the age of the size that they know.

_HOUR_MS: Final = 3_600_000
_WINDOW_MS_MIN: Final = 600_000
"""Shortest window: ten minutes. Without it, the first 10 KB in 5 s would count as 7 MB an hour."""


def compute_growth_per_hour(
    trend: Sequence[tuple[int, int]], stored_bytes: int, now_ms: int, *, rested: bool
) -> float:
    """Return the bytes stored in an hour, given samples (Unix milliseconds, bytes), oldest first.

    The window begins at the newest sample that is an hour old, or at the oldest sample of a younger
    thread, and has at least ten minutes. The growth is 0 at rest, and before the first sample.
    """
    if rested or not trend:
        return 0.0
    since_ms, since_bytes = trend[0]
    for ms, size_bytes in reversed(trend):
        if now_ms - ms >= _HOUR_MS:
            since_ms, since_bytes = ms, size_bytes
            break
    elapsed_ms = max(now_ms - since_ms, _WINDOW_MS_MIN)
    return round(max(0, stored_bytes - since_bytes) * _HOUR_MS / elapsed_ms, 1)
