"""Transcript: the messages of a recorded session, in the order in which its model read them."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pydantic_core import to_json

from everlong.models import Message, ToolCall

_PLACEHOLDERS: Final = {"image": "[image]", "document": "[document]"}


@dataclasses.dataclass(frozen=True)
class RecordedSummary:
    """A summary that a model wrote when the recorded session was compacted."""

    at: int
    """Number of messages before the compaction."""
    kept_from: int
    """Index of the first message that the session kept after the summary; `at` if it kept none."""
    text: str


@dataclasses.dataclass(frozen=True)
class Transcript:
    """The messages of one recorded session."""

    name: str
    messages: tuple[Message, ...]
    summaries: tuple[RecordedSummary, ...] = ()

    @property
    def calls(self) -> int:
        """The number of tool calls."""
        return sum(len(message.tool_calls) for message in self.messages)


class TranscriptBuilder:
    """Collects the messages of a session.

    Models read a result after its call, so results wait for their call, and calls without a result get
    none. Consecutive parts of one reply become one message.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._messages: list[Message] = []
        self._summaries: list[RecordedSummary] = []
        self._tools: dict[str, str] = {}

    @property
    def size(self) -> int:
        """The number of messages so far."""
        return len(self._messages)

    def add_user(self, text: str) -> None:
        """Add a message of the user."""
        if text.strip():
            self._messages.append(Message(role="user", text=text))

    def add_reply(self, text: str, calls: Iterable[tuple[str, str, object]] = ()) -> None:
        """Add a reply with its calls: id, tool and arguments of each."""
        made = tuple(
            ToolCall(id=call_id, tool=tool or "tool", arguments=format_arguments(arguments))
            for call_id, tool, arguments in calls
        )
        self._tools.update((call.id, call.tool) for call in made)
        if text.strip() or made:
            self._messages.append(Message(role="assistant", text=text, tool_calls=made))

    def add_result(self, call_id: str, text: str) -> None:
        """Add the result of a call. A result without a call is left out."""
        if call_id in self._tools:
            tool = self._tools[call_id]
            self._messages.append(Message(role="tool", text=text, call_id=call_id, tool=tool))

    def add_summary(self, text: str, kept_from: int | None = None) -> None:
        """Add a summary that a model wrote at this place."""
        if text.strip():
            at = self.size
            self._summaries.append(
                RecordedSummary(at, at if kept_from is None else kept_from, text)
            )

    def build(self) -> Transcript:
        """Return the transcript."""
        return Transcript(self._name, tuple(self._messages), tuple(self._summaries))


def format_arguments(arguments: object) -> str:
    """Return the arguments of a call as JSON text. Formats hold them as text, as an object, or not."""
    if isinstance(arguments, str):
        return arguments if arguments.lstrip().startswith("{") else dump_json({"input": arguments})
    return dump_json(arguments if isinstance(arguments, dict) else {})


def dump_json(value: object) -> str:
    """Return a value as JSON text."""
    return to_json(value, fallback=str, inf_nan_mode="null").decode()


def join_content(content: object) -> str:
    """Return the text of a message's content: a text, or a list of parts. Media become a placeholder."""
    if isinstance(content, str):
        return content
    parts: Sequence[Any] = content if isinstance(content, list) else []
    return "\n".join(filter(None, map(_read_part, parts)))


def _read_part(part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return ""
    kind = str(part.get("type", ""))
    for name, shown in _PLACEHOLDERS.items():
        if name in kind:
            return shown
    if kind in ("thinking", "reasoning", "redacted_thinking"):
        return ""  # Providers drop it from the context of later calls.
    text = part.get("text", part.get("content"))
    return text if isinstance(text, str) else join_content(text)
