"""`python -m bench.load_worker ADDRESS QUEUE plain|everlong URL`: a worker of the load benchmark.

Both kinds do the same work: a turn of N steps calls the model N + 1 times and a tool N times. Each tool
result has 2 KB. The plain kind is a list-passing loop without the plugin.
"""

import asyncio
import functools
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from bench import worker_log
    from everlong import Agent, EverlongPlugin, Reply, Tool, limits, tool
    from everlong.models import Message, ToolCall
    from everlong.testing import workload

PLAIN_LOOP: Final = "PlainLoop"
AGENT: Final = "reader"
RESULT_BYTES: Final = 2_000
# The same as the heartbeat timeout of threads: the server keeps a timer for each activity, and the
# timers of both kinds should end within the same turn.
_TIMEOUT: Final = timedelta(seconds=limits.HEARTBEAT_SECONDS)


@functools.lru_cache(maxsize=64)
def _build_page(number: int) -> str:
    """Return a result, cached so that generating it is not charged to either kind of worker."""
    return workload.passage(number, RESULT_BYTES)


@activity.defn
async def call_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Ask for the next page, or answer."""
    steps = int(messages[0]["content"].split()[1])
    done = sum(each["role"] == "tool" for each in messages)
    if done >= steps:
        return {"role": "assistant", "content": f"done after {done} pages"}
    call = {"id": f"call-{done}", "tool": "read_page", "arguments": {"number": done}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


@activity.defn
async def run_tool(call: dict[str, Any]) -> dict[str, Any]:
    """Read a page."""
    return {
        "role": "tool",
        "call_id": call["id"],
        "content": _build_page(call["arguments"]["number"]),
    }


@workflow.defn(name=PLAIN_LOOP)
class PlainLoop:
    """A plain list-passing loop: the whole list is the input of each model call."""

    @workflow.run
    async def run(self, text: str) -> str:
        """Take steps until the model answers."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
        while True:
            reply = await workflow.execute_activity(
                call_model, messages, start_to_close_timeout=_TIMEOUT
            )
            messages.append(reply)
            if not reply.get("tool_calls"):
                return str(reply["content"])
            for call in reply["tool_calls"]:
                result = await workflow.execute_activity(
                    run_tool, call, start_to_close_timeout=_TIMEOUT
                )
                messages.append(result)


@tool
async def read_page(number: int) -> str:
    """Read a page."""
    return _build_page(number)


class Reader:
    """Reads as many pages as the newest message says, then answers."""

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Reply:
        """See `everlong.Model`."""
        newest = max(index for index, each in enumerate(messages) if each.role == "user")
        steps = int(messages[newest].text.split()[1])
        done = sum(each.role == "tool" for each in messages[newest:])
        if done >= steps:
            worker_log.write("answered")
            return Reply(text=f"done after {done} pages")
        call = ToolCall(id=f"call-{done}", tool="read_page", arguments=f'{{"number": {done}}}')
        return Reply(tool_calls=(call,))


async def run(
    address: str, queue: str, kind: str, store_url: str, sticky: str = "", slots: str = ""
) -> None:
    """Work until SIGTERM. `sticky` and `slots` override the defaults."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    if kind == "plain":
        client = await Client.connect(address)
        worker = Worker(
            client, task_queue=queue, workflows=[PlainLoop], activities=[call_model, run_tool]
        )
    else:
        agent = Agent(name=AGENT, model=Reader(), tools=[read_page])
        plugin = EverlongPlugin(
            store=store_url, agents=[agent], sticky_seconds=float(sticky) if sticky else None
        )
        client = await Client.connect(address, plugins=[plugin])
        tasks = int(slots) if slots else None
        worker = Worker(client, task_queue=queue, max_concurrent_workflow_tasks=tasks)
    async with worker:
        worker_log.write("ready")
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
