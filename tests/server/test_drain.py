"""The way back: with `mode="read"` a run that holds refs goes on offloading; new runs write plain."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from everlong import EverlongPlugin, limits
from everlong.embedded import TemporalServer
from everlong.models import DRAIN_HEADER
from tests.support.drain_workflows import SIZE, Feeder, Returner
from tests.support.fake_stores import CountingStore
from tests.support.loop_workflows import (
    ACTIVITIES,
    WORKFLOWS,
    ListLoop,
    Loop,
    RollingLoop,
    compute_expected,
    digest,
    noise,
)
from tests.support.payload_workflows import find_payloads, list_encodings

Mode = Literal["read", "write"]
REF = b"binary/everlong-ref"
OURS = {REF, b"binary/everlong"}
FEEDER: list[type] = [Feeder, Returner]
RUN_SECONDS_MAX = 120.0
AT_REST = ("workflow_task_completed", "workflow_execution_completed")
RESULTS = (
    "activity_task_completed",
    "marker_recorded",
    "child_workflow_execution_completed",
)


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


async def reach_results(fleet: Fleet, count: int) -> None:
    """Wait until a `Feeder` has taken so many results.

    Without queries: those race with the tasks of cold runs. And at rest: a task that a stopped worker
    was given is given to another after 10 s.
    """
    deadline = time.monotonic() + RUN_SECONDS_MAX
    while time.monotonic() < deadline:
        events = await fleet.events()
        if sum(map(has_result, events)) >= count and get_kind(events[-1]) in AT_REST:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"result {count} was not reached")


def has_result(event: HistoryEvent) -> bool:
    return get_kind(event) in RESULTS


def get_kind(event: HistoryEvent) -> str:
    return (event.WhichOneof("attributes") or "").removesuffix("_event_attributes")


async def finish(handle: WorkflowHandle[Any, Any]) -> Any:
    async with asyncio.timeout(RUN_SECONDS_MAX):
        return await handle.result()


@pytest.mark.guarantee(33)
@pytest.mark.parametrize(
    "loop",
    [
        # Plain, the lists of the last 44 steps take 65 MB: the server ends a run at 50.
        pytest.param(Loop(104, 18_000, wait_at=60), id="lists of 1 to 2 MB"),
        # Plain, the list of the next step is over the server's 2 MB for a payload.
        pytest.param(Loop(46, 60_000, wait_at=36), id="a list over the payload limit"),
    ],
)
async def test_a_loop_with_refs_survives_the_rollback(fleet: Fleet, loop: Loop) -> None:
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
    assert result == compute_expected(loop)
    assert described.status is WorkflowExecutionStatus.COMPLETED
    steps = loop.steps - loop.wait_at
    assert after.history_size_bytes - before.history_size_bytes < 4_000 * steps


class ForeignRunner(UnsandboxedWorkflowRunner):
    """A team's own runner, which gets no activation hook."""


async def test_a_loop_survives_the_rollback_without_an_activation_hook(fleet: Fleet) -> None:
    # Plain, the list of the next step is over the server's 2 MB for a payload.
    loop = Loop(38, 60_000, wait_at=36)
    handle = await fleet.start("write", ListLoop.run, loop)
    async with fleet.worker("write"):
        await reach(handle, loop.wait_at)
    async with fleet.worker("read", workflow_runner=ForeignRunner()):
        handle = await fleet.handle("read")
        await handle.signal(ListLoop.go)
        async with asyncio.timeout(90):
            assert await handle.result() == compute_expected(loop)


@pytest.mark.guarantee(33)
@pytest.mark.parametrize(
    ("cached", "prefetches"),
    [(1000, 128), (0, 0)],
    ids=["warm", "cold at every task, beyond the prefetches"],
)
async def test_a_ref_in_a_recorded_input_is_enough_for_a_cold_run_to_drain(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, cached: int, prefetches: int
) -> None:
    handle = await fleet.start("write", Feeder.run, True, 2)
    async with fleet.worker("write", workflows=FEEDER):
        await reach(handle, 1)
    fed = len(await fleet.events())
    monkeypatch.setattr(limits, "PREFETCHES_MAX", prefetches)
    handle = await fleet.handle("read")
    # The second worker knows nothing of what the first has seen, as after a crash.
    for rounds in (1, 2):
        async with fleet.worker("read", workflows=FEEDER, max_cached_workflows=cached):
            await handle.signal(Feeder.go)
            await reach_results(fleet, 1 + 4 * rounds)
    assert await finish_with(fleet, handle) == [SIZE] * 9
    results = result_encodings((await fleet.events())[fed:])
    assert results == {
        "activity_task_completed": [REF, REF],
        "marker_recorded": [REF, REF],
        "child_workflow_execution_completed": [REF] * 4,
    }
    # A replayer adds no headers to commands: Core does not compare them with those in the history.
    puts = fleet.store.puts
    assert any(DRAIN_HEADER in str(event) for event in await fleet.events())
    plugin = EverlongPlugin(store=fleet.store, mode="read")
    replayer = Replayer(workflows=FEEDER, plugins=[plugin])
    await replayer.replay_workflow(await handle.fetch_history())
    assert fleet.store.puts == puts


