"""When somebody said something to a thread: what the time until it is acted on is measured from."""

import contextvars
from typing import Annotated, Final

from pydantic import Field
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sent:
    """When a message or a decision was sent, by its sender's clock."""

    ms: Annotated[int, Field(ge=0)]
    trace: Annotated[str, Field(max_length=64)] = ""
    """W3C traceparent of what it was sent from, if that is traced."""


SENT: Final[contextvars.ContextVar[Sent | None]] = contextvars.ContextVar("SENT", default=None)
"""Of the update that is being handled, where its sender's client has the plugin."""
