"""Scripted agents for the tests, importable by a worker process: `tests.agents:gated`."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from everlong import Agent, Reply, tool
from everlong.models import Message, ToolCall
from everlong.testing import ScriptedModel, workload


def call(number: int, tool_name: str, **arguments: object) -> ToolCall:
    return ToolCall(id=f"call-{number}", tool=tool_name, arguments=json.dumps(arguments))


def results(turn: Sequence[Message]) -> list[str]:
    return [message.text for message in turn if message.role == "tool"]


def reading_agent(pages: int, name: str = "ops") -> Agent:
    """Reads that many pages of the workload, one a step, then says their total length."""

    def script(turn: Sequence[Message]) -> Reply:
        seen = results(turn)
        if len(seen) < pages:
            return Reply(tool_calls=(call(len(seen), "read_page", page=len(seen)),))
        return Reply(text=f"{len(seen)} pages, {sum(map(len, seen))} characters")

    return Agent(name=name, model=ScriptedModel(script), tools=[read_page])


def one_call(name: str) -> ScriptedModel:
    """Calls one tool and repeats what it returned."""

    def script(turn: Sequence[Message]) -> Reply:
        seen = results(turn)
        return Reply(text=seen[0]) if seen else Reply(tool_calls=(call(0, name),))

    return ScriptedModel(script)


def pages_answer(pages: int) -> str:
    return f"{pages} pages, {sum(workload.result_bytes(i) for i in range(pages))} characters"


@tool
def read_page(page: int) -> str:
    """Read a page."""
    return workload.result(page)


@tool
def gated_page(page: int) -> str:
    """Read a page; page 5 says that it has begun, and waits for a file to appear."""
    gate = Path(os.environ["TEST_GATE"])
    if page == 5:
        (gate / "begun").touch()
        deadline = time.monotonic() + 60
        while not (gate / "open").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    return workload.result(page)


def _gated_script(turn: Sequence[Message]) -> Reply:
    seen = results(turn)
    if len(seen) < 12:
        return Reply(tool_calls=(call(len(seen), "gated_page", page=len(seen)),))
    return Reply(text=f"{len(seen)} pages, {sum(map(len, seen))} characters")


gated = Agent(name="gated", model=ScriptedModel(_gated_script), tools=[gated_page])
steady = reading_agent(40, name="steady")
