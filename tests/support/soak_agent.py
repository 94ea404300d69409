"""Agent of the soak tests. Worker processes import it: `tests.support.soak_agent:soak`."""

import asyncio
import hashlib
import json
import random
from collections.abc import Sequence

from everlong import Agent, Policy, Reply, Tool, tool
from everlong.models import Message, ToolCall

TOOLS = {"w": "work", "a": "act"}


def list_calls(text: str) -> list[list[str]]:
    """Return call ids by step of a message: `m3 w wa` are `m3.0.0`, `m3.1.0`, `m3.1.1`."""
    name, *steps = text.split()
    return [[f"{name}.{step}.{n}" for n in range(len(kinds))] for step, kinds in enumerate(steps)]


def list_tools(text: str) -> list[list[str]]:
    """Return the tool of each of these calls."""
    _, *steps = text.split()
    return [[TOOLS[kind] for kind in kinds] for kinds in steps]


def make_answer(text: str) -> str:
    return f"answer to {text.split()[0]}"


def make_result(name: str) -> str:
    """Return the result of a call: mostly small, sometimes too long for its entry."""
    source = random.Random(name)
    size = source.choices([40, 900, 6_000, 60_000], [45, 25, 22, 8])[0]
    return f"{name} done {hashlib.shake_256(name.encode()).hexdigest(size // 2)}"


async def _take_a_while(name: str, seconds_max: float) -> None:
    await asyncio.sleep(random.Random(f"delay {name}").uniform(0, seconds_max))


@tool
async def work(name: str) -> str:
    """Do something."""
    await _take_a_while(name, 0.15)
    return make_result(name)


@tool(needs_approval=True)
async def act(name: str) -> str:
    """Do something that needs approval."""
    await _take_a_while(name, 0.15)
    return make_result(name)


class Obedient:
    """Model that takes the steps of the newest message, one reply each, then answers."""

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Reply:
        last_user = max(n for n, message in enumerate(messages) if message.role == "user")
        turn = messages[last_user:]
        text = turn[0].text
        done = [message.call_id for message in turn if message.role == "tool"]
        step = int(done[-1].split(".")[1]) + 1 if done else 0
        await _take_a_while(f"{text} {step}", 0.15)
        calls = list_calls(text)
        if step == len(calls):
            return Reply(text=make_answer(text))
        return Reply(
            tool_calls=tuple(
                ToolCall(id=call_id, tool=name, arguments=json.dumps({"name": call_id}))
                for call_id, name in zip(calls[step], list_tools(text)[step], strict=True)
            )
        )


soak = Agent(
    name="soak",
    model=Obedient(),
    tools=[work, act],
    policy=Policy(
        run_events_max=50,
        idle_seconds=1.0,
        compact_at_bytes=16 * 1024,
        compact_to_bytes=8 * 1024,
    ),
)
