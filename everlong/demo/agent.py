"""The demo's agents: one reads for 60 steps and then requests an approval, the other never ends."""

import json
from collections.abc import Sequence
from typing import Final

from everlong import limits
from everlong.agents import Agent, Reply, tool
from everlong.models import Decision, Message, ToolCall, make_printable
from everlong.policy import Policy
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


@tool(needs_approval=True)
def restart(service: str) -> str:
    """Restart a service."""
    return f"{service} restarted"


def script(turn: Sequence[Message]) -> Reply:
    """Request pages until there are enough, then request a restart, then answer.

    The next step depends on the last result alone: older ones may have been compacted away.
    """
    last = turn[-1]
    page = int(last.call_id.removeprefix("call-")) + 1 if last.role == "tool" else 0
    if page < STEPS:
        wanted = search_logs if page % 3 else run_sql
        return _call_tool(f"Page {page} next.", page, wanted.name, page=page)
    if page == STEPS:
        return _call_tool("Billing leaks memory.", page, restart.name, service="billing")
    return Reply(text=f"Read {STEPS} pages; {last.text}.")


def endless_script(turn: Sequence[Message]) -> Reply:
    """Request the same page for ever, like a model that is stuck."""
    number = sum(message.role == "tool" for message in turn)
    return _call_tool("Once more.", number, search_logs.name, page=1)


def build_expected_conversation(question: str, decided: Decision | None = None) -> list[Message]:
    """Build the conversation that the thread's journal must hold, without running a thread.

    The restart counts as approved unless `decided` says otherwise.
    """
    conversation = [Message(role="user", text=question)]
    while True:
        reply = script(conversation)
        conversation.append(Message(role="assistant", text=reply.text, tool_calls=reply.tool_calls))
        if not reply.tool_calls:
            return conversation
        for call in reply.tool_calls:
            arguments = json.loads(call.arguments)
            text = (
                workload.result(arguments["page"])
                if "page" in arguments
                else _restart_result(arguments["service"], decided)
            )
            message = Message(role="tool", text=text, call_id=call.id, tool=call.tool)
            conversation.append(message)


def _restart_result(service: str, decided: Decision | None) -> str:
    if decided is None or decided.approve:
        return f"{service} restarted"
    why = f": {make_printable(decided.reason, limits.REASON_CHARS_MAX)}" if decided.reason else ""
    return f"error: denied by {make_printable(decided.by, limits.CALL_NAME_CHARS_MAX)}{why}"


def _call_tool(text: str, number: int, name: str, **arguments: object) -> Reply:
    call = ToolCall(id=f"call-{number}", tool=name, arguments=json.dumps(arguments))
    return Reply(text=text, tool_calls=(call,))


agent = Agent(
    name="demo",
    model=ScriptedModel(script),
    instructions="Find out what happened.",
    tools=[search_logs, run_sql, restart],
)

runaway = Agent(
    name="runaway",
    model=ScriptedModel(endless_script),
    tools=[search_logs],
    policy=Policy(on_limit="stop"),
)
