"""When a run ends and the next begins."""

import dataclasses
from enum import StrEnum

from everlong.policy.policy import Policy


class RollReason(StrEnum):
    """Why a thread continues as new."""

    EVENTS = "events"
    HISTORY_BYTES = "history_bytes"
    SERVER = "server"
    """The server suggested it."""


@dataclasses.dataclass(frozen=True)
class RunSize:
    """How large the current run has become."""

    events: int
    history_bytes: int
    server_suggests: bool


def roll_reason(policy: Policy, size: RunSize) -> RollReason | None:
    """Return why the run should end at its next safe point, or None to go on."""
    if size.events >= policy.run_events_max:
        return RollReason.EVENTS
    if size.history_bytes >= policy.run_history_bytes_max:
        return RollReason.HISTORY_BYTES
    if size.server_suggests:
        return RollReason.SERVER
    return None
