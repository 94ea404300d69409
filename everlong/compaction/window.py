"""The messages that a compaction keeps as messages: the newest user message, and the last steps.

What is kept is charged at what it may ever take in a context, also once it has expired.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

from everlong.compaction.context import (
    NOT_RUN,
    Group,
    cut_of,
    expired_text,
    has_expired,
    message_bytes,
)
from everlong.compaction.notes import calls_of, outcome_of_result
from everlong.compaction.snapshot import Kept
from everlong.compaction.text import CUT_BYTES_MIN, Cut, replace_surrogates, utf8_bytes
from everlong.compaction.tool_calls import cut_arguments
from everlong.models import Kind, Message
from everlong.policy import Policy

# Of a window, what one tool result may take.
_RESULT_SHARE: Final = 3
# The newest user message has room for a beginning and an end, however small the window is.
_MESSAGE_BYTES_MIN: Final = 2 * CUT_BYTES_MIN


@dataclasses.dataclass
class Window:
    """What stays, and what it takes."""

    kept: list[Group] = dataclasses.field(default_factory=list)
    size_bytes: int = 0

    def add(self, group: Group | None) -> None:
        """Keep a group."""
        if group is not None:
            self.kept.append(group)
            self.size_bytes += group_bytes(group)


def window_of(
    found: Sequence[Group], spared: int, window_bytes: int, policy: Policy, now_ms: int
) -> Window:
    """Return the newest user message and the newest steps that fit, shortened where they must be."""
    window = Window()
    room = window_bytes
    for group in found:
        if group.head.seq == spared:
            window.add(cut_group(group, max(room // 2, _MESSAGE_BYTES_MIN)))
    share, steps = window_bytes // _RESULT_SHARE, 0
    for group in reversed(found):
        if group.head.seq == spared or is_over(group, policy, now_ms):
            continue
        # Only the last step is cut to whatever room there is; others are whole, but for long results.
        left = room - window.size_bytes
        cut = _with_results(group, share) if steps else cut_group(group, left, share)
        if cut is None or group_bytes(cut) > left:
            break
        window.add(cut)
        steps += 1
    window.kept.sort(key=lambda group: group.head.seq)
    return window


def is_over(group: Group, policy: Policy, now_ms: int) -> bool:
    """Tell whether the time of a message is over, or that of all results of a step."""
    head, *results = (
        has_expired(each.kind, each.time_ms, policy, now_ms) for each in group.members
    )
    return head or (bool(results) and all(results))


def group_bytes(group: Group) -> int:
    """Return what a group takes in a context at most, whatever expires."""
    head = group.head
    text = cut_of(head).shown(head.seq)
    size_bytes = message_bytes(dataclasses.replace(head.message, text=text))
    size_bytes += max(0, utf8_bytes(expired_text(head.seq)) - utf8_bytes(text))
    for call, result in zip(head.message.tool_calls, group.results, strict=True):
        bare = Message(role="tool", call_id=call.id, tool=call.tool)
        size_bytes += message_bytes(bare) + _result_bytes(result)
    return size_bytes


def cut_group(group: Group, bytes_max: int, result_bytes_max: int | None = None) -> Group | None:
    """Return a group in at most so many bytes, its texts cut evenly; None if it cannot be done."""
    if result_bytes_max is not None:
        group = _with_results(group, result_bytes_max)
    if group_bytes(group) > bytes_max and group.head.message.native is not None:
        message = dataclasses.replace(group.head.message, native=None)
        group = Group(dataclasses.replace(group.head, message=message), group.results)
    if group_bytes(group) <= bytes_max:
        return group
    texts = _sizes(group)
    share = _level(texts, bytes_max - group_bytes(group) + sum(texts))
    if share < CUT_BYTES_MIN:
        return None
    cut = _with_results(_with_head(group, share), share)
    return cut if group_bytes(cut) <= bytes_max else None


def _sizes(group: Group) -> list[int]:
    """Return the sizes of what can be cut."""
    message = group.head.message
    return [
        utf8_bytes(cut_of(group.head).shown(group.head.seq)),
        *(utf8_bytes(call.arguments) for call in message.tool_calls),
        *(_result_bytes(result) for result in group.results if result is not None),
    ]


def _result_bytes(result: Kept | None) -> int:
    if result is None:
        return len(NOT_RUN)
    shown = utf8_bytes(cut_of(result).shown(result.seq))
    return max(shown, utf8_bytes(expired_text(result.seq)))


def _level(sizes: list[int], room: int) -> int:
    """Return the size to which the larger ones have to be cut so that all of them fit."""
    left = len(sizes)
    for size in sorted(sizes):
        if size * left > room:
            return room // left
        room -= size
        left -= 1
    return max(sizes, default=0)


def _with_results(group: Group, bytes_max: int) -> Group:
    return Group(group.head, [each and _with_text(each, bytes_max) for each in group.results])


def _with_head(group: Group, bytes_max: int) -> Group:
    head = _with_text(group.head, bytes_max)
    calls = tuple(
        dataclasses.replace(call, arguments=cut_arguments(call.arguments, bytes_max, head.seq))
        for call in head.message.tool_calls
    )
    if calls != head.message.tool_calls:
        message = dataclasses.replace(head.message, tool_calls=calls, native=None)
        said = calls_of(group.head)
        head = dataclasses.replace(head, message=message, noted=True, calls=said)
    return Group(head, group.results)


def _with_text(kept: Kept, bytes_max: int) -> Kept:
    whole = cut_of(kept)
    cut = whole.to(bytes_max)
    if cut == whole:
        return kept
    outcome = outcome_of_result(kept) if kept.kind == Kind.TOOL_RESULT else ""
    return _replaced(kept, cut, outcome)


def _replaced(kept: Kept, cut: Cut, outcome: str) -> Kept:
    message = dataclasses.replace(kept.message, text=replace_surrogates(cut.head), native=None)
    return dataclasses.replace(
        kept,
        message=message,
        left_out=cut.left_out,
        tail=replace_surrogates(cut.tail),
        noted=True,
        outcome=outcome,
    )
