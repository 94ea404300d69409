"""When a run ends and the next begins."""

import dataclasses
from enum import StrEnum

from everlong.policy.policy import Policy

# Of a cold resume, measured on two cores: what it takes at least, a replayed event, an object that is
# fetched (60 ms each, 16 at a time), and a byte that is read and inflated.
_RESUME_SECONDS_MIN = 0.1
_EVENT_SECONDS = 0.0006
_BLOB_SECONDS = 0.004
_BYTE_SECONDS = 1 / 50_000_000


class RollReason(StrEnum):
    """Why a thread continues as new."""

    EVENTS = "events"
    HISTORY_BYTES = "history_bytes"
    OFFLOADED_BYTES = "offloaded_bytes"
    BLOBS = "blobs"
    RESUME_SECONDS = "resume_seconds"
    SERVER = "server"
    """The server suggested it. Once payloads are offloaded it hardly ever does."""


@dataclasses.dataclass(frozen=True)
class RunSize:
    """How large the current run has become."""

    events: int
    history_bytes: int
    """Since it began."""
    server_suggests: bool
    offloaded_bytes: int = 0
    """What a replay reads from the store: results that workflow code consumes."""
    blobs: int = 0


def expected_resume_seconds(size: RunSize) -> float:
    """Return about how long a new worker takes until it goes on."""
    return (
        _RESUME_SECONDS_MIN
        + size.events * _EVENT_SECONDS
        + size.blobs * _BLOB_SECONDS
        + (size.history_bytes + size.offloaded_bytes) * _BYTE_SECONDS
    )


def roll_reason(policy: Policy, size: RunSize) -> RollReason | None:
    """Return why the run should end at its next safe point, or None to go on."""
    bounds = (
        (RollReason.EVENTS, size.events, policy.run_events_max),
        (RollReason.HISTORY_BYTES, size.history_bytes, policy.run_history_bytes_max),
        (RollReason.OFFLOADED_BYTES, size.offloaded_bytes, policy.run_offloaded_bytes_max),
        (RollReason.BLOBS, size.blobs, policy.run_blobs_max),
        (RollReason.RESUME_SECONDS, expected_resume_seconds(size), policy.resume_seconds_max),
    )
    for reason, value, bound in bounds:
        if value >= bound:
            return reason
    return RollReason.SERVER if size.server_suggests else None
