import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from everlong.agents import Agent, Reply, Tool, tool
from everlong.errors import AgentNotFound, ConfigError
from everlong.models import CallOptions, Message
from everlong.policy import Policy
from everlong.testing import ScriptedModel
from everlong.worker import load_agent

MODEL = ScriptedModel(lambda turn: Reply(text=f"seen {len(turn)}"))


@tool
def restart(service: str) -> str:
    """Restart a service."""
    return service


@tool
def recall(seq: int) -> str:
    """Be a tool that every agent has."""
    return str(seq)


def test_an_agent_has_a_name_and_a_policy() -> None:
    agent = Agent(name="ops", model=MODEL, tools=[restart], policy=Policy(steps_max=5))
    assert agent.find_tool("restart") is restart
    assert agent.find_tool("stop") is None
    assert agent.policy.steps_max == 5
    assert Agent(name="ops", model=MODEL).policy == Policy()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "needs a printable name"),
        ({"name": "a\nb"}, "needs a printable name"),
        ({"name": "a" * 65}, "maximum is 64 characters"),
        ({"tools": [restart, restart]}, "two tools of the same name"),
        ({"tools": [recall]}, "every agent has a tool 'recall' already"),
        ({"tools": [len]}, "is not a tool; decorate it with @tool"),
        ({"model": 5}, "its model is a int"),
        ({"model": ""}, "Give a name as in 'openai:gpt-5'"),
        ({"model_settings": {"temperature": 0}}, "model_settings apply to providers"),
    ],
)
def test_an_invalid_agent_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Agent(**{"name": "ops", "model": MODEL, **fields})


def test_a_later_change_of_the_tool_list_has_no_effect() -> None:
    tools: list[Tool | Agent] = [restart]
    agent = Agent(name="ops", model=MODEL, tools=tools)
    tools.clear()
    assert agent.callable_tools == (restart,)


WRITER = Agent(
    name="writer", model=MODEL, instructions="Write well.\nAnd much.", description="Writes reports."
)
READER = Agent(name="reader", model=MODEL, instructions="\nRead files.\nAll.", tools=[WRITER])


def test_a_sub_agent_is_a_tool_with_one_argument() -> None:
    boss = Agent(name="boss", model=MODEL, tools=[restart, READER, WRITER])
    assert [each.name for each in boss.callable_tools] == ["restart", "reader", "writer"]
    made = boss.find_tool("reader")
    assert made is not None
    assert made.description == "Read files."
    assert made.schema["required"] == ["request"]
    assert set(made.schema["properties"]) == {"request"}
    assert made.parse('{"request": "all"}') == {"request": "all"}
    assert made.options("{}") == CallOptions(agent="reader")
    assert boss.callable_tools[2].description == "Writes reports."
    with pytest.raises(ConfigError, match="answers in its own thread"):
        made.function(request="all")


def test_a_worker_runs_an_agent_with_its_sub_agents() -> None:
    boss = Agent(name="boss", model=MODEL, tools=[READER, WRITER])
    assert [each.name for each in boss.family] == ["boss", "reader", "writer"]


def test_sub_agents_have_unique_names() -> None:
    other = dataclasses.replace(WRITER, instructions="Write otherwise.")
    boss = Agent(
        name="boss",
        model=MODEL,
        tools=[READER, dataclasses.replace(READER, name="r", tools=[other])],
    )
    with pytest.raises(ConfigError, match="two agents below 'boss' are named 'writer'"):
        boss.check()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "a b"}, "agent 'a b' cannot be a tool"),
        ({"instructions": " ", "description": ""}, "'writer' is a tool of 'boss' but has no"),
        ({"name": "forget"}, "every agent has a tool 'forget' already"),
    ],
)
def test_a_sub_agent_with_an_uncallable_name_is_refused(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Agent(name="boss", model=MODEL, tools=[dataclasses.replace(WRITER, **fields)])


def test_a_custom_model_is_used_unchanged() -> None:
    agent = Agent(name="ops", model=MODEL)
    agent.check()
    assert agent.resolved_model is MODEL


def test_a_named_model_is_resolved_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    named = Agent(name="ops", model="openai:gpt-5", instructions="Do.")
    boss = Agent(name="boss", model=MODEL, tools=[named])
    with pytest.raises(ConfigError, match=r"'openai:gpt-5' cannot be used: .*OPENAI_API_KEY"):
        boss.check()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    boss.check()
    assert named.resolved_model is named.resolved_model


def test_an_agent_does_not_show_its_models_settings() -> None:
    agent = Agent(
        name="ops", model="openai:gpt-5", model_settings={"extra_headers": {"x-key": "secret"}}
    )
    assert "secret" not in repr(agent)


def test_an_error_without_the_extra_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_ai", None)
    monkeypatch.delitem(sys.modules, "everlong.agents.providers", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'everlong\[agent\]'"):
        Agent(name="ops", model="openai:gpt-5").check()


def test_importing_agents_imports_no_provider_library() -> None:
    code = (
        "import sys; from everlong import Agent; Agent(name='ops', model='openai:gpt-5');"
        "print([m for m in ('pydantic_ai', 'openai', 'anthropic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def conversation() -> list[Message]:
    roles = ("summary", "user", "assistant", "user", "assistant", "tool")
    return [Message(role=role, text=role) for role in roles]


async def test_a_scripted_model_reads_only_the_turn() -> None:
    assert (await MODEL.reply("", conversation(), [])).text == "seen 3"


async def test_a_scripted_model_reads_the_whole_context_on_request() -> None:
    def script(context: Sequence[Message]) -> Reply:
        return Reply(text=context[0].role, tokens=len(context), input_tokens=5, cost_usd=0.5)

    reply = await ScriptedModel(script, whole=True).reply("", conversation(), [])
    assert reply == Reply(text="summary", tokens=6, input_tokens=5, cost_usd=0.5)


async def test_a_scripted_model_accepts_a_context_without_a_user_message() -> None:
    assert (await MODEL.reply("", [Message(role="summary")], [])).text == "seen 1"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("everlong.demo", "is not module:agent"),
        (":agent", "is not module:agent"),
        ("no_such_module:agent", "ModuleNotFoundError"),
        ("everlong.demo:nothing", "no everlong.Agent named 'nothing'"),
        ("everlong:tool", "no everlong.Agent named 'tool'"),
    ],
)
def test_a_path_without_an_agent_is_a_clear_error(path: str, message: str) -> None:
    with pytest.raises(AgentNotFound, match=message):
        load_agent(path)


def test_an_agent_is_loaded_by_its_path() -> None:
    assert load_agent("everlong.demo:agent").name == "demo"
