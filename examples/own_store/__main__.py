"""Run an agent whose journal and payloads are in a SQLite file."""

import tempfile
import uuid
from pathlib import Path

from temporalio.client import Client
from temporalio.envconfig import ClientConnectConfig
from temporalio.worker import Worker

from everlong import EverlongPlugin, thread
from examples.environment import run
from examples.own_store.store import SqliteStore
from examples.quickstart.agent import ops

TASK_QUEUE = "own-store"


async def main(config: ClientConnectConfig, _: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder, "blobs.db"))
        plugin = EverlongPlugin(store=store, agents=[ops])
        client = await Client.connect(**config, plugins=[plugin])
        async with Worker(client, task_queue=TASK_QUEUE):
            handle = thread(client, f"ops-{uuid.uuid4().hex[:6]}", task_queue=TASK_QUEUE)
            print(await handle.ask("Why is it slow?", agent="ops"))
            await handle.stop(reason="its store goes away")
            await handle.wait_until(lambda progress: bool(progress.ended))
        characters = sum(len(message.text) for message in await handle.messages())
        print(f"The conversation has {characters:,} characters.")
        sizes = [each.size_bytes async for each in store.list("")]
        print(f"{len(sizes)} objects with {sum(sizes):,} bytes are in the store.")
        store.close()


if __name__ == "__main__":
    run(main)
