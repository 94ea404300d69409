"""`ask`: a message and its answer, whatever happens in between."""

import asyncio
import dataclasses
import time

import pytest
from temporalio.client import Client

from everlong import Policy, ask
from everlong.client.packs import find_packs
from everlong.client.status import list_pending, read_status
from everlong.client.thread import ThreadHandle
from everlong.client.updates import send as send_message
from everlong.client.wait import compute_pause_seconds, load_answer
from everlong.embedded import TemporalServer
from everlong.errors import (
    MessageRefused,
    NotAnswered,
    NoWorker,
    PluginNotOnClient,
    ThreadEnded,
    ThreadNotFound,
    ThreadPaused,
    TurnFailed,
)
from everlong.storage import BlobStore
from everlong.storage.pack_store import PackStore
from tests.support.governed_agent import build_governed_agent
from tests.support.scripted_agents import pages_answer, reading_agent
from tests.support.threads import Threads, open_threads


async def ask_ops(
    threads: Threads, thread_id: str, text: str, seconds_max: float | None = 60
) -> str:
    return await ask(
        threads.client,
        thread_id,
        text,
        agent="ops",
        task_queue=threads.task_queue,
        seconds_max=seconds_max,
    )


async def wait_until_pending(threads: Threads, thread_id: str) -> None:
    """Wait until the thread waits for a person. It may not even have been started yet."""
    async with asyncio.timeout(90):
        while True:
            try:
                if (await read_status(threads.client, thread_id)).status == "approval":
                    return
            except ThreadNotFound:
                pass
            await asyncio.sleep(0.05)


async def events(client: Client, thread_id: str) -> int:
    return (await client.get_workflow_handle(thread_id).describe()).history_length


