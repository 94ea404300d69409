"""The agent of the thread benchmarks. It does what a message says, and logs each model call.

`read 100 to 199` reads pages of the workload, one a step; `then publish` after it needs approval;
`say 7` is answered at once; `wait 7` is answered once the file named by `BENCH_GATE` exists.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import worker_log
from everlong import Agent, Policy, Reply, Tool, tool
from everlong.models import Message, ToolCall
from everlong.testing import workload

GATE: Final = "BENCH_GATE"
_GATE_SECONDS_MAX: Final = 60.0


@tool
def read_page(page: int) -> str:
    """Read a page."""
    return workload.result(page)


@tool(needs_approval=True)
def publish(page: int) -> str:
    """Publish a page."""
    return f"page {page} is out"


class Obedient:
    """A stateless model: a step that is retried gets the same reply."""

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Reply:
        """See `everlong.Model`."""
        users = [number for number, message in enumerate(messages) if message.role == "user"]
        turn = messages[users[-1] :]
        asked = turn[0].text
        done = [message.call_id for message in turn if message.role == "tool"]
        call = _find_next_call(asked.split(), done)
        worker_log.write("model", int(asked.split()[1]) if call is None else call[1])
        if asked.startswith("wait"):
            await _wait_until_open()
        if call is None:
            return Reply(text=f"done: {asked}")
        name, page = call
        arguments = json.dumps({"page": page})
        return Reply(tool_calls=(ToolCall(id=f"call-{page}", tool=name, arguments=arguments),))


def _find_next_call(words: Sequence[str], done: Sequence[str]) -> tuple[str, int] | None:
    if words[0] != "read":
        return None
    first, last = int(words[1]), int(words[3])
    page = int(done[-1].removeprefix("call-")) + 1 if done else first
    if page <= last:
        return "read_page", page
    return ("publish", page) if words[-1] == "publish" and page == last + 1 else None


async def _wait_until_open() -> None:
    gate = Path(os.environ[GATE])
    async with asyncio.timeout(_GATE_SECONDS_MAX):
        while not gate.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(0.02)


def reader(policy: Policy | None = None) -> Agent:
    """Return the agent, by default with the default policy."""
    return Agent(
        name="reader", model=Obedient(), tools=[read_page, publish], policy=policy or Policy()
    )
