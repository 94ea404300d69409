"""Scripted agent whose messages produce every kind of entry that the pages show."""

import asyncio
from collections.abc import Sequence

from everlong import Agent, OutcomeUnknown, Policy, Reply, Tool, tool
from everlong.errors import ModelRefused
from everlong.models import Message
from everlong.testing import ScriptedModel, workload
from tests.support.scripted_agents import call, calls_done, results

LONG_CHARS = 200_000
FINDINGS = """The pool of **payments** is too small since 2.41.0:

| time  | p95    | in use   |
|-------|--------|----------|
| 13:58 | 0.21 s | 12 of 64 |
| 14:02 | 1.84 s | 32 of 32 |

I would set `pool.max_size` back to 64, which needs a restart."""
STEP_SECONDS = 0.4


@tool(needs_approval=True)
def restart(service: str, region: str = "eu-west-1") -> str:
    """Restart a service."""
    return f"{service} is up in {region}"


@tool
def read_page(page: int) -> str:
    """Read a page of the handbook."""
    return workload.result(page)


@tool
async def tick(minute: int) -> str:
    """Take a while."""
    await asyncio.sleep(STEP_SECONDS)
    return f"tick {minute} " + "x" * 2000


@tool(effects="once")
def charge(customer: str) -> str:
    """Charge a customer: whether it did cannot be known."""
    raise OutcomeUnknown("the bank did not answer")


@tool
def long_report() -> str:
    """Return more than a page shows at once."""
    return "".join(f"line {number:06} of the report\n" for number in range(LONG_CHARS // 26))


def script(turn: Sequence[Message]) -> Reply:
    """Do what the message says."""
    word, _, rest = turn[0].text.partition(" ")
    done = calls_done(turn)
    if word == "fail":
        raise ModelRefused("the provider will not")
    if word in ("read", "tick") and done < int(rest):
        name, field = ("read_page", "page") if word == "read" else ("tick", "minute")
        return Reply(tool_calls=(call(done, name, **{field: done}),), tokens=1200, cost_usd=0.003)
    if word == "investigate" and not done:
        wanted_call = call(0, "restart", service="payments", region="eu-west-1")
        return Reply(text=FINDINGS, tool_calls=(wanted_call,), tokens=5_312, cost_usd=0.021)
    if word in ("restart", "remember", "long", "delegate", "charge") and not done:
        wanted = {
            "restart": call(0, "restart", service=rest),
            "remember": call(0, "remember", key="note", text=rest),
            "long": call(0, "long_report"),
            "charge": call(0, "charge", customer=rest),
            "delegate": call(0, "helper", request=rest),
        }
        return Reply(tool_calls=(wanted[word],), tokens=300, cost_usd=0.001)
    answer = results(turn)[0][:80] if results(turn) else f"you said {turn[0].text[:40]}"
    return Reply(text=answer, tokens=200, cost_usd=0.001)


helper = Agent(
    name="helper",
    model=ScriptedModel(lambda turn: Reply(text=f"**helper** heard {turn[0].text}", tokens=50)),
    description="Helps.",
)


def agent(name: str = "ops", policy: Policy | None = None, seconds: float = 0.0) -> Agent:
    tools: list[Tool | Agent] = [restart, read_page, tick, long_report, helper, charge]
    return Agent(
        name=name,
        model=ScriptedModel(script, seconds=seconds),
        tools=tools,
        policy=policy or Policy(),
    )
