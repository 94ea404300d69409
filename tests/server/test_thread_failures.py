"""Failures within a thread: invalid text, failing tools, cancellations and missing workers."""

import asyncio
import os
import time
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from everlong import Agent, Policy, Reply, limits, tool
from everlong.client import lookup, status
from everlong.client.lookup import find_previous_run
from everlong.client.status import read_status
from everlong.client.updates import send
from everlong.client.wait import find_answer as read_answer
from everlong.client.wait import wait_for_status
from everlong.embedded import TemporalServer
from everlong.errors import NotAnswered, NoWorker
from everlong.models import STOP_SIGNAL, Message, ThreadStatus, ToolCall
from everlong.storage import BlobStore
from everlong.testing import ScriptedModel
from tests.support.scripted_agents import build_one_call_model, call, reading_agent, results
from tests.support.threads import Threads, open_threads


async def ask(threads: Threads, thread_id: str) -> str:
    number = await threads.send(thread_id, "go")
    await threads.wait_for_answers(thread_id, number)
    return read_answer(await threads.conversation(thread_id), number)


@pytest.mark.guarantee(50)
async def test_text_that_cannot_be_stored_is_repaired(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    @tool
    def read_bytes() -> str:
        """Read a file that is not UTF-8."""
        return os.fsdecode(b"caf\xe9 \xff")

    agent = Agent(name="ops", model=build_one_call_model("read_bytes"), tools=[read_bytes])
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        assert await ask(threads, thread_id) == "caf? ?"


async def test_the_model_reads_that_a_result_exceeded_its_bound(
    server: TemporalServer, store: BlobStore, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TEXT_BYTES_MAX", 1000)

    @tool
    def read_all() -> str:
        """Read everything."""
        return "x" * 1001

    agent = Agent(name="ops", model=build_one_call_model("read_all"), tools=[read_all])
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        assert "has at least 1001 bytes; the maximum is 1000" in await ask(threads, thread_id)


@pytest.mark.guarantee(49)
async def test_a_hanging_or_exiting_tool_is_abandoned_and_blocks_no_other(
    server: TemporalServer, store: BlobStore, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CALL_SECONDS_MAX", 0.5)

    @tool(attempts_max=1, effects="repeatable")
    def hang() -> str:
        """Take too long."""
        time.sleep(3)
        return "late"

    @tool(attempts_max=1)
    def leave() -> str:
        """Exit."""
        raise SystemExit(3)

    for each in (hang, leave):
        agent = Agent(name="ops", model=build_one_call_model(each.name), tools=[each])
        async with open_threads(server.address, store, agent) as threads, threads.worker():
            answer = await ask(threads, f"{thread_id}-{each.name}")
            assert answer.startswith(f"error: tool '{each.name}' failed: ")


async def test_a_reply_with_impossible_calls_ends_the_turn_with_a_reason(
    server: TemporalServer, store: BlobStore, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everlong.workflows.thread._MODEL", RetryPolicy(maximum_attempts=1))
    bad = {
        "many": tuple(call(i, "x") for i in range(limits.TOOL_CALLS_MAX + 1)),
        "same": (call(0, "x"), call(0, "x")),
        "long": (call(0, "x" * 100),),
    }
    model = ScriptedModel(lambda turn: Reply(tool_calls=bad[turn[0].text]))
    agent = Agent(name="ops", model=model)
    reasons = {
        "many": f"{limits.TOOL_CALLS_MAX + 1} tool calls",
        "same": "the same id",
        "long": "over 64 characters",
    }
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        for number, (text, reason) in enumerate(reasons.items(), start=1):
            await threads.send(thread_id, text)
            status = await threads.wait_for_answers(thread_id, number)
            assert reason in status.last_failure


@pytest.mark.guarantee(49)
async def test_a_non_retryable_tool_error_is_not_retried(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    runs = 0

    @tool
    def pay() -> str:
        """Fail permanently."""
        nonlocal runs
        runs += 1
        raise ApplicationError("card refused", non_retryable=True)

    agent = Agent(name="ops", model=build_one_call_model("pay"), tools=[pay])
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        assert "card refused" in await ask(threads, thread_id)
        assert runs == 1


@pytest.mark.guarantee(49)
async def test_every_activity_has_server_side_timeouts(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    """A tool that kills its worker never gets to count its own attempts."""
    agent = reading_agent(1, policy=Policy(heartbeat_seconds=7))
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await ask(threads, thread_id)
        history = await threads.client.get_workflow_handle(thread_id).fetch_history()
    scheduled = [
        event.activity_task_scheduled_event_attributes
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    assert len(scheduled) == 3
    assert {each.retry_policy.maximum_attempts for each in scheduled} == {limits.CALL_ATTEMPTS_MAX}
    # The first model call returns the agent's policy to the thread.
    timeouts = [each.heartbeat_timeout.ToSeconds() for each in scheduled]
    assert timeouts == [limits.HEARTBEAT_SECONDS, 7, 7]


@pytest.mark.guarantee(50)
async def test_a_reply_with_text_that_cannot_be_stored_is_repaired(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    def script(turn: Sequence[Message]) -> Reply:
        if results(turn):
            return Reply(text=f"\udcff {results(turn)[0][:28]}")
        odd = ToolCall(id="1", tool="none", arguments='{"x": "\udcff"}')
        return Reply(text=None, tool_calls=(odd,))  # type: ignore[arg-type] # as providers do

    agent = Agent(name="ops", model=ScriptedModel(script))
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        assert await ask(threads, thread_id) == "? error: there is no tool 'non"


@pytest.mark.guarantee(44)
async def test_waiting_for_a_stopped_thread_ends_at_once(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, reading_agent(500)) as threads, threads.worker():
        await threads.send(thread_id, "read")
        handle = threads.client.get_workflow_handle(thread_id)
        await handle.signal(STOP_SIGNAL)
        await handle.result()
        assert (await read_status(threads.client, thread_id)).status == "done"
        with pytest.raises(NotAnswered, match="has ended before that: completed"):
            await threads.wait_for_answers(thread_id, 1)


@pytest.mark.guarantee(43)
async def test_a_wait_for_a_terminated_thread_ends(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, reading_agent(500)) as threads, threads.worker():
        await threads.send(thread_id, "read")
        await threads.client.get_workflow_handle(thread_id).terminate()
        with pytest.raises(NotAnswered, match="has ended before that: terminated"):
            await threads.wait_for_answers(thread_id, 1)


async def has_one_result(handle: WorkflowHandle[Any, Any]) -> bool:
    """One of two tools, after the model call: two activities have completed."""
    events = [event async for event in handle.fetch_history_events()]
    return sum(e.HasField("activity_task_completed_event_attributes") for e in events) == 2


@pytest.mark.guarantee(73)
async def test_results_before_a_cancel_are_kept(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    @tool
    async def wait(seconds: float) -> str:
        """Wait."""
        await asyncio.sleep(seconds)
        return f"waited {seconds}"

    def script(turn: Sequence[Message]) -> Reply:
        return Reply(tool_calls=(call(0, "wait", seconds=60), call(1, "wait", seconds=0)))

    agent = Agent(name="ops", model=ScriptedModel(script), tools=[wait])
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.send(thread_id, "go")
        handle = threads.client.get_workflow_handle(thread_id)
        deadline = time.monotonic() + 90
        while not await has_one_result(handle):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(handle.result(), 90)
        conversation = await threads.conversation(thread_id)
        assert [message.text for message in conversation if message.role == "tool"] == [
            "error: not run, since the thread ended",
            "waited 0.0",
        ]
        assert (await read_status(threads.client, thread_id)).status == "done"


@pytest.mark.guarantee(73)
async def test_a_cancelled_thread_ends_as_cancelled_with_a_complete_journal(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, reading_agent(500)) as threads, threads.worker():
        await threads.send(thread_id, "read")
        await threads.send(thread_id, "unread")
        await wait_for_status(
            threads.client, thread_id, lambda s: s.counters.tool_calls >= 3, seconds_max=90
        )
        handle = threads.client.get_workflow_handle(thread_id)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(handle.result(), 90)
        assert (await handle.describe()).status == WorkflowExecutionStatus.CANCELED
        conversation = await threads.conversation(thread_id)
        assert conversation[-1].text == "unread"
        assert sum(message.role == "tool" for message in conversation) >= 3


@pytest.mark.guarantee(72)
async def test_a_stopped_thread_journals_its_unread_messages(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, reading_agent(500)) as threads, threads.worker():
        for text in ("read", "second", "third"):
            await threads.send(thread_id, text)
        handle = threads.client.get_workflow_handle(thread_id, result_type=ThreadStatus)
        await handle.signal(STOP_SIGNAL)
        result = await handle.result()
        assert (result.status, result.waiting_messages) == ("done", 0)
        conversation = await threads.conversation(thread_id)
        assert [message.text for message in conversation[-2:]] == ["second", "third"]


@pytest.mark.guarantee(41)
async def test_invalid_characters_in_a_message_are_replaced(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    agent = Agent(name="ops", model=ScriptedModel(lambda turn: Reply(text=turn[0].text)))
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.send(thread_id, "lone \ud800 surrogate")
        await threads.wait_for_answers(thread_id, 1)
        assert (await threads.conversation(thread_id))[-1].text == "lone ? surrogate"


@pytest.mark.guarantee(44)
async def test_a_command_without_a_worker_does_not_wait_for_ever(
    server: TemporalServer, store: BlobStore, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "WORKER_SECONDS_MAX", 0.5)
    async with open_threads(server.address, store) as threads:
        with pytest.raises(NoWorker, match="everlong show"):
            await send(
                threads.client,
                thread_id,
                "hi",
                task_queue=threads.task_queue,
                agent="ops",
                seconds_max=0.5,
            )
        with pytest.raises(NoWorker, match="no worker answers"):
            await read_status(threads.client, thread_id)


@pytest.mark.guarantee(62)
async def test_the_size_of_a_thread_outlives_its_first_runs(
    server: TemporalServer, store: BlobStore, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = find_previous_run

    async def with_one_that_is_gone(client: Client, thread_id: str, run_id: str) -> str:
        """Retention takes days, so the first run names one before it that the server never had."""
        return await real(client, thread_id, run_id) or str(uuid.uuid4())

    async with open_threads(server.address, store, reading_agent(1)) as threads, threads.worker():
        await ask(threads, thread_id)
        before = await threads.size(thread_id)
        monkeypatch.setattr(lookup, "find_previous_run", with_one_that_is_gone)
        assert await threads.size(thread_id) == before
