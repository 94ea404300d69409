"""A lead and two agents that read for it. Each of them works in a thread of its own."""

import json
from collections.abc import Sequence

from everlong import Agent, Reply, tool
from everlong.models import Message, ToolCall
from everlong.testing import ScriptedModel


@tool
def read_log(service: str) -> str:
    """Read the log of a service."""
    return f"{service}: out of memory\n" * 1_000


@tool
def read_metrics(service: str) -> str:
    """Read the metrics of a service."""
    return "".join(f"{service} memory_mb={500 + second}\n" for second in range(1_000))


def make_reader(name: str) -> ScriptedModel:
    """Return the model of a reader: it calls its tool once, and answers with the last line."""

    def script(turn: Sequence[Message]) -> Reply:
        if turn[-1].role == "user":
            call = ToolCall(id="1", tool=name, arguments='{"service": "api"}')
            return Reply(tool_calls=(call,), tokens=500)
        return Reply(text=turn[-1].text.splitlines()[-1], tokens=8_000)

    return ScriptedModel(script)


def lead_script(turn: Sequence[Message]) -> Reply:
    """Send both readers out at once, then answer with what they found."""
    if turn[-1].role == "user":
        request = json.dumps({"request": "Find out why api is slow."})
        calls = [ToolCall(id=name, tool=name, arguments=request) for name in ("logs", "metrics")]
        return Reply(tool_calls=tuple(calls), tokens=600)
    return Reply(text="; ".join(each.text for each in turn if each.role == "tool"), tokens=700)


logs = Agent(
    name="logs",
    model=make_reader("read_log"),
    description="Reads long logs and sums them up.",
    tools=[read_log],
)
metrics = Agent(
    name="metrics",
    model=make_reader("read_metrics"),
    description="Reads metrics and sums them up.",
    tools=[read_metrics],
)
lead = Agent(name="lead", model=ScriptedModel(lead_script), tools=[logs, metrics])
