"""`ask` waits by the update that carries its message: what completes the update, and what it costs."""

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    ResetWorkflowExecutionRequest,
)
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowUpdateStage
from temporalio.service import RPCError
from temporalio.worker import Replayer

from everlong import EverlongPlugin, Policy, ask, limits
from everlong.client.status import list_pending, read_status
from everlong.client.thread import ThreadHandle
from everlong.client.wait import wait_for_progress
from everlong.embedded import TemporalServer
from everlong.errors import MessageRefused, NotAnswered, ThreadNotFound, ThreadPaused
from everlong.models import SEND_UPDATE, SendMessage, TurnEnd
from everlong.storage import BlobStore
from everlong.storage.memory import MemoryBlobStore
from everlong.workflows import AgentWorkflow
from tests.server.test_ask import ask_ops, wait_until_pending
from tests.server.test_diagnosis import CallCounter
from tests.support.governed_agent import build_governed_agent
from tests.support.scripted_agents import pages_answer, reading_agent
from tests.support.threads import Threads, open_threads

_ACCEPTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED
_COMPLETED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED


async def updates(client: Client, thread_id: str) -> tuple[int, int]:
    """How many updates the newest run has accepted, and completed."""
    history = await client.get_workflow_handle(thread_id).fetch_history()
    found = collections.Counter(event.event_type for event in history.events)
    return found[_ACCEPTED], found[_COMPLETED]


@contextlib.asynccontextmanager
async def open_waiting_caller(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> AsyncIterator[tuple[Threads, "asyncio.Task[str]"]]:
    """A caller that waits by its update, because the thread waits for a person."""
    async with (
        open_threads(server.address, store, build_governed_agent()) as threads,
        threads.worker(),
    ):
        asking = asyncio.create_task(ask_ops(threads, thread_id, "restart api"))
        await wait_until_pending(threads, thread_id)
        assert await updates(threads.client, thread_id) == (1, 0)
        yield threads, asking


async def approve(threads: Threads, thread_id: str) -> None:
    [approval] = await list_pending(threads.client, thread_id)
    await ThreadHandle(threads.client, thread_id).decide(approval.id, approve=True, by="ann")


async def reset(client: Client, thread_id: str) -> None:
    """Set a thread back to after its first task."""
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=thread_id),
            workflow_task_finish_event_id=4,
            request_id=thread_id,
            reason="test",
        )
    )


@pytest.mark.guarantee(43)
async def test_waiting_for_a_turn_of_ten_steps_takes_a_few_requests(
    server: TemporalServer, store: BlobStore, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        open_threads(server.address, store, reading_agent(10)) as threads,
        threads.worker(),
    ):
        counting = CallCounter(threads.client.workflow_service)
        monkeypatch.setattr(Client, "workflow_service", counting)
        assert await ask_ops(threads, thread_id, "read") == pages_answer(10)
        monkeypatch.undo()
        made = collections.Counter(counting.calls)
        # A slow machine may take a second poll, and 3 s for a turn, after which it is diagnosed.
        assert made["execute_multi_operation"] == 1
        assert 1 <= made["poll_workflow_execution_update"] <= 3
        assert made["get_workflow_execution_history"] == 0
        assert made["query_workflow"] == 0
        assert sum(made.values()) <= 8
        assert await updates(threads.client, thread_id) == (1, 1)


