"""A thread's operational state, and what people and programs say to it and hear from it."""

import dataclasses
import operator
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field, PlainSerializer
from pydantic.dataclasses import dataclass

from everlong.models.journal import (
    Bytes,
    Entry,
    Ref,
    SegmentRef,
    SnapshotRef,
)
from everlong.models.tools import Call, Sent
from everlong.policy import LimitHit, Policy, Streaks

# Copies of dataclasses with other values, without validation.

T = TypeVar("T")


def replace_values(instance: T, **values: Any) -> T:
    """Return a copy of a pydantic dataclass with other values, as they are.

    `dataclasses.replace` validates all fields again: 25 microseconds for a thread's state, where this
    takes 4. A workflow replaces its state about seven times for each activity, by values of its own.
    What comes from outside was validated when it was read.
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
    """Made up by the sender: a message that is sent again with the same id is not queued twice."""
    ref: Ref | None = None
    """The body of a long message, stored in the thread's own place before it is sent."""
    original: Ref | None = None
    """The whole of it, if the body is only its beginning and end."""
    stored_bytes: Annotated[Bytes, Field(exclude_if=operator.not_)] = 0
    """By how much the store grew when the sender stored it; the thread counts that."""
    agent: Annotated[str, Field(max_length=64)] = ""
    """The agent that it is meant for; a thread of another refuses it. Empty for whichever it is."""
    by: Who = ""
    """Who sends it, for the journal, where that is known."""
    sent: Sent | None = None
    """Filled in by the thread."""
    until_answered: Annotated[bool, Field(exclude_if=operator.not_)] = False
    """Whether the update completes with the turn instead of at once. It may also complete earlier."""


@dataclass(frozen=True, kw_only=True)
class TurnEnd:
    """Result of a `send` update with `until_answered`. Without a head, the turn has not ended."""

    number: int
    """Number of the message."""
    seq: int = 0
    """Of the reply, or of the failure."""
    head: SegmentRef | None = None
    """A journal that holds that entry."""


@dataclass(frozen=True, kw_only=True)
class Decide:
    """Argument of the `decide` update: a person's answer to a call that needs approval."""

    id: str
    """The approval's id, as `pending` lists it."""
    approve: bool
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
    """Argument of the signals `pause`, `unpause`, `compact` and `stop`. All of it may be left out.

    A signal cannot be refused, so what is too long is cut.
    """

    by: str = ""
    reason: str = ""
    archive: bool = False
    """Of `stop`: whether the thread is to end as `archived`."""


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What a thread has done and cost since it began, across its runs."""

    runs: int = 1
    steps: int = 0
    """Model calls that have completed."""
    tool_calls: int = 0
    messages: int = 0
    """Messages received. `send` returns this number."""
    answered: int = 0
    """Messages whose turn has ended. Message n is answered once this is at least n."""
    compactions: int = 0
    written_bytes: Bytes = 0
    """Stored by the thread's own steps, after compression."""
    context_bytes: Bytes = 0
    """Sum over all model calls of the context that was read: what passing it by value would send."""
    tokens: int = 0
    """Sum over all model calls of what they read and wrote, as their provider counts."""
    cost_usd: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Pause:
    """Why a thread takes no steps."""

    by: str = ""
    reason: str = ""
    limit: LimitHit | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Where the turn of a message ended."""

    number: int
    seq: int
    """Of the reply, or of the failure."""


@dataclass(frozen=True, kw_only=True)
class FailedTurn:
    """A turn that has ended without an answer, until the journal has the reason."""

    seq: int
    reason: str
    error_type: str = ""
    """The reason as a name that there are few of; for the turn's span."""


@dataclass(frozen=True, kw_only=True)
class Received:
    """A message that was taken in, by the id that its sender gave it."""

    id: str
    number: int


