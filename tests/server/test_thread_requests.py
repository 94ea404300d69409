"""Requests to a thread on a real server: which are accepted, and which are refused."""

import asyncio

import pytest

from everlong import Policy, limits
from everlong.client.status import list_pending, read_status
from everlong.client.thread import ThreadHandle
from everlong.client.time_travel import read_messages, read_state
from everlong.client.updates import send
from everlong.client.wait import wait_for_status
from everlong.embedded import TemporalServer
from everlong.errors import (
    ControlRefused,
    DecisionRefused,
    MessageRefused,
    ThreadEnded,
    ThreadNotFound,
)
from everlong.models import Approval, Kind
from everlong.storage import BlobStore
from everlong.storage.pack_store import PackStore
from tests.support.governed_agent import build_governed_agent
from tests.support.scripted_agents import reading_agent
from tests.support.threads import Threads, open_threads, read_journal


async def waiting_approval(threads: Threads, thread_id: str) -> Approval:
    await wait_for_status(
        threads.client, thread_id, lambda status: status.pending > 0, seconds_max=90
    )
    [approval] = await list_pending(threads.client, thread_id)
    return approval


async def send_long(threads: Threads, thread_id: str, text: str) -> int:
    return await send(
        threads.client,
        thread_id,
        text,
        task_queue=threads.task_queue,
        agent="ops",
        packs=PackStore(threads.store),
    )


