"""Tool calls: a call's options, its approval, its unknown outcome, and its result."""

import contextvars
import dataclasses
import hashlib
import operator
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from everlong.models.journal import OPTIONAL, Bytes, Entry, SegmentRef


@dataclass(frozen=True, kw_only=True)
class SentTime:
    """When a message or a decision was sent, by its sender's clock."""

    ms: Annotated[int, Field(ge=0)]
    trace: Annotated[str, Field(max_length=64)] = ""
    """W3C traceparent of the sender's span; empty if the sender is not traced."""


SENT: Final[contextvars.ContextVar[SentTime | None]] = contextvars.ContextVar("SENT", default=None)
"""Time of the update that is being handled; None if its sender's client has no plugin."""


def _is_one(number: int) -> bool:
    return number == 1


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
    approvals_needed: Annotated[int, Field(ge=0, exclude_if=_is_one)] = 1
    """Number of people who must approve; 0 for all of those who may decide."""
    always: Annotated[bool, Field(exclude_if=bool)] = True
    """Whether a person may allow later calls too, by a grant."""
    once: Annotated[bool, Field(exclude_if=operator.not_)] = False
    """Whether the effect must not happen twice: an attempt without an answer is never repeated without a
    person's word."""


@dataclass(frozen=True, kw_only=True)
class WantedCall:
    """A tool call of a reply, as the model call's result has it."""

    call_id: str
    tool: str
    preview: str = ""
    digest: str = ""
    """Digest of the tool's name and arguments."""
    options: CallOptions = dataclasses.field(default_factory=CallOptions)
    grant: Annotated[str, Field(exclude_if=operator.not_)] = ""
    """Id of the grant that allows the call, so that no person is asked."""
    granted_by: Annotated[str, Field(exclude_if=operator.not_)] = ""
    """Name of the person who gave that grant."""
    quiet: Annotated[bool, Field(exclude_if=operator.not_)] = False
    """Whether no sink gets the call's approval."""


@dataclass(frozen=True, kw_only=True)
class Vote:
    """The approval by one person of a call that needs several."""

    by: str
    ms: int
    """Time, in Unix milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Edit:
    """Arguments that a person has changed: a pack of kind `arguments` in the thread's own place."""

    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size_bytes: Bytes
    number: int = 1
    """Number of the change. Each one makes earlier votes void."""


@dataclass(frozen=True, kw_only=True)
class EditedArguments:
    """Content of a pack of kind `arguments`."""

    arguments: dict[str, Any]
    by: str
    """Name of the person who changed them."""
    version: Literal[1] = 1


EDITED_ARGUMENTS: Final = TypeAdapter(EditedArguments)


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
    needed: int = 1
    """Number of people who must approve. One who denies is enough to deny."""
    votes: tuple[Vote, ...] = ()
    """Who has approved so far, if more than one person must."""
    always: bool = True
    """Whether the decision may also allow later calls."""
    edit: Annotated[Edit | None, OPTIONAL] = None
    """The arguments as a person has changed them, if one has."""


@dataclass(frozen=True, kw_only=True)
class VoteNote:
    """Data of a `voted` entry: an approval of a call that needs more of them."""

    id: str
    tool: str
    by: str
    reason: str = ""
    votes: int
    """Number of people who have approved so far, this one included."""
    needed: int
    next_id: Annotated[str, Field(exclude_if=operator.not_)] = ""
    """The approval's id from here on, if this person has changed the arguments: earlier votes were for
    others, and do not count any more."""
    arguments: Annotated[str, Field(exclude_if=operator.not_)] = ""
    """Beginning of the changed arguments."""
    edit: Annotated[str, Field(exclude_if=operator.not_)] = ""
    """Digest of the pack with all of them."""


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
    votes: Annotated[tuple[str, ...], Field(exclude_if=operator.not_)] = ()
    """Names of all who have approved, if more than one person had to."""
    arguments: Annotated[str, Field(exclude_if=operator.not_)] = ""
    """Beginning of the arguments that the call runs with, if a person has changed them."""
    edit: Annotated[str, Field(exclude_if=operator.not_)] = ""
    """Digest of the pack with all of them."""
    grant: Annotated[str, Field(exclude_if=operator.not_)] = ""
    """Id of the grant that allowed the call; `by` is the person who gave it."""


UnknownCause = Literal["lost", "timeout", "unsaved", "unclear"]
"""Why an outcome is unknown. `lost`: the worker was lost, or shut down, while the call ran. `timeout`:
the call did not end in its time, and may still run. `unsaved`: it ended, and its result was lost.
`unclear`: the tool raised `OutcomeUnknown`."""
ResolvedAs = Literal["done", "not_done", "retry", "unknown"]
"""How an outcome was resolved. `unknown`: by the deadline."""


