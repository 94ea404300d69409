"""Scripted agent for tests of the admin surface: it asks, pays, remembers, fails and echoes."""

from collections.abc import Sequence

from everlong import Agent, OutcomeUnknown, Policy, Reply, tool
from everlong.errors import ModelRefused
from everlong.models import Message
from everlong.testing import ScriptedModel
from tests.support.scripted_agents import call, results


@tool(needs_approval=True, approvers=["ann", "bob"])
def restart(service: str) -> str:
    """Restart a service."""
    return f"{service} is up"


@tool(effects="once")
def pay(to: str) -> str:
    """Send money, over a connection that breaks."""
    raise OutcomeUnknown(f"no answer about {to}")


def script(turn: Sequence[Message]) -> Reply:
    """Act by the first word of the message."""
    word, _, rest = turn[0].text.partition(" ")
    if word == "fail":
        raise ModelRefused("the provider will not")
    if word in ("restart", "remember", "pay") and not results(turn):
        wanted = {
            "restart": call(0, "restart", service=rest),
            "remember": call(0, "remember", key="note", text=rest),
            "pay": call(0, "pay", to=rest),
        }
        return Reply(tool_calls=(wanted[word],), tokens=10, cost_usd=0.01)
    answer = results(turn)[0] if results(turn) else f"you said {turn[0].text[:40]}"
    return Reply(text=answer, tokens=10, cost_usd=0.01)


def build_governed_agent(policy: Policy | None = None, name: str = "ops") -> Agent:
    return Agent(
        name=name, model=ScriptedModel(script), tools=[restart, pay], policy=policy or Policy()
    )


agent = build_governed_agent()
