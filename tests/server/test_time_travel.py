"""State at any entry, diffs, forks and resets: branches of one past that never leak."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, ResetReapplyExcludeType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from everlong import Policy
from everlong.client.fork import fork as fork_thread
from everlong.client.status import list_pending, read_status
from everlong.client.thread import ThreadHandle
from everlong.client.time_travel import ThreadView, read_state
from everlong.client.time_travel import compare_states as diff_states
from everlong.client.updates import send
from everlong.client.wait import ask as ask_thread
from everlong.client.wait import wait_for_status
from everlong.embedded import TemporalServer
from everlong.errors import EntryNotFound, ThreadExists
from everlong.models import Entry, Kind, ThreadStatus, thread_key
from everlong.storage import BlobStore
from everlong.storage.pack_store import PackStore, thread_prefix
from tests.support.governed_agent import build_governed_agent
from tests.support.threads import Threads, open_threads, read_journal

BULK = "x" * 3000


@pytest.fixture
async def threads(server: TemporalServer, store: BlobStore) -> AsyncIterator[Threads]:
    agents = (build_governed_agent(), build_governed_agent(Policy(steps_max=77), name="other"))
    async with open_threads(server.address, store, *agents) as opened, opened.worker():
        yield opened


async def ask(threads: Threads, thread_id: str, text: str, agent: str = "ops") -> str:
    return await ask_thread(
        threads.client,
        PackStore(threads.store),
        thread_id,
        text,
        task_queue=threads.task_queue,
        agent=agent,
        seconds_max=60,
    )


async def list_entries(threads: Threads, thread_id: str) -> list[Entry]:
    entries = await read_journal(threads.client, PackStore(threads.store), thread_id)
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    return entries


async def list_texts(threads: Threads, thread_id: str) -> list[str]:
    return [message.text for message in await threads.conversation(thread_id)]


async def fork(
    threads: Threads, thread_id: str, seq: int, new_id: str, agent: str | None = None
) -> ThreadView:
    packs = PackStore(threads.store)
    await fork_thread(
        threads.client,
        packs,
        thread_id,
        seq,
        new_id,
        task_queue=threads.task_queue,
        agent=agent,
        by="ann",
    )
    return await read_state(threads.client, packs, new_id, seq + 1)


async def wait_for_compaction(threads: Threads, thread_id: str) -> None:
    before = (await read_status(threads.client, thread_id)).counters.compactions
    await ThreadHandle(threads.client, thread_id).compact()
    await wait_for_status(
        threads.client,
        thread_id,
        lambda status: status.counters.compactions > before,
        seconds_max=90,
    )


@pytest.mark.guarantee(75)
async def test_state_at_shows_a_thread_at_any_entry(threads: Threads, thread_id: str) -> None:
    packs = PackStore(threads.store)
    await ask(threads, thread_id, "hello")
    await ask(threads, thread_id, "remember the api is slow")
    status = await read_status(threads.client, thread_id)
    entries = await list_entries(threads, thread_id)
    views = [await read_state(threads.client, packs, thread_id, entry.seq) for entry in entries]
    last = views[-1]
    assert last.totals is not None
    assert last.totals.steps == status.counters.steps == 3
    assert last.totals.tool_calls == status.counters.tool_calls == 1
    assert last.totals.messages == status.counters.messages == 2
    assert last.totals.tokens == status.counters.tokens == 30
    assert last.totals.cost_usd == pytest.approx(status.counters.cost_usd)
    assert [message.text for message in views[0].context] == ["hello"]
    assert [fact.text for fact in last.facts] == ["the api is slow"]
    known = [bool(view.facts) for view in views]
    assert known == sorted(known)
    assert not known[0]
    diff = await diff_states(threads.client, packs, thread_id, 2, last.seq)
    assert [entry.seq for entry in diff.entries] == list(range(3, last.seq + 1))
    assert diff.totals.steps == 2
    assert [fact.key for fact in diff.facts_added] == ["note"]
    # The facts are the first thing that the model reads.
    assert [message.role for message in diff.context_added] == [
        "summary",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert diff.context_removed == ()
    with pytest.raises(EntryNotFound, match=f"and no {last.seq + 1}"):
        await read_state(threads.client, packs, thread_id, last.seq + 1)
    with pytest.raises(EntryNotFound, match="give the earlier one first"):
        await diff_states(threads.client, packs, thread_id, 3, 2)


@pytest.mark.guarantee(75)
async def test_state_at_shows_an_approval_pending_and_decided(
    threads: Threads, thread_id: str
) -> None:
    packs = PackStore(threads.store)
    number = await threads.send(thread_id, "restart api")
    await wait_for_status(
        threads.client, thread_id, lambda status: status.pending > 0, seconds_max=90
    )
    [approval] = await list_pending(threads.client, thread_id)
    await ThreadHandle(threads.client, thread_id).decide(
        approval.id, approve=True, by="ann", reason="go"
    )
    await threads.wait_for_answers(thread_id, number)
    entries = await list_entries(threads, thread_id)
    [asked] = [entry.seq for entry in entries if entry.kind == Kind.ASKED]
    view = await read_state(threads.client, packs, thread_id, asked)
    assert view.pending == (approval,)
    diff = await diff_states(threads.client, packs, thread_id, 1, len(entries))
    assert [each.id for each in diff.asked] == [approval.id]
    assert [(each.by, each.reason) for each in diff.decided] == [("ann", "go")]
    assert (await read_state(threads.client, packs, thread_id, len(entries))).pending == ()


async def test_a_fork_diverges_from_its_thread(threads: Threads, thread_id: str) -> None:
    for text in ("one", "two", "three"):
        await ask(threads, thread_id, text)
    before = await list_texts(threads, thread_id)
    forked = f"{thread_id}-fork"
    view = await fork(threads, thread_id, 4, forked)
    assert view.totals is not None
    assert view.totals.messages == 2
    assert await list_texts(threads, forked) == before[:4]
    assert await ask(threads, forked, "four") == "you said four"
    assert await ask(threads, thread_id, "five") == "you said five"
    assert await list_texts(threads, forked) == [*before[:4], "four", "you said four"]
    assert await list_texts(threads, thread_id) == [*before, "five", "you said five"]
    entries = await list_entries(threads, forked)
    [entry] = [each for each in entries if each.kind == Kind.FORK]
    assert entry.data == {"thread_id": thread_id, "seq": 4, "by": "ann", "reason": ""}
    status = await read_status(threads.client, forked)
    assert (status.counters.messages, status.counters.answered) == (3, 3)
    # A fork starts its own counts against limits.
    assert (status.counters.steps, status.counters.tokens, status.counters.runs) == (1, 10, 1)
    assert status.counters.cost_usd == pytest.approx(0.01)


@pytest.mark.guarantee(76)
async def test_a_fork_shares_stored_objects_until_it_writes(
    threads: Threads, thread_id: str
) -> None:
    await send(
        threads.client,
        thread_id,
        " ".join(uuid.uuid4().hex for _ in range(1000)),
        task_queue=threads.task_queue,
        agent="ops",
        packs=PackStore(threads.store),
    )
    await threads.wait_for_answers(thread_id, 1)
    forked = f"{thread_id}-fork"
    await fork(threads, thread_id, 2, forked)
    own = await threads.size(forked)
    assert own.blob_bytes < 4096 < (await threads.size(thread_id)).blob_bytes
    counters = (await read_status(threads.client, forked)).counters
    assert counters.written_bytes == own.blob_bytes
    assert await threads.conversation(forked) == await threads.conversation(thread_id)


@pytest.mark.guarantee(76)
async def test_a_fork_begins_with_the_snapshot_that_was_in_force(
    threads: Threads, thread_id: str
) -> None:
    packs = PackStore(threads.store)
    for number in range(6):
        await ask(threads, thread_id, f"{number} {BULK}")
    await ThreadHandle(threads.client, thread_id).configure({"compact_to_bytes": 4096})
    await wait_for_compaction(threads, thread_id)
    await ask(threads, thread_id, "after the first")
    last = len(await list_entries(threads, thread_id))
    await ask(threads, thread_id, f"7 {BULK}")
    await wait_for_compaction(threads, thread_id)
    forked = f"{thread_id}-fork"
    view = await fork(threads, thread_id, last, forked)
    here = await read_state(threads.client, packs, thread_id, last)
    assert here.snapshot is not None
    assert view.context == here.context
    # The copy is the fork's own, and its next step reads it.
    status = await read_status(threads.client, forked)
    assert status.snapshot is not None
    assert status.snapshot.ref.thread == thread_key(threads.client.namespace, forked)
    assert status.snapshot.upto_seq == here.snapshot.upto_seq
    assert await ask(threads, forked, "still there?") == "you said still there?"
    # A fork of the fork reads through both.
    again = f"{forked}-fork"
    await fork(threads, forked, last, again)
    assert await ask(threads, again, "and here?") == "you said and here?"
    assert (await list_texts(threads, again))[:-2] == (await list_texts(threads, forked))[:-2]


@pytest.mark.guarantee(76)
async def test_a_fork_from_any_entry_continues_to_work(threads: Threads, thread_id: str) -> None:
    """In the middle of a step too: what a call lacks is filled in, and the turn is broken off."""
    await ask(threads, thread_id, "remember the api is slow")
    texts = await list_texts(threads, thread_id)
    last = len(await list_entries(threads, thread_id))
    for seq in range(1, last + 1):
        forked = f"{thread_id}-{seq}"
        await fork(threads, thread_id, seq, forked)
        assert await ask(threads, forked, "go on") == "you said go on"
        found = await list_texts(threads, forked)
        assert found[-2:] == ["go on", "you said go on"]
        assert found[:-2] == texts[: len(found) - 2]
    for seq in (0, last + 1):
        with pytest.raises(EntryNotFound):
            await fork(threads, thread_id, seq, f"{thread_id}-no")


async def test_a_rerun_works_on_the_changed_message_and_is_linked_both_ways(
    threads: Threads, thread_id: str
) -> None:
    for text in ("one", "twoo", "three"):
        await ask(threads, thread_id, text)
    before = await list_texts(threads, thread_id)
    handle = ThreadHandle(
        threads.client,
        thread_id,
        packs=PackStore(threads.store),
        task_queue=threads.task_queue,
    )
    forked = await handle.rerun(4, "two", by="ann", reason="a typo")  # The reply to "twoo".
    assert forked.id == f"{thread_id}-rerun-4"
    assert forked.start is not None
    number = forked.start.state.counters.messages
    assert await forked.wait(number, seconds_max=60) == "you said two"
    assert await list_texts(threads, forked.id) == [*before[:2], "two", "you said two"]
    assert await list_texts(threads, thread_id) == before
    assert await ask(threads, forked.id, "more") == "you said more"

    first = await handle.rerun(1, "uno", f"{thread_id}-again")
    assert await first.wait(1, seconds_max=60) == "you said uno"
    assert await list_texts(threads, first.id) == ["uno", "you said uno"]
    again = await handle.rerun(3, "dos")
    assert again.id == f"{thread_id}-rerun-3"
    assert (await handle.rerun(3, "due")).id == f"{thread_id}-rerun-3-2"
    with pytest.raises(EntryNotFound):
        await handle.rerun(99, "x")

    wanted = {forked.id: 2, first.id: 0, again.id: 2, f"{again.id}-2": 2}
    async with asyncio.timeout(30):
        while len((await handle.fork_links()).forks) < len(wanted):
            await asyncio.sleep(0.1)
    links = await handle.fork_links()
    assert {each.thread_id: each.seq for each in links.forks} == wanted
    assert (links.origin, links.has_more, links.problem) == (None, False, "")
    origin = (await forked.fork_links()).origin
    assert origin is not None
    assert (origin.thread_id, origin.seq) == (thread_id, 2)


@pytest.mark.guarantee(76)
async def test_a_fork_takes_no_id_that_was_ever_used(threads: Threads, thread_id: str) -> None:
    await ask(threads, thread_id, "hello")
    ended = f"{thread_id}-ended"
    await ask(threads, ended, "hello")
    await ThreadHandle(threads.client, ended).stop()
    await threads.client.get_workflow_handle(ended).result()
    before = (await threads.size(ended)).blobs
    for taken in (thread_id, ended):
        with pytest.raises(ThreadExists, match="Choose another id"):
            await fork(threads, thread_id, 1, taken)
    assert (await threads.size(ended)).blobs == before
    # A thread that has ended can be gone on from.
    await fork(threads, ended, 2, f"{ended}-fork")
    assert await ask(threads, f"{ended}-fork", "again") == "you said again"


async def test_a_fork_has_the_policy_of_its_thread_or_its_agent(
    threads: Threads, thread_id: str
) -> None:
    await ask(threads, thread_id, "hello")
    await ThreadHandle(threads.client, thread_id).configure({"steps_max": 55})
    same, other = f"{thread_id}-same", f"{thread_id}-other"
    await fork(threads, thread_id, 2, same)
    await fork(threads, thread_id, 2, other, agent="other")
    for forked, agent, steps_max in ((same, "ops", 55), (other, "other", 77)):
        await ask(threads, forked, "again", agent)
        status = await read_status(threads.client, forked)
        assert (status.agent, status.policy.steps_max) == (agent, steps_max)


async def test_a_fork_of_a_thread_that_a_limit_ended_goes_on(
    threads: Threads, thread_id: str
) -> None:
    await ask(threads, thread_id, "one")
    await ThreadHandle(threads.client, thread_id).configure({"steps_max": 2, "on_limit": "stop"})
    await ask(threads, thread_id, "two")
    await threads.send(thread_id, "one too many")
    ended = await threads.client.get_workflow_handle(thread_id, result_type=ThreadStatus).result()
    assert ended.ended is not None
    assert ended.ended.limit == "steps_max"
    forked, again = f"{thread_id}-fork", f"{thread_id}-again"
    await fork(threads, thread_id, 4, forked)
    # A fork of a fork that has not taken a step has its policy too.
    await fork(threads, forked, 4, again)
    for each in (forked, again):
        assert await ask(threads, each, "three") == "you said three"
        status = await read_status(threads.client, each)
        assert (status.counters.steps, status.counters.messages) == (1, 3)
        assert (status.policy.steps_max, status.policy.on_limit) == (2, "stop")


async def reset_to_first_answer(threads: Threads, thread_id: str) -> None:
    """Undo all that followed the first turn, messages included, as `temporal workflow reset` does."""
    handle = threads.client.get_workflow_handle(thread_id)
    run_id = (await handle.describe()).run_id
    first_turn_done = 0
    finished = 0
    async for event in threads.client.get_workflow_handle(
        thread_id, run_id=run_id
    ).fetch_history_events():
        finished += event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
        completes_task = event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        if completes_task and finished == 1:
            first_turn_done = event.event_id
            break
    reset = await threads.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=threads.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=thread_id, run_id=run_id),
            workflow_task_finish_event_id=first_turn_done,
            request_id=uuid.uuid4().hex,
            reason="a test",
            reset_reapply_exclude_types=[
                ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL,
                ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE,
            ],
        )
    )
    assert reset.run_id != run_id


@pytest.mark.guarantee(76)
async def test_a_reset_thread_knows_nothing_of_the_branch_that_was_left(
    threads: Threads, thread_id: str
) -> None:
    await ask(threads, thread_id, "one")
    await ask(threads, thread_id, f"two {BULK}")
    await ask(threads, thread_id, "remember the wrong thing")
    abandoned = await list_texts(threads, thread_id)
    forked = f"{thread_id}-fork"
    await fork(threads, thread_id, len(await list_entries(threads, thread_id)), forked)
    await reset_to_first_answer(threads, thread_id)
    assert await list_texts(threads, thread_id) == ["one", "you said one"]
    assert await ask(threads, thread_id, "another two") == "you said another two"
    assert await list_texts(threads, thread_id) == [
        "one",
        "you said one",
        "another two",
        "you said another two",
    ]
    entries = await list_entries(threads, thread_id)
    assert len(entries) == 4
    view = await read_state(threads.client, PackStore(threads.store), thread_id, 4)
    assert view.facts == ()
    # The fork was made of the branch that was left, and keeps it.
    assert await ask(threads, forked, "three") == "you said three"
    assert await list_texts(threads, forked) == [*abandoned, "three", "you said three"]
    # The objects of the abandoned branch are still stored for it.
    prefix = thread_prefix(thread_key(threads.client.namespace, thread_id))
    assert [info async for info in threads.store.list(prefix)]