async def finish_with(fleet: Fleet, handle: WorkflowHandle[Any, Any]) -> Any:
    async with fleet.worker("read", workflows=FEEDER):
        return await finish(handle)


def result_encodings(events: Sequence[HistoryEvent]) -> dict[str, list[bytes]]:
    """Return the encodings of large results by the kind of event."""
    found: dict[str, list[bytes]] = {}
    for event in filter(has_result, events):
        payloads = find_payloads(event)
        # A marker also holds Core's own data about a local activity.
        large = [
            each for each in payloads if each.metadata["encoding"] in OURS or len(each.data) > SIZE
        ]
        found.setdefault(get_kind(event), []).extend(each.metadata["encoding"] for each in large)
    return found


@pytest.mark.guarantee(33)
@pytest.mark.parametrize("prefetches", [128, 0], ids=["prefetched", "beyond the prefetches"])
async def test_a_run_without_refs_writes_plain_warm_and_cold(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, prefetches: int
) -> None:
    monkeypatch.setattr(limits, "PREFETCHES_MAX", prefetches)
    handle = await fleet.start("read", Feeder.run, True, 2)
    for rounds, cached in ((1, 1000), (2, 0)):
        async with fleet.worker("read", workflows=FEEDER, max_cached_workflows=cached):
            await handle.signal(Feeder.go)
            await reach_results(fleet, 1 + 4 * rounds)
    assert await finish_with(fleet, handle) == [SIZE] * 9
    assert fleet.store.puts == 0
    assert not list_encodings(await fleet.events()) & OURS
    assert not any(DRAIN_HEADER in str(event) for event in await fleet.events())


@pytest.mark.guarantee(33)
async def test_a_child_of_a_draining_run_holds_no_ref_but_its_result(fleet: Fleet) -> None:
    handle = await fleet.start("write", Feeder.run, True, 1)
    async with fleet.worker("write", workflows=FEEDER):
        await reach(handle, 1)
    async with fleet.worker("read", workflows=FEEDER):
        await handle.signal(Feeder.go)
        await finish(handle)
    events = await fleet.events()
    started = [
        event.child_workflow_execution_started_event_attributes.workflow_execution
        for event in events
        if event.HasField("child_workflow_execution_started_event_attributes")
    ]
    client = await fleet.client("plain")
    for each in started:
        child = client.get_workflow_handle(each.workflow_id)
        history = (await child.fetch_history()).events
        assert list_encodings(history[-1:]) == {REF}
        assert not list_encodings(history[:-1]) & OURS


@pytest.mark.guarantee(33)
@pytest.mark.parametrize(
    ("first_bytes", "steps", "drained"),
    [
        # The first run holds a ref, its start argument, and hands on less than 64 KiB.
        pytest.param(20_000, 3, True, id="small enough"),
        pytest.param(90_000, 3, False, id="too large"),
    ],
)
async def test_the_next_run_is_plain_if_its_input_is_small(
    fleet: Fleet, first_bytes: int, steps: int, drained: bool
) -> None:
    first = noise("first", first_bytes)
    handle = await fleet.start("write", RollingLoop.run, Loop(steps, 18_000), [first])
    first_run = handle.result_run_id
    async with fleet.worker("read"):
        result = await finish(await fleet.handle("read"))
    assert result == digest([first, *(noise(f"result {at}", 18_000) for at in range(1, steps))])
    assert list_encodings(await fleet.events(first_run)) & {REF}
    second = (await fleet.events(first_run))[
        -1
    ].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    for run_id in (second, None):
        ours = list_encodings(await fleet.events(run_id)) & OURS
        assert bool(ours) is not drained
