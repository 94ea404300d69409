"""Agent whose threads give every metric a value: `everlong worker tests.support.metrics_agent:ops`."""

from collections.abc import Sequence

from everlong import Agent, Reply, tool
from everlong.models import Message, ToolCall
from everlong.testing import ScriptedModel
from tests.support.scripted_agents import call, calls_done

PAGES = 4


@tool(attempts_max=1)
def read(page: int) -> str:
    """Read a page."""
    return f"page {page}: " + " ".join(str(number * (page + 7)) for number in range(2000))


@tool(needs_approval=True)
def restart() -> str:
    """Restart something."""
    return "restarted"


@tool(attempts_max=1)
def broken() -> str:
    """Fail."""
    raise RuntimeError("it is broken")


def script(turn: Sequence[Message]) -> Reply:
    done = calls_done(turn)
    asked = next((message.text for message in turn if message.role == "user"), "")
    if asked == "read" and done < PAGES:
        return calling(call(done, "read", page=done))
    if asked == "restart" and done < 1:
        return calling(call(0, "restart"))
    if asked == "loop":
        return calling(call(done, "broken"))
    return Reply(text="done", tokens=12, input_tokens=10, cost_usd=0.01)


def calling(wanted: ToolCall) -> Reply:
    return Reply(tool_calls=(wanted,), tokens=12, input_tokens=10, cost_usd=0.01)


ops = Agent(name="ops", model=ScriptedModel(script), tools=[read, restart, broken])
