"""The agent: a name, a model, instructions and tools.

Threads refer to an agent by name only, for months, so its name must not change.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from pydantic import ConfigDict, Field, create_model

from everlong import limits
from everlong.agents.model import Model
from everlong.agents.tools import Tool, check_name
from everlong.errors import ConfigError
from everlong.models import CallOptions
from everlong.policy import Policy

RESERVED_NAMES: Final = frozenset({"recall", "remember", "forget"})
"""Names of the tools that every agent has."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Agent:
    """An agent that a worker runs. Threads refer to it by `name`, so the name must not change."""

    name: str
    model: object = dataclasses.field(repr=False)
    """A provider's model by name, as in "openai:gpt-5" or "anthropic:claude-sonnet-5-5"; a `Model` of
    pydantic-ai; or any object with the `reply` method of `everlong.Model`. The first two need
    `everlong[agent]`, and a name needs its provider's key in the environment when a worker starts.
    For any endpoint that speaks OpenAI's format, set OPENAI_BASE_URL, or give
    `OpenAIChatModel("...", provider=OpenAIProvider(base_url="...", api_key="..."))`."""
    instructions: str = ""
    tools: Sequence["Tool | Agent"] = ()
    """Tools, and other agents (sub-agents). The model sends a sub-agent a request and gets its answer.
    Each sub-agent works in its own thread."""
    policy: Policy = dataclasses.field(default_factory=Policy)
    model_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    """Settings by pydantic-ai's names: `temperature`, `max_tokens`, `timeout`, `thinking`, ..."""
    description: str = ""
    """Purpose of the agent, shown to agents that have it as a tool. By default the first line of the
    instructions."""

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise ConfigError("an agent needs a printable name: its threads find it by name")
        if len(self.name) > limits.CALL_NAME_CHARS_MAX:
            raise ConfigError(
                f"the name of agent {self.name[:20]!r}... is too long; the maximum is "
                f"{limits.CALL_NAME_CHARS_MAX} characters"
            )
        self._check_model()
        # A tuple, so that agents cannot form a cycle.
        object.__setattr__(self, "tools", tuple(self.tools))
        names = [each.name for each in self.callable_tools]
        if len(set(names)) != len(names):
            raise ConfigError(f"agent {self.name!r} has two tools of the same name")
        if reserved := sorted(RESERVED_NAMES & set(names)):
            raise ConfigError(
                f"agent {self.name!r}: every agent has a tool {reserved[0]!r} already. Rename yours."
            )

    def find_tool(self, name: str) -> Tool | None:
        """Return the tool or sub-agent of that name, or None."""
        return self._tools_by_name.get(name)

    @functools.cached_property
    def _tools_by_name(self) -> dict[str, Tool]:
        return {each.name: each for each in reversed(self.callable_tools)}

    @functools.cached_property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools as the model sees them; each sub-agent is one of them."""
        return tuple(self._as_tool(each) for each in self.tools)

    @functools.cached_property
    def family(self) -> tuple["Agent", ...]:
        """The agent and all sub-agents below it, each once: the agents that a worker must run."""
        found: dict[str, Agent] = {}
        below = (each.family for each in self.tools if isinstance(each, Agent))
        for agent in itertools.chain((self,), *below):
            if found.setdefault(agent.name, agent) is not agent:
                raise ConfigError(
                    f"two agents below {self.name!r} are named {agent.name!r}. Threads find an agent "
                    "by its name: rename one."
                )
        return tuple(found.values())

    @functools.cached_property
    def resolved_model(self) -> Model:
        """The model to call. The first use builds a provider's client, which sends nothing.

        Raises `ConfigError` if the name is unknown, a package is missing, or a key is not set.
        """
        if _is_own(self.model):
            return cast("Model", self.model)
        # pydantic-ai takes a second to import, and only an agent with a real model needs it.
        try:
            from everlong.agents.providers import ProviderModel
        except ImportError as error:
            raise ConfigError(
                f"agent {self.name!r} has a provider's model, which needs a package that is not "
                f"installed ({error.name}). Run: pip install 'everlong[agent]'"
            ) from None
        return ProviderModel(self.model, self.model_settings)

    def check(self) -> None:
        """Raise `ConfigError` if the agent cannot work, for example without a provider's key.

        Builds the clients of its model and of its sub-agents' models. Sends nothing.
        """
        for agent in self.family:
            _ = agent.resolved_model

    def _check_model(self) -> None:
        if _is_own(self.model):
            if self.model_settings:
                raise ConfigError(
                    f"agent {self.name!r}: model_settings apply to providers' models only. Configure "
                    "your own model where you create it."
                )
            return
        bases = {base.__module__.partition(".")[0] for base in type(self.model).__mro__}
        named = isinstance(self.model, str) and self.model
        if not named and "pydantic_ai" not in bases:
            raise ConfigError(
                f"agent {self.name!r}: its model is a {type(self.model).__name__}. Give a name as in "
                "'openai:gpt-5', a Model of pydantic-ai, or an object with an async reply method."
            )

    def _as_tool(self, each: object) -> Tool:
        if isinstance(each, Tool):
            return each
        if not isinstance(each, Agent):
            raise ConfigError(
                f"agent {self.name!r}: {each!r} is not a tool; decorate it with @tool"
            )
        check_name(each.name, f"agent {each.name!r}")
        description = each.description or next(iter(each.instructions.strip().splitlines()), "")
        if not description:
            raise ConfigError(
                f"agent {each.name!r} is a tool of {self.name!r} but has no description. Describe its "
                "purpose in a sentence: the model decides by it."
            )
        return Tool(
            name=each.name,
            description=description,
            arguments=_SUB_AGENT_ARGUMENTS,
            function=_refuse_to_run,
            call_options=CallOptions(agent=each.name),
        )


def _is_own(model: object) -> bool:
    return callable(getattr(model, "reply", None))


_SUB_AGENT_ARGUMENTS: Final = create_model(
    "request",
    __config__=ConfigDict(extra="forbid"),
    request=(
        str,
        Field(description="What it should do, with all that it has to know: it sees nothing else."),
    ),
)


def _refuse_to_run(request: str) -> str:
    raise ConfigError("a sub-agent answers in its own thread; it is never run as a tool")
