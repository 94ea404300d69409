"""Status of a thread: the one vocabulary of its states.

The list, the page, the commands, the API, the search attribute `EverlongStatus` and the metric
`everlong.threads` all use these words. The values are on the wire, so they never change.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from everlong.models.names import (
    APPEND_JOURNAL,
    BRIEF,
    CALL_MODEL,
    COLLECT,
    COMPACT,
    RUN_TOOL,
)


class Status(StrEnum):
    """State of a thread. Where several are true, the first in this order is the status."""

    TERMINATED = "terminated"
    """Temporal ended it: terminated, timed out or failed. The journal may lack the last step."""
    ARCHIVED = "archived"
    """Ended, and archived or marked for it."""
    DONE = "done"
    """Ended with a complete journal: stopped, cancelled, ended by a limit, or a sub-agent's answer."""
    HELD = "held"
    """A call waits for the store, a key, stored bytes or an agent. The reason says for which."""
    PAUSED = "paused"
    """Takes no steps until it is unpaused. The reason is the limit, or `person`."""
    APPROVAL = "approval"
    """A tool call waits for a person's decision, whatever else the thread does meanwhile. The reason is
    `outcome` if it is not known whether a call took effect."""
    RETRYING = "retrying"
    """A model or tool call has failed and is tried again."""
    WORKING = "working"
    """Works on a message, or ends at its next safe point."""
    FAILED = "failed"
    """The last turn ended without an answer. The thread waits for a message."""
    WAITING = "waiting"
    """Waits for a message. All messages so far are answered."""
    UNKNOWN = "unknown"
    """Only in lists: runs, in a namespace without search attributes, or before its first step there."""


ENDED: Final = frozenset({Status.TERMINATED, Status.ARCHIVED, Status.DONE})
"""Statuses of threads that have ended."""
ENDED_WHOLE: Final = frozenset({Status.ARCHIVED, Status.DONE})
"""Statuses of threads that have journalled all their entries at their end."""
OPEN: Final = tuple(each for each in Status if each not in ENDED and each != Status.UNKNOWN)
"""Statuses that a thread that runs may publish, the most urgent first."""

_ORDER: Final = tuple(Status)


def choose_status(candidates: Iterable[Status]) -> Status:
    """Return the status that precedes the others."""
    return min(candidates, key=_ORDER.index)


def parse_status(text: str) -> Status:
    """Return a published status; `UNKNOWN` for none, or one of another release."""
    try:
        return Status(text)
    except ValueError:
        return Status.UNKNOWN


# Reasons: the second word of a status, and the values of `EverlongReason` besides names of limits.

PERSON: Final = "person"
"""Reason of a pause that a person requested. The name is not published: attributes are not sealed."""

OUTCOME: Final = "outcome"
"""Reason of `approval` if it is not known whether a call took effect, and a person has to say so."""

# How Temporal ended a thread, by its own words. A cancelled thread has journalled all its entries.
ENDS: Final = {
    "canceled": Status.DONE,
    "failed": Status.TERMINATED,
    "terminated": Status.TERMINATED,
    "timed_out": Status.TERMINATED,
}


def read_end(how: str) -> tuple[Status, str]:
    """Return the status and the reason of a thread that Temporal ended in this way."""
    return ENDS.get(how, Status.TERMINATED), "" if how == Status.TERMINATED else how


CALLS: Final = {
    CALL_MODEL: "model",
    RUN_TOOL: "tool",
    BRIEF: "agent",
    COLLECT: "agent",
    APPEND_JOURNAL: "journal",
    COMPACT: "compaction",
}
"""Reason of `retrying`, by the activity that is tried again."""

# Reason of `held`, by the error's name, with which the text of a hold begins.
_CAUSES: Final = {
    "AgentNotFound": "agent",
    "StoreUnavailable": "store",
    "KeyMissing": "key",
    "BlobMissing": "bytes",
    "BlobCorrupt": "bytes",
    "RefRefused": "ref",
    "UnknownVersion": "version",
}
_ERROR_NAME: Final = re.compile(r"(?:held by )?([A-Z][A-Za-z]+): ")


def find_hold_cause(held_by: str) -> str:
    """Return what a held thread lacks, from the text of the hold: `store`, `key`, `agent`, ..."""
    found = _ERROR_NAME.match(held_by)
    return _CAUSES.get(found[1], "") if found else ""