@pytest.mark.guarantee(43)
async def test_many_callers_of_one_thread_do_not_block_decisions(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_waiting_caller(server, store, thread_id) as (threads, asking):
        more = [
            asyncio.create_task(ask_ops(threads, thread_id, f"hello {number}"))
            for number in range(11)
        ]
        async with asyncio.timeout(60):
            while (await updates(threads.client, thread_id))[0] < 12:
                await asyncio.sleep(0.1)
        assert await updates(threads.client, thread_id) == (12, 12 - limits.UPDATES_WAITING_MAX)
        await approve(threads, thread_id)
        assert await asking == "api is up"
        answers = {await each for each in more}
        assert answers == {f"you said hello {number}" for number in range(11)}


async def test_a_pause_ends_the_wait_after_the_step(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_waiting_caller(server, store, thread_id) as (threads, asking):
        await ThreadHandle(threads.client, thread_id).pause(by="ann", reason="lunch")
        with pytest.raises(ThreadPaused, match=r"by ann: lunch.*Message 1 stays queued"):
            await asking
        assert await updates(threads.client, thread_id) == (1, 1)


async def test_a_cancelled_thread_completes_the_update_and_replays(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_waiting_caller(server, store, thread_id) as (threads, asking):
        handle = threads.client.get_workflow_handle(thread_id)
        await handle.cancel()
        with pytest.raises(NotAnswered, match="has ended before that: canceled"):
            await asking
        assert await updates(threads.client, thread_id) == (1, 1)
        replayer = Replayer(
            workflows=[AgentWorkflow], plugins=[EverlongPlugin(store=MemoryBlobStore())]
        )
        await replayer.replay_workflow(await handle.fetch_history())


async def test_a_terminated_thread_is_reported_though_its_update_is_lost(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_waiting_caller(server, store, thread_id) as (threads, asking):
        await threads.client.get_workflow_handle(thread_id).terminate("test")
        async with asyncio.timeout(10):
            with pytest.raises(NotAnswered, match="has ended before that: terminated"):
                await asking


async def test_a_thread_that_is_deleted_is_not_started_again(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_waiting_caller(server, store, thread_id) as (threads, asking):
        execution = WorkflowExecution(workflow_id=thread_id)
        await threads.client.workflow_service.delete_workflow_execution(
            DeleteWorkflowExecutionRequest(
                namespace=threads.client.namespace, workflow_execution=execution
            )
        )
        async with asyncio.timeout(30):
            with pytest.raises((NotAnswered, ThreadNotFound)):
                await asking
        with contextlib.suppress(RPCError):  # It may be deleted by now.
            found = await threads.client.get_workflow_handle(thread_id).describe()
            assert found.status != WorkflowExecutionStatus.RUNNING


@pytest.mark.guarantee(43)
async def test_a_wait_follows_a_reset_thread_that_keeps_one_message(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_waiting_caller(server, store, thread_id) as (threads, asking):
        await reset(threads.client, thread_id)
        await wait_until_pending(threads, thread_id)
        await approve(threads, thread_id)
        assert await asking == "api is up"
        status = await read_status(threads.client, thread_id)
        assert (status.counters.messages, status.counters.answered) == (1, 1)


async def test_a_worker_without_a_cache_completes_the_update(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    agent = reading_agent(4)
    async with (
        open_threads(server.address, store, agent) as threads,
        threads.worker(max_cached_workflows=0),
    ):
        assert await ask_ops(threads, thread_id, "read") == pages_answer(4)
        assert await updates(threads.client, thread_id) == (1, 1)


async def test_a_roll_completes_updates_that_wait_for_later_turns(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    agent = reading_agent(3, policy=Policy(run_events_max=50))
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        answers = await asyncio.gather(*(ask_ops(threads, thread_id, f"r {n}") for n in range(4)))
        assert set(answers) == {pages_answer(3)}
        status = await read_status(threads.client, thread_id)
        assert (status.counters.messages, status.counters.answered) == (4, 4)
        assert status.counters.runs >= 2


async def test_a_refusal_reaches_the_caller(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with (
        open_threads(server.address, store, build_governed_agent()) as threads,
        threads.worker(),
    ):
        await threads.send(thread_id, "hello")
        with pytest.raises(MessageRefused, match="this thread runs agent 'ops', not 'other'"):
            await ask(
                threads.client,
                thread_id,
                "hello",
                agent="other",
                task_queue=threads.task_queue,
                seconds_max=20,
            )


async def test_messages_are_counted_before_their_updates_complete(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_waiting_caller(server, store, thread_id) as (threads, asking):
        assert await threads.send(thread_id, "hello") == 2
        handle = threads.client.get_workflow_handle(thread_id)
        again = await handle.start_update(
            SEND_UPDATE,
            SendMessage(text="hello", until_answered=True),
            wait_for_stage=WorkflowUpdateStage.ACCEPTED,
            result_type=TurnEnd,
        )
        seen = await wait_for_progress(
            threads.client, thread_id, lambda progress: progress.messages == 3, seconds_max=20
        )
        assert (seen.status, seen.answered) == ("approval", 0)
        await approve(threads, thread_id)
        ended = await again.result()
        assert (ended.number, ended.head is None) == (3, False)
        assert await asking == "api is up"
