"""Ask the lead, then compare its thread with those of its sub-agents."""

import asyncio
import uuid

from temporalio.client import Client
from temporalio.envconfig import ClientConnectConfig

from everlong import EverlongPlugin, thread, threads
from examples.environment import run


async def main(config: ClientConnectConfig, store: str) -> None:
    client = await Client.connect(**config, plugins=[EverlongPlugin(store=store)])
    lead = thread(client, f"incident-{uuid.uuid4().hex[:6]}")
    print(await lead.ask("Why is api slow?", agent="lead"))
    while await threads(client).count(prefix=f"{lead.id}/") < 2:
        await asyncio.sleep(0.1)  # Temporal's list of workflows is some moments behind.
    readers = [row.thread_id async for row in threads(client).list(prefix=f"{lead.id}/")]
    for thread_id in (lead.id, *sorted(readers)):
        each = thread(client, thread_id)
        characters = sum(len(message.text) for message in await each.messages())
        tokens = (await each.status()).counters.tokens
        print(f"{thread_id:36}{characters:>8,} characters{tokens:>8,} tokens")


if __name__ == "__main__":
    run(main)