@dataclass(frozen=True, kw_only=True)
class PublishedSize:
    """How far a thread was when that was last published."""

    ms: int
    thread_bytes: Bytes = 0
    context_bytes: Bytes = 0
    steps: int = 0
    resume_ms: Annotated[float, Field(ge=0)] = 0.0
    rested: bool = False


@dataclass(frozen=True, kw_only=True)
class ThreadCard:
    """What a thread publishes of itself, as a memo: whoever lists threads need not ask each of them."""

    ms: int
    """When it was written."""
    steps: int = 0
    messages: int = 0
    runs: int = 1
    tokens: int = 0
    cost_usd: float = 0.0
    operational_bytes: Bytes = 0
    context_bytes: Bytes = 0
    stored_bytes: Bytes = 0
    read_bytes: Bytes = 0
    """What all model calls have read: what passing the context by value would have sent."""
    lag_bytes: Bytes = 0
    """By how much the context is larger than the policy wants it to be."""
    lag_since_ms: int | None = None
    resume_ms: Annotated[float, Field(ge=0)] = 0.0
    since_ms: int | None = None
    """Of a fork, or a thread from an archive: since when all of this is counted."""
    trend: tuple[tuple[int, int], ...] = ()
    """Its size at some times when a card was written: Unix milliseconds, bytes stored."""
    rested: bool = False
    """Whether it was at rest, and so does not grow."""


@dataclass(frozen=True, kw_only=True)
class ThreadState:
    """Operational state: all that the next run needs, carried over by continue-as-new."""

    head: SegmentRef | None = None
    """The journal's newest segment."""
    snapshot: SnapshotRef | None = None
    """The base of the context, if it has been compacted."""
    tail: tuple[Entry, ...] = ()
    """Entries that the next model call will journal."""
    notes: tuple[Entry, ...] = ()
    """What happened beside the conversation, until it gets its place in the tail."""
    inbox: tuple[SendMessage, ...] = ()
    """Messages that wait for their turn, oldest first."""
    calls: tuple[Call, ...] = ()
    """Tool calls of the newest reply, until all of them have a result."""
    decided: tuple[str, ...] = ()
    """Approvals that were decided last, and a digest of the request that did it."""
    configured: tuple[str, ...] = ()
    """Digests of the requests that changed the policy last."""
    answers: tuple[Answer, ...] = ()
    """The turns that ended last."""
    received: tuple[Received, ...] = ()
    """The messages that came last, those with an id."""
    failed_turn: FailedTurn | None = None
    pause: Pause | None = None
    stopping: bool = False
    """Whether the thread is to end."""
    archiving: bool = False
    """Whether it ends to be archived."""
    ended: LimitHit | None = None
    """The limit that ended the thread."""
    context_bytes: Bytes = 0
    """Context of the last model call."""
    context_tokens: int = 0
    """The same, as its provider counts; 0 if it does not say."""
    compaction_due_ms: int | None = None
    """When the policy first wanted a compaction that has not happened yet."""
    compact_asked: bool = False
    """Whether somebody asked for a compaction that has not happened yet."""
    compacted_bytes: Bytes = 0
    """What the last compaction left of the context. It has to grow before the next."""
    child_checks: int = 0
    """How often sub-agents were asked whether they are still there since one answered last."""
    next_expiry_ms: int | None = None
    """When the next part of the context expires."""
    rested: bool = False
    """Whether the thread has compacted and rolled since it last did something."""
    holds: Annotated[int, Field(ge=0)] = 0
    """How often in a row the thread was held; the pause before the next try grows with it."""
    in_turn: bool = False
    turn_ms: int = 0
    """When the turn that is under way began, or its part in this run."""
    carried_after: str = ""
    """The run before the last, if a turn was carried over from that."""
    acts_on: tuple[Sent, ...] = ()
    """What was sent, and will be acted on by the next model call."""
    turn_steps: int = 0
    """Model calls in the turn that is under way."""
    reply_seq: int = 0
    """Of the newest reply."""
    step_bytes: Bytes = 0
    """Written by the last step."""
    streaks: Streaks = dataclasses.field(default_factory=Streaks)
    counters: Counters = dataclasses.field(default_factory=Counters)
    last_failure: str = ""
    """Why the last turn ended without an answer, if it did."""
    published: str = ""
    """What the search attributes say."""
    attributes: bool = False
    """Whether the server is known to have our search attributes."""
    published_size: PublishedSize | None = None
    """What the search attributes say of the thread's size."""
    resume_ms: Annotated[float, Field(ge=0)] = 0.0
    """What the last resume took, as far as a worker has said so."""
    since_ms: int | None = None
    """Of a fork, or a thread from an archive: since when it counts."""
    trend: tuple[tuple[int, int], ...] = ()
    """The last sizes that were published, as `ThreadCard` has them."""


