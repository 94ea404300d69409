"""Agent of the demo with fewer pages to read."""

from collections.abc import Sequence
from typing import Final

from everlong import Agent, Reply
from everlong.demo.agent import restart, search_logs
from everlong.models import Message
from everlong.testing import ScriptedModel
from tests.support.scripted_agents import call

PAGES: Final = 3


def script(turn: Sequence[Message]) -> Reply:
    """Read all pages, then ask to restart a service, then answer."""
    done = sum(message.role == "tool" for message in turn)
    if done < PAGES:
        return Reply(tool_calls=(call(done, search_logs.name, page=done),))
    if done == PAGES:
        return Reply(tool_calls=(call(done, restart.name, service="billing"),))
    return Reply(text=f"Read {PAGES} pages; {turn[-1].text}.")


agent = Agent(name="demo", model=ScriptedModel(script), tools=[search_logs, restart])
