"""Ask the local model twice; the second question has no answer without the first."""

import uuid

from temporalio.client import Client
from temporalio.envconfig import ClientConnectConfig

from everlong import EverlongPlugin, thread
from examples.environment import run


async def main(config: ClientConnectConfig, store: str) -> None:
    client = await Client.connect(**config, plugins=[EverlongPlugin(store=store)])
    local = thread(client, f"local-{uuid.uuid4().hex[:6]}")
    print(f"thread {local.id}")
    print(await local.ask("How full is the disk of / ?", agent="local"))
    print(await local.ask("Is that much?"))
    counters = (await local.status()).counters
    print(f"{counters.steps} model calls, {counters.tokens:,} tokens")


if __name__ == "__main__":
    run(main)
