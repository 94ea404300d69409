"""Ask the agent, and read the conversation back."""

import uuid

from temporalio.client import Client
from temporalio.envconfig import ClientConnectConfig

from everlong import EverlongPlugin, thread
from examples.environment import run


async def main(config: ClientConnectConfig, store: str) -> None:
    client = await Client.connect(**config, plugins=[EverlongPlugin(store=store)])
    ops = thread(client, f"ops-{uuid.uuid4().hex[:6]}")
    print(f"thread {ops.id}")
    print(await ops.ask("Why is it slow?", agent="ops"))
    for message in await ops.messages():
        print(f"{message.role:10}{len(message.text):>8,} characters")
    context_bytes = (await ops.status()).context_bytes
    print(f"The model's last context had {context_bytes:,} bytes.")


if __name__ == "__main__":
    run(main)
