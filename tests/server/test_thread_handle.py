"""A program governs a thread by its handle: every verb, on a real server."""

import uuid
from collections.abc import AsyncIterator

import pytest

import everlong
from everlong.client.thread import ThreadHandle
from everlong.embedded import TemporalServer
from everlong.errors import ThreadEnded, ThreadPaused
from everlong.models import Kind
from everlong.storage import BlobStore
from tests.support.governed_agent import build_governed_agent
from tests.support.threads import Threads, open_threads


@pytest.fixture
async def threads(server: TemporalServer, store: BlobStore) -> AsyncIterator[Threads]:
    async with (
        open_threads(server.address, store, build_governed_agent()) as opened,
        opened.worker(),
    ):
        yield opened


async def list_kinds(thread: ThreadHandle) -> list[Kind]:
    return [entry.kind async for entry in thread.journal()]


async def test_a_handle_controls_its_thread(threads: Threads) -> None:
    thread_id = f"handle-{uuid.uuid4().hex[:8]}"
    thread = everlong.thread(threads.client, thread_id, task_queue=threads.task_queue)

    # Messages.
    assert await thread.ask("hello", agent="ops", seconds_max=60) == "you said hello"
    number = await thread.send("and again", by="ann", message_id="m-2")
    assert await thread.send("and again", by="ann", message_id="m-2") == number == 2
    assert await thread.wait(number, seconds_max=60) == "you said and again"
    assert await thread.wait(seconds_max=60) == "you said and again"
    status = await thread.status()
    assert (status.agent, status.counters.answered) == ("ops", 2)

    # Approvals.
    await thread.send("restart db")
    seen = await thread.wait_until(lambda seen: seen.status == "approval", seconds_max=60)
    assert seen.status == "approval"
    [approval] = await thread.approvals()
    assert "db" in await thread.arguments(approval)
    await thread.decide(approval.id, approve=True, by="ann", reason="traffic is drained")
    assert await thread.wait(3, seconds_max=60) == "db is up"
    assert await thread.approvals() == []
    assert await thread.diagnose() is None

    # Control.
    await thread.configure({"steps_max": 500}, by="ann")
    assert (await thread.status()).policy.steps_max == 500
    await thread.pause(by="ann", reason="lunch")
    with pytest.raises(ThreadPaused, match="lunch"):
        await thread.ask("still there?", seconds_max=60)
    await thread.unpause(by="ann")
    assert await thread.wait(4, seconds_max=60) == "you said still there?"
    await thread.compact(by="ann")
    await thread.ask("after compaction", seconds_max=60)

    # The journal, and the thread as it was.
    kinds = await list_kinds(thread)
    assert kinds[:2] == [Kind.MESSAGE, Kind.REPLY]
    assert {Kind.ASKED, Kind.DECIDED, Kind.CONTROL} <= set(kinds)
    assert [entry.seq async for entry in thread.journal(2, 4)] == [2, 3, 4]
    view = await thread.state_at(2)
    assert [message.text for message in view.context] == ["hello", "you said hello"]
    assert (await thread.diff(2, 4)).context_added
    assert [each.text for each in await thread.messages()][:2] == ["hello", "you said hello"]
    assert (await thread.runs()).runs
    assert (await thread.size()).blobs

    # A fork lives on its own.
    forked = await thread.fork(2, f"{thread_id}-fork", by="ann")
    assert await forked.ask("on my own", seconds_max=60) == "you said on my own"
    assert Kind.FORK in await list_kinds(forked)
    assert Kind.FORK not in await list_kinds(thread)

    # Lists.
    found = everlong.threads(threads.client)
    row = await found.find(thread_id)
    assert row is not None
    assert row.is_open

    # The end.
    archived = await thread.archive(then="close", by="ann", reason="done")
    assert archived.manifest.entries == len(await list_kinds(thread))
    with pytest.raises(ThreadEnded):
        await thread.ask("hello?", seconds_max=60)
    await forked.stop(by="ann")
