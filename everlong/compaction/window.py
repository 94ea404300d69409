"""Window: the messages that a compaction keeps, which are the newest user message and the last steps.

A message is charged the largest size that it can ever have in a context, expired or not.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

from everlong.compaction.context import (
    NOT_RUN,
    Group,
    format_expired,
    get_cut,
    has_expired,
    measure_message,
)
from everlong.compaction.notes import get_call_lines, get_outcome_line
from everlong.compaction.renderer import cut_arguments
from everlong.compaction.snapshot import KeptMessage
from everlong.compaction.text import CUT_BYTES_MIN, Cut, replace_surrogates, utf8_bytes
from everlong.models import Kind, Message
from everlong.policy import Policy

# Divisor of the window's size: the largest tool result in it.
_RESULT_SHARE: Final = 3
# Room for the beginning and the end of the newest user message, however small the window is.
_MESSAGE_BYTES_MIN: Final = 2 * CUT_BYTES_MIN


@dataclasses.dataclass
class Window:
    """The groups that stay, and their size."""

    kept: list[Group] = dataclasses.field(default_factory=list)
    size_bytes: int = 0

    def add(self, group: Group | None) -> None:
        """Keep a group."""
        if group is not None:
            self.kept.append(group)
            self.size_bytes += measure_group(group)


def build_window(
    found: Sequence[Group], spared: int, window_bytes: int, policy: Policy, now_ms: int
) -> Window:
    """Return the newest user message and the newest steps that fit, shortened where needed."""
    window = Window()
    room = window_bytes
    for group in found:
        if group.head.seq == spared:
            window.add(cut_group(group, max(room // 2, _MESSAGE_BYTES_MIN)))
    share, steps = window_bytes // _RESULT_SHARE, 0
    for group in reversed(found):
        if group.head.seq == spared or is_over(group, policy, now_ms):
            continue
        # Only the last step is cut to the room left. In the others only long results are cut.
        left = room - window.size_bytes
        cut = _cut_results(group, share) if steps else cut_group(group, left, share)
        if cut is None or measure_group(cut) > left:
            break
        window.add(cut)
        steps += 1
    window.kept.sort(key=lambda group: group.head.seq)
    return window


def is_over(group: Group, policy: Policy, now_ms: int) -> bool:
    """Return whether a message has expired, or all results of a step."""
    head, *results = (
        has_expired(each.kind, each.time_ms, policy, now_ms) for each in group.members
    )
    return head or (bool(results) and all(results))


def measure_group(group: Group) -> int:
    """Return the largest size of a group in a context, whatever expires."""
    head = group.head
    text = get_cut(head).render(head.seq)
    size_bytes = measure_message(dataclasses.replace(head.message, text=text))
    size_bytes += max(0, utf8_bytes(format_expired(head.seq)) - utf8_bytes(text))
    for call, result in zip(head.message.tool_calls, group.results, strict=True):
        bare = Message(role="tool", call_id=call.id, tool=call.tool)
        size_bytes += measure_message(bare) + _measure_result(result)
    return size_bytes


def cut_group(group: Group, bytes_max: int, result_bytes_max: int | None = None) -> Group | None:
    """Return a group with its texts cut evenly to `bytes_max` in all; None if that is impossible."""
    if result_bytes_max is not None:
        group = _cut_results(group, result_bytes_max)
    if measure_group(group) > bytes_max and group.head.message.native is not None:
        message = dataclasses.replace(group.head.message, native=None)
        group = Group(dataclasses.replace(group.head, message=message), group.results)
    if measure_group(group) <= bytes_max:
        return group
    texts = _measure_texts(group)
    share = _find_level(texts, bytes_max - measure_group(group) + sum(texts))
    if share < CUT_BYTES_MIN:
        return None
    cut = _cut_results(_cut_head(group, share), share)
    return cut if measure_group(cut) <= bytes_max else None


def _measure_texts(group: Group) -> list[int]:
    """Return the sizes of the texts that can be cut."""
    message = group.head.message
    return [
        utf8_bytes(get_cut(group.head).render(group.head.seq)),
        *(utf8_bytes(call.arguments) for call in message.tool_calls),
        *(_measure_result(result) for result in group.results if result is not None),
    ]


def _measure_result(result: KeptMessage | None) -> int:
    if result is None:
        return len(NOT_RUN)
    shown = utf8_bytes(get_cut(result).render(result.seq))
    return max(shown, utf8_bytes(format_expired(result.seq)))


def _find_level(sizes: list[int], room: int) -> int:
    """Return the size to which the larger texts must be cut so that all of them fit."""
    left = len(sizes)
    for size in sorted(sizes):
        if size * left > room:
            return room // left
        room -= size
        left -= 1
    return max(sizes, default=0)


def _cut_results(group: Group, bytes_max: int) -> Group:
    return Group(group.head, [each and _cut_text(each, bytes_max) for each in group.results])


def _cut_head(group: Group, bytes_max: int) -> Group:
    head = _cut_text(group.head, bytes_max)
    calls = tuple(
        dataclasses.replace(call, arguments=cut_arguments(call.arguments, bytes_max, head.seq))
        for call in head.message.tool_calls
    )
    if calls != head.message.tool_calls:
        message = dataclasses.replace(head.message, tool_calls=calls, native=None)
        lines = get_call_lines(group.head)
        head = dataclasses.replace(head, message=message, noted=True, calls=lines)
    return Group(head, group.results)


def _cut_text(kept: KeptMessage, bytes_max: int) -> KeptMessage:
    whole = get_cut(kept)
    cut = whole.fit(bytes_max)
    if cut == whole:
        return kept
    outcome = get_outcome_line(kept) if kept.kind == Kind.TOOL_RESULT else ""
    return _replace_text(kept, cut, outcome)


def _replace_text(kept: KeptMessage, cut: Cut, outcome: str) -> KeptMessage:
    message = dataclasses.replace(kept.message, text=replace_surrogates(cut.head), native=None)
    return dataclasses.replace(
        kept,
        message=message,
        left_out=cut.left_out,
        tail=replace_surrogates(cut.tail),
        noted=True,
        outcome=outcome,
    )
