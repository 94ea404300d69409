"""`should_continue_as_new`: a loop whose payloads are offloaded ends its runs by size."""

from datetime import timedelta

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from everlong import EverlongPlugin
from everlong.embedded import TemporalServer
from tests.support.fake_stores import CountingStore
from tests.support.loop_workflows import noise, numbered_result
from tests.support.size_policy_workflow import STEPS, SizedLoop


async def replay_all(client: Client, plugin: EverlongPlugin, thread_id: str) -> int:
    """Replay every run of a workflow; return how many there are."""
    runs = [each async for each in client.list_workflows(f"WorkflowId = '{thread_id}'")]
    replayer = Replayer(workflows=[SizedLoop], plugins=[plugin])
    for run in runs:
        handle = client.get_workflow_handle(thread_id, run_id=run.run_id)
        await replayer.replay_workflow(await handle.fetch_history())
    return len(runs)


@pytest.mark.guarantee(113)
@pytest.mark.parametrize("cached", [1000, 0], ids=["warm", "cold at every task"])
@pytest.mark.parametrize("runner", [SandboxedWorkflowRunner(), UnsandboxedWorkflowRunner()])
async def test_a_loop_rolls_by_what_it_has_consumed_and_replays(
    server: TemporalServer, thread_id: str, runner: WorkflowRunner, cached: int
) -> None:
    plugin = EverlongPlugin(store=CountingStore())
    client = await Client.connect(server.address, plugins=[plugin])
    async with Worker(
        client,
        task_queue=thread_id,
        workflows=[SizedLoop],
        activities=[numbered_result],
        workflow_runner=runner,
        max_cached_workflows=cached,
    ):
        rolled_at = await client.execute_workflow(
            SizedLoop.run,
            args=[0, []],
            id=thread_id,
            task_queue=thread_id,
            execution_timeout=timedelta(seconds=60),
        )
    assert rolled_at == [4, 8, 12]
    assert await replay_all(client, plugin, thread_id) == 4


@pytest.mark.guarantee(113)
async def test_refused_updates_do_not_count_so_the_run_replays(
    server: TemporalServer, thread_id: str
) -> None:
    plugin = EverlongPlugin(store=CountingStore())
    client = await Client.connect(server.address, plugins=[plugin])
    handle = await client.start_workflow(
        SizedLoop.run,
        args=[STEPS - 2, [], 1],
        id=thread_id,
        task_queue=thread_id,
        execution_timeout=timedelta(seconds=60),
    )
    async with Worker(
        client, task_queue=thread_id, workflows=[SizedLoop], activities=[numbered_result]
    ):
        # With these 100,000 bytes, which no history has, the two results would be too many.
        for number in range(2):
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.execute_update(SizedLoop.note, f"refuse {noise(str(number), 50_000)}")
        assert await handle.execute_update(SizedLoop.note, "go") == 2
        assert await handle.result() == []
    assert await replay_all(client, plugin, thread_id) == 1


@pytest.mark.guarantee(113)
async def test_history_and_server_decide_without_the_plugin(
    server: TemporalServer, thread_id: str
) -> None:
    client = await Client.connect(server.address)
    async with Worker(
        client, task_queue=thread_id, workflows=[SizedLoop], activities=[numbered_result]
    ):
        rolled_at = await client.execute_workflow(
            SizedLoop.run,
            args=[STEPS - 5, []],
            id=thread_id,
            task_queue=thread_id,
            execution_timeout=timedelta(seconds=60),
        )
    # The results are in the history, which is far below its own bound.
    assert rolled_at == []
