"""Run the workflow once, with a worker in this process."""

import uuid

from temporalio.client import Client
from temporalio.envconfig import ClientConnectConfig
from temporalio.worker import Worker

from everlong import EverlongPlugin, ThreadStart
from examples.environment import run
from examples.own_thread.agent import watch
from examples.own_thread.workflow import Nightly

TASK_QUEUE = "nightly"


async def main(config: ClientConnectConfig, store: str) -> str:
    plugin = EverlongPlugin(store=store, agents=[watch])
    client = await Client.connect(**config, plugins=[plugin])
    async with Worker(client, task_queue=TASK_QUEUE, workflows=[Nightly]):
        ended = await client.execute_workflow(
            Nightly.run,
            ThreadStart(agent="watch"),
            id=f"nightly-{uuid.uuid4().hex[:6]}",
            task_queue=TASK_QUEUE,
        )
    print(ended)
    return ended


if __name__ == "__main__":
    run(main)
