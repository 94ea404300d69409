"""Arguments and results of the activities. They are small, since bodies are in the journal."""

import operator
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from everlong import limits
from everlong.models.grants import Grant
from everlong.models.journal import (
    OPTIONAL,
    Bytes,
    Entry,
    SegmentRef,
    SnapshotRef,
    seq_after,
)
from everlong.models.state import SendMessage
from everlong.models.status import Status
from everlong.models.tools import Edit, SentTime, ToolResult, WantedCall


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The turn of a step."""

    number: int
    """Number of the message that the turn answers."""
    began_ms: int
    """Start of the turn, or of its part in the current run, in Unix milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """A thread as an activity gets it: refs to its past, and how to read them."""

    agent: str
    head: SegmentRef | None
    snapshot: SnapshotRef | None
    now_ms: int
    """Time by the workflow's clock, so that a retry gets the same time."""
    policy: dict[str, Any] | None = None
    """Fields of the policy that differ from their default; None for the agent's own policy."""
    last_run: str = ""
    """Id of the run before this one; empty in the first run."""
    turn: Turn | None = None
    """None between turns."""
    after_hold: Annotated[bool, Field(exclude_if=operator.not_)] = False
    """Whether the call was held before, so that the activity signals once it is not."""


@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """Argument of the `everlong.call_model` activity."""

    context: Context
    tail: tuple[Entry, ...]
    acts_on: tuple[SentTime, ...] = ()
    """Times of the message and the decisions that this call acts on."""
    state_bytes: Bytes = 0
    """Size of the operational state."""
    thread_bytes: Bytes = 0
    """Bytes that the thread has stored so far."""
    growth_bytes_per_hour: float = 0.0
    steps: Annotated[int, Field(ge=0)] = 0
    """Number of the thread's earlier model calls."""
    grants: Annotated[tuple[Grant, ...], Field(exclude_if=operator.not_)] = ()
    """Grants of the thread."""


@dataclass(frozen=True, kw_only=True)
class ModelTurn:
    """Result of `everlong.call_model`: the journal's new head, and the tool calls to run."""

    head: SegmentRef
    tool_calls: tuple[WantedCall, ...]
    """Empty when the model has answered."""
    context_bytes: Bytes
    written_bytes: Bytes
    context_tokens: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    policy: dict[str, Any] | None = None
    """All fields of the agent's own policy, if the call had no policy."""
    evicted: tuple[str, ...] = ()
    """Keys of evicted facts, at most `EXPIRED_KEYS_MAX`. Calls that remember at the same time can exceed
    the caps together."""
    time_ms: int = 0
    """Time at which the reply was journalled, in Unix milliseconds."""
    attributes: bool = False
    """Whether the server has our search attributes."""
    resume_ms: Annotated[float, Field(ge=0)] = 0.0
    """Duration of the run's last resume, if this worker did it; else 0."""
    notify: Annotated[int, Field(ge=0, exclude_if=operator.not_)] = 0
    """Events that sinks want of this agent's threads, as `notices.build_mask` returns them."""


@dataclass(frozen=True, kw_only=True)
class ToolRun:
    """Argument of the `everlong.run_tool` activity."""

    context: Context
    """Context whose head is the journal with the call: its newest reply has the arguments."""
    call_id: str
    tool: str
    approved: bool = False
    """Whether a person has approved the call."""
    acts_on: SentTime | None = None
    """Time of the approval."""
    inline_bytes_max: int = limits.STEP_RESULTS_BYTES_MAX
    """A larger result is stored as a pack; a smaller one comes back inside its entry."""
    grant: Annotated[str, Field(exclude_if=operator.not_)] = ""
    """Id of the agent's grant that allows the call. Without it in the store, nothing is run."""
    edit: Annotated[Edit | None, OPTIONAL] = None
    """The arguments to run it with, if a person has changed them."""
    outcome_id: Annotated[str, Field(exclude_if=operator.not_)] = ""
    """Id of the attempt, for a call whose effect must not happen twice: a failure of the activity then
    means that the outcome is unknown, so what the tool raises is a result. Empty for other calls."""
    idempotency_key: Annotated[str, Field(exclude_if=operator.not_)] = ""
    """Key of an earlier attempt whose outcome is unknown; empty for the first one."""


@dataclass(frozen=True, kw_only=True)
class CheckDecision:
    """Argument of the `everlong.check_decision` activity, which checks a decision before it is applied.

    Only a decision that changes the arguments of its call, or allows later calls, is checked.
    """

    context: Context
    """Context whose head is the journal with the call: its newest reply has the arguments."""
    call_id: str
    tool: str
    by: str
    arguments: dict[str, Any] | None = None
    """The changed arguments; None if the decision does not change them."""
    number: int = 1
    """Number of the change."""
    match: Literal["", "tool", "arguments"] = ""
    """What the decision allows; empty if it allows no later call."""
    scope: Literal["thread", "agent"] = "thread"


@dataclass(frozen=True, kw_only=True)
class DecisionCheck:
    """Result of `everlong.check_decision`."""

    refused: str = ""
    """Why the decision is refused; empty if it is accepted."""
    edit: Edit | None = None
    """The changed arguments, stored."""
    preview: str = ""
    """Beginning of the changed arguments."""
    written_bytes: Bytes = 0
    arguments_digest: str = ""
    """Digest of the call's arguments, for a grant that depends on them."""


@dataclass(frozen=True, kw_only=True)
class StoreGrant:
    """Argument of the `everlong.store_grant` activity, which stores a grant of an agent."""

    grant: Grant


