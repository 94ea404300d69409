"""The demo's agent: a scripted model that reads for 60 steps and then reports on what it read."""

import hashlib
import json
from collections.abc import Sequence
from typing import Final

from everlong.agents import Agent, Reply, tool
from everlong.models import Message, ToolCall
from everlong.testing import ScriptedModel, workload

STEPS: Final = 60


@tool
def search_logs(page: int) -> str:
    """Search the logs of all services; returns one page of matches."""
    return workload.result(page)


@tool
def run_sql(page: int) -> str:
    """Run the incident query; returns one page of rows."""
    return workload.result(page)


def script(turn: Sequence[Message]) -> Reply:
    """Ask for the next page until there are enough, then answer with a digest of all of them."""
    results = [message for message in turn if message.role == "tool"]
    page = len(results)
    if page < STEPS:
        wanted = search_logs if page % 3 else run_sql
        call = ToolCall(id=f"call-{page}", tool=wanted.name, arguments=json.dumps({"page": page}))
        return Reply(text=f"Page {page} next.", tool_calls=(call,))
    digest = hashlib.sha256()
    for message in results:
        digest.update(message.text.encode())
    return Reply(text=f"Read {page} pages, digest {digest.hexdigest()[:16]}.")


def expected_conversation(question: str) -> list[Message]:
    """Return what the thread must have said and seen: made here, without any thread."""
    conversation = [Message(role="user", text=question)]
    while True:
        reply = script(conversation)
        conversation.append(Message(role="assistant", text=reply.text, tool_calls=reply.tool_calls))
        if not reply.tool_calls:
            return conversation
        for call in reply.tool_calls:
            text = workload.result(json.loads(call.arguments)["page"])
            conversation.append(Message(role="tool", text=text, call_id=call.id))


agent = Agent(
    name="demo",
    model=ScriptedModel(script),
    instructions="Find out what happened.",
    tools=[search_logs, run_sql],
)
