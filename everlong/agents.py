"""What an agent is: a name, a model and tools. Plain objects that live in the worker's process.

Workflow code never sees them; it knows an agent by its name.
"""

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from everlong.errors import ConfigError
from everlong.models import Message, ToolCall


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply:
    """What a model answers: a text that ends the turn, or tools to run first."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class Model(Protocol):
    """Anything that can continue a conversation."""

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence["Tool"]
    ) -> Reply:
        """Return the next assistant message. Raise to have Temporal try again, with back-off."""
        ...


@dataclasses.dataclass(frozen=True)
class Tool:
    """A function that a model may call. Make one with `@tool`."""

    name: str
    description: str
    arguments: type[BaseModel]
    """The function's parameters: validates what a model wrote, and gives the JSON schema."""
    function: Callable[..., str | Awaitable[str]]


def tool(function: Callable[..., str | Awaitable[str]]) -> Tool:
    """Make a tool of a typed function, sync or async: name, docstring and signature describe it."""
    name = function.__name__
    description = inspect.getdoc(function)
    if not description:
        raise ConfigError(
            f"tool {name!r} has no docstring. Say in a sentence what it does: the model decides by it."
        )
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {name!r}: {parameter} cannot be given by name; make it so")
        if parameter.name not in hints:
            raise ConfigError(f"tool {name!r}: parameter {parameter.name!r} needs a type")
        required = parameter.default is parameter.empty
        fields[parameter.name] = (hints[parameter.name], ... if required else parameter.default)
    arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    return Tool(name=name, description=description, arguments=arguments, function=function)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agent:
    """An agent that a worker runs. Threads refer to it by `name`, so a name is for good."""

    name: str
    model: Model
    instructions: str = ""
    tools: Sequence[Tool] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("an agent needs a name: its threads find it by that")
        names = [each.name for each in self.tools]
        if len(set(names)) != len(names):
            raise ConfigError(f"agent {self.name!r} has two tools of the same name")

    def tool(self, name: str) -> Tool | None:
        """Return the tool of that name, or None."""
        return next((each for each in self.tools if each.name == name), None)
