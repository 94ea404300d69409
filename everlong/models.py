"""What is stored, and what crosses a workflow, activity or HTTP boundary. Pure: no clock, no I/O.

These are frozen pydantic dataclasses rather than `BaseModel`s, because both the SDK's default
converter and its pydantic one carry dataclasses: Everlong need not replace the converter it finds.
Names that reach the wire or a history are constants here and never come from `__name__`.
"""

import dataclasses
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from everlong import limits
from everlong.policy import Policy

AGENT_WORKFLOW: Final = "everlong.Agent"
CALL_MODEL: Final = "everlong.call_model"
RUN_TOOL: Final = "everlong.run_tool"
APPEND_JOURNAL: Final = "everlong.append_journal"

HELD: Final = "everlong.Held"
"""Type of the failure of an activity that could not begin, and should be tried again."""

SEND_UPDATE: Final = "send"
STOP_SIGNAL: Final = "stop"
STATUS_QUERY: Final = "status"

SEARCH_ATTRIBUTES: Final = {
    "EverlongAgent": "Keyword",
    "EverlongStatus": "Keyword",
    "EverlongStateBytes": "Int",
    "EverlongGrowthBytesPerHour": "Double",
    "EverlongPendingApprovals": "Int",
    "EverlongLastResumeMs": "Double",
}

Bytes = Annotated[int, Field(ge=0)]


def printable(text: str, chars_max: int) -> str:
    """Return the beginning of a text on one line, without characters that JSON has to escape."""
    return "".join(c if c.isprintable() else " " for c in text[:chars_max])


class Kind(StrEnum):
    """What a stored object or a journal entry holds."""

    PAYLOAD = "payload"
    """A Temporal payload that the codec moved out of history."""
    SEGMENT = "segment"
    """A piece of a thread's journal."""
    MESSAGE = "message"
    """What a person or a program said to the agent."""
    REPLY = "reply"
    """What the model answered: text, tool calls, or both."""
    TOOL_RESULT = "tool_result"
    """What a tool returned."""
    FAILURE = "failure"
    """Why a turn ended without an answer."""


@dataclass(frozen=True, kw_only=True)
class Ref:
    """A handle to stored bytes. It describes itself completely: no context is needed to read it."""

    thread: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Which thread's bytes these are: a digest of its namespace and id, and part of the key."""
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """BLAKE2b-256, in hex: of a pack's head, or of the plaintext of an object of version 1. Every
    read is checked against it."""
    size_bytes: Bytes
    """Size of the plaintext."""
    kind: Kind
    preview: Annotated[str, Field(max_length=limits.PREVIEW_CHARS_MAX)] = ""
    """The first characters, for people and logs. Empty for payloads."""
    pack: bool = False
    """Whether the bytes are a pack. Refs from before there were packs do not say so."""


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A model's wish to run a tool."""

    id: str
    tool: str
    arguments: str
    """JSON object, as the model wrote it. The tool's signature validates it when it runs."""


@dataclass(frozen=True, kw_only=True)
class ToolName:
    """A tool call as the workflow sees it: its arguments stay in the journal."""

    call_id: str
    tool: str


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a conversation, in the order that a model reads them."""

    role: str
    """`user`, `assistant`, `tool`, or `failure`: why a turn ended without an answer."""
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """On an assistant message: the tools that it asks for."""
    call_id: str = ""
    """On a tool message: the call that it answers."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One thing that happened in a thread. Small: a long message is behind `ref`."""

    seq: Annotated[int, Field(ge=1)]
    """Position in the journal, from 1, without gaps."""
    kind: Kind
    time_ms: int
    """Unix time in milliseconds at which it was recorded."""
    size_bytes: Bytes
    """Size of the message as JSON."""
    message: Message | None = None
    """The message itself, where it is small; otherwise `ref` leads to it."""
    ref: Ref | None = None


@dataclass(frozen=True, kw_only=True)
class SegmentRef:
    """Where a run of entries lies, and which ones they are, without reading them."""

    ref: Ref
    first_seq: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A stored piece of a journal: entries in order, and the older pieces that come before them."""

    before: tuple[SegmentRef, ...]
    """Oldest first. Up to a bound on its length, each is at least twice as long as the next."""
    entries: tuple[Entry, ...]
    version: Literal[1] = 1
    """Of this JSON and that of the entries. A reader refuses a version that it does not know."""


@dataclass(frozen=True, kw_only=True)
class SendMessage:
    """Argument of the `send` update."""

    text: str


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
    written_bytes: Bytes = 0
    """Stored by the thread's own steps, after compression."""
    context_bytes: Bytes = 0
    """Sum over all model calls of the context that was read: what passing it by value would send."""


@dataclass(frozen=True, kw_only=True)
class ThreadState:
    """Operational state: all that the next run needs, carried over by continue-as-new."""

    head: SegmentRef | None = None
    """The journal's newest segment."""
    tail: tuple[Entry, ...] = ()
    """Entries that the next model call will journal."""
    inbox: tuple[str, ...] = ()
    """Messages that wait for their turn, oldest first."""
    calls: tuple[ToolName, ...] = ()
    """Tool calls of the newest reply that have no result yet."""
    holds: Annotated[int, Field(ge=0)] = 0
    """How often in a row the thread was held; the pause before the next try grows with it."""
    in_turn: bool = False
    turn_steps: int = 0
    """Model calls in the turn that is under way."""
    counters: Counters = dataclasses.field(default_factory=Counters)
    last_failure: str = ""
    """Why the last turn ended without an answer, if it did."""


@dataclass(frozen=True, kw_only=True)
class ThreadStart:
    """Argument of the `everlong.Agent` workflow. Start one with the agent's name; the rest follows."""

    agent: str
    """Name of an agent that the workers of this task queue run."""
    policy: Policy = dataclasses.field(default_factory=Policy)
    state: ThreadState = dataclasses.field(default_factory=ThreadState)
    """Left empty by people: continue-as-new fills it."""


@dataclass(frozen=True, kw_only=True)
class ThreadStatus:
    """Answer of the `status` query, and the result of a thread that was stopped."""

    agent: str
    status: str
    """`working`, `waiting`, `held`, `stopping` or `stopped`."""
    counters: Counters
    head: SegmentRef | None
    waiting_messages: int
    last_failure: str
    held_by: str = ""
    """What the thread waits for, if it is held: say, bytes that the store has lost."""


@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """Argument of the `everlong.call_model` activity."""

    agent: str
    head: SegmentRef | None
    tail: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True)
class ModelTurn:
    """Result of `everlong.call_model`: the journal's new head and what to do next."""

    head: SegmentRef
    tool_calls: tuple[ToolName, ...]
    """Empty when the model has answered."""
    context_bytes: Bytes
    written_bytes: Bytes


@dataclass(frozen=True, kw_only=True)
class ToolRun:
    """Argument of the `everlong.run_tool` activity."""

    agent: str
    head: SegmentRef
    """The journal whose newest reply holds the call and its arguments."""
    call: ToolName
    seq: int
    """The seq that the result will have."""


@dataclass(frozen=True, kw_only=True)
class ToolResult:
    """Result of `everlong.run_tool`: an entry that the next model call will journal."""

    entry: Entry
    written_bytes: Bytes


@dataclass(frozen=True, kw_only=True)
class Append:
    """Argument of the `everlong.append_journal` activity."""

    head: SegmentRef | None
    entries: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True)
class Appended:
    """Result of `everlong.append_journal`."""

    head: SegmentRef
    written_bytes: Bytes