@dataclass(frozen=True, kw_only=True)
class Parent:
    """The thread that waits for this one's answer."""

    thread_id: str
    depth: Annotated[int, Field(ge=1)] = 1


@dataclass(frozen=True, kw_only=True)
class ThreadStart:
    """Argument of the `everlong.Agent` workflow. Start one with the agent's name; the rest follows."""

    agent: str
    """Name of an agent that the workers of this task queue run."""
    policy: Annotated[Policy | None, PlainSerializer(lambda policy: policy and policy.fields())] = (
        None
    )
    """None until a worker has said what the agent's own policy is. All fields are written, since a later
    release may have other defaults."""
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What was configured before that."""
    state: ThreadState = dataclasses.field(default_factory=ThreadState)
    """Left empty by people: continue-as-new and forks fill it."""
    parent: Parent | None = None
    """Of a sub-agent's thread: it ends with its answer."""


@dataclass(frozen=True, kw_only=True)
class ThreadStatus:
    """Answer of the `status` query, and the result of a thread that was stopped."""

    agent: str
    status: str
    """`working`, `waiting`, `approval` (a person is waited for), `paused`, `held`, `stopping`,
    `stopped` or `archived`."""
    counters: Counters
    head: SegmentRef | None
    waiting_messages: int
    last_failure: str
    held_by: str = ""
    """What the thread waits for, if it is held: say, bytes that the store has lost."""
    pause: Pause | None = None
    ended: LimitHit | None = None
    snapshot: SnapshotRef | None = None
    tail_entries: int = 0
    """Entries that are not in the journal yet; a model call or the end of the thread adds them."""
    pending: int = 0
    """Approvals that wait for a person."""
    children: tuple[str, ...] = ()
    """Threads of sub-agents that are waited for."""
    answers: tuple[Answer, ...] = ()
    streaks: Streaks = dataclasses.field(default_factory=Streaks)
    state_bytes: Bytes = 0
    """Size of the operational state."""
    context_bytes: Bytes = 0
    compaction_lag_bytes: Bytes = 0
    """By how much the context is larger than the policy wants it to be."""
    compaction_due_ms: int | None = None
    """Since when."""
    policy: Policy = dataclasses.field(default_factory=Policy)


# Growth: how many bytes a thread stores in an hour. The only definition of it.
#
# The metric `everlong.thread.growth`, the search attribute `EverlongGrowthBytesPerHour`, the lists, the
# pages and the gauge `everlong.threads.growth` all call `compute_growth_per_hour`. They may differ only
# by when they call it, and by the age of the size that they know.

_HOUR_MS: Final = 3_600_000
_WINDOW_MS_MIN: Final = 600_000
"""Ten minutes. A young thread's first 10 KB in 5 s are not 7 MB an hour."""


def compute_growth_per_hour(
    trend: Sequence[tuple[int, int]], stored_bytes: int, now_ms: int, *, rested: bool
) -> float:
    """Return the bytes stored in an hour, given samples (Unix milliseconds, bytes), oldest first.

    It is counted from the newest sample that is an hour old, or from the oldest sample of a younger
    thread, and over ten minutes at least. It is 0 at rest, and before the first sample.
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