@dataclass(frozen=True, kw_only=True)
class Append:
    """Argument of the `everlong.append_journal` activity."""

    head: SegmentRef | None
    entries: tuple[Entry, ...]
    agent: str = ""
    last_run: str = ""
    ended: Turn | None = None
    """The turn that ends with these entries, if it ends without an answer."""
    error_type: str = ""
    """Reason why that turn has no answer, as a name of low cardinality for its span."""
    turn: Turn | None = None
    """The current turn, if the entries are journalled during one."""


@dataclass(frozen=True, kw_only=True)
class AppendResult:
    """Result of `everlong.append_journal`."""

    head: SegmentRef
    written_bytes: Bytes


@dataclass(frozen=True, kw_only=True)
class Compact:
    """Argument of the `everlong.compact` activity."""

    context: Context
    keep_from_seq: Annotated[int, Field(ge=1)]
    """First entry that stays as it is: it belongs to a step that has not ended."""
    context_tokens: int = 0
    """Tokens that the last model call read, by its provider's count."""
    reason: str = ""
    due_ms: int | None = None
    """Time since which the policy demands the compaction, in Unix milliseconds."""


@dataclass(frozen=True, kw_only=True)
class CompactResult:
    """Result of `everlong.compact`."""

    snapshot: SnapshotRef | None
    """The new snapshot, or the last one if nothing changed; None if there was nothing to compact."""
    before_bytes: Bytes
    after_bytes: Bytes
    written_bytes: Bytes
    next_expiry_ms: int | None = None
    summarised: bool = False
    expired: tuple[str, ...] = ()
    """Keys of expired facts, at most `EXPIRED_KEYS_MAX`."""
    tokens: int = 0
    """Tokens of the model call for the summary."""
    cost_usd: float = 0.0
    """Cost of that call."""


@dataclass(frozen=True, kw_only=True)
class Collect:
    """Argument of the `everlong.collect` activity, which stores a sub-agent's answer as a result."""

    child_id: str
    head: SegmentRef
    call_id: str
    tool: str


@dataclass(frozen=True, kw_only=True)
class Brief:
    """Argument of the `everlong.brief` activity, which writes the first message of a sub-agent."""

    context: Context
    """Context whose head is the journal with the call: its newest reply has the arguments."""
    call_id: str
    tool: str
    child_id: str
    grant: Annotated[str, Field(exclude_if=operator.not_)] = ""
    """Id of the agent's grant that allows the call. Without it in the store, nothing is started."""


@dataclass(frozen=True, kw_only=True)
class BriefResult:
    """Result of `everlong.brief`: the first message of the sub-agent's thread, or a refusal."""

    message: SendMessage | None = None
    refused: ToolResult | None = None
    """Result of a call that cannot run, for the model."""


@dataclass(frozen=True, kw_only=True)
class CallStatus:
    """Argument of the signal from a running activity to its thread."""

    call: Annotated[str, Field(max_length=400)]
    """The call, as `identify_call` returns it."""
    status: Literal[Status.RETRYING, Status.HELD, Status.WORKING]
    """`working`: the call that was held is held no more."""
    text: Annotated[str, Field(max_length=limits.HELD_REASON_CHARS_MAX)] = ""
    """Text of the hold."""


def identify_call(activity: str, argument: Any) -> str:
    """Return what identifies one call of an activity: in the activity, the workflow and a history.

    A signal about a call that has ended then matches none.
    """
    context = getattr(argument, "context", None)
    head = getattr(argument, "head", None) if context is None else context.head
    now_ms = 0 if context is None else context.now_ms
    return f"{activity} {seq_after(head)} {now_ms} {getattr(argument, 'call_id', '')}".rstrip()


# The doctor's check-up. Its payloads are neither sealed nor offloaded, since they must be readable if
# keys or stores differ. They contain only names, versions and digests of random bytes: no content, no
# keys.

CHECKS_MAX: Final = 16
"""Activities of one check-up."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """Argument of the `everlong.check` activity."""

    probe_key: str
    """Key of an object with random bytes that the doctor wrote."""
    payload: str
    """Other random bytes, encoded by the doctor's data converter: a payload in base64."""


@dataclass(frozen=True, kw_only=True)
class Checkup:
    """Argument of the `everlong.Doctor` workflow."""

    check: Check
    times: Annotated[int, Field(ge=0, le=CHECKS_MAX)]
    """Number of activities to run at the same time; the workers share them."""


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Result of reading some bytes."""

    digest: str = ""
    """SHA-256 of the bytes, in hex."""
    error: str = ""
    """Reason why they could not be read; empty if they could."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Result of `everlong.check`: a worker's versions and settings, and what it could read and write."""

    time_ms: int
    """The worker's clock at the beginning of the check, in Unix milliseconds."""
    everlong: str
    sdk: str
    sdk_tested: bool
    python: str
    agents: tuple[str, ...]
    store: str
    """URL of the worker's store, without credentials."""
    inline_bytes_max: int
    key_ids: tuple[str, ...]
    """Ids of the worker's keys; the first one writes."""
    attributes: bool
    """Whether the server had our search attributes when the worker last asked."""
    probe: ProbeResult
    """The object that the doctor wrote."""
    payload: ProbeResult
    """The payload that the doctor encoded."""
    answer: ProbeResult
    """Random bytes that the worker chose."""
    answer_payload: str = ""
    """Those bytes, encoded by the worker's data converter: a payload in base64."""
    codec_warning: str = ""
    """Warning about a codec inside Everlong's; empty if there is none."""
