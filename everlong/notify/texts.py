"""Texts of notifications, for people: the same in Slack, in an e-mail, and in a webhook's `text`."""

import time
from typing import Final

from everlong import limits
from everlong.models import make_printable
from everlong.models.notices import Event, Notification
from everlong.models.thread_ids import show_id

_ID_CHARS_MAX: Final = 100
_TEXT_CHARS_MAX: Final = 400
ITEMS_SHOWN_MAX: Final = 20
"""Notifications of a digest that a message for people lists; it counts the others."""


def describe(item: Notification) -> str:
    """Return one notification in one line, as in `ops-7: refund waits for an approval`."""
    thread_id = show_id(item.thread_id)
    if len(thread_id) > _ID_CHARS_MAX:
        thread_id = f"{thread_id[:_ID_CHARS_MAX]}…"
    text = f"{thread_id}: {_describe_event(item)}" if item.thread_id else _describe_event(item)
    return make_printable(text, _TEXT_CHARS_MAX)


def describe_arguments(item: Notification) -> str:
    """Return the arguments of a call, with a remark if they may go on: a person decides by them."""
    if len(item.arguments) < limits.CALL_PREVIEW_CHARS_MAX:
        return item.arguments
    return f"{item.arguments} … (only the beginning; open the thread to read all of it)"


_TEXTS: Final = {
    Event.ASKED: "{tool} waits for an approval{by}{until}",
    Event.DEADLINE_NEAR: "{tool} still waits for an approval{by}{until}",
    Event.ESCALATED: "{tool} was not decided in time, and now waits for an approval{by}{until}",
    Event.DECIDED: "{tool} was {text} by {decider}",
    Event.OUTCOME_UNKNOWN: "whether {tool} took effect is not known; an answer{by} is needed{until}",
    Event.LIMIT: "stopped at a limit: {text}",
    Event.FAILURE_LOOP: "stopped in a failure loop: {text}",
    Event.BUDGET: "has used most of a limit: {text}",
    Event.HELD: "{text}",
    Event.TEST: "this is a test of Everlong's notifications",
}


def _describe_event(item: Notification) -> str:
    # The values are inserted once, so braces in them mean nothing.
    return _TEXTS[item.event].format(
        tool=item.tool or "a tool call",
        by=f" of {', '.join(item.approvers)}" if item.approvers else "",
        until="" if item.deadline_ms is None else f", until {format_utc(item.deadline_ms)}",
        text=item.text,
        decider=item.by,
    )


def describe_all(items: tuple[Notification, ...]) -> str:
    """Return a subject for one notification, or for those of a digest."""
    if len(items) == 1:
        return describe(items[0])
    waiting = sum(item.event in (Event.ASKED, Event.ESCALATED) for item in items)
    text = f"{len(items)} notifications"
    return f"{text}, {waiting} of them requests for approval" if waiting else text


def format_utc(ms: int) -> str:
    """Return a time for people who may be in any zone."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(ms / 1000))
