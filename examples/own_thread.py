"""A team's own workflow around a thread: an agent that answers the same question every night.

The loop is the team's; journal, context, compaction, limits and continue-as-new are Everlong's.
Start a server with `everlong dev`, then: python examples/own_thread.py
"""

import asyncio
import os
import uuid
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from everlong import Agent, EverlongPlugin, Policy, Reply, ThreadStart, tool
from everlong.models import Message, SendMessage, ToolCall
from everlong.testing import ScriptedModel
from everlong.workflows import Thread

NIGHTS = 8


@tool
def list_backups() -> str:
    """List the backups of all databases."""
    return "\n".join(f"db-{i}: 2026-03-01, 1.{i} TB, complete" for i in range(500))


def script(turn: Sequence[Message]) -> Reply:
    """Look, then report. A real agent has a model here: Agent(model="openai:gpt-5", ...)."""
    if turn[-1].role == "user":
        return Reply(tool_calls=(ToolCall(id="1", tool="list_backups", arguments="{}"),))
    return Reply(text="All backups are complete.")


watch = Agent(
    name="watch",
    model=ScriptedModel(script),
    tools=[list_backups],
    policy=Policy(run_events_max=60),
)


@workflow.defn
class Nightly:
    """One run of the thread. Continue-as-new carries its state over, so it can run for years."""

    @workflow.run
    async def run(self, start: ThreadStart) -> str:
        """Ask every night; return why the thread ended."""
        thread = Thread(start)
        while thread.has_work or thread.state.counters.messages < NIGHTS:
            if not thread.has_work:
                thread.queue(SendMessage(text="Are the backups of tonight complete?"))
            while thread.has_work:
                if hit := thread.limit():
                    return hit.reason
                await thread.step()
                await thread.keep_small()
                if thread.roll_reason() is not None:
                    workflow.continue_as_new(thread.next_start())
            await workflow.sleep(timedelta(milliseconds=10))  # A night.
        await thread.flush()
        counters = thread.state.counters
        return f"{counters.answered} nights in {counters.runs} runs"


async def main(address: str, store: str) -> str:
    """Run the workflow once; print and return its result."""
    plugin = EverlongPlugin(store=store, agents=[watch])
    client = await Client.connect(address, plugins=[plugin])
    async with Worker(client, task_queue="nightly", workflows=[Nightly]):
        ended: str = await client.execute_workflow(
            Nightly.run,
            ThreadStart(agent="watch"),
            id=f"nightly-{uuid.uuid4()}",
            task_queue="nightly",
        )
    print(ended)
    return ended


if __name__ == "__main__":
    blobs = Path(".everlong/example-blobs").absolute()
    address = os.environ.get("TEMPORAL_ADDRESS", "localhost:7233")
    asyncio.run(main(address, blobs.as_uri()))