@pytest.mark.guarantee(42)
async def test_ten_megabytes_arrive_whole_and_the_model_reads_an_excerpt(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    text = "log " + "0123456789 abcdef\n" * 600_000
    async with (
        open_threads(server.address, store, build_governed_agent()) as threads,
        threads.worker(),
    ):
        assert await send_long(threads, thread_id, text) == 1
        assert await send_long(threads, thread_id, "and \udcff bytes " * 1000) == 2
        status = await threads.wait_for_answers(thread_id, 2)
        first, _, second, _ = await threads.conversation(thread_id)
        assert first.text == text
        assert second.text == "and ? bytes " * 1000
        assert status.context_bytes < 4 * limits.SHOWN_BYTES_MAX
        assert (await threads.size(thread_id)).history_bytes < 64 * limits.KIB
        view = await read_state(threads.client, PackStore(store), thread_id, 1)
        assert view.context_bytes < 2 * limits.SHOWN_BYTES_MAX
        assert "recall(seq=1)" in view.context[0].text


@pytest.mark.full
async def test_the_size_of_many_runs_is_a_bound(
    server: TemporalServer, store: BlobStore, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = reading_agent(40, policy=Policy(run_events_max=50))
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.send(thread_id, "read")
        await threads.wait_for_answers(thread_id, 1)
        whole = await threads.size(thread_id)
        assert whole.runs > 2
        assert not whole.is_partial
        monkeypatch.setattr("everlong.client.lookup._SIZED_RUNS_MAX", whole.runs)
        assert await threads.size(thread_id) == whole
        monkeypatch.setattr("everlong.client.lookup._SIZED_RUNS_MAX", 2)
        part = await threads.size(thread_id)
        assert (part.runs, part.is_partial) == (2, True)
        assert 0 < part.events < whole.events
        assert (part.blobs, part.blob_bytes) == (whole.blobs, whole.blob_bytes)


@pytest.mark.guarantee(41)
async def test_long_or_empty_messages_are_refused_and_not_stored(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, build_governed_agent()) as threads:
        with pytest.raises(MessageRefused, match=f"{limits.TEXT_BYTES_MAX} is the most"):
            await send_long(threads, thread_id, "x" * 65 * limits.MIB)
        with pytest.raises(MessageRefused, match="is empty"):
            await send_long(threads, thread_id, " \n" * 5000)
        with pytest.raises(MessageRefused, match="Give `packs`"):
            await send(
                threads.client, thread_id, "x" * 9000, task_queue=threads.task_queue, agent="ops"
            )
        assert [info async for info in store.list("")] == []


async def test_a_decision_counts_once_and_only_from_allowed_deciders(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with (
        open_threads(server.address, store, build_governed_agent()) as threads,
        threads.worker(),
    ):
        client = threads.client
        await threads.send(thread_id, "restart api")
        approval = await waiting_approval(threads, thread_id)
        assert (approval.tool, approval.approvers) == ("restart", ("ann", "bob"))
        assert "api" in approval.arguments
        with pytest.raises(DecisionRefused, match="there is no approval '9-9'"):
            await ThreadHandle(client, thread_id).decide("9-9", approve=True, by="ann")
        with pytest.raises(DecisionRefused, match="'eve' may not decide"):
            await ThreadHandle(client, thread_id).decide(approval.id, approve=True, by="eve")
        with pytest.raises(DecisionRefused, match=r"does not fit: .*64 characters"):
            await ThreadHandle(client, thread_id).decide(approval.id, approve=True, by="x" * 65)
        await ThreadHandle(client, thread_id).decide(
            approval.id, approve=True, by="ann", reason="it is late"
        )
        with pytest.raises(DecisionRefused, match="has been decided already"):
            await ThreadHandle(client, thread_id).decide(approval.id, approve=False, by="bob")
        await threads.wait_for_answers(thread_id, 1)
        assert (await threads.conversation(thread_id))[-1].text == "api is up"
        assert await list_pending(client, thread_id) == []
        entries = await read_journal(client, PackStore(store), thread_id)
        [decided] = [entry.data for entry in entries if entry.kind == Kind.DECIDED]
        assert decided is not None
        assert (decided["by"], decided["reason"], decided["approve"]) == ("ann", "it is late", True)


async def test_a_policy_changes_while_the_thread_runs(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with (
        open_threads(server.address, store, build_governed_agent()) as threads,
        threads.worker(),
    ):
        client = threads.client
        await threads.send(thread_id, "hello")
        await threads.wait_for_answers(thread_id, 1)
        await ThreadHandle(client, thread_id).configure(
            {"steps_max": 2, "on_limit": "stop"}, by="ann"
        )
        policy = (await read_status(client, thread_id)).policy
        assert (policy.steps_max, policy.on_limit) == (2, "stop")
        with pytest.raises(ControlRefused, match="the policy has no stepsmax"):
            await ThreadHandle(client, thread_id).configure({"stepsmax": 2})
        with pytest.raises(
            ControlRefused, match=r"steps_max: .*greater than or equal to 1"
        ) as error:
            await ThreadHandle(client, thread_id).configure({"steps_max": 0})
        assert "pydantic.dev" not in str(error.value)
        with pytest.raises(ControlRefused, match=r"does not fit: .*reason"):
            await ThreadHandle(client, thread_id).configure(
                {"steps_max": 3}, by="ann", reason="x" * 301
            )
        assert (await read_status(client, thread_id)).policy == policy


@pytest.mark.guarantee(44)
async def test_an_ended_thread_can_be_read_and_accepts_no_request(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    packs = PackStore(store)
    async with open_threads(server.address, store, build_governed_agent()) as threads:
        client = threads.client
        async with threads.worker():
            await threads.send(thread_id, "hello")
            await threads.wait_for_answers(thread_id, 1)
            await ThreadHandle(client, thread_id).stop(by="ann", reason="done")
            await client.get_workflow_handle(thread_id).result()
        # No worker runs any more.
        for agent in (None, "ops"):
            with pytest.raises(ThreadEnded, match=f"everlong fork {thread_id}"):
                await send(client, thread_id, "more", task_queue=threads.task_queue, agent=agent)
        thread = ThreadHandle(client, thread_id)
        for control in (thread.pause, thread.unpause, thread.compact, thread.stop):
            with pytest.raises(ThreadEnded):
                await control()
        with pytest.raises(ThreadEnded):
            await ThreadHandle(client, thread_id).decide("2-1", approve=True, by="ann")
        status = await read_status(client, thread_id)
        assert (status.status, status.counters.answered) == ("done", 1)
        assert await list_pending(client, thread_id) == []
        texts = [message.text for message in await read_messages(client, packs, thread_id)]
        assert texts == ["hello", "you said hello"]
        entries = await read_journal(client, packs, thread_id, 2, 3)
        assert [entry.seq for entry in entries] == [2, 3]
        assert entries[-1].kind == Kind.CONTROL


@pytest.mark.guarantee(68)
async def test_a_limit_ends_and_archives_a_thread(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with (
        open_threads(server.address, store, build_governed_agent()) as threads,
        threads.worker(),
    ):
        client = threads.client
        await threads.send(thread_id, "hello")
        await threads.wait_for_answers(thread_id, 1)
        await ThreadHandle(client, thread_id).configure({"steps_max": 1, "on_limit": "archive"})
        await threads.send(thread_id, "again")
        await client.get_workflow_handle(thread_id).result()
        status = await read_status(client, thread_id)
        assert status.status == "archived"
        assert status.ended is not None
        assert status.ended.limit == "steps_max"
        with pytest.raises(ThreadEnded):
            await threads.send(thread_id, "once more")


@pytest.mark.guarantee(44)
async def test_an_unknown_thread_is_named(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, build_governed_agent()) as threads:
        client, queue = threads.client, threads.task_queue
        for asking in (
            lambda: send(client, thread_id, "hi", task_queue=queue),
            lambda: list_pending(client, thread_id),
            lambda: ThreadHandle(client, thread_id).pause(),
            lambda: ThreadHandle(client, thread_id).configure({"steps_max": 5}),
            lambda: read_journal(client, PackStore(store), thread_id),
        ):
            with pytest.raises(ThreadNotFound, match=f"no running thread '{thread_id}'"):
                await asking()


@pytest.mark.guarantee(40)
async def test_messages_during_rolls_arrive_once(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    """Three senders at once, on a thread that rolls all the time: no caller sees an error."""
    agent = build_governed_agent(Policy(run_events_max=50))
    async with open_threads(server.address, store, agent) as threads, threads.worker():

        async def sender(name: int) -> list[int]:
            return [await threads.send(thread_id, f"{name}-{i}") for i in range(8)]

        numbers = await asyncio.gather(*map(sender, range(3)))
        assert len({number for each in numbers for number in each}) == 24
        status = await threads.wait_for_answers(thread_id, max(map(max, numbers)))
        assert status.counters.runs >= 3
        asked = [m.text for m in await threads.conversation(thread_id) if m.role == "user"]
        assert sorted(asked) == sorted(f"{name}-{i}" for name in range(3) for i in range(8))
