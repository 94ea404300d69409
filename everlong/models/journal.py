"""What a thread's journal holds: entries, their messages, and where they lie."""

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
# A field that is not written while it is None: most entries have few of them.
_OPTIONAL: Final = Field(exclude_if=lambda value: value is None)
Body = dict[str, Any]
"""A message as JSON, in the format of pydantic-ai's `ModelMessage`: see `messages`."""


def make_printable(text: str, chars_max: int) -> str:
    """Return the beginning of a text on one line, without characters that JSON has to escape."""
    return "".join(c if c.isprintable() else " " for c in text[:chars_max])


def thread_key(namespace: str, thread_id: str) -> str:
    """Return the fixed-length name under which a thread's objects lie, whatever its id looks like."""
    name = f"{namespace}\0{thread_id}".encode()
    return hashlib.blake2b(name, digest_size=16, person=b"everlong-thread").hexdigest()


class Kind(StrEnum):
    """What a stored object or a journal entry holds."""

    SEGMENT = "segment"
    """A piece of a thread's journal."""
    SNAPSHOT = "snapshot"
    """The compacted base of a thread's context."""

    MESSAGE = "message"
    """What a person or a program said to the agent."""
    REPLY = "reply"
    """What the model answered: text, tool calls, or both."""
    TOOL_RESULT = "tool_result"
    """What a tool returned."""
    FAILURE = "failure"
    """Why a turn ended without an answer."""

    ASKED = "asked"
    """A tool call waits for a person's decision: an `Approval`."""
    DECIDED = "decided"
    """Somebody decided, or the deadline did: a `Decided`."""
    MEMORY = "memory"
    """A fact was remembered or forgotten: a `MemoryChange`."""
    COMPACTION = "compaction"
    """The context has a new base: a `Compacted`."""
    LIMIT = "limit"
    """The policy paused or ended the thread: a `LimitHit`."""
    CONTROL = "control"
    """Somebody paused, unpaused or configured the thread: a `ControlNote`."""
    FORK = "fork"
    """The thread began as another one's past: a `Forked`."""


@dataclass(frozen=True, kw_only=True)
class Ref:
    """A handle to a pack. It describes itself completely: no context is needed to read it."""

    thread: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Which thread's bytes these are: a digest of its namespace and id, and part of the key."""
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Name of the pack: BLAKE2b-256 of its head, in hex. Every read is checked against it."""
    size_bytes: Bytes
    """Size of the plaintext."""
    kind: Kind
    preview: Annotated[
        str, Field(max_length=limits.PREVIEW_CHARS_READ_MAX, exclude_if=operator.not_)
    ] = ""
    """The first characters, for people and logs."""


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A model's wish to run a tool."""

    id: str
    tool: str
    arguments: str
    """JSON object, as the model wrote it. The tool's signature validates it when it runs."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a conversation, in the order that a model reads them."""

    role: str
    """`user`, `assistant`, `tool`, `failure` (why a turn ended without an answer), or `summary` (what
    compaction left of the messages before: never journalled)."""
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """On an assistant message: the tools that it asks for."""
    call_id: str = ""
    """On a tool message: the call that it answers."""
    tool: str = ""
    """On a tool message: the tool's name."""
    native: Body | None = dataclasses.field(default=None, compare=False, repr=False)
    """On an assistant message: the whole of what the provider sent, if it was more than this."""


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Where a long body lies, if it shares a pack with others."""

    start: Bytes
    size_bytes: Bytes


@dataclass(frozen=True, kw_only=True)
class StepInfo:
    """How a thread was when a model call began. Any of them tells of the thread's size at that time."""

    number: Annotated[int, Field(ge=0)] = 0
    """Model calls of the thread before this one."""
    thread_bytes: Bytes = 0
    """What the thread had stored."""
    context_bytes: Bytes = 0
    """What the model read."""
    resume_ms: Annotated[float, Field(ge=0, exclude_if=operator.not_)] = 0.0
    """What the resume took that came before it; 0 if none did, or another worker saw it."""
    resume_cause: Annotated[str, Field(exclude_if=operator.not_)] = ""
    resume_events: Annotated[int, Field(ge=0, exclude_if=operator.not_)] = 0


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One thing that happened in a thread. Small: a long message is behind `ref`."""

    seq: Annotated[int, Field(ge=1)]
    """Position in the journal, from 1, without gaps."""
    kind: Kind
    time_ms: int
    """Unix time in milliseconds at which it was recorded."""
    size_bytes: Bytes
    """Size of the body or the data as JSON."""
    body: Annotated[Body | None, _OPTIONAL] = None
    """The message itself, where there is one and it is small; otherwise `ref` leads to it."""
    ref: Annotated[Ref | None, _OPTIONAL] = None
    """The pack that holds the body: alone, or at `part`."""
    part: Annotated[Slice | None, _OPTIONAL] = None
    original: Annotated[Ref | None, _OPTIONAL] = None
    """The whole of a message of which the body is only the beginning and the end, since it is too
    long for a model."""
    data: Annotated[dict[str, Any] | None, _OPTIONAL] = None
    """What happened, for kinds that are no message: their doc names the type."""
    tokens: Annotated[int, Field(ge=0, exclude_if=operator.not_)] = 0
    """Of a reply: what the model read and wrote, as its provider counts."""
    cost_usd: Annotated[float, Field(ge=0, exclude_if=operator.not_)] = 0.0
    """Of a reply: what it cost, where the price is known."""
    step: Annotated[StepInfo | None, _OPTIONAL] = None
    """State of the thread when the model was called; None where the entry is not a reply."""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What a thread had done up to an entry, or between two. Sub-agents' own costs are not in it."""

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
    """Messages and data as JSON, as a model is shown them."""


