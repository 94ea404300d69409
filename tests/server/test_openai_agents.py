"""An agent framework that knows nothing of us: OpenAI Agents, with Temporal's own plugin for it.

Its loop sends the whole conversation to each model call. The model is a fake one, in this process,
and tracing is off: nothing leaves the machine.
"""

import importlib
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Replayer, Worker

from everlong import EverlongPlugin
from everlong.embedded import TemporalServer
from tests.support.fake_stores import CountingStore
from tests.support.scale import scaled

STEPS = scaled(16, 80)
STEPS_WITHOUT = scaled(12, 20)
HISTORY_BYTES_MAX = 1_500_000 * STEPS // 80
ORDERS = ["ours first", "theirs first"]


def import_loop() -> Any:
    """Import the framework when a test needs it: that takes three seconds of CPU in each process."""
    return importlib.import_module("tests.support.openai_agents_loop")


@pytest.fixture(autouse=True)
def no_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")


def connect_in_order(order: str, store: CountingStore, steps: int) -> list[Any]:
    plugins = [EverlongPlugin(store=store), import_loop().build_their_plugin(steps)]
    return plugins if order == "ours first" else plugins[::-1]


async def read(client: Client, thread_id: str, steps: int) -> WorkflowHandle[Any, Any]:
    loop = import_loop()
    async with Worker(
        client, task_queue=thread_id, workflows=[loop.Reader], activities=[loop.look_up]
    ):
        handle: WorkflowHandle[Any, Any] = await client.start_workflow(
            loop.Reader.run, "What happened?", id=thread_id, task_queue=thread_id
        )
        pages = [await loop.look_up(page) for page in range(steps - 1)]
        assert await handle.result() == loop.digest(pages)
    return handle


async def history_bytes(handle: WorkflowHandle[Any, Any]) -> int:
    description = await handle.describe()
    return description.raw_description.workflow_execution_info.history_size_bytes


# The framework takes most of the time: it validates the whole conversation at each step. So the second
# order is tried with fewer.
@pytest.mark.guarantee(26)
@pytest.mark.parametrize(("order", "steps"), [(ORDERS[0], STEPS), (ORDERS[1], STEPS // 4)])
async def test_long_runs_complete_with_a_small_history_and_replay(
    server: TemporalServer, thread_id: str, order: str, steps: int
) -> None:
    store = CountingStore()
    client = await Client.connect(server.address, plugins=connect_in_order(order, store, steps))
    handle = await read(client, thread_id, steps)
    assert await history_bytes(handle) <= HISTORY_BYTES_MAX
    assert store.puts > 0
    history = await handle.fetch_history()
    # In the other order: a replay does not depend on the order of the plugins in the worker.
    [other] = set(ORDERS) - {order}
    puts = store.puts
    replayer = Replayer(
        workflows=[import_loop().Reader], plugins=connect_in_order(other, store, steps)
    )
    await replayer.replay_workflow(history)
    assert store.puts == puts


@pytest.mark.full
async def test_without_the_plugin_fewer_steps_take_more_history(
    server: TemporalServer, thread_id: str
) -> None:
    client = await Client.connect(
        server.address, plugins=[import_loop().build_their_plugin(STEPS_WITHOUT)]
    )
    handle = await read(client, thread_id, STEPS_WITHOUT)
    assert await history_bytes(handle) > max(10_000 * STEPS_WITHOUT**2, 2 * HISTORY_BYTES_MAX)
