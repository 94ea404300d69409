"""A team's own list-passing loop, unchanged except for the plugin on its client.

Start a server with `everlong dev`, then: python examples/own_workflow.py
"""

import asyncio
import os
import uuid
from datetime import timedelta
from pathlib import Path

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

from everlong import EverlongPlugin


@activity.defn
async def think(messages: list[str]) -> str:
    """Stand in for a model that reads the whole conversation and returns 20 KB."""
    return "".join(f"{uuid.uuid4()} " for _ in range(550))


@workflow.defn
class Loop:
    """Passes the whole conversation to every step, as many agent loops do."""

    @workflow.run
    async def run(self, steps: int) -> int:
        """Take steps; return the number of characters in all replies."""
        messages: list[str] = []
        for _ in range(steps):
            messages.append(
                await workflow.execute_activity(
                    think, messages, start_to_close_timeout=timedelta(seconds=30)
                )
            )
        return sum(map(len, messages))


async def main(address: str, store: str, steps: int) -> int:
    """Run the loop once; print and return the size of its history."""
    client = await Client.connect(address, plugins=[EverlongPlugin(store=store)])
    async with Worker(client, task_queue="loop", workflows=[Loop], activities=[think]):
        handle = await client.start_workflow(
            Loop.run, steps, id=f"loop-{uuid.uuid4()}", task_queue="loop"
        )
        reply_chars = await handle.result()
        info = (await handle.describe()).raw_description.workflow_execution_info
    sent = steps * reply_chars // 2
    print(f"{steps} steps sent about {sent:,} bytes; history: {info.history_size_bytes:,} bytes")
    return info.history_size_bytes


if __name__ == "__main__":
    blobs = Path(".everlong/example-blobs").absolute()
    address = os.environ.get("TEMPORAL_ADDRESS", "localhost:7233")
    asyncio.run(main(address, blobs.as_uri(), steps=20))
