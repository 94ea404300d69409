"""An agent with one tool, whose result is larger than what a model should read."""

from collections.abc import Sequence

from everlong import Agent, Reply, tool
from everlong.models import Message, ToolCall
from everlong.testing import ScriptedModel


@tool
def read_log(service: str) -> str:
    """Read the log of a service."""
    return f"{service}: out of memory\n" * 20_000


def script(turn: Sequence[Message]) -> Reply:
    """Read one log, then answer. A real agent has a model here: Agent(model="openai:gpt-5", ...)."""
    if turn[-1].role == "user":
        call = ToolCall(id="1", tool="read_log", arguments='{"service": "api"}')
        return Reply(tool_calls=(call,))
    return Reply(text=f"The log ends with: {turn[-1].text.splitlines()[-1]}")


ops = Agent(name="ops", model=ScriptedModel(script), tools=[read_log])
