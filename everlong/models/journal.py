"""Journal: the entries of a thread, their messages, and the refs to where they are stored."""

import dataclasses
import hashlib
import operator
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field, PlainSerializer
from pydantic.dataclasses import dataclass
from pydantic_core import to_json, to_jsonable_python

from everlong import limits

Bytes = Annotated[int, Field(ge=0)]
# Not written while it is None, since most entries have few of these fields.
OPTIONAL: Final = Field(exclude_if=lambda value: value is None)
Body = dict[str, Any]
"""A message as JSON, in the format of pydantic-ai's `ModelMessage`: see `messages`."""


def make_printable(text: str, chars_max: int) -> str:
    """Return the beginning of a text on one line, without characters that JSON has to escape."""
    return "".join(c if c.isprintable() else " " for c in text[:chars_max])


def thread_key(namespace: str, thread_id: str) -> str:
    """Return the prefix of a thread's objects in the store: of a fixed length, for any thread id."""
    name = f"{namespace}\0{thread_id}".encode()
    return hashlib.blake2b(name, digest_size=16, person=b"everlong-thread").hexdigest()


class Kind(StrEnum):
    """The kind of a stored object or of a journal entry."""

    SEGMENT = "segment"
    """A piece of a thread's journal."""
    SNAPSHOT = "snapshot"
    """The compacted base of a thread's context."""
    ARGUMENTS = "arguments"
    """The arguments of a call as a person has changed them."""

    MESSAGE = "message"
    """A message of a person or a program to the agent."""
    REPLY = "reply"
    """A reply of the model: text, tool calls, or both."""
    TOOL_RESULT = "tool_result"
    """The result of a tool call."""
    FAILURE = "failure"
    """The reason why a turn ended without an answer."""

    ASKED = "asked"
    """A tool call waits for a person's decision: an `Approval`."""
    DECIDED = "decided"
    """A decision of a person, or of the deadline: a `Decision`."""
    VOTED = "voted"
    """A person approved a call that needs more approvals: a `VoteNote`."""
    OUTCOME_UNKNOWN = "outcome_unknown"
    """It is not known whether a call took effect: an `UnknownOutcome`."""
    OUTCOME_RESOLVED = "outcome_resolved"
    """A person, or the deadline, has said what became of it: a `Resolution`."""
    MEMORY = "memory"
    """A fact was remembered or forgotten: a `MemoryChange`."""
    COMPACTION = "compaction"
    """The context has a new base: a `CompactionNote`."""
    LIMIT = "limit"
    """The policy paused or ended the thread: a `LimitHit`."""
    CONTROL = "control"
    """An operator paused, unpaused or configured the thread: a `ControlNote`."""
    FORK = "fork"
    """The thread began as a fork of another: a `ForkNote`."""


