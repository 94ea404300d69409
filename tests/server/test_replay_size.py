"""No workflow is terminated for the size of what a replay, or a task taken for one, keeps inline.

The server terminates a workflow whose task completion has more than 4 MB. 30 inputs of 200 KB are 6 MB.
"""

import asyncio
import hashlib
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.worker import Worker

from everlong import EverlongPlugin, limits
from everlong.embedded import TemporalServer
from everlong.interceptors.activation import RunAheadDetector
from tests.support.fake_stores import CountingStore

SIZE = 200_000
INPUTS = 30
TIMEOUT = timedelta(seconds=60)


def random_bytes(seed: str) -> bytes:
    """Return bytes that no compression makes smaller."""
    return hashlib.shake_256(seed.encode()).digest(SIZE)


@activity.defn
async def measure(data: bytes) -> int:
    return len(data)


async def fan(name: str, count: int) -> int:
    """Send large inputs to activities, all in one task."""
    measured = [
        workflow.execute_activity(
            measure, random_bytes(f"{name} {n}"), start_to_close_timeout=TIMEOUT
        )
        for n in range(count)
    ]
    return sum(await asyncio.gather(*measured))


@workflow.defn(name="Fans")
class Old:
    """Does one step, then waits for a signal that it does not get."""

    def __init__(self) -> None:
        self.woken = False

    @workflow.run
    async def run(self, first: int, second: int) -> int:
        await fan("step", 1)
        await workflow.wait_condition(lambda: False)
        return 0

    @workflow.signal
    def wake(self) -> None:
        self.woken = True


@workflow.defn(name="Fans")
class New(Old):
    """Goes further than the old code, in the task that the old code had completed."""

    @workflow.run
    async def run(self, first: int, second: int) -> int:
        await fan("step", 1)
        at_once = asyncio.create_task(fan("first", first))
        if second:
            await workflow.wait_condition(lambda: self.woken)
        return await fan("second", second) + await at_once


async def start(
    client: Client, thread_id: str, first: int, second: int
) -> WorkflowHandle[Any, int]:
    return await client.start_workflow(
        "Fans", args=[first, second], id=thread_id, task_queue=thread_id, result_type=int
    )


async def completed_events(handle: WorkflowHandle[Any, Any]) -> int:
    return sum(
        [
            event.HasField("workflow_task_completed_event_attributes")
            async for event in handle.fetch_history_events()
        ]
    )


async def outcome(handle: WorkflowHandle[Any, Any]) -> tuple[str, int]:
    """Wait until a workflow is closed; return its status and the bytes of its history."""
    async with asyncio.timeout(60):
        while True:
            description = await handle.describe()
            if description.status != WorkflowExecutionStatus.RUNNING:
                break
            await asyncio.sleep(0.1)
    assert description.status is not None
    info = description.raw_description.workflow_execution_info
    return description.status.name, info.history_size_bytes


@pytest.mark.guarantee(27)
@pytest.mark.parametrize("cause", ["the server's clock has stepped back", "a wrong suspicion"])
async def test_a_live_task_mistaken_for_a_replay_is_not_terminated(
    server: TemporalServer, thread_id: str, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    noticed = RunAheadDetector.observe
    first_time: dict[int, int] = {}

    def clock_stepped_back(self: RunAheadDetector, activation: WorkflowActivation) -> bool:
        """Give all activations of an instance one time, as Core does until the clock catches up."""
        if activation.HasField("timestamp"):
            now = activation.timestamp.ToNanoseconds()
            activation.timestamp.FromNanoseconds(first_time.setdefault(id(self), now))
        return noticed(self, activation)

    is_clock = cause.startswith("the server")
    monkeypatch.setattr(
        RunAheadDetector,
        "observe",
        clock_stepped_back if is_clock else lambda self, activation: True,
    )
    store = CountingStore()
    client = await Client.connect(server.address, plugins=[EverlongPlugin(store=store)])
    async with Worker(client, task_queue=thread_id, workflows=[New], activities=[measure]):
        handle = await start(client, thread_id, INPUTS, 0)
        status, history_bytes = await outcome(handle)
    assert status == "COMPLETED"
    assert await handle.result() == INPUTS * SIZE
    if is_clock:
        # Core's times say nothing about a query, so all inputs go to the store.
        assert history_bytes < 50_000
        assert store.puts == INPUTS + 1
    else:
        assert history_bytes < limits.COMPLETION_BYTES_MAX + 50_000


@pytest.mark.guarantee(27)
@pytest.mark.parametrize(
    ("first", "second"), [(INPUTS, 0), (INPUTS // 2, INPUTS // 2)], ids=["at once", "with a task"]
)
async def test_new_code_over_a_history_that_was_not_read_is_not_terminated(
    server: TemporalServer,
    thread_id: str,
    monkeypatch: pytest.MonkeyPatch,
    first: int,
    second: int,
) -> None:
    """Core keeps what the replay issues, and sends it together with the task that follows."""
    store = CountingStore()

    async def connect() -> Client:
        # Live tasks keep such inputs inline too, up to their bound.
        plugin = EverlongPlugin(store=store, inline_bytes_max=limits.FALLBACK_BYTES_MAX)
        return await Client.connect(server.address, plugins=[plugin])

    client = await connect()
    async with Worker(client, task_queue=thread_id, workflows=[Old], activities=[measure]):
        handle = await start(client, thread_id, first, second)
        async with asyncio.timeout(90):
            while await completed_events(handle) < 2:
                await asyncio.sleep(0.05)
    # As for the 129th workflow that resumes at once.
    monkeypatch.setattr(limits, "PREFETCHES_MAX", 0)
    client = await connect()
    async with Worker(client, task_queue=thread_id, workflows=[New], activities=[measure]):
        handle = client.get_workflow_handle(thread_id, result_type=int)
        await handle.signal("wake")
        status, history_bytes = await outcome(handle)
        assert status == "COMPLETED"
        assert await handle.result() == INPUTS * SIZE
    assert history_bytes < limits.COMPLETION_BYTES_MAX + SIZE + 50_000
    assert store.puts > 0
