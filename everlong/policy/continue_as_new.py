"""Continue-as-new: decides when a run should end, by its size and the bounds of the policy.

Pure functions: same input, same answer, also in a replay.
"""

import dataclasses
from enum import StrEnum
from typing import Final

from everlong.policy.policy import Policy

# Costs of a cold resume, measured on two cores: the minimum, one replayed event, one fetched object
# (60 ms each, 16 at a time), and one byte that is read and decompressed.
_RESUME_SECONDS_MIN: Final = 0.1
_EVENT_SECONDS: Final = 0.0006
_BLOB_SECONDS: Final = 0.004
_BYTE_SECONDS: Final = 1 / 50_000_000


class RollReason(StrEnum):
    """Why a thread continues as new."""

    EVENTS = "events"
    HISTORY_BYTES = "history_bytes"
    OFFLOADED_BYTES = "offloaded_bytes"
    BLOBS = "blobs"
    RESUME_SECONDS = "resume_seconds"
    SERVER = "server"
    """The server suggested it. It hardly ever does once payloads are offloaded."""


@dataclasses.dataclass(frozen=True)
class RunSize:
    """Size of the current run."""

    events: int
    history_bytes: int
    """History of this run, in bytes."""
    server_suggests: bool
    offloaded_bytes: int = 0
    """Bytes that a replay reads from the store: results that workflow code consumes."""
    blobs: int = 0


def estimate_resume_seconds(size: RunSize) -> float:
    """Return an estimate of the time that a new worker needs to resume the run."""
    return (
        _RESUME_SECONDS_MIN
        + size.events * _EVENT_SECONDS
        + size.blobs * _BLOB_SECONDS
        + (size.history_bytes + size.offloaded_bytes) * _BYTE_SECONDS
    )


def find_roll_reason(policy: Policy, size: RunSize) -> RollReason | None:
    """Return why the run should end at its next safe point, or None to continue."""
    bounds = (
        (RollReason.EVENTS, size.events, policy.run_events_max),
        (RollReason.HISTORY_BYTES, size.history_bytes, policy.run_history_bytes_max),
        (RollReason.OFFLOADED_BYTES, size.offloaded_bytes, policy.run_offloaded_bytes_max),
        (RollReason.BLOBS, size.blobs, policy.run_blobs_max),
        (RollReason.RESUME_SECONDS, estimate_resume_seconds(size), policy.resume_seconds_max),
    )
    for reason, value, bound in bounds:
        if value >= bound:
            return reason
    return RollReason.SERVER if size.server_suggests else None
