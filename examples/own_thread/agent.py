"""The agent of the nightly watch."""

from collections.abc import Sequence

from everlong import Agent, Policy, Reply, tool
from everlong.models import Message, ToolCall
from everlong.testing import ScriptedModel


@tool
def list_backups() -> str:
    """List the backups of all databases."""
    return "\n".join(f"db-{i}: 2026-03-01, 1.{i} TB, complete" for i in range(500))


def script(turn: Sequence[Message]) -> Reply:
    """Look, then report. A real agent has a model here: Agent(model="openai:gpt-5", ...)."""
    if turn[-1].role == "user":
        return Reply(tool_calls=(ToolCall(id="1", tool="list_backups", arguments="{}"),))
    return Reply(text="All backups are complete.")


# A run of the workflow ends after 60 events, and the next one continues it.
watch = Agent(
    name="watch",
    model=ScriptedModel(script),
    tools=[list_backups],
    policy=Policy(run_events_max=60),
)