_COUNTED: Final = {
    Kind.MESSAGE: "messages",
    Kind.REPLY: "steps",
    Kind.TOOL_RESULT: "tool_calls",
    Kind.FAILURE: "failures",
    Kind.COMPACTION: "compactions",
}


def add_up(entries: Iterable[Entry], before: Totals | None = None) -> Totals:
    """Return the totals of entries, added to what was there before them."""
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
    """Where a run of entries lies, and which ones they are, without reading them."""

    ref: Ref
    first_seq: int
    count: int
    folded: Annotated[bool, Field(exclude_if=operator.not_)] = False
    """Whether the segment holds no entries of its own, but leads to older segments that do."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A stored piece of a journal: entries in order, and the older pieces that come before them."""

    before: tuple[SegmentRef, ...]
    """Oldest first."""
    entries: tuple[Entry, ...]
    shares: Annotated[tuple[str, ...], Field(exclude_if=operator.not_)] = ()
    """Other threads whose packs this journal may point into, by thread key: those it was forked
    from. It counts only in a segment that lies in the thread's own place in the store."""
    totals: Annotated[
        Totals | None,
        Field(exclude_if=lambda totals: totals is None),
        PlainSerializer(_drop_zeros),
    ] = None
    """Totals of all entries before these; None in the first segment, in folds, and if unknown."""
    version: Literal[2] = 2
    """Of this JSON and that of the entries. A reader refuses a version that it does not know."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """Something that the agent was told to remember."""

    key: str
    text: str
    time_ms: int
    """When it was remembered."""
    expires_ms: int | None = None
    importance: Annotated[int, Field(ge=1, le=5)] = 3


@dataclass(frozen=True, kw_only=True)
class MemoryChange:
    """Data of a `memory` entry."""

    remembered: Fact | None = None
    forgotten: str = ""
    """The key of a fact that was asked to be forgotten."""
    evicted: tuple[str, ...] = ()
    """Keys that had to go for it, by the cap of the policy."""


@dataclass(frozen=True, kw_only=True)
class SnapshotRef:
    """A snapshot as the workflow knows it."""

    ref: Ref
    upto_seq: int
    """Entries up to this one are in it, compacted; those after it are read as they are."""
    context_bytes: Bytes = 0


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """Data of a `compaction` entry: from here on, the context begins with this snapshot."""

    snapshot: SnapshotRef
    reason: str
    before_bytes: Bytes
    after_bytes: Bytes
    lag_seconds: float = 0.0
    summarised: bool = False
    """Whether a model wrote a summary for it."""
    expired: tuple[str, ...] = ()
    """Keys of facts whose time was over, the first of them."""


@dataclass(frozen=True, kw_only=True)
class ControlNote:
    """Data of a `control` entry."""

    action: str
    """`pause`, `unpause`, `configure`, `compact`, `stop`; or what else was done about the thread."""
    by: str = ""
    reason: str = ""
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Of `configure`: the policy's fields that changed."""


@dataclass(frozen=True, kw_only=True)
class Forked:
    """Data of a `fork` entry."""

    thread_id: str
    seq: int
    by: str = ""
    reason: str = ""


def build_note(seq: int, kind: Kind, data: object, time_ms: int) -> Entry:
    """Return an entry for something that is no message. `data` is of the type that its kind names."""
    fields: dict[str, Any] = to_jsonable_python(data, exclude_none=True)
    return Entry(seq=seq, kind=kind, time_ms=time_ms, size_bytes=len(to_json(fields)), data=fields)


def add_data(entry: Entry, **fields: Any) -> Entry:
    """Return an entry with more data. Fields that it has already stay as they are."""
    data = {**fields, **(entry.data or {})}
    if data == entry.data:
        return entry
    return dataclasses.replace(entry, data=data, size_bytes=len(to_json(data)))


def seq_after(head: SegmentRef | None, tail: Sequence[Entry] = ()) -> int:
    """Return the seq that the next entry gets."""
    if tail:
        return tail[-1].seq + 1
    return 1 if head is None else head.first_seq + head.count
