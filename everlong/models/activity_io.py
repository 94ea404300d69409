"""Arguments and results of the activities. All of it is small: bodies are in the journal."""

from typing import Annotated, Any, Final

from pydantic import Field
from pydantic.dataclasses import dataclass

from everlong import limits
from everlong.models.journal import (
    Bytes,
    Entry,
    SegmentRef,
    SnapshotRef,
)
from everlong.models.state import SendMessage
from everlong.models.tools import Sent, ToolResult, WantedCall


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The turn that a step is a part of."""

    number: int
    """Of the message that it answers."""
    began_ms: int
    """In this run."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a model call or a tool sees of a thread: where its past lies, and how to read it."""

    agent: str
    head: SegmentRef | None
    snapshot: SnapshotRef | None
    now_ms: int
    """The workflow's clock, so that a second try sees the same."""
    policy: dict[str, Any] | None = None
    """Fields of the policy that are not at their default. None for the agent's own policy."""
    last_run: str = ""
    """The run before this one."""
    turn: Turn | None = None
    """None between turns."""


@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """Argument of the `everlong.call_model` activity."""

    context: Context
    tail: tuple[Entry, ...]
    acts_on: tuple[Sent, ...] = ()
    """What people sent that this call is the answer to."""
    state_bytes: Bytes = 0
    """Size of the operational state."""
    thread_bytes: Bytes = 0
    """What the thread has stored so far."""
    growth_bytes_per_hour: float = 0.0
    steps: Annotated[int, Field(ge=0)] = 0
    """Model calls of the thread before this one."""


@dataclass(frozen=True, kw_only=True)
class ModelTurn:
    """Result of `everlong.call_model`: the journal's new head and what to do next."""

    head: SegmentRef
    tool_calls: tuple[WantedCall, ...]
    """Empty when the model has answered."""
    context_bytes: Bytes
    written_bytes: Bytes
    context_tokens: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    policy: dict[str, Any] | None = None
    """The agent's own, whole, if the call did not bring one."""
    evicted: tuple[str, ...] = ()
    """Keys of facts that had to go since several were remembered at once, the first of them."""
    time_ms: int = 0
    """When the reply was journalled."""
    attributes: bool = False
    """Whether the server has our search attributes."""
    resume_ms: Annotated[float, Field(ge=0)] = 0.0
    """What the last resume of the run took, if it was by this worker."""


@dataclass(frozen=True, kw_only=True)
class ToolRun:
    """Argument of the `everlong.run_tool` activity."""

    context: Context
    """Its head is the journal whose newest reply holds the call and its arguments."""
    call_id: str
    tool: str
    approved: bool = False
    """Whether a person has approved the call."""
    acts_on: Sent | None = None
    """When that person did."""
    inline_bytes_max: int = limits.STEP_RESULTS_BYTES_MAX
    """A larger result is stored as a pack; a smaller one comes back inside its entry."""


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
    """Why that turn has no answer, as a name that there are few of; for its span."""
    turn: Turn | None = None
    """The turn under way, if the entries are journalled in the middle of one."""


@dataclass(frozen=True, kw_only=True)
class Appended:
    """Result of `everlong.append_journal`."""

    head: SegmentRef
    written_bytes: Bytes


@dataclass(frozen=True, kw_only=True)
class Compact:
    """Argument of the `everlong.compact` activity."""

    context: Context
    keep_from_seq: Annotated[int, Field(ge=1)]
    """Entries from this one on stay as they are: they are part of a step that has not ended."""
    context_tokens: int = 0
    """What the last model call read, as its provider counts."""
    reason: str = ""
    due_ms: int | None = None
    """When the policy first wanted it."""


@dataclass(frozen=True, kw_only=True)
class CompactDone:
    """Result of `everlong.compact`."""

    snapshot: SnapshotRef | None
    """None where there was nothing to compact."""
    before_bytes: Bytes
    after_bytes: Bytes
    written_bytes: Bytes
    next_expiry_ms: int | None = None
    summarised: bool = False
    expired: tuple[str, ...] = ()
    """Keys of facts whose time was over, the first of them."""
    tokens: int = 0
    """Of the model that wrote a summary."""
    cost_usd: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Collect:
    """Argument of the `everlong.collect` activity: take over a sub-agent's answer."""

    child_id: str
    head: SegmentRef
    call_id: str
    tool: str


@dataclass(frozen=True, kw_only=True)
class Brief:
    """Argument of the `everlong.brief` activity: put a sub-agent's task into words."""

    context: Context
    """Its head is the journal whose newest reply holds the call and its arguments."""
    call_id: str
    tool: str
    child_id: str


@dataclass(frozen=True, kw_only=True)
class Briefed:
    """Result of `everlong.brief`: the first message of the sub-agent's thread, or why there is none."""

    message: SendMessage | None = None
    refused: ToolResult | None = None


# The doctor's check-up. None of it is sealed or offloaded, since it must get through where keys or
# stores differ. So it holds names, versions and digests of random bytes; no content, no keys.

CHECKS_MAX: Final = 16
"""Activities of one check-up."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """Argument of the `everlong.check` activity."""

    probe_key: str
    """Where in the store the asker has put some random bytes."""
    payload: str
    """Other random bytes, as the asker's data converter encodes them: a payload in base64."""


@dataclass(frozen=True, kw_only=True)
class Checkup:
    """Argument of the `everlong.Doctor` workflow."""

    check: Check
    times: Annotated[int, Field(ge=0, le=CHECKS_MAX)]
    """So many activities at once: workers share them."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a worker made of some bytes."""

    digest: str = ""
    """SHA-256, in hex."""
    error: str = ""
    """Why it could not."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Result of `everlong.check`: what the worker is, and what it could read and write."""

    time_ms: int
    """The worker's clock when it began."""
    everlong: str
    sdk: str
    sdk_tested: bool
    python: str
    agents: tuple[str, ...]
    store: str
    """Its URL, without credentials."""
    inline_bytes_max: int
    key_ids: tuple[str, ...]
    """The first one writes."""
    attributes: bool
    """Whether the server had our search attributes when the worker looked."""
    probe: Seen
    payload: Seen
    answer: Seen
    """Random bytes of the worker's own."""
    answer_payload: str = ""
    """Them, as the worker's data converter encodes them: a payload in base64."""
    codec_warning: str = ""
    """Warning about a codec inside Everlong's; empty if there is none."""
