"""Agent whose worker kills itself in the middle of a decision, at a place that a test names.

Worker processes import it by name: `tests.support.deciding_agent:deciding`. In the folder TEST_GATE, a
file named for a place makes the first process that gets there remove it and die.
"""

import os
import signal
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from everlong import Agent, Policy, current_call, tool
from everlong.models.grants import Grant
from everlong.storage.agent_grants import AgentGrants
from tests.support.scripted_agents import call
from tests.support.thread_driver import call_then_answer

_GATE = Path(os.environ.get("TEST_GATE", "."))


def die(place: str) -> None:
    """Kill this process if a test wants that."""
    file = _GATE / place
    if file.exists():
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def _check(euros: int) -> int:
    die(f"check-{euros}")
    return euros


@tool(needs_approval=True)
def pay(euros: Annotated[int, AfterValidator(_check)]) -> str:
    """Pay."""
    return f"paid {euros}"


@tool(effects="once")
def transfer(euros: int) -> str:
    """Transfer."""
    with (_GATE / "transfers").open("a") as file:
        file.write(f"{euros} {current_call().idempotency_key}\n")
    die("transfer")
    return f"transferred {euros}"


_add = AgentGrants.add


async def _add_or_die(self: AgentGrants, grant: Grant, now_ms: int) -> str:
    die("before-grant")
    refused = await _add(self, grant, now_ms)
    die("after-grant")
    return refused


if "TEST_GATE" in os.environ:
    AgentGrants.add = _add_or_die  # type: ignore[method-assign]

# A crash is noticed after a second.
_POLICY = Policy(heartbeat_seconds=1, run_events_max=50, idle_seconds=0.3)

deciding = Agent(
    name="deciding",
    model=call_then_answer(call(0, "pay", euros=5)),
    tools=[pay],
    policy=_POLICY,
)
sending = Agent(
    name="sending",
    model=call_then_answer(call(0, "transfer", euros=7)),
    tools=[transfer],
    policy=_POLICY,
)
