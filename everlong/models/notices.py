"""Notices: what a thread reports to the notifier, and what the notifier passes to its activity.

A thread hands notices over by one signal for each moment. A notice holds ids, names, numbers and short
texts. The texts that people or models wrote are in it only if a sink is configured to receive them.
"""

import operator
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field
from pydantic.dataclasses import dataclass

from everlong import limits
from everlong.models.names import NOTIFIER_ID
from everlong.models.tools import short_digest


class Event(StrEnum):
    """What has happened. The values are on the wire and in configuration files."""

    ASKED = "asked"
    """A tool call waits for an approval."""
    DEADLINE_NEAR = "deadline_near"
    """An approval is still pending, shortly before its deadline."""
    ESCALATED = "escalated"
    """The deadline has passed the approval on to other approvers."""
    DECIDED = "decided"
    """An approval was decided, by a person or by its deadline."""
    OUTCOME_UNKNOWN = "outcome_unknown"
    """It is not known whether a call took effect: a person has to find out."""
    LIMIT = "limit"
    """A limit has paused or ended the thread."""
    FAILURE_LOOP = "failure_loop"
    """A limit on repeated failures has paused or ended the thread."""
    BUDGET = "budget"
    """The thread has used four fifths of a limit."""
    HELD = "held"
    """Threads have been held for long, or no worker runs them."""
    TEST = "test"
    """`everlong notify test` was run."""


_BITS: Final = {
    Event.ASKED: 1,
    Event.DEADLINE_NEAR: 2,
    Event.ESCALATED: 4,
    Event.DECIDED: 8,
    Event.LIMIT: 16,
    Event.FAILURE_LOOP: 32,
    Event.BUDGET: 64,
    Event.OUTCOME_UNKNOWN: 128,
}
_CONTENTS: Final = 1024
THREAD_EVENTS: Final = frozenset(_BITS) - {Event.DEADLINE_NEAR}
"""Events that a thread reports itself."""


def build_mask(events: frozenset[Event], *, contents: bool) -> int:
    """Return the events that sinks want of a thread as one number, for results of model calls."""
    wanted = sum(bit for event, bit in _BITS.items() if event in events)
    # A reminder needs the request that it reminds of.
    if Event.DEADLINE_NEAR in events:
        wanted |= _BITS[Event.ASKED]
    return wanted | _CONTENTS if wanted and contents else wanted


def is_wanted(mask: int, event: Event) -> bool:
    """Return whether a sink wants an event."""
    return bool(mask & _BITS.get(event, 0))


def wants_contents(mask: int) -> bool:
    """Return whether a sink may receive arguments and reasons."""
    return bool(mask & _CONTENTS)


@dataclass(frozen=True, kw_only=True)
class Notice:
    """An event in a thread's state, until the notifier has it."""

    event: Event
    about: str = ""
    """Id of the approval, or name of the limit."""
    ms: int = 0
    """Time of the event, in Unix milliseconds."""
    by: Annotated[str, Field(exclude_if=operator.not_)] = ""
    """Name of the person who decided, cut to `NOTICE_NAME_CHARS_MAX`."""
    text: Annotated[str, Field(exclude_if=operator.not_)] = ""
    """`approved`, `denied`, or the limit with its value and bound."""
    tool: Annotated[str, Field(exclude_if=operator.not_)] = ""
    """Name of the tool, for an event after which the call is no longer pending."""


@dataclass(frozen=True, kw_only=True)
class Notification:
    """A notice with its context: all that a sink's message is made of."""

    key: Annotated[str, Field(pattern=r"^[a-z0-9-]{8,64}$")]
    """Idempotency key. Repeated deliveries of one event carry the same key."""
    event: Event
    thread_id: Annotated[str, Field(max_length=1000)] = ""
    agent: Annotated[str, Field(max_length=64)] = ""
    about: Annotated[str, Field(max_length=64)] = ""
    ms: int = 0
    tool: Annotated[str, Field(max_length=64)] = ""
    text: Annotated[str, Field(max_length=300)] = ""
    by: Annotated[str, Field(max_length=64)] = ""
    deadline_ms: int | None = None
    approvers: tuple[str, ...] = ()
    run_id: Annotated[str, Field(max_length=64)] = ""
    """Run that reports the event, or that requested the approval: its trace has the span."""
    arguments: Annotated[str, Field(max_length=limits.CALL_PREVIEW_CHARS_MAX)] = ""
    """Beginning of the call's arguments; empty unless a sink may receive contents."""


@dataclass(frozen=True, kw_only=True)
class Notifications:
    """Argument of the signal to the notifier."""

    items: tuple[Notification, ...]


def build_key(first_run_id: str, notice: Notice) -> str:
    """Return the idempotency key of a notice. `first_run_id` is that of the thread's first run.

    A thread that sends a notice again, for example after a continue-as-new, gives it the same key.
    """
    # With the time: after a reset, the thread asks again.
    parts = (first_run_id, notice.event.value, notice.about, notice.text, str(notice.ms))
    return f"n-{short_digest(chr(0).join(parts), size_bytes=16)}"


# The notifier.


def build_notifier_id(task_queue: str) -> str:
    """Return the workflow id of the notifier of a task queue."""
    return f"{NOTIFIER_ID}{task_queue}"


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A notification on its way to one sink, after the first attempt did not deliver it."""

    item: Notification
    sink: str
    due_ms: int
    """Time of the next attempt, in Unix milliseconds."""
    attempts: int = 0
    """Failed attempts so far; 0 for one that was put off by a digest or by quiet hours."""
    group: str = ""
    """Deliveries to a sink with the same group are one message; empty for a message of its own."""
    since_ms: int = 0
    """Time of the first attempt. After `NOTICE_SECONDS_MAX` it is given up."""


@dataclass(frozen=True, kw_only=True)
class Reminder:
    """A reminder of a pending approval, shortly before its deadline."""

    item: Notification
    due_ms: int


@dataclass(frozen=True, kw_only=True)
class Deliver:
    """Argument of the `everlong.notify` activity."""

    new: tuple[Notification, ...] = ()
    """Notifications that were not tried yet: the activity finds their sinks."""
    again: tuple[Delivery, ...] = ()
    reminders: tuple[Notification, ...] = ()
    """Requests whose deadline is near. The activity checks that they are still pending."""
    now_ms: int = 0
    """Time by the workflow's clock."""
    dropped: int = 0
    """Deliveries that the notifier has dropped since the last activity, for a metric."""


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """Result of the `everlong.notify` activity: what is left to do."""

    later: tuple[Delivery, ...] = ()
    reminders: tuple[Reminder, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NotifierStart:
    """Argument of the `everlong.Notifier` workflow. A new one starts empty."""

    new: tuple[Notification, ...] = ()
    later: tuple[Delivery, ...] = ()
    reminders: tuple[Reminder, ...] = ()
    seen: tuple[str, ...] = ()
    """Keys of the newest notifications, to recognise those that are sent again."""
    dropped: int = 0
