"""A replay writes nothing, whatever the workflow does and whichever interceptors are in the chain."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.plugin import SimplePlugin
from temporalio.worker import (
    Interceptor,
    Replayer,
    StartActivityInput,
    UnsandboxedWorkflowRunner,
    Worker,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
    WorkflowRunner,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from everlong import EverlongPlugin
from everlong.embedded import TemporalServer
from tests.support.fake_stores import CountingStore
from tests.support.loop_workflows import TIMEOUT, noise

SIZE = 30_000


@activity.defn
async def measure(text: str) -> str:
    return noise(text[:30], SIZE)


@workflow.defn
class Child:
    def __init__(self) -> None:
        self._heard: list[str] = []

    @workflow.run
    async def run(self, text: str) -> str:
        await workflow.wait_condition(lambda: len(self._heard) == 2)
        return noise(text[:30] + self._heard[0][:10] + self._heard[1][:10], SIZE)

    @workflow.signal
    def hear(self, text: str) -> None:
        self._heard.append(text)


@workflow.defn(name="Everything")
class Everything:
    """Sends large values by every way out, waits, and does it again."""

    def __init__(self) -> None:
        self._going = 0
        self._done = 0
        self._text = ""

    @workflow.run
    async def run(self, text: str, rounds: int) -> str:
        self._text = text
        while self._done < rounds:
            await self._round()
            self._done += 1
            await workflow.wait_condition(lambda: self._going >= self._done)
            self.between()
        return noise(self._text[:30] + "result", SIZE)

    async def _round(self) -> None:
        results = await asyncio.gather(
            workflow.execute_activity(measure, self._text, start_to_close_timeout=TIMEOUT),
            workflow.execute_local_activity(measure, self._text, start_to_close_timeout=TIMEOUT),
        )
        child_id = f"{workflow.info().workflow_id}-child-{self._done}"
        child = await workflow.start_child_workflow(
            Child.run,
            self._text,
            id=child_id,
            memo={"parent": noise(self._text[:30] + "memo", SIZE)},
            static_details=noise(self._text[:30] + "details", 8_000),
        )
        await child.signal(Child.hear, results[0])
        await workflow.get_external_workflow_handle(child_id).signal(Child.hear, results[1])
        self._text = await child
        workflow.upsert_memo({"text": noise(self._text[:30], SIZE)})

    def between(self) -> None:
        """Break here, in a subclass."""

    @workflow.signal
    def go(self) -> None:
        self._going += 1

    @workflow.query
    def done(self) -> str:
        return f"{self._done} {self._text}"

    @workflow.update
    async def echo(self, text: str) -> str:
        await workflow.execute_activity(measure, text, start_to_close_timeout=TIMEOUT)
        return text


@workflow.defn(name="Everything")
class Broken(Everything):
    @workflow.run
    async def run(self, text: str, rounds: int) -> str:
        return await super().run(text, rounds)

    def between(self) -> None:
        raise RuntimeError("a bug, for a test")


class _TamperingOutbound(WorkflowOutboundInterceptor):
    """Reads and changes the arguments, also while replaying."""

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002
        assert len(input.args[0]) > 10, "the arguments are gone"
        input.args = [input.args[0] + "!"]
        return super().start_activity(input)


class _TamperingInbound(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_TamperingOutbound(outbound))


class TamperingInterceptor(Interceptor):
    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002
    ) -> type[WorkflowInboundInterceptor]:
        return _TamperingInbound


def other_plugin() -> SimplePlugin:
    """Another team's plugin: an interceptor, and its own passthrough in the sandbox."""

    def runner(existing: WorkflowRunner | None) -> WorkflowRunner:
        assert isinstance(existing, SandboxedWorkflowRunner | UnsandboxedWorkflowRunner)
        if isinstance(existing, UnsandboxedWorkflowRunner):
            return existing
        # As the SDK's own plugins do.
        return dataclasses.replace(
            existing, restrictions=existing.restrictions.with_passthrough_modules("json")
        )

    return SimplePlugin("test.Other", interceptors=[TamperingInterceptor()], workflow_runner=runner)


RUNNERS: dict[str, Callable[[], WorkflowRunner]] = {
    "sandboxed": lambda: SandboxedWorkflowRunner(),
    "unsandboxed": lambda: UnsandboxedWorkflowRunner(),
    "passthrough": lambda: SandboxedWorkflowRunner(
        restrictions=SandboxRestrictions.default.with_passthrough_all_modules()
    ),
}


class World:
    """A store that counts, and clients that remember nothing."""

    def __init__(self, address: str, others: str, runner: str, task_queue: str) -> None:
        self.store = CountingStore()
        self._address = address
        self._others = others
        self._runner = runner
        self._task_queue = task_queue

    def plugins(self) -> list[Any]:
        ours = EverlongPlugin(store=self.store)
        orders: dict[str, list[Any]] = {
            "alone": [ours],
            "before": [ours, other_plugin()],
            "after": [other_plugin(), ours],
        }
        return orders[self._others]

    @contextlib.asynccontextmanager
    async def cold(self, *workflows: type) -> AsyncIterator[Client]:
        client = await Client.connect(self._address, plugins=self.plugins())
        worker = Worker(
            client,
            task_queue=self._task_queue,
            workflows=[*(workflows or [Everything]), Child],
            activities=[measure],
            workflow_runner=RUNNERS[self._runner](),
        )
        async with worker:
            yield client

    async def replay(self, client: Client, thread_id: str) -> None:
        history = await client.get_workflow_handle(thread_id).fetch_history()
        await Replayer(
            workflows=[Everything, Child],
            plugins=self.plugins(),
            workflow_runner=RUNNERS[self._runner](),
        ).replay_workflow(history)

    async def start(self, client: Client, thread_id: str) -> WorkflowHandle[Any, str]:
        return await client.start_workflow(
            Everything.run,
            args=[noise("start", SIZE), 2],
            id=thread_id,
            task_queue=self._task_queue,
        )