@dataclass(frozen=True, kw_only=True)
class UnknownOutcome:
    """A call that may have taken effect.

    Item of the `outcomes` query, and data of an `outcome_unknown` entry.
    """

    id: str
    """The call's id and the number of its attempt: `<approval id>-<attempt>`."""
    tool: str
    arguments: str
    """Beginning of the call's arguments; the journal has all of them."""
    cause: UnknownCause
    idempotency_key: str
    """What `current_call().idempotency_key` returned. A new attempt gets the same."""
    asked_ms: int
    """Time at which the outcome became unknown, in Unix milliseconds."""
    deadline_ms: int | None = None
    on_deadline: Literal["deny", "escalate"] = "deny"
    """`deny`: at the deadline, the model reads that the outcome is unknown."""
    approvers: tuple[str, ...] = ()
    """Names that may resolve it; empty for every user who can reach the thread."""
    escalate_to: tuple[str, ...] = ()
    escalated: bool = False
    edit: Annotated[Edit | None, OPTIONAL] = None
    """The arguments as a person has changed them, if one has."""


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """Data of an `outcome_resolved` entry."""

    id: str
    tool: str
    asked_ms: int
    outcome: ResolvedAs
    by: str
    """Name of the person; `deadline` if the deadline passed first."""
    reason: str = ""
    result: Annotated[str, Field(exclude_if=operator.not_)] = ""
    """What the person gave as the result of the call."""
    escalated: Annotated[bool, Field(exclude_if=operator.not_)] = False
    """Whether the deadline passed the question on to `escalate_to`, so it is still open."""


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
    votes: Annotated[tuple[Vote, ...], Field(exclude_if=operator.not_)] = ()


@dataclass(frozen=True, kw_only=True)
class PendingOutcome:
    """The unknown outcome of a call."""

    cause: UnknownCause
    asked_ms: int
    deadline_ms: Annotated[int | None, OPTIONAL] = None
    escalated: Annotated[bool, Field(exclude_if=operator.not_)] = False


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
    quiet: Annotated[bool, Field(exclude_if=operator.not_)] = False
    """Whether no sink gets the call's approval."""
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
    grant: Annotated[str, Field(exclude_if=operator.not_)] = ""
    """Id of the grant that allows the call, until it has a result."""
    edit: Annotated[Edit | None, OPTIONAL] = None
    """The arguments to run it with, if a person has changed them."""
    unknown: Annotated[PendingOutcome | None, OPTIONAL] = None
    """Set while it is not known whether the call took effect."""
    attempts: Annotated[int, Field(ge=0, exclude_if=operator.not_)] = 0
    """Attempts without a known outcome so far, for a call whose effect must not happen twice."""
    idempotency_key: Annotated[str, Field(exclude_if=operator.not_)] = ""
    """Key of the first of them."""


_EDIT: Final = "-r"
"""Not a hexadecimal digit, so the number of a change cannot be taken for a part of the digest before."""


def get_approval_id(call: Call) -> str:
    """Return the id of a call's approval. Each change of the arguments makes another id.

    So a person approves only arguments that the person has seen.
    """
    return add_edit(call.id, 0 if call.edit is None else call.edit.number)


def add_edit(call_id: str, number: int) -> str:
    """Return the id of the approval of a call whose arguments were changed so many times."""
    return f"{call_id}{_EDIT}{number}" if number else call_id


def remove_edit(approval_id: str) -> str:
    """Return an approval's id without the number of a change: the id of its call."""
    return approval_id.partition(_EDIT)[0]


def get_outcome_id(call: Call) -> str:
    """Return the id of a call's newest attempt: an answer about an earlier one is refused."""
    return f"{call.id}-{call.attempts}"


def short_digest(text: str, size_bytes: int = 4) -> str:
    """Return a short digest, to recognise repeated texts."""
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=size_bytes).hexdigest()


def count_needed(approvals_needed: int, approvers: Sequence[str]) -> int:
    """Return how many people must approve a call; 0 stands for all of its approvers.

    Never more than there are, if their names are known: after an escalation these are other people.
    """
    if not approvers:
        return max(1, approvals_needed)
    return min(approvals_needed or len(approvers), len(approvers))


def compute_idempotency_key(namespace: str, thread_id: str, head: str, call_id: str) -> str:
    """Return the key of a call: the same for every attempt, and for no other call.

    `head` is the digest of the journal's head, which identifies the call's whole past. So each branch
    after a reset has its own key.
    """
    name = f"{namespace}\0{thread_id}\0{head}\0{call_id}"
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def call_digest(tool: str, arguments: str) -> str:
    """Return the digest of a call: of its tool and arguments."""
    return short_digest(f"{tool}\0{arguments}")


def failure_digest(reason: str) -> str:
    """Return the same digest for failures that differ only in numbers: times, ports, addresses."""
    return short_digest(re.sub(r"0x[0-9a-f]+|\d+", "#", reason))