@dataclass(frozen=True, kw_only=True)
class Ref:
    """A handle to a pack. It is self-contained: a reader needs no other context."""

    thread: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Key of the thread that stored the bytes, from `thread_key`; part of the object's name."""
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Digest of the pack's head, BLAKE2b-256 in hex. Every read is verified against it."""
    size_bytes: Bytes
    """Size of the plaintext."""
    kind: Kind
    preview: Annotated[
        str, Field(max_length=limits.PREVIEW_CHARS_READ_MAX, exclude_if=operator.not_)
    ] = ""
    """Beginning of the text, for people and logs."""


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A tool call that a model requests."""

    id: str
    tool: str
    arguments: str
    """JSON object as the model wrote it. The tool's signature validates it when the call runs."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: str
    """`user`, `assistant`, `tool`, `failure` (why a turn ended without an answer), or `summary` (the
    compacted earlier messages, which are never journalled)."""
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Tool calls of an assistant message."""
    call_id: str = ""
    """Id of the call that a tool message answers."""
    tool: str = ""
    """Name of the tool of a tool message."""
    native: Body | None = dataclasses.field(default=None, compare=False, repr=False)
    """The provider's whole response, for an assistant message; None if the other fields have all."""


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Position of a body in a pack that holds several."""

    start: Bytes
    size_bytes: Bytes


@dataclass(frozen=True, kw_only=True)
class StepInfo:
    """Size of a thread when a model call began, and the resume before it."""

    number: Annotated[int, Field(ge=0)] = 0
    """Number of the thread's earlier model calls."""
    thread_bytes: Bytes = 0
    """Bytes that the thread had stored."""
    context_bytes: Bytes = 0
    """Size of the context that the model read."""
    resume_ms: Annotated[float, Field(ge=0, exclude_if=operator.not_)] = 0.0
    """Duration of the resume before the call; 0 if there was none, or if another worker did it."""
    resume_cause: Annotated[str, Field(exclude_if=operator.not_)] = ""
    resume_events: Annotated[int, Field(ge=0, exclude_if=operator.not_)] = 0


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One thing that happened in a thread. Small: a long message is behind `ref`."""

    seq: Annotated[int, Field(ge=1)]
    """Position in the journal, from 1, without gaps."""
    kind: Kind
    time_ms: int
    """Time of the entry, in Unix milliseconds."""
    size_bytes: Bytes
    """Size of the body or the data as JSON."""
    body: Annotated[Body | None, OPTIONAL] = None
    """The message, if it is small; otherwise `ref` refers to it."""
    ref: Annotated[Ref | None, OPTIONAL] = None
    """The pack that holds the body: alone, or at `part`."""
    part: Annotated[Slice | None, OPTIONAL] = None
    original: Annotated[Ref | None, OPTIONAL] = None
    """The whole message, if it is too long for a model: the body is its beginning and its end."""
    data: Annotated[dict[str, Any] | None, OPTIONAL] = None
    """Data of an entry without a message. The doc of its kind names the type."""
    tokens: Annotated[int, Field(ge=0, exclude_if=operator.not_)] = 0
    """Tokens that the model read and wrote for a reply, by its provider's count."""
    cost_usd: Annotated[float, Field(ge=0, exclude_if=operator.not_)] = 0.0
    """Cost of a reply, if the price is known."""
    step: Annotated[StepInfo | None, OPTIONAL] = None
    """Size of the thread when the model was called; None if the entry is not a reply."""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Totals of a thread's entries, up to an entry or between two. Without costs of sub-agents."""

    messages: int = 0
    steps: int = 0
    """Replies of the model."""
    tool_calls: int = 0
    """Calls with a result."""
    failures: int = 0
    """Turns that ended without an answer."""
    compactions: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    body_bytes: int = 0
    """Size of messages and data as JSON."""


_COUNTED: Final = {
    Kind.MESSAGE: "messages",
    Kind.REPLY: "steps",
    Kind.TOOL_RESULT: "tool_calls",
    Kind.FAILURE: "failures",
    Kind.COMPACTION: "compactions",
}


def add_up(entries: Iterable[Entry], before: Totals | None = None) -> Totals:
    """Return the totals of entries, added to those of the entries before them."""
    before = before or Totals()
    counts = dict.fromkeys(_COUNTED.values(), 0)
    tokens, cost_usd, body_bytes = before.tokens, before.cost_usd, before.body_bytes
    for entry in entries:
        if entry.kind in _COUNTED:
            counts[_COUNTED[entry.kind]] += 1
        tokens += entry.tokens
        cost_usd += entry.cost_usd
        body_bytes += entry.size_bytes
    return Totals(
        tokens=tokens,
        cost_usd=cost_usd,
        body_bytes=body_bytes,
        **{name: getattr(before, name) + count for name, count in counts.items()},
    )


def _drop_zeros(totals: Totals | None) -> dict[str, int | float]:
    return {} if totals is None else {k: v for k, v in vars(totals).items() if v}


