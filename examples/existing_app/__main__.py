"""Deploy the worker three times: without the plugin, with it, and on the way back."""

import uuid
from typing import Literal

from temporalio.client import Client, WorkflowHandle
from temporalio.envconfig import ClientConnectConfig
from temporalio.worker import Worker

from everlong import EverlongPlugin
from examples.environment import run
from examples.existing_app.workflow import Report, research

TASK_QUEUE = "existing-app"
Run = WorkflowHandle[Report, int]


async def main(config: ClientConnectConfig, store: str, steps: int = 20) -> dict[str, int]:
    """Return the size of each run's history."""

    async def connect(mode: Literal["write", "read"]) -> Client:
        plugin = EverlongPlugin(store=store, mode=mode)  # The change to the application.
        return await Client.connect(**config, plugins=[plugin])

    def work(client: Client) -> Worker:
        return Worker(client, task_queue=TASK_QUEUE, workflows=[Report], activities=[research])

    sizes: dict[str, int] = {}

    async def begin(client: Client) -> Run:
        run_id = f"report-{uuid.uuid4().hex[:6]}"
        handle = await client.start_workflow(Report.run, steps, id=run_id, task_queue=TASK_QUEUE)
        await handle.execute_update(Report.wait_for_draft, steps)
        return handle

    async def end(name: str, client: Client, begun: Run) -> None:
        handle = client.get_workflow_handle_for(Report.run, begun.id)
        await handle.signal(Report.go_on)
        await handle.result()
        info = (await handle.describe()).raw_description.workflow_execution_info
        sizes[name] = info.history_size_bytes
        print(f"{name:30}{info.history_size_bytes:>12,} bytes of history")

    plain, adopted, leaving = (
        await Client.connect(**config),
        await connect("write"),
        await connect("read"),
    )
    async with work(plain):
        await end("before", plain, await begin(plain))
        begun_before = await begin(plain)
    async with work(adopted):
        await end("begun before, ended with it", adopted, begun_before)
        await end("with the plugin", adopted, await begin(adopted))
        begun_with = await begin(adopted)
    async with work(leaving):
        await end("begun with it, ended leaving", leaving, begun_with)
        last = await begin(leaving)
        await end("leaving (mode='read')", leaving, last)
    characters = await plain.get_workflow_handle_for(Report.run, last.id).result()
    print(f"A client without the plugin reads the last result: {characters:,} characters.")
    return sizes


if __name__ == "__main__":
    run(main)
