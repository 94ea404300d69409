"""An agent that reads a document worth sealing."""

from collections.abc import Sequence

from everlong import Agent, Reply, tool
from everlong.models import Message, ToolCall
from everlong.testing import ScriptedModel


@tool
def read_contract() -> str:
    """Read the contract."""
    return "The price is 1,234,567 USD.\n" * 1_000


def script(turn: Sequence[Message]) -> Reply:
    """Read the contract, then quote it."""
    if turn[-1].role == "user":
        return Reply(tool_calls=(ToolCall(id="1", tool="read_contract", arguments="{}"),))
    return Reply(text=turn[-1].text.splitlines()[0])


clerk = Agent(name="clerk", model=ScriptedModel(script), tools=[read_contract])
