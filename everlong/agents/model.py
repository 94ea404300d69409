"""The port that a model is behind: a conversation in, a reply out."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from everlong.agents.tools import Tool
from everlong.models import Message, ToolCall


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply:
    """What a model answers: a text that ends the turn, or tools to run first."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tokens: int = 0
    """What the model read and wrote, as its provider counts."""
    input_tokens: int = 0
    """What it read of that: the size of the context."""
    cost_usd: float = 0.0
    """What it cost; 0 where the price is not known."""
    native: dict[str, Any] | None = dataclasses.field(default=None, repr=False)
    """All that the provider sent, as the JSON of pydantic-ai's `ModelResponse`; the journal keeps it.
    None if text and tool calls are all there is."""
    model: str = ""
    """Name of the model that answered, as its provider gives it; for spans."""
    response_id: str = ""
    """The provider's id of the response; for spans."""
    finish_reason: str = ""
    """Why the model stopped: `stop`, `length`, `content_filter`, `tool_call` or `error`; for spans."""


class Model(Protocol):
    """Anything that can continue a conversation."""

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Reply:
        """Return the next assistant message. Raise to have Temporal try again, with back-off.

        `ModelRefused` is not tried again, and `ModelUnavailable` says when to.
        """
        ...
