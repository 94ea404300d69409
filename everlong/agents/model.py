"""The model interface: a conversation in, a reply out."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeGuard

from everlong.agents.tools import Tool
from everlong.models import Message, ToolCall


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply:
    """A model's reply: a text that ends the turn, or tools to run first."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tokens: int = 0
    """Tokens read and written, by the provider's count."""
    input_tokens: int = 0
    """Tokens read: the size of the context."""
    cost_usd: float = 0.0
    """Cost of the call; 0 if the price is not known."""
    native: dict[str, Any] | None = dataclasses.field(default=None, repr=False)
    """The provider's whole response, as JSON of pydantic-ai's `ModelResponse`; the journal keeps it.
    None if text and tool calls are the whole response."""
    model: str = ""
    """Provider's name of the model that answered; for spans."""
    response_id: str = ""
    """The provider's id of the response; for spans."""
    finish_reason: str = ""
    """Why the model stopped: `stop`, `length`, `content_filter`, `tool_call` or `error`; for spans."""


TakeText: TypeAlias = Callable[[str], None]
"""Takes the next piece of a reply's text. It returns at once, and never raises."""


class Model(Protocol):
    """Anything that can continue a conversation. See `StreamingModel` for its optional method."""

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Reply:
        """Return the next assistant message. If it raises, Temporal retries with back-off.

        `ModelRefused` is not retried; `ModelUnavailable` may say when to retry.
        """
        ...


class StreamingModel(Model, Protocol):
    """A model that can also give the text of its reply while it comes, for live output."""

    async def stream_reply(
        self,
        instructions: str,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        on_text: TakeText,
    ) -> Reply:
        """Return what `reply` would return, and call `on_text` with each piece of its text before.

        A stream that breaks off raises, as a failed `reply` does: the half reply counts for nothing.
        """
        ...


def can_stream(model: Model) -> TypeGuard[StreamingModel]:
    """Return whether a model has the method `stream_reply`."""
    return callable(getattr(model, "stream_reply", None))