async def wait_for_rounds(handle: WorkflowHandle[Any, Any], rounds: int) -> str:
    async with asyncio.timeout(60):
        while not (answer := await handle.query("done")).startswith(f"{rounds} "):
            await asyncio.sleep(0.05)
    return str(answer)


@pytest.mark.guarantee(28)
@pytest.mark.parametrize(
    ("others", "runner"),
    [
        ("alone", "sandboxed"),
        ("alone", "unsandboxed"),
        ("alone", "passthrough"),
        ("before", "sandboxed"),
        ("after", "sandboxed"),
        ("before", "unsandboxed"),
        ("after", "unsandboxed"),
    ],
)
async def test_a_cold_resume_a_closed_run_and_a_replayer_write_nothing(
    server: TemporalServer, thread_id: str, others: str, runner: str
) -> None:
    world = World(server.address, others, runner, f"queue-{thread_id}")
    async with world.cold() as client:
        handle = await world.start(client, thread_id)
        first = await wait_for_rounds(handle, 1)
        assert await handle.execute_update(Everything.echo, noise("update", SIZE)) == noise(
            "update", SIZE
        )
    puts = world.store.puts
    async with world.cold() as client:
        assert await client.get_workflow_handle(thread_id).query("done") == first
        assert world.store.puts == puts
    async with world.cold() as client:
        handle = client.get_workflow_handle(thread_id, result_type=str)
        await handle.signal(Everything.go)
        second = await wait_for_rounds(handle, 2)
        # One round writes the inputs, results and signals of one activity and one child, the result
        # of one local activity, memos, and details. Equal payloads in a thread are written once.
        assert puts < world.store.puts <= puts + 11
        await handle.signal(Everything.go)
        result = await handle.result()
    assert len(result) == SIZE
    puts = world.store.puts
    async with world.cold() as client:
        handle = client.get_workflow_handle(thread_id, result_type=str)
        assert await handle.query("done") == second
        await world.replay(client, thread_id)
        assert world.store.puts == puts
        assert await handle.result() == result


@workflow.defn
class Failing:
    """Rolls once, with a memo, and then fails with large details."""

    @workflow.run
    async def run(self, runs: int) -> None:
        if runs:
            workflow.continue_as_new(runs - 1, memo={"note": noise("note", SIZE)})
        raise ApplicationError("on purpose", noise("details", SIZE))

    @workflow.query
    def done(self) -> str:
        return "asked"


@pytest.mark.guarantee(28)
async def test_a_query_of_a_run_that_rolled_or_failed_writes_nothing(
    server: TemporalServer, thread_id: str
) -> None:
    world = World(server.address, "alone", "sandboxed", f"queue-{thread_id}")
    async with world.cold(Failing) as client:
        handle = await client.start_workflow(
            Failing.run, 1, id=thread_id, task_queue=f"queue-{thread_id}"
        )
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()
        assert isinstance(failure.value.cause, ApplicationError)
        assert failure.value.cause.details == (noise("details", SIZE),)
    puts = world.store.puts
    async with world.cold(Failing) as client:
        for run_id in (handle.first_execution_run_id, None):
            assert (
                await client.get_workflow_handle(thread_id, run_id=run_id).query("done") == "asked"
            )
    assert world.store.puts == puts == 2


@pytest.mark.guarantee(28)
async def test_a_workflow_continues_after_a_failed_task(
    server: TemporalServer, thread_id: str
) -> None:
    world = World(server.address, "alone", "sandboxed", f"queue-{thread_id}")
    async with world.cold() as client:
        handle = await world.start(client, thread_id)
        await wait_for_rounds(handle, 1)
    async with world.cold(Broken) as client:
        handle = client.get_workflow_handle(thread_id, result_type=str)
        await handle.signal(Everything.go)
        async with asyncio.timeout(90):
            while not await list_event_ids(handle, EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED):
                await asyncio.sleep(0.1)
    puts = world.store.puts
    async with world.cold() as client:
        handle = client.get_workflow_handle(thread_id, result_type=str)
        await wait_for_rounds(handle, 2)
        assert world.store.puts > puts
        await handle.signal(Everything.go)
        assert len(await handle.result()) == SIZE


@pytest.mark.guarantee(28)
async def test_a_reset_workflow_sends_the_same_commands(
    server: TemporalServer, thread_id: str
) -> None:
    world = World(server.address, "alone", "sandboxed", f"queue-{thread_id}")
    async with world.cold() as client:
        handle = await world.start(client, thread_id)
        await wait_for_rounds(handle, 1)
        await handle.signal(Everything.go)
        await wait_for_rounds(handle, 2)
        await handle.signal(Everything.go)
        result = await handle.result()
    async with world.cold() as client:
        handle = client.get_workflow_handle(thread_id, result_type=str)
        tasks = await list_event_ids(handle, EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED)
        # Before the first round's activity has answered: all that follows is done again.
        reset = await client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=client.namespace,
                workflow_execution=WorkflowExecution(
                    workflow_id=thread_id, run_id=(await handle.describe()).run_id
                ),
                workflow_task_finish_event_id=tasks[1],
                request_id=f"{thread_id}-reset",
                reason="a test",
            )
        )
        again = client.get_workflow_handle(thread_id, run_id=reset.run_id)
        await again.signal("go")
        await again.signal("go")
        assert await again.result() == result


async def list_event_ids(handle: WorkflowHandle[Any, Any], kind: EventType.ValueType) -> list[int]:
    return [
        event.event_id async for event in handle.fetch_history_events() if event.event_type == kind
    ]
