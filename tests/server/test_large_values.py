"""Large values on every path through Temporal: each returns whole, and history holds only a ref."""

import asyncio
import dataclasses
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import (
    AsyncActivityHandle,
    Client,
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleSpec,
    ScheduleState,
    ScheduleUpdate,
    ScheduleUpdateInput,
    WithStartWorkflowOperation,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.common import WorkflowIDConflictPolicy as OnConflict
from temporalio.converter import ActivitySerializationContext
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from everlong import EverlongPlugin
from everlong.embedded import TemporalServer
from tests.support import payload_workflows
from tests.support.fake_stores import CountingStore
from tests.support.payload_workflows import Value, letters, noise

HISTORY_BYTES_MAX = 20_000
DEADLINE_SECONDS = 90
RUN_SECONDS_MAX = timedelta(seconds=60)


@dataclasses.dataclass
class Road:
    """One workflow id of one test, and what it may use."""

    client: Client
    queue: str
    id: str
    value: Value
    ids: set[str] = dataclasses.field(default_factory=set)

    async def start(self, run: Any, *args: Any, suffix: str = "", **options: Any) -> Any:
        self.ids.add(self.id + suffix)
        return await self.client.start_workflow(
            run,
            args=args,
            id=self.id + suffix,
            task_queue=self.queue,
            execution_timeout=RUN_SECONDS_MAX,
            **options,
        )

    async def result(self, run: Any, *args: Any, **options: Any) -> Any:
        return await (await self.start(run, *args, **options)).result()

    @property
    def back(self) -> Value:
        return self.value[::-1]


async def workflow_input_and_result(road: Road) -> None:
    assert await road.result(payload_workflows.Echo.run, road.value) == road.value


async def several_arguments(road: Road) -> None:
    args = [road.back, "small", road.value]
    assert await road.result(payload_workflows.Pick.run, 2, *args) == road.value


async def activity_input_and_result(road: Road) -> None:
    assert await road.result(payload_workflows.OneActivity.run, "echo", road.value) == road.value


async def local_activity(road: Road) -> None:
    assert await road.result(payload_workflows.OneLocalActivity.run, road.value) == road.value


async def child_workflow(road: Road) -> None:
    road.ids.add(f"{road.id}-child")
    assert await road.result(payload_workflows.Parent.run, road.value) == road.value


async def dynamic_workflow_and_activity(road: Road) -> None:
    assert await road.result("of no known name", road.value) == road.back


async def signal(road: Road) -> None:
    mailbox = await road.start(payload_workflows.Mailbox.run)
    await mailbox.signal(payload_workflows.Mailbox.put, road.value)
    assert await mailbox.result() == road.value


async def signal_with_start(road: Road) -> None:
    put = {"start_signal": "put", "start_signal_args": [road.value]}
    assert await road.result(payload_workflows.Mailbox.run, **put) == road.value


async def external_signal(road: Road) -> None:
    mailbox = await road.start(payload_workflows.Mailbox.run)
    await road.result(payload_workflows.Sender.run, road.id, road.value, suffix="-sender")
    assert await mailbox.result() == road.value


async def query_argument_and_result(road: Road) -> None:
    mailbox = await road.start(payload_workflows.Mailbox.run)
    assert await mailbox.query(payload_workflows.Mailbox.reverse, road.value) == road.back
    await mailbox.terminate()


async def update_argument_and_result(road: Road) -> None:
    mailbox = await road.start(payload_workflows.Mailbox.run)
    assert await mailbox.execute_update(payload_workflows.Mailbox.exchange, road.value) == road.back
    assert await mailbox.result() == road.value


async def update_with_start(road: Road) -> None:
    road.ids.add(road.id)
    start: Any = WithStartWorkflowOperation(
        payload_workflows.Mailbox.run,
        id=road.id,
        task_queue=road.queue,
        id_conflict_policy=OnConflict.FAIL,
    )
    assert road.back == await road.client.execute_update_with_start_workflow(
        payload_workflows.Mailbox.exchange, road.value, start_workflow_operation=start
    )
    assert await (await start.workflow_handle()).result() == road.value


async def memo_at_start_and_upserted(road: Road) -> None:
    handle = await road.start(payload_workflows.Remember.run, memo={"before": road.value})
    assert await handle.result() == road.value
    memo = await (await handle.describe()).memo()
    assert memo == {"before": road.value, "after": road.value}


async def continue_as_new(road: Road) -> None:
    assert await road.result(payload_workflows.Again.run, road.value, 2) == road.value


async def activity_failure_details(road: Road) -> None:
    assert await road.result(payload_workflows.OneActivity.run, "refuse", road.value) == road.value


async def workflow_failure_details(road: Road) -> None:
    with pytest.raises(WorkflowFailureError) as failed:
        await road.result(payload_workflows.Failing.run, road.value)
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.details == (road.value,)


async def heartbeat_details(road: Road) -> None:
    handle = await road.start(payload_workflows.OneActivity.run, "beat", road.value)
    pending = await pending_activity(handle, lambda info: bool(info.heartbeat_details.payloads))
    assert pending.ByteSize() < HISTORY_BYTES_MAX
    assert await handle.result() == road.value


async def async_completion(road: Road) -> None:
    handle, _, deferred = await deferred_activity(road)
    await deferred.complete(road.back)
    assert await handle.result() == road.back


async def async_completion_with_context(road: Road) -> None:
    handle, context, deferred = await deferred_activity(road)
    await deferred.with_context(context).complete(road.back)
    assert await handle.result() == road.back


async def async_failure(road: Road) -> None:
    handle, _, deferred = await deferred_activity(road)
    await deferred.fail(ApplicationError("no", road.back, type="Refused"))
    assert await handle.result() == road.back


async def async_failure_with_context(road: Road) -> None:
    handle, context, deferred = await deferred_activity(road)
    error = ApplicationError("no", road.back, type="Refused")
    await deferred.with_context(context).fail(error)
    assert await handle.result() == road.back


async def schedule(road: Road) -> None:
    action = ScheduleActionStartWorkflow(
        payload_workflows.Last.run,
        road.value,
        id=road.id,
        task_queue=road.queue,
        memo={"of the workflow": road.value},
    )
    scheduled = await road.client.create_schedule(
        f"{road.id}-schedule",
        Schedule(action=action, spec=ScheduleSpec(), state=ScheduleState(paused=True)),
        memo={"of the schedule": road.value},
    )
    try:
        # The update sends back the described payloads, which must not be encoded twice.
        await scheduled.update(_update_note)
        described = await scheduled.describe()
        assert described.raw_description.ByteSize() < HISTORY_BYTES_MAX
        assert await described.memo() == {"of the schedule": road.value}
        assert isinstance(described.schedule.action, ScheduleActionStartWorkflow)
        payloads: Any = described.schedule.action.args
        assert await road.client.data_converter.decode(payloads) == [road.value]
        for count, result in enumerate([road.value, road.back], start=1):
            await scheduled.trigger()
            started = await nth_start(scheduled, count)
            road.ids.add(started)
            handle = road.client.get_workflow_handle(started)
            assert await handle.result() == result
            assert await (await handle.describe()).memo_value("of the workflow") == road.value
    finally:
        await scheduled.delete()


def _update_note(described: ScheduleUpdateInput) -> ScheduleUpdate:
    described.description.schedule.state.note = "updated"
    return ScheduleUpdate(described.description.schedule)


async def nth_start(scheduled: Any, count: int) -> str:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        actions = (await scheduled.describe()).info.recent_actions
        if len(actions) >= count:
            started = actions[-1].action
            assert isinstance(started, ScheduleActionExecutionStartWorkflow)
            return started.workflow_id
        await asyncio.sleep(0.1)
    raise AssertionError(f"the schedule has not started its workflow {count} times")


async def pending_activity(
    handle: WorkflowHandle[Any, Any], ready: Callable[[PendingActivityInfo], bool]
) -> PendingActivityInfo:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        for info in (await handle.describe()).raw_description.pending_activities:
            if ready(info):
                return info
        await asyncio.sleep(0.05)
    raise AssertionError("no activity is pending as expected")


async def deferred_activity(
    road: Road,
) -> tuple[WorkflowHandle[Any, Any], ActivitySerializationContext, AsyncActivityHandle]:
    handle = await road.start(payload_workflows.OneActivity.run, "defer", road.value)
    pending = await pending_activity(handle, lambda info: info.HasField("last_started_time"))
    deferred = road.client.get_async_activity_handle(
        workflow_id=road.id, run_id=handle.first_execution_run_id, activity_id=pending.activity_id
    )
    context = ActivitySerializationContext(
        namespace=road.client.namespace,
        activity_id=pending.activity_id,
        activity_type="defer",
        activity_task_queue=road.queue,
        workflow_id=road.id,
        workflow_type="OneActivity",
        is_local=False,
    )
    return handle, context, deferred


CASES: list[Callable[[Road], Awaitable[None]]] = [
    activity_failure_details,
    activity_input_and_result,
    async_completion,
    async_completion_with_context,
    async_failure,
    async_failure_with_context,
    child_workflow,
    continue_as_new,
    dynamic_workflow_and_activity,
    external_signal,
    heartbeat_details,
    local_activity,
    memo_at_start_and_upserted,
    query_argument_and_result,
    schedule,
    several_arguments,
    signal,
    signal_with_start,
    update_argument_and_result,
    update_with_start,
    workflow_failure_details,
    workflow_input_and_result,
]


@dataclasses.dataclass
class Site:
    """A running worker with all workflows, and a client, which share a store."""

    client: Client
    queue: str
    store: CountingStore


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(server: TemporalServer) -> AsyncIterator[Site]:
    store = CountingStore()
    queue = f"queue-{uuid.uuid4().hex[:8]}"
    # Each has a plugin of its own, as in processes of their own.
    ours = await Client.connect(server.address, plugins=[EverlongPlugin(store=store)])
    theirs = await Client.connect(server.address, plugins=[EverlongPlugin(store=store)])
    async with Worker(
        theirs,
        task_queue=queue,
        workflows=payload_workflows.WORKFLOWS,
        activities=payload_workflows.ACTIVITIES,
    ):
        yield Site(ours, queue, store)


async def history_bytes(client: Client, workflow_id: str) -> int:
    """Return the bytes of the largest history in a chain of runs."""
    largest = 0
    run_id: str | None = None
    for _ in range(10):
        history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        largest = max(largest, sum(event.ByteSize() for event in history.events))
        first = history.events[0].workflow_execution_started_event_attributes
        run_id = first.continued_execution_run_id
        if not run_id:
            return largest
    raise AssertionError("more runs than any test makes")


@pytest.mark.guarantee(25)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("kind", ["text", "bytes"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_a_large_value_comes_back_and_is_not_in_history(
    site: Site, case: Callable[[Road], Awaitable[None]], kind: str
) -> None:
    seed = f"{case.__name__} {kind}"
    value = letters(seed) if kind == "text" else noise(seed)
    road = Road(site.client, site.queue, f"edge-{uuid.uuid4().hex[:8]}", value)
    puts = site.store.puts
    await case(road)
    assert site.store.puts > puts
    for workflow_id in road.ids:
        assert await history_bytes(site.client, workflow_id) < HISTORY_BYTES_MAX
