"""Tool calls: a call's options, its approval, and its result."""

import contextvars
import dataclasses
import hashlib
import re
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from everlong.models.journal import Bytes, Entry, SegmentRef


@dataclass(frozen=True, kw_only=True)
class SentTime:
    """When a message or a decision was sent, by its sender's clock."""

    ms: Annotated[int, Field(ge=0)]
    trace: Annotated[str, Field(max_length=64)] = ""
    """W3C traceparent of the sender's span; empty if the sender is not traced."""


SENT: Final[contextvars.ContextVar[SentTime | None]] = contextvars.ContextVar("SENT", default=None)
"""Time of the update that is being handled; None if its sender's client has no plugin."""


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """Options of a tool that the workflow needs. Set by `@tool`."""

    timeout_seconds: float | None = None
    attempts_max: int | None = None
    needs_approval: bool = False
    approvers: tuple[str, ...] = ()
    """Names that may decide; empty for every user who can reach the thread."""
    deadline_seconds: float | None = None
    on_deadline: Literal["deny", "escalate"] = "deny"
    escalate_to: tuple[str, ...] = ()
    agent: str = ""
    """Name of the sub-agent that answers the call; empty for other tools."""


@dataclass(frozen=True, kw_only=True)
class WantedCall:
    """A tool call of a reply, as the model call's result has it."""

    call_id: str
    tool: str
    preview: str = ""
    digest: str = ""
    """Digest of the tool's name and arguments."""
    options: CallOptions = dataclasses.field(default_factory=CallOptions)


@dataclass(frozen=True, kw_only=True)
class Approval:
    """A pending approval of a tool call. Item of the `pending` query, and data of an `asked` entry."""

    id: str
    tool: str
    arguments: str
    """Beginning of the call's arguments; the journal has all of them."""
    asked_ms: int
    deadline_ms: int | None = None
    on_deadline: Literal["deny", "escalate"] = "deny"
    approvers: tuple[str, ...] = ()
    escalate_to: tuple[str, ...] = ()
    escalated: bool = False


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Data of a `decided` entry."""

    id: str
    tool: str
    asked_ms: int
    """Time at which the approval was requested, in Unix milliseconds."""
    approve: bool
    by: str
    """Name of the person who decided; `deadline` if the deadline passed first."""
    reason: str = ""
    escalated: bool = False
    """Whether the deadline passed the approval on to `escalate_to`, so it is still pending."""
    asked_run: str | None = None
    """Run that requested the approval, if a later run journals this. The span belongs to its trace."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Argument of the signal from a sub-agent's thread: its turn has ended."""

    child_id: str
    head: SegmentRef | None = None
    """Head of its journal, whose newest entry is the answer; None if it has no journal."""
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
    """Digest of the text that the model reads, to detect repeated results."""
    memory: dict[str, Any] | None = None
    """Data of a `memory` entry, if the call changed what the agent remembers."""


@dataclass(frozen=True, kw_only=True)
class PendingApproval:
    """The pending approval of a call."""

    asked_ms: int
    """Time at which the approval was requested, in Unix milliseconds."""
    asked_run: str | None = None
    """Run that requested it; None for the current run. Continue-as-new sets it."""
    deadline_ms: int | None = None
    escalated: bool = False


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool call of the newest reply, in operational state. Its arguments stay in the journal."""

    id: str
    """Id: `<seq of the reply>-<number of the call>-<first digits of the digest>`."""
    call_id: str
    """The model's id of the call."""
    tool: str
    preview: str = ""
    """Beginning of the arguments, for the approver."""
    digest: str = ""
    """Digest of the tool's name and arguments."""
    options: CallOptions = dataclasses.field(default_factory=CallOptions)
    waits: PendingApproval | None = None
    """The pending approval; None otherwise."""
    approved: bool = False
    sent: SentTime | None = None
    """Time of the approval, until the call runs."""
    child_id: str = ""
    """Id of the sub-agent's thread, once the workflow has chosen it."""
    report: Report | None = None
    """Report of that thread."""
    result: ToolResult | None = None
    """The result for the model. Its entry gets its seq later."""


def short_digest(text: str, size_bytes: int = 4) -> str:
    """Return a short digest, to recognise repeated texts."""
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=size_bytes).hexdigest()


def call_digest(tool: str, arguments: str) -> str:
    """Return the digest of a call: of its tool and arguments."""
    return short_digest(f"{tool}\0{arguments}")


def failure_digest(reason: str) -> str:
    """Return the same digest for failures that differ only in numbers: times, ports, addresses."""
    return short_digest(re.sub(r"0x[0-9a-f]+|\d+", "#", reason))