@dataclass(frozen=True, kw_only=True)
class SegmentRef:
    """A ref to a segment, with the seqs of its entries."""

    ref: Ref
    first_seq: int
    count: int
    folded: Annotated[bool, Field(exclude_if=operator.not_)] = False
    """Whether the segment has no entries of its own, and only refers to older segments."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A stored piece of a journal: entries in order, and refs to the older segments."""

    before: tuple[SegmentRef, ...]
    """Older segments, oldest first."""
    entries: tuple[Entry, ...]
    shares: Annotated[tuple[str, ...], Field(exclude_if=operator.not_)] = ()
    """Keys of the threads that this journal was forked from: it may refer to their packs. Ignored in a
    segment that is not stored under the thread's own key."""
    totals: Annotated[
        Totals | None,
        Field(exclude_if=lambda totals: totals is None),
        PlainSerializer(_drop_zeros),
    ] = None
    """Totals of all entries before these; None in the first segment, in folds, and if unknown."""
    version: Literal[2] = 2
    """Version of this JSON and of the entries' JSON. A reader refuses an unknown version."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A fact that the agent remembers."""

    key: str
    text: str
    time_ms: int
    """Time at which it was remembered, in Unix milliseconds."""
    expires_ms: int | None = None
    importance: Annotated[int, Field(ge=1, le=5)] = 3


@dataclass(frozen=True, kw_only=True)
class MemoryChange:
    """Data of a `memory` entry."""

    remembered: Fact | None = None
    forgotten: str = ""
    """Key of a fact that the agent forgot."""
    evicted: tuple[str, ...] = ()
    """Keys of facts that were evicted because of the policy's caps."""


@dataclass(frozen=True, kw_only=True)
class SnapshotRef:
    """A ref to a snapshot."""

    ref: Ref
    upto_seq: int
    """Last entry that the snapshot covers. Later entries are read from the journal."""
    context_bytes: Bytes = 0


@dataclass(frozen=True, kw_only=True)
class CompactionNote:
    """Data of a `compaction` entry: from here on, the context begins with this snapshot."""

    snapshot: SnapshotRef
    reason: str
    before_bytes: Bytes
    after_bytes: Bytes
    lag_seconds: float = 0.0
    summarised: bool = False
    """Whether a model wrote a summary for it."""
    expired: tuple[str, ...] = ()
    """Keys of expired facts, at most `EXPIRED_KEYS_MAX`."""


@dataclass(frozen=True, kw_only=True)
class ControlNote:
    """Data of a `control` entry."""

    action: str
    """`pause`, `unpause`, `configure`, `compact`, `stop`, `grant`, `revoke_grant`, or another action on
    the thread."""
    by: str = ""
    reason: str = ""
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the policy that `configure` changed; fields of the grant that was given or revoked."""


@dataclass(frozen=True, kw_only=True)
class ForkNote:
    """Data of a `fork` entry."""

    thread_id: str
    seq: int
    by: str = ""
    reason: str = ""


def build_note(seq: int, kind: Kind, data: object, time_ms: int) -> Entry:
    """Return an entry without a message. `data` has the type that the kind's doc names."""
    fields: dict[str, Any] = to_jsonable_python(data, exclude_none=True)
    return Entry(seq=seq, kind=kind, time_ms=time_ms, size_bytes=len(to_json(fields)), data=fields)


def add_data(entry: Entry, **fields: Any) -> Entry:
    """Return an entry with more data. Fields that it has already are not changed."""
    data = {**fields, **(entry.data or {})}
    if data == entry.data:
        return entry
    return dataclasses.replace(entry, data=data, size_bytes=len(to_json(data)))


def seq_after(head: SegmentRef | None, tail: Sequence[Entry] = ()) -> int:
    """Return the seq of the next entry after a journal and a tail."""
    if tail:
        return tail[-1].seq + 1
    return 1 if head is None else head.first_seq + head.count
