"""Thread cards and samples in the journal, which replace queries of a thread."""

import asyncio
import time

import pytest
from temporalio.client import WorkflowExecutionDescription
from temporalio.converter import JSONPlainPayloadConverter

from everlong import Policy, ThreadStart
from everlong.admin.series import load_series
from everlong.client.status import read_status
from everlong.client.updates import send, send_signal
from everlong.embedded import TemporalServer
from everlong.models import (
    AGENT_WORKFLOW,
    CARD_MEMO,
    NOTE_SIGNAL,
    STOP_SIGNAL,
    Control,
    ControlNote,
    Kind,
    ThreadCard,
)
from everlong.storage import BlobStore
from everlong.storage.pack_store import PackStore
from tests.support.scripted_agents import reading_agent
from tests.support.threads import Threads, open_threads, read_journal

STEPS = 24


async def read_card(description: WorkflowExecutionDescription) -> ThreadCard:
    card: ThreadCard = await description.memo_value(CARD_MEMO, type_hint=ThreadCard)
    return card


async def read_pages(threads: Threads, thread_id: str) -> None:
    async with threads.worker():
        number = await threads.send(thread_id, "Read.")
        await threads.wait_for_answers(thread_id, number)


async def test_a_thread_publishes_its_card_and_says_so_in_listings(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    agent = reading_agent(STEPS, policy=Policy(run_events_max=120))
    async with open_threads(server.address, store, agent) as threads:
        async with threads.worker():
            number = await threads.send(thread_id, "Read.")
            status = await threads.wait_for_answers(thread_id, number)
            control = Control(by="ana", archive=True)
            await send_signal(threads.client, thread_id, STOP_SIGNAL, control)
            await threads.client.get_workflow_handle(thread_id).result()
        description = await threads.client.get_workflow_handle(thread_id).describe()
        card = await read_card(description)
        stored_bytes = status.counters.written_bytes
        assert card.steps == STEPS + 1
        assert card.runs > 1, "it outlives a roll"
        assert card.stored_bytes >= stored_bytes, "the last card is that of the end"
        assert 2 < len(card.trend) <= 16
        assert card.trend == tuple(sorted(card.trend))
        assert card.trend[-1] == (card.ms, card.stored_bytes)
        deadline = time.monotonic() + 90
        found: list[str] = []
        while not found and time.monotonic() < deadline:
            query = f"WorkflowId = '{thread_id}' AND EverlongStatus = 'archived'"
            async for each in threads.client.list_workflows(query):
                payload = each.raw_info.memo.fields[CARD_MEMO]
                [plain] = await threads.plugin.codec.decode([payload])
                listed = JSONPlainPayloadConverter().from_payload(plain, ThreadCard)
                assert listed == card, "a listing has it, without a question to the thread"
                found.append(each.id)
            await asyncio.sleep(0.1)
        assert found == [thread_id]


@pytest.mark.guarantee(96)
async def test_a_card_is_current_as_soon_as_a_thread_waits_and_after_rolls(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    # Steps so small that growth alone publishes no card.
    agent = reading_agent(12, policy=Policy(run_events_max=60))
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        status = await threads.wait_for_answers(thread_id, await threads.send(thread_id, "Read."))
        assert status.counters.runs > 1
        handle = threads.client.get_workflow_handle(thread_id)
        deadline = time.monotonic() + 90
        while (card := await read_card(await handle.describe())).steps < status.counters.steps:
            assert time.monotonic() < deadline, card
            await asyncio.sleep(0.1)
        assert card.stored_bytes == status.counters.written_bytes
        assert card.context_bytes == status.context_bytes


async def test_foreign_memo_fields_survive_a_roll(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    agent = reading_agent(12, policy=Policy(run_events_max=60))
    async with open_threads(server.address, store, agent) as threads, threads.worker():
        await threads.client.start_workflow(
            AGENT_WORKFLOW,
            ThreadStart(agent="ops"),
            id=thread_id,
            task_queue=threads.task_queue,
            memo={"ticket": {"number": 7}},
        )
        status = await threads.wait_for_answers(thread_id, await threads.send(thread_id, "Read."))
        assert status.counters.runs > 1
        description = await threads.client.get_workflow_handle(thread_id).describe()
        assert await description.memo_value("ticket") == {"number": 7}
        assert (await read_card(description)).runs > 1


@pytest.mark.guarantee(93)
async def test_the_journal_says_who_sent_a_message(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, reading_agent(1)) as threads, threads.worker():
        for text in ("Read.", "Read a long one. " * 1000):
            number = await send(
                threads.client,
                thread_id,
                text,
                task_queue=threads.task_queue,
                agent="ops",
                packs=PackStore(store),
                by="ana",
            )
            await threads.wait_for_answers(thread_id, number)
        entries = await read_journal(threads.client, PackStore(store), thread_id)
    sent = [entry.data for entry in entries if entry.kind == Kind.MESSAGE]
    assert sent == [{"by": "ana"}, {"by": "ana"}]


async def test_a_journal_records_the_growth_and_resumes_of_its_thread(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, reading_agent(STEPS)) as threads:
        await read_pages(threads, thread_id)
        await read_pages(threads, thread_id)  # By another worker: a resume.
        async with threads.worker():
            packs = PackStore(store)
            grown = await load_series(threads.client, packs, thread_id)
            few = await load_series(threads.client, packs, thread_id, points_max=5)
    assert [point.step for point in grown.points] == list(range(2 * (STEPS + 1)))
    assert not grown.is_sampled
    sizes = [point.stored_bytes for point in grown.points]
    assert sizes == sorted(sizes)
    assert sizes[0] == 0 < sizes[-1]
    assert all(point.context_bytes > 0 for point in grown.points)
    [resume] = grown.resumes
    assert resume.step == STEPS + 1
    assert resume.resume_ms > 0
    assert resume.resume_events > 0
    assert resume.resume_cause in ("eviction", "new_worker", "crash")
    assert len(few.points) == 5
    assert few.is_sampled
    assert few.points[-1] == grown.points[-1]


async def test_actions_on_a_thread_are_in_its_journal(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, reading_agent(1)) as threads, threads.worker():
        await threads.wait_for_answers(thread_id, await threads.send(thread_id, "Read."))
        record = ControlNote(action="archive", by="ana", reason="for the audit")
        await send_signal(threads.client, thread_id, NOTE_SIGNAL, record)
        await threads.wait_for_answers(thread_id, await threads.send(thread_id, "Read on."))
        entries = await read_journal(threads.client, PackStore(store), thread_id)
    notes = [entry.data for entry in entries if entry.kind == Kind.CONTROL]
    assert notes == [{"action": "archive", "by": "ana", "reason": "for the audit", "changes": {}}]


@pytest.mark.parametrize("archive", [False, True])
async def test_a_thread_ends_by_the_requested_stop_or_cancel(
    server: TemporalServer, store: BlobStore, thread_id: str, archive: bool
) -> None:
    async with open_threads(server.address, store, reading_agent(1)) as threads, threads.worker():
        await threads.wait_for_answers(thread_id, await threads.send(thread_id, "Read."))
        await send_signal(threads.client, thread_id, STOP_SIGNAL, Control(archive=archive))
        await threads.client.get_workflow_handle(thread_id).result()
        status = await read_status(threads.client, thread_id)
    assert status.status == ("archived" if archive else "done")
