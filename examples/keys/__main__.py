"""Seal a thread with a key, rotate the key, and retire the old one too early."""

import os
import uuid
from collections.abc import Mapping

from temporalio.client import Client
from temporalio.envconfig import ClientConnectConfig
from temporalio.worker import Worker

from everlong import EverlongError, EverlongPlugin, thread
from everlong.client.thread import ThreadHandle
from examples.environment import run
from examples.keys.agent import clerk

TASK_QUEUE = "keys"


async def main(config: ClientConnectConfig, store: str) -> None:
    spring, autumn = os.urandom(32), os.urandom(32)  # From your secret manager.
    thread_id = f"clerk-{uuid.uuid4().hex[:6]}"

    async def connect(keys: Mapping[str, bytes] | None) -> ThreadHandle:
        plugin = EverlongPlugin(store=store, agents=[clerk], keys=keys)
        client = await Client.connect(**config, plugins=[plugin])
        return thread(client, thread_id, task_queue=TASK_QUEUE)

    def work(sealed: ThreadHandle) -> Worker:
        return Worker(sealed.client, task_queue=TASK_QUEUE)

    # Seal: one key, from the first day.
    sealed = await connect({"spring": spring})
    async with work(sealed):
        print("spring:        ", await sealed.ask("What is the price?", agent="clerk"))
        await read("no key:        ", await connect(None))

    # Rotate: the first key writes, and every key reads.
    rotated = await connect({"autumn": autumn, "spring": spring})
    async with work(rotated):
        print("autumn, spring:", await rotated.ask("What was the price?"))
        await read("autumn, spring:", rotated)
        # Retire: too early, since what the thread wrote in spring stays sealed with that key.
        await read("autumn:        ", await connect({"autumn": autumn}))
        await read("autumn, spring:", rotated)
        await rotated.stop(reason="its worker ends")
        await rotated.wait_until(lambda progress: bool(progress.ended))


async def read(keys: str, handle: ThreadHandle) -> None:
    """Read the conversation with the keys of a client."""
    try:
        print(keys, f"{len(await handle.messages())} messages")
    except EverlongError as error:
        print(keys, f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    run(main)
