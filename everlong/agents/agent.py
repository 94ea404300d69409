"""The agent itself. Threads refer to it by name, for months: it is found again by that alone."""

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
"""Tools that every agent has."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Agent:
    """An agent that a worker runs. Threads refer to it by `name`, so a name is for good."""

    name: str
    model: object = dataclasses.field(repr=False)
    """A provider's model by name, as in "openai:gpt-5" or "anthropic:claude-sonnet-5-5"; a `Model` of
    pydantic-ai; or anything with the `reply` of `everlong.Model`. The first two need
    `everlong[agent]`, and a name needs its provider's key in the environment when a worker starts.
    Any endpoint that speaks OpenAI's format: set OPENAI_BASE_URL, or give
    `OpenAIChatModel("...", provider=OpenAIProvider(base_url="...", api_key="..."))`."""
    instructions: str = ""
    tools: Sequence["Tool | Agent"] = ()
    """Tools, and other agents: the model hands those a request and gets their answer. Each works in
    a thread of its own."""
    policy: Policy = dataclasses.field(default_factory=Policy)
    model_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    """As pydantic-ai names them: `temperature`, `max_tokens`, `timeout`, `thinking`, ..."""
    description: str = ""
    """What it is good for, if it is a tool of others. The first line of the instructions if empty."""

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise ConfigError("an agent needs a name: its threads find it by that")
        if len(self.name) > limits.CALL_NAME_CHARS_MAX:
            raise ConfigError(
                f"the name of agent {self.name[:20]!r}... is too long; it has at most "
                f"{limits.CALL_NAME_CHARS_MAX} characters"
            )
        self._check_model()
        object.__setattr__(self, "tools", tuple(self.tools))  # A frozen agent knows no cycles.
        names = [each.name for each in self.callable_tools]
        if len(set(names)) != len(names):
            raise ConfigError(f"agent {self.name!r} has two tools of the same name")
        if reserved := sorted(RESERVED_NAMES & set(names)):
            raise ConfigError(
                f"agent {self.name!r}: {reserved[0]!r} is a tool that every agent has. Rename yours."
            )

    def tool(self, name: str) -> Tool | None:
        """Return the tool of that name, a sub-agent's included, or None."""
        return self._tools_by_name.get(name)

    @functools.cached_property
    def _tools_by_name(self) -> dict[str, Tool]:
        return {each.name: each for each in reversed(self.callable_tools)}

    @functools.cached_property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools as the model sees them: one for each sub-agent too."""
        return tuple(self._as_tool(each) for each in self.tools)

    @functools.cached_property
    def family(self) -> tuple["Agent", ...]:
        """The agent, its sub-agents, theirs, and so on: what a worker has to run. Each once."""
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
        """The model to ask. The first use builds a provider's client; nothing is sent.

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
        """Raise `ConfigError` for what would keep the agent from working: a missing key, say.

        Builds the clients of its model and of its sub-agents' models. Nothing is sent.
        """
        for agent in self.family:
            _ = agent.resolved_model

    def _check_model(self) -> None:
        if _is_own(self.model):
            if self.model_settings:
                raise ConfigError(
                    f"agent {self.name!r}: model_settings are for models of providers. Set up a model "
                    "of your own where you make it."
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
            raise ConfigError(f"agent {self.name!r}: {each!r} is no tool; put @tool above it")
        check_name(each.name, f"agent {each.name!r}")
        description = each.description or next(iter(each.instructions.strip().splitlines()), "")
        if not description:
            raise ConfigError(
                f"agent {each.name!r} is a tool of {self.name!r} and has no description. Say in a "
                "sentence what it is good for: the model decides by it."
            )
        return Tool(
            name=each.name,
            description=description,
            arguments=_SUB_AGENT_ARGUMENTS,
            function=_not_run_here,
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


def _not_run_here(request: str) -> str:
    raise ConfigError("a sub-agent's call is answered by its own thread, and never run as a tool")
