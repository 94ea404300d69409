"""The way back: with `mode="read"` a run that holds refs goes on offloading; new runs write plain."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.worker import Worker

from everlong import EverlongPlugin
from everlong.embedded import TemporalServer
from tests.loops import ACTIVITIES, WORKFLOWS, ListLoop, Loop, expected
from tests.stores import CountingStore

Mode = Literal["read", "write"]
REF = b"binary/everlong-ref"
OURS = {REF, b"binary/everlong"}
RUN_SECONDS_MAX = 60.0


class Fleet:
    """Processes on one server and one store, each with a plugin of its own."""

    def __init__(self, server: TemporalServer, task_queue: str) -> None:
        self.store = CountingStore()
        self.task_queue = task_queue
        self._address = server.address

    async def client(self, mode: Mode | Literal["plain"], **options: Any) -> Client:
        plugins = (
            [] if mode == "plain" else [EverlongPlugin(store=self.store, mode=mode, **options)]
        )
        return await Client.connect(self._address, plugins=plugins)

    @contextlib.asynccontextmanager
    async def worker(
        self,
        mode: Mode,
        *,
        workflows: Sequence[type] = (),
        activities: Sequence[Any] = (),
        **options: Any,
    ) -> AsyncIterator[Client]:
        client = await self.client(mode)
        async with Worker(
            client,
            task_queue=self.task_queue,
            workflows=[*WORKFLOWS, *workflows],
            activities=[*ACTIVITIES, *activities],
            **options,
        ):
            yield client

    async def start(self, mode: Mode, run: Any, *args: Any) -> WorkflowHandle[Any, Any]:
        client = await self.client(mode)
        return await client.start_workflow(
            run, args=args, id=self.task_queue, task_queue=self.task_queue
        )

    async def handle(self, mode: Mode) -> WorkflowHandle[Any, Any]:
        return (await self.client(mode)).get_workflow_handle(self.task_queue)

    async def events(self, run_id: str | None = None) -> Sequence[HistoryEvent]:
        client = await self.client("plain")
        handle = client.get_workflow_handle(self.task_queue, run_id=run_id)
        return (await handle.fetch_history()).events


@pytest.fixture
def fleet(server: TemporalServer, thread_id: str) -> Fleet:
    return Fleet(server, thread_id)


async def reach(handle: WorkflowHandle[Any, Any], steps: int) -> None:
    """Wait until a loop has made so many steps."""
    deadline = time.monotonic() + RUN_SECONDS_MAX
    while await handle.query("steps") < steps:
        assert time.monotonic() < deadline, f"step {steps} was not reached"
        await asyncio.sleep(0.05)


async def finish(handle: WorkflowHandle[Any, Any]) -> Any:
    async with asyncio.timeout(RUN_SECONDS_MAX):
        return await handle.result()


@pytest.mark.parametrize(
    "loop",
    [
        # Plain, the lists of the last 44 steps take 65 MB: the server ends a run at 50.
        pytest.param(Loop(104, 18_000, wait_at=60), id="lists of 1 to 2 MB"),
        # Plain, the list of the next step is over the server's 2 MB for a payload.
        pytest.param(Loop(46, 60_000, wait_at=36), id="a list over the payload limit"),
    ],
)
async def test_a_loop_that_holds_refs_survives_the_way_back(fleet: Fleet, loop: Loop) -> None:
    handle = await fleet.start("write", ListLoop.run, loop)
    async with fleet.worker("write"):
        await reach(handle, loop.wait_at)
    before = (await handle.describe()).raw_info
    async with fleet.worker("read"):
        handle = await fleet.handle("read")
        await handle.signal(ListLoop.go)
        result = await finish(handle)
    described = await handle.describe()
    after = described.raw_info
    assert result == expected(loop)
    assert described.status is WorkflowExecutionStatus.COMPLETED
    steps = loop.steps - loop.wait_at
    assert after.history_size_bytes - before.history_size_bytes < 4_000 * steps
