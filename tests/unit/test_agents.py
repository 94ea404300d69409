from typing import Annotated

import pytest
from pydantic import Field

from everlong import Agent, Reply, tool
from everlong.errors import AgentNotFound, ConfigError
from everlong.models import Message
from everlong.testing import ScriptedModel
from everlong.worker import load_agent

MODEL = ScriptedModel(lambda turn: Reply(text=f"seen {len(turn)}"))


@tool
def restart(service: str, times: Annotated[int, Field(ge=1)] = 1) -> str:
    """Restart a service."""
    return f"{service} {times}"


def test_a_tool_is_described_by_its_signature_and_docstring() -> None:
    assert (restart.name, restart.description) == ("restart", "Restart a service.")
    schema = restart.arguments.model_json_schema()
    assert schema["required"] == ["service"]
    assert schema["properties"]["times"]["minimum"] == 1
    assert schema["additionalProperties"] is False


def test_a_tool_without_docstring_is_refused() -> None:
    def nameless(x: int) -> str:
        return str(x)

    with pytest.raises(ConfigError, match="'nameless' has no docstring"):
        tool(nameless)


def test_a_parameter_without_type_is_refused() -> None:
    def loose(x) -> str:  # type: ignore[no-untyped-def]
        """Do."""
        return str(x)

    with pytest.raises(ConfigError, match="'x' needs a type"):
        tool(loose)


def test_parameters_that_have_no_name_are_refused() -> None:
    def many(*x: int) -> str:
        """Do."""
        return str(x)

    with pytest.raises(ConfigError, match="cannot be given by name"):
        tool(many)


def test_an_agent_needs_a_name_and_tools_of_different_names() -> None:
    with pytest.raises(ConfigError, match="needs a name"):
        Agent(name="", model=MODEL)
    with pytest.raises(ConfigError, match="two tools of the same name"):
        Agent(name="ops", model=MODEL, tools=[restart, restart])


async def test_a_scripted_model_sees_the_turn_only() -> None:
    messages = [Message(role="user"), Message(role="assistant"), Message(role="user")]
    assert (await MODEL.reply("", messages, [])).text == "seen 1"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("everlong.demo", "write module:agent"),
        (":agent", "write module:agent"),
        ("no_such_module:agent", "ModuleNotFoundError"),
        ("everlong.demo:nothing", "no everlong.Agent named 'nothing'"),
        ("everlong:tool", "no everlong.Agent named 'tool'"),
    ],
)
def test_a_path_that_leads_to_no_agent_is_a_clear_error(path: str, message: str) -> None:
    with pytest.raises(AgentNotFound, match=message):
        load_agent(path)


def test_an_agent_is_loaded_by_its_path() -> None:
    assert load_agent("everlong.demo:agent").name == "demo"
