"""Prompt with which a model is asked for a summary at a compaction. Its size is bounded."""

from collections.abc import Sequence
from typing import Final

from everlong.compaction.context import build_context
from everlong.compaction.snapshot import Item, Snapshot
from everlong.compaction.text import clip, head_of, utf8_bytes
from everlong.models import Message
from everlong.policy import Policy

_PROMPT: Final = (
    "Summarise this work of an agent for the agent itself, which goes on with it and will not see most "
    "of it again. Say what was wanted, what was found out and how, what was decided and why, what was "
    "tried in vain, and what is left to do. Keep names, paths, numbers and ids as they are written. "
    "Leave out what can be looked up again. At most {words} words, plain text.\n\n"
)
_RESULT_BYTES_MAX: Final = 2000
_SUMMARY_SHARE: Final = 4
_BYTES_PER_WORD: Final = 7


def summary_prompt(
    base: Snapshot | None,
    items: Sequence[Item],
    policy: Policy,
    now_ms: int,
    *,
    bytes_max: int | None = None,
) -> str:
    """Return the prompt for a summary of a snapshot and the entries after it.

    It has at most `bytes_max` bytes, by default the size at which a context is compacted. If not all
    messages fit, the newest stay.
    """
    asked = _PROMPT.format(words=policy.compact_to_bytes // _SUMMARY_SHARE // _BYTES_PER_WORD)
    room = (policy.compact_at_bytes if bytes_max is None else bytes_max) - len(asked)
    messages = build_context(base, items, policy, now_ms, lambda _: _RESULT_BYTES_MAX)
    known = "".join(message.text for message in messages if message.role == "summary")
    known = head_of(known, room // 2)
    room -= utf8_bytes(known)
    lines: list[str] = []
    for message in reversed(messages):
        line = "" if message.role == "summary" else _line(message)
        room -= utf8_bytes(line)
        if room < 0:
            break
        lines.append(line)
    return "".join([asked, known, *reversed(lines)])


def _line(message: Message) -> str:
    calls = "".join(f"\ncalls {call.tool} {call.arguments}" for call in message.tool_calls)
    who = f"{message.role} {message.tool}".strip()
    return f"{who}: {clip(message.text + calls, 2 * _RESULT_BYTES_MAX)}\n"
