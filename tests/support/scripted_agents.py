"""Scripted agents. Worker processes import them by name: `tests.support.scripted_agents:gated`."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from everlong import Agent, Policy, Reply, tool
from everlong.models import Message, ToolCall
from everlong.testing import ScriptedModel, workload


def call(number: int, tool_name: str, **arguments: object) -> ToolCall:
    return ToolCall(id=f"call-{number}", tool=tool_name, arguments=json.dumps(arguments))


def results(turn: Sequence[Message]) -> list[str]:
    return [message.text for message in turn if message.role == "tool"]


def calls_done(turn: Sequence[Message]) -> int:
    """Return how many calls of the turn have a result, by the last one's number."""
    last = next((message for message in reversed(turn) if message.role == "tool"), None)
    return 0 if last is None else int(last.call_id.removeprefix("call-")) + 1


def reading_agent(pages: int, name: str = "ops", policy: Policy | None = None) -> Agent:
    """Return an agent that reads `pages` pages, one each step, then says how many."""

    def script(turn: Sequence[Message]) -> Reply:
        page = calls_done(turn)
        if page < pages:
            return Reply(tool_calls=(call(page, "read_page", page=page),))
        return Reply(text=pages_answer(pages))

    return Agent(
        name=name, model=ScriptedModel(script), tools=[read_page], policy=policy or Policy()
    )


def build_one_call_model(name: str) -> ScriptedModel:
    """Return a model that calls one tool and repeats its result."""

    def script(turn: Sequence[Message]) -> Reply:
        seen = results(turn)
        return Reply(text=seen[0]) if seen else Reply(tool_calls=(call(0, name),))

    return ScriptedModel(script)


def pages_answer(pages: int) -> str:
    return f"{pages} pages"


@tool
def read_page(page: int) -> str:
    """Read a page."""
    return workload.result(page)


@tool
def gated_page(page: int) -> str:
    """Read a page. Page 5 creates a file when it begins, and waits for another file."""
    gate = Path(os.environ["TEST_GATE"])
    if page == 5:
        (gate / "begun").touch()
        deadline = time.monotonic() + 60
        while not (gate / "open").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    return workload.result(page)


def _gated_script(turn: Sequence[Message]) -> Reply:
    page = calls_done(turn)
    if page < 12:
        return Reply(tool_calls=(call(page, "gated_page", page=page),))
    return Reply(text=pages_answer(12))


gated = Agent(name="gated", model=ScriptedModel(_gated_script), tools=[gated_page])
steady = reading_agent(40, name="steady")
