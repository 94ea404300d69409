"""The `everlong.Agent` workflow on a real server."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import RetryPolicy

from everlong import Agent, Policy, Reply, limits, tool
from everlong.client.status import read_status
from everlong.client.updates import send
from everlong.client.wait import find_answer, wait_for_status
from everlong.embedded import TemporalServer
from everlong.errors import MessageRefused, ThreadEnded, ThreadNotFound, TurnFailed
from everlong.models import (
    AGENT_WORKFLOW,
    SEND_UPDATE,
    STOP_SIGNAL,
    Message,
    SendMessage,
    ThreadStatus,
)
from everlong.storage import BlobStore
from everlong.testing import ScriptedModel
from tests.support.scripted_agents import call, pages_answer, reading_agent, results
from tests.support.threads import Threads, open_threads


def echo(turn: Sequence[Message]) -> Reply:
    return Reply(text=f"you said {turn[0].text[:40]}")


ECHO = Agent(name="ops", model=ScriptedModel(echo))


async def stop(threads: Threads, thread_id: str) -> ThreadStatus:
    handle = threads.client.get_workflow_handle(thread_id, result_type=ThreadStatus)
    await handle.signal(STOP_SIGNAL)
    result: ThreadStatus = await handle.result()
    return result


@pytest.mark.guarantee(52, 55)
async def test_a_thread_works_rolls_and_answers(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, reading_agent(24)) as threads, threads.worker():
        await threads.start(thread_id, Policy(run_events_max=100, compact_at_bytes=64 * limits.MIB))
        await threads.send(thread_id, "read")
        status = await threads.wait_for_answers(thread_id, 1)
        conversation = await threads.conversation(thread_id)
        size = await threads.size(thread_id)
        assert conversation[-1].text == pages_answer(24)
        assert len(conversation) == 2 + 2 * 24
        assert status.counters.steps == 25
        assert status.counters.runs == size.runs >= 3
        # A run goes on until the end of the step in which it reaches its bound.
        assert size.events / size.runs < 130
        # The first 24 results hold one of 512 KiB; histories hold only results of up to 3 KiB.
        assert size.history_bytes < 150_000
        assert size.blob_bytes == status.counters.written_bytes


@pytest.mark.guarantee(39)
async def test_messages_are_answered_in_order_across_rolls(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, ECHO) as threads, threads.worker():
        await threads.start(thread_id, Policy(run_events_max=50))
        numbers = [await threads.send(thread_id, f"message {i}") for i in range(30)]
        await threads.wait_for_answers(thread_id, 30)
        conversation = await threads.conversation(thread_id)
        assert numbers == list(range(1, 31))
        assert [message.text for message in conversation] == [
            text for i in range(30) for text in (f"message {i}", f"you said message {i}")
        ]
        assert find_answer(conversation, 7) == "you said message 6"
        assert (await threads.size(thread_id)).runs >= 3


@pytest.mark.guarantee(63)
async def test_tools_of_one_reply_run_together_and_stay_in_call_order(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    together = asyncio.Barrier(3)

    @tool
    async def wait_for_others(delay: float) -> str:
        """Return once all three run; the first called returns last."""
        async with asyncio.timeout(90):
            await together.wait()
        await asyncio.sleep(delay)
        return f"waited {delay}"

    def script(turn: Sequence[Message]) -> Reply:
        if results(turn):
            return Reply(text=", ".join(results(turn)))
        delays = [0.4, 0.2, 0.0]
        return Reply(
            tool_calls=tuple(
                call(i, "wait_for_others", delay=delay) for i, delay in enumerate(delays)
            )
        )

    agent = Agent(name="ops", model=ScriptedModel(script), tools=[wait_for_others])
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.send(thread_id, "go")
        await threads.wait_for_answers(thread_id, 1)
        conversation = await threads.conversation(thread_id)
        assert conversation[-1].text == "waited 0.4, waited 0.2, waited 0.0"


async def test_the_model_reads_errors_in_its_calls(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    @tool
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    def script(turn: Sequence[Message]) -> Reply:
        if results(turn):
            return Reply(text="\n".join(results(turn)))
        return Reply(
            tool_calls=(call(0, "divide"), call(1, "add", a="x", b=1), call(2, "add", a=1, b=2))
        )

    agent = Agent(name="ops", model=ScriptedModel(script), tools=[add])
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.send(thread_id, "go")
        await threads.wait_for_answers(thread_id, 1)
        text = (await threads.conversation(thread_id))[-1].text
        assert "there is no tool 'divide'" in text
        assert "the arguments are invalid" in text
        assert text.endswith("\n3")


@pytest.mark.guarantee(49)
async def test_retries_of_a_failing_tool_or_model_are_bounded(
    server: TemporalServer, store: BlobStore, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = RetryPolicy(maximum_attempts=2, initial_interval=timedelta(milliseconds=50))
    monkeypatch.setattr("everlong.workflows.thread._MODEL", twice)

    @tool(attempts_max=2)
    def broken() -> str:
        """Fail."""
        raise OSError("disk on fire")

    def script(turn: Sequence[Message]) -> Reply:
        if turn[0].text == "model":
            raise ConnectionError("provider is down")
        return (
            Reply(text=results(turn)[0])
            if results(turn)
            else Reply(tool_calls=(call(0, "broken"),))
        )

    agent = Agent(name="ops", model=ScriptedModel(script), tools=[broken])
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.send(thread_id, "tool")
        await threads.wait_for_answers(thread_id, 1)
        await threads.send(thread_id, "model")
        failed = await threads.wait_for_answers(thread_id, 2)
        conversation = await threads.conversation(thread_id)
        assert "disk on fire" in find_answer(conversation, 1)
        assert "provider is down" in failed.last_failure
        with pytest.raises(TurnFailed, match="provider is down"):
            find_answer(conversation, 2)
        # The thread is still usable, and the failure is forgotten once a turn succeeds.
        await threads.send(thread_id, "tool")
        assert (await threads.wait_for_answers(thread_id, 3)).last_failure == ""


@pytest.mark.guarantee(70)
async def test_an_endless_turn_is_ended(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    agent = reading_agent(1000)
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.start(thread_id, Policy(turn_steps_max=3))
        await threads.send(thread_id, "read for ever")
        status = await threads.wait_for_answers(thread_id, 1)
        assert status.counters.steps == 3
        assert status.last_failure == "the turn reached 3 model calls"
        conversation = await threads.conversation(thread_id)
        assert conversation[-1] == Message(role="failure", text="the turn reached 3 model calls")
        assert sum(message.role == "tool" for message in conversation) == 3


@pytest.mark.guarantee(41)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("x" * (limits.TEXT_BYTES_MAX + 1), str(limits.TEXT_BYTES_MAX)),
    ],
)
async def test_oversized_messages_are_refused(
    server: TemporalServer, store: BlobStore, thread_id: str, text: str, reason: str
) -> None:
    async with open_threads(server.address, store, ECHO) as threads, threads.worker():
        with pytest.raises(MessageRefused, match=reason):
            await threads.send(thread_id, text)
        await threads.send(thread_id, "x" * 5900)
        assert (await threads.wait_for_answers(thread_id, 1)).counters.messages == 1


@pytest.mark.guarantee(41)
async def test_a_full_inbox_refuses_messages(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    released = asyncio.Event()

    class Slow:
        async def reply(self, *_: object) -> Reply:
            await released.wait()
            return Reply(text="done")

    agent = Agent(name="ops", model=Slow())
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        for _ in range(4):
            await threads.send(thread_id, "x" * 3900)
        with pytest.raises(MessageRefused, match="wait already"):
            await threads.send(thread_id, "x" * 3900)
        released.set()
        status = await threads.wait_for_answers(thread_id, 4)
        assert status.counters.messages == status.counters.answered == 4


@pytest.mark.guarantee(72)
async def test_a_stopped_thread_has_a_complete_journal(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, reading_agent(200)) as threads, threads.worker():
        await threads.send(thread_id, "read")
        await wait_for_status(
            threads.client,
            thread_id,
            lambda status: status.counters.tool_calls >= 5,
            seconds_max=90,
        )
        result = await stop(threads, thread_id)
        assert result.status == "done"
        conversation = await threads.conversation(thread_id)
        # Nothing that ran is missing: every call has its result.
        calls = sum(len(message.tool_calls) for message in conversation)
        assert calls == sum(message.role == "tool" for message in conversation)
        not_run = [m for m in conversation if m.text == "error: not run, since the thread ended"]
        assert calls == result.counters.tool_calls + len(not_run)
        with pytest.raises(ThreadEnded):
            await send(threads.client, thread_id, "hi", task_queue=threads.task_queue, agent=None)


@pytest.mark.guarantee(72)
async def test_a_stop_is_not_lost_to_a_roll(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    """Stop again and again at random points of threads that roll after almost every step."""
    async with open_threads(server.address, store, reading_agent(500)) as threads, threads.worker():
        for attempt in range(8):
            name = f"{thread_id}-{attempt}"
            await threads.start(name, Policy(run_events_max=50))
            await threads.send(name, "read")
            await asyncio.sleep(0.15 * attempt)
            result = await asyncio.wait_for(stop(threads, name), 90)
            assert result.status == "done"
            description = await threads.client.get_workflow_handle(name).describe()
            assert description.status == WorkflowExecutionStatus.COMPLETED


async def test_unknown_threads_are_named(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, ECHO) as threads:
        with pytest.raises(ThreadNotFound, match=thread_id):
            await read_status(threads.client, thread_id)
        with pytest.raises(ThreadNotFound, match=thread_id):
            await threads.size(thread_id)


async def test_a_message_by_a_plain_update_is_answered(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    """The update takes plain JSON, so any SDK or the Temporal CLI can send it."""
    async with open_threads(server.address, store, ECHO) as threads, threads.worker():
        handle = await threads.client.start_workflow(
            AGENT_WORKFLOW, {"agent": "ops"}, id=thread_id, task_queue=threads.task_queue
        )
        assert await handle.execute_update(SEND_UPDATE, {"text": "hello"}) == 1
        assert await handle.execute_update(SEND_UPDATE, SendMessage(text="again")) == 2
        await threads.wait_for_answers(thread_id, 2)
