"""Tool calls, on their way from a reply to a result."""

import contextvars
import dataclasses
import hashlib
import re
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from everlong.models.journal import Bytes, Entry, SegmentRef


@dataclass(frozen=True, kw_only=True)
class Sent:
    """When a message or a decision was sent, by its sender's clock."""

    ms: Annotated[int, Field(ge=0)]
    trace: Annotated[str, Field(max_length=64)] = ""
    """W3C traceparent of what it was sent from, if that is traced."""


SENT: Final[contextvars.ContextVar[Sent | None]] = contextvars.ContextVar("SENT", default=None)
"""Of the update that is being handled, where its sender's client has the plugin."""


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """What the workflow has to know of a tool to run it. Set by `@tool`."""

    timeout_seconds: float | None = None
    attempts_max: int | None = None
    needs_approval: bool = False
    approvers: tuple[str, ...] = ()
    """Who may decide; empty for anybody who reaches the thread."""
    deadline_seconds: float | None = None
    on_deadline: Literal["deny", "escalate"] = "deny"
    escalate_to: tuple[str, ...] = ()
    agent: str = ""
    """The agent that answers the call, if it is a sub-agent."""


@dataclass(frozen=True, kw_only=True)
class WantedCall:
    """A tool call of a reply, as the workflow hears of it."""

    call_id: str
    tool: str
    preview: str = ""
    digest: str = ""
    """Of the tool's name and arguments."""
    options: CallOptions = dataclasses.field(default_factory=CallOptions)


@dataclass(frozen=True, kw_only=True)
class Approval:
    """A tool call that waits for a person. Answer of the `pending` query, and data of `asked`."""

    id: str
    tool: str
    arguments: str
    """The beginning of the call's arguments; all of them are in the journal."""
    asked_ms: int
    deadline_ms: int | None = None
    on_deadline: Literal["deny", "escalate"] = "deny"
    approvers: tuple[str, ...] = ()
    escalate_to: tuple[str, ...] = ()
    escalated: bool = False


@dataclass(frozen=True, kw_only=True)
class Decided:
    """Data of a `decided` entry."""

    id: str
    tool: str
    asked_ms: int
    """Unix time in milliseconds at which the approval was asked for."""
    approve: bool
    by: str
    """Who; `deadline` if nobody was in time."""
    reason: str = ""
    escalated: bool = False
    """Nobody was in time, and it now waits for others instead."""
    asked_run: str | None = None
    """The run that asked, if a later one journals this. The approval's span is in its trace."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Argument of the signal from a sub-agent's thread: its turn has ended."""

    child_id: str
    head: SegmentRef | None = None
    """Its journal, whose newest entry is the answer; none if it has none."""
    tokens: Annotated[int, Field(ge=0)] = 0
    cost_usd: Annotated[float, Field(ge=0)] = 0.0


Outcome = Literal["ok", "failed", "refused"]
"""`refused`: the call named no tool, or its arguments did not fit; nothing was run."""


@dataclass(frozen=True, kw_only=True)
class ToolResult:
    """Result of `everlong.run_tool` or `everlong.collect`: an entry for the journal.

    The workflow gives it its seq: results are journalled in call order.
    """

    entry: Entry
    written_bytes: Bytes
    outcome: Outcome = "ok"
    digest: str = ""
    """Of what the model reads: an equal one is no progress."""
    memory: dict[str, Any] | None = None
    """Data of a `memory` entry, if the call changed what the agent remembers."""


@dataclass(frozen=True, kw_only=True)
class Waits:
    """Since when a call waits for a person, and how long it may."""

    asked_ms: int
    asked_run: str | None = None
    """The run that asked; None for the run under way. A roll fills it in."""
    deadline_ms: int | None = None
    escalated: bool = False


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool call of the newest reply, as the workflow sees it: its arguments stay in the journal."""

    id: str
    """Place and content: `<seq of the reply>-<number of the call>-<first digits of the digest>`."""
    call_id: str
    """As the model named it."""
    tool: str
    preview: str = ""
    """The beginning of its arguments, for a person who has to approve it."""
    digest: str = ""
    """Of the tool's name and arguments."""
    options: CallOptions = dataclasses.field(default_factory=CallOptions)
    waits: Waits | None = None
    """While it waits for a person."""
    approved: bool = False
    sent: Sent | None = None
    """When the decision was, if it was approved and is not acted on yet."""
    child_id: str = ""
    """The sub-agent's thread, once it has been started."""
    report: Report | None = None
    """What that thread has said."""
    result: ToolResult | None = None
    """What the model will read, once there is a result. Its seq is given later."""


def short_digest(text: str, size_bytes: int = 4) -> str:
    """Return a digest by which what is repeated is recognised."""
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=size_bytes).hexdigest()


def call_digest(tool: str, arguments: str) -> str:
    """Return the digest of a call: what is run, and with what."""
    return short_digest(f"{tool}\0{arguments}")


def failure_digest(reason: str) -> str:
    """Return the same digest for failures that differ only in numbers: times, ports, addresses."""
    return short_digest(re.sub(r"0x[0-9a-f]+|\d+", "#", reason))
