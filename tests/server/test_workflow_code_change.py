"""Workflow code that runs past the old code while its history is still being replayed.

Core keeps a command that it does not find in history, and sends it when the replay is over. What it
carries must be there, though it was issued in a replay.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from everlong import EverlongPlugin
from everlong.embedded import TemporalServer
from tests.support.fake_stores import CountingStore
from tests.support.loop_workflows import noise

SIZE = 40_000
TIMEOUT = timedelta(seconds=20)


@activity.defn
async def keep(text: str = "nothing was sent") -> str:
    return text


@workflow.defn(name="Beyond")
class Old:
    """Does one step, then waits for what never comes."""

    def __init__(self) -> None:
        self.steps = 0

    @workflow.run
    async def run(self, kind: str) -> str:
        await workflow.execute_activity(keep, noise("first", SIZE), start_to_close_timeout=TIMEOUT)
        self.steps = 1
        await workflow.wait_condition(lambda: self.steps > 1)
        return kind

    @workflow.query
    def done(self) -> int:
        return self.steps

    @workflow.signal
    def wake(self) -> None:
        """Give the worker a reason to replay."""


@workflow.defn(name="Child")
class Child:
    @workflow.run
    async def run(self, text: str = "nothing was sent") -> str:
        return text


@workflow.defn(name="Beyond")
class New(Old):
    """The same, mended: it goes on, in the task that the old code had completed."""

    @workflow.run
    async def run(self, kind: str, carried: str = "") -> str:
        if carried:
            return carried
        await workflow.execute_activity(keep, noise("first", SIZE), start_to_close_timeout=TIMEOUT)
        text = noise(kind, SIZE)
        if kind == "activity":
            return await workflow.execute_activity(keep, text, start_to_close_timeout=TIMEOUT)
        if kind == "activities":
            texts = await asyncio.gather(
                *(
                    workflow.execute_activity(keep, text, start_to_close_timeout=TIMEOUT)
                    for _ in range(3)
                )
            )
            assert texts == [text] * 3
        if kind == "child":
            return await workflow.execute_child_workflow(
                Child.run, text, id=f"{workflow.info().workflow_id}-child"
            )
        if kind == "continue-as-new":
            workflow.continue_as_new(args=[kind, text])
        return text


async def wait_until(handle: WorkflowHandle[Any, Any], is_done: Callable[[int], bool]) -> None:
    async with asyncio.timeout(90):
        while not is_done(await handle.query("done")):
            await asyncio.sleep(0.05)


@pytest.mark.guarantee(28)
@pytest.mark.parametrize("kind", ["result", "activity", "activities", "child", "continue-as-new"])
async def test_new_code_that_runs_past_its_history_sends_complete_commands(
    server: TemporalServer, thread_id: str, kind: str
) -> None:
    store = CountingStore()

    async def worker(*workflows: type) -> tuple[Client, Worker]:
        client = await Client.connect(server.address, plugins=[EverlongPlugin(store=store)])
        return client, Worker(
            client, task_queue=thread_id, workflows=[*workflows, Child], activities=[keep]
        )

    client, old = await worker(Old)
    async with old:
        handle = await client.start_workflow("Beyond", kind, id=thread_id, task_queue=thread_id)
        await wait_until(handle, lambda steps: steps == 1)
    client, new = await worker(New)
    async with new:
        handle = client.get_workflow_handle(thread_id, result_type=str)
        await handle.signal("wake")
        assert await asyncio.wait_for(handle.result(), 40) == noise(kind, SIZE)
    description = await client.get_workflow_handle(thread_id).describe()
    assert description.raw_description.workflow_execution_info.history_size_bytes < 15_000