@pytest.mark.guarantee(43)
async def test_an_answer_arrives_across_rolls(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    agent = reading_agent(8, policy=Policy(run_events_max=50))
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        assert await ask_ops(threads, thread_id, "read") == pages_answer(8)
        assert (await threads.size(thread_id)).runs >= 2


@pytest.mark.guarantee(43)
async def test_an_answer_arrives_across_worker_restarts(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, build_governed_agent()) as threads:
        asking = asyncio.create_task(ask_ops(threads, thread_id, "restart api"))
        async with threads.worker():
            await wait_until_pending(threads, thread_id)
        # No worker runs the thread now, and the caller keeps waiting.
        await asyncio.sleep(0.3)
        assert not asking.done()
        async with threads.worker():
            [approval] = await list_pending(threads.client, thread_id)
            await ThreadHandle(threads.client, thread_id).decide(
                approval.id, approve=True, by="ann"
            )
            assert await asking == "api is up"
            status = await read_status(threads.client, thread_id)
            assert status.counters.messages == 1


@pytest.mark.guarantee(43)
async def test_a_wait_adds_no_event(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with (
        open_threads(server.address, store, build_governed_agent()) as threads,
        threads.worker(),
    ):
        asking = asyncio.create_task(ask_ops(threads, thread_id, "restart api"))
        await wait_until_pending(threads, thread_id)
        before = await events(threads.client, thread_id)
        await asyncio.sleep(1.5)
        assert not asking.done()
        assert await events(threads.client, thread_id) == before
        [approval] = await list_pending(threads.client, thread_id)
        await ThreadHandle(threads.client, thread_id).decide(
            approval.id, approve=False, by="bob", reason="not now"
        )
        assert await asking == "error: denied by bob: not now"


@pytest.mark.guarantee(43)
async def test_ask_reports_why_a_turn_has_no_answer(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with (
        open_threads(server.address, store, build_governed_agent()) as threads,
        threads.worker(),
    ):
        with pytest.raises(TurnFailed, match="the provider will not"):
            await ask_ops(threads, thread_id, "fail")
        # The thread is still usable.
        assert await ask_ops(threads, thread_id, "hello") == "you said hello"


@pytest.mark.guarantee(43)
async def test_ask_reports_a_pause_and_the_message_stays(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with (
        open_threads(server.address, store, build_governed_agent()) as threads,
        threads.worker(),
    ):
        await ask_ops(threads, thread_id, "hello")
        await ThreadHandle(threads.client, thread_id).pause(by="ann", reason="wrong cluster")
        with pytest.raises(ThreadPaused, match=r"by ann: wrong cluster.*Message 2 stays queued"):
            await ask_ops(threads, thread_id, "again")
        await ThreadHandle(threads.client, thread_id).unpause()
        await threads.wait_for_answers(thread_id, 2)
        assert (await threads.conversation(thread_id))[-1].text == "you said again"


async def test_ask_reports_a_limit_that_pauses(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    agent = build_governed_agent(Policy(steps_max=1))
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await ask_ops(threads, thread_id, "hello")
        with pytest.raises(ThreadPaused, match="by policy: steps_max: 1 of 1"):
            await ask_ops(threads, thread_id, "again")


@pytest.mark.guarantee(43)
async def test_ask_reports_the_end_of_a_thread(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with (
        open_threads(server.address, store, build_governed_agent()) as threads,
        threads.worker(),
    ):
        asking = asyncio.create_task(ask_ops(threads, thread_id, "restart api"))
        await wait_until_pending(threads, thread_id)
        await ThreadHandle(threads.client, thread_id).stop()
        with pytest.raises(NotAnswered, match="has ended before that: completed"):
            await asking
        with pytest.raises(ThreadEnded):
            await ask_ops(threads, thread_id, "again")


async def test_ask_times_out_before_the_thread_answers(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, build_governed_agent()) as threads:
        with pytest.raises(NoWorker, match="no worker has taken the message"):
            await ask_ops(threads, thread_id, "hello", seconds_max=0.5)
        async with threads.worker():
            with pytest.raises(NotAnswered, match="not done after"):
                await ask_ops(threads, thread_id, "restart api", seconds_max=1.5)


async def test_ask_times_out_on_an_undelivered_message(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    """The SDK sends an update again that has timed out, and gives it as much time once more."""
    async with open_threads(server.address, store, build_governed_agent()) as threads:
        begun = time.monotonic()
        with pytest.raises(NoWorker, match="no worker has taken the message"):
            await ask_ops(threads, thread_id, "hello", seconds_max=4)
        assert 3.9 < time.monotonic() - begun < 6


@pytest.mark.guarantee(43)
async def test_ask_finds_an_old_answer(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    packs = PackStore(store)
    async with (
        open_threads(server.address, store, build_governed_agent()) as threads,
        threads.worker(),
    ):
        client = threads.client
        for text in ("one", "fail", "remember three"):
            await threads.send(thread_id, text)
        status = await threads.wait_for_answers(thread_id, 3)
        assert len(status.answers) == 3
        for known in (status, dataclasses.replace(status, answers=())):
            answers = [
                await load_answer(client, packs, thread_id, number, known) for number in (1, 3)
            ]
            assert answers == ["you said one", "remembered"]
            with pytest.raises(TurnFailed, match="the provider will not"):
                await load_answer(client, packs, thread_id, 2, known)
        forgotten = dataclasses.replace(status, answers=())
        with pytest.raises(TurnFailed, match="no turn yet"):
            await load_answer(client, packs, thread_id, 4, forgotten)


@pytest.mark.guarantee(40)
async def test_a_message_sent_twice_with_one_id_is_one(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    """In the same run and in the next one; the SDK itself sends an update again that meets a roll."""
    agent = build_governed_agent(Policy(run_events_max=50))
    async with open_threads(server.address, store, agent) as threads, threads.worker():

        async def send(message_id: str) -> int:
            return await send_message(
                threads.client,
                thread_id,
                "hello",
                task_queue=threads.task_queue,
                agent="ops",
                message_id=message_id,
            )

        assert [await send("first"), await send("first")] == [1, 1]
        while (await read_status(threads.client, thread_id)).counters.runs < 2:
            number = await threads.send(thread_id, "more")
            await threads.wait_for_answers(thread_id, number)
        assert await send("first") == 1
        assert (await read_status(threads.client, thread_id)).counters.messages == number
        with pytest.raises(MessageRefused, match=r"does not fit: .*id"):
            await send("\N{SNOWMAN}")


async def test_an_ask_can_be_cancelled(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    """The SDK turns a cancellation of an update into a time-out, which is waited out otherwise."""
    async with open_threads(server.address, store, build_governed_agent()) as threads:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await ask_ops(threads, thread_id, "hello", seconds_max=None)


async def test_the_store_comes_from_the_clients_plugin(
    server: TemporalServer, store: BlobStore
) -> None:
    async with open_threads(server.address, store) as threads:
        assert find_packs(threads.client) is threads.plugin.packs
    with pytest.raises(PluginNotOnClient, match="EverlongPlugin"):
        find_packs(await Client.connect(server.address))


def test_the_polling_interval_grows_with_the_time_waited() -> None:
    elapsed = (0, 1, 10, 40, 1e6)
    assert [compute_pause_seconds(each) for each in elapsed] == [0.1, 0.1, 0.5, 2.0, 2.0]
