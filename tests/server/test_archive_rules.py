"""Rules of archiving on a real server: refusals, due threads and reports."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from temporalio.client import WorkflowExecutionStatus

from everlong import Policy
from everlong.admin.overview import load_overview
from everlong.admin.preview import Action, Preview, describe_plan, preview_action
from everlong.archive import make_archive_id
from everlong.archive import manifest as manifests
from everlong.client.archives import archive, archive_due, list_archives, plan_archive
from everlong.client.fork import fork, revive
from everlong.client.status import list_pending, read_status
from everlong.client.thread import ThreadHandle
from everlong.client.time_travel import Timeline
from everlong.client.wait import wait_for_status
from everlong.doctor.checks import check_archives
from everlong.embedded import TemporalServer
from everlong.errors import BlobCorrupt, ControlRefused, DecisionRefused, KeyMissing, ThreadExists
from everlong.models import ThreadStatus, thread_key
from everlong.storage import BlobStore
from everlong.storage.pack_store import PackStore
from tests.server.test_archive import forget, is_running, say
from tests.server.test_time_travel import reset_to_first_answer
from tests.support.governed_agent import build_governed_agent
from tests.support.sample_payloads import flip_bit
from tests.support.threads import Threads, open_threads, read_journal


@pytest.fixture
async def threads(server: TemporalServer, store: BlobStore) -> AsyncIterator[Threads]:
    agents = (
        build_governed_agent(),
        build_governed_agent(Policy(steps_max=1, on_limit="archive"), name="brief"),
        # Queued messages outlive the run: its tail is journalled, and its inbox is not.
        build_governed_agent(Policy(idle_seconds=1), name="idle"),
        build_governed_agent(Policy(compact_to_bytes=4 * 1024), name="short"),
    )
    async with open_threads(server.address, store, *agents) as opened, opened.worker():
        yield opened


async def wait_for(
    threads: Threads, thread_id: str, is_so: Callable[[ThreadStatus], bool]
) -> ThreadStatus:
    return await wait_for_status(threads.client, thread_id, is_so, seconds_max=90)


def has_rolled(status: ThreadStatus) -> bool:
    """Return whether a thread has rolled to another run, with its tail journalled."""
    return status.counters.runs > 1 and status.tail_entries == 0


async def wait_until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Wait for visibility, which lags a little."""
    deadline = time.monotonic() + 90
    while not await is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)


async def refused_to_free(threads: Threads, thread_id: str, words: str, left_out: int) -> None:
    """Check that a thread is archived and not freed, as the plan and the preview announce."""
    packs, client = PackStore(threads.store), threads.client
    plan = await plan_archive(client, packs, thread_id, "free")
    assert (plan.left_out, plan.runs_deleted) == (left_out, 0)
    assert words in plan.refused
    assert "its histories cannot be deleted" in "\n".join(describe_plan(plan))
    outcome = await preview_action(client, packs, thread_id, "archive", {"then": "free"})
    assert (outcome.is_reversible, outcome.confirm) == (True, "")
    assert "Its histories cannot be deleted." in outcome.sentence
    assert any(words in each for each in outcome.warnings)
    with pytest.raises(ControlRefused, match=words):
        await archive(client, packs, thread_id, then="free", by="bob")
    kept = await archive(client, packs, thread_id, then="close")
    assert (kept.is_new, kept.left_out, kept.runs_deleted) == (False, left_out, 0)
    page = await list_archives(client, packs, thread_id=thread_id)
    assert (page.archives, page.freed) == ((kept.manifest,), ())
    status = await read_status(client, thread_id)
    assert status.status == "terminated"


@pytest.mark.guarantee(99)
async def test_unread_messages_of_a_terminated_thread_are_not_freed(
    threads: Threads, thread_id: str
) -> None:
    await say(threads, thread_id, "hello", agent="idle")
    await ThreadHandle(threads.client, thread_id).pause()
    await wait_for(threads, thread_id, lambda status: status.status == "paused")
    for text in ("the password was rotated", "use the new one"):
        await threads.send(thread_id, text, agent="idle")
    found = await wait_for(threads, thread_id, has_rolled)
    assert found.waiting_messages == 2
    await threads.client.get_workflow_handle(thread_id).terminate()
    await refused_to_free(threads, thread_id, "its last 2 entries and messages", 2)


async def test_a_thread_terminated_within_a_turn_is_not_freed(
    threads: Threads, thread_id: str
) -> None:
    await threads.send(thread_id, "restart api", agent="idle")
    assert (await wait_for(threads, thread_id, has_rolled)).pending == 1
    await threads.client.get_workflow_handle(thread_id).terminate()
    await refused_to_free(threads, thread_id, "in the middle of a turn", 0)


async def test_a_thread_terminated_between_turns_is_freed(threads: Threads, thread_id: str) -> None:
    packs, client = PackStore(threads.store), threads.client
    await say(threads, thread_id, "hello")
    await wait_for(threads, thread_id, lambda status: status.tail_entries == 0)
    await client.get_workflow_handle(thread_id).terminate()
    done = await archive(client, packs, thread_id, then="free")
    assert (done.left_out, done.runs_deleted, done.manifest.status) == (0, 1, "terminated")


async def start_brief_thread(threads: Threads, thread_id: str) -> None:
    """A thread that a limit ends to be archived, after one answer."""
    await say(threads, thread_id, "hello", agent="brief")
    await threads.send(thread_id, "and more", agent="brief")
    await wait_for(threads, thread_id, lambda status: status.status == "archived")


async def archive_due_threads(threads: Threads, packs: PackStore, thread_id: str) -> bool:
    found = await archive_due(threads.client, packs, count_max=1000)
    assert not [each for each in found.failed if each.startswith(thread_id)]
    return any(each.thread_id == thread_id for each in found.archived)


@pytest.mark.guarantee(99)
async def test_a_reset_thread_continues_and_its_second_end_is_due_too(
    threads: Threads, thread_id: str
) -> None:
    packs, client = PackStore(threads.store), threads.client
    await start_brief_thread(threads, thread_id)
    await wait_until(lambda: archive_due_threads(threads, packs, thread_id))
    await reset_to_first_answer(threads, thread_id)
    # Visibility still lists its first end, but no new request to end it exists.
    assert not await archive_due_threads(threads, packs, thread_id)
    assert await is_running(threads, thread_id)
    await ThreadHandle(client, thread_id).configure({"steps_max": 2})
    await say(threads, thread_id, "other", agent="brief")
    await threads.send(thread_id, "and more", agent="brief")
    await wait_for(threads, thread_id, lambda status: status.status == "archived")
    await wait_until(lambda: archive_due_threads(threads, packs, thread_id))
    newest = await manifests.load_newest(packs, thread_key(client.namespace, thread_id))
    assert newest is not None
    assert newest.entries == len(await read_journal(client, packs, thread_id))
    assert not await archive_due_threads(threads, packs, thread_id)


async def test_an_archive_sealed_with_a_lost_key_is_rewritten_and_blocks_no_other(
    threads: Threads, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs, client = PackStore(threads.store), threads.client
    ids = [f"{thread_id}-{each}" for each in ("b", "a")]  # The newest is listed first.
    for each in ids:
        await start_brief_thread(threads, each)
    first = await archive(client, packs, ids[1])
    read = manifests.read

    async def keyless(packs: PackStore, thread: str, archive_id: str) -> manifests.Manifest:
        if archive_id == first.manifest.archive_id:
            raise KeyMissing("sealed with key 'old', which this process does not have")
        return await read(packs, thread, archive_id)

    monkeypatch.setattr(manifests, "read", keyless)
    for each in ids:
        newest = thread_key(client.namespace, each)

        async def is_archived(thread: str = newest) -> bool:
            await archive_due(client, packs, count_max=1000)
            found = await manifests.list_ids(packs.store, thread)
            return bool(found) and found[-1] != first.manifest.archive_id

        await wait_until(is_archived)


async def test_no_thread_starts_under_an_archived_id(
    threads: Threads, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs, client = PackStore(threads.store), threads.client
    other = f"{thread_id}-other"
    for each in (thread_id, other):
        await say(threads, each, "hello")
    await archive(client, packs, thread_id, then="close")
    forget(monkeypatch, thread_id)
    before = {each.key async for each in threads.store.list("")}
    for starting in (
        revive(client, packs, thread_id, thread_id, task_queue=threads.task_queue),
        fork(client, packs, other, 2, thread_id, task_queue=threads.task_queue),
    ):
        with pytest.raises(ThreadExists, match=r"archives of a thread .* Choose another id"):
            await starting
    assert {each.key async for each in threads.store.list("")} == before


async def test_a_damaged_archive_is_not_revived(
    threads: Threads, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs, client = PackStore(threads.store), threads.client
    await say(threads, thread_id, "hello")
    manifest = (await archive(client, packs, thread_id, then="close")).manifest
    data = await threads.store.get(manifest.file_key)
    await threads.store.delete([manifest.file_key])
    await threads.store.put(manifest.file_key, flip_bit(data, 0))
    new_id = f"{thread_id}-2"
    with pytest.raises(BlobCorrupt, match="its bytes differ from those that were written"):
        await revive(client, packs, thread_id, new_id, task_queue=threads.task_queue)
    prefix = f"v1/{thread_key(client.namespace, new_id)}/"
    assert [each async for each in threads.store.list(prefix)] == []


async def test_an_unreadable_manifest_is_named_and_blocks_nothing(
    threads: Threads, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs, client = PackStore(threads.store), threads.client
    await say(threads, thread_id, "hello")
    done = await archive(client, packs, thread_id, then="close")
    name = "99991231T235959999Z-ffffffff"
    place = manifests.make_archive_key(done.manifest.thread, name, manifests.MANIFEST)
    await threads.store.put(place, b"{")
    again = await archive(client, packs, thread_id)
    assert (again.is_new, again.manifest) == (False, done.manifest)
    assert [each.partition(":")[0] for each in again.passed_over] == [name]
    assert not await archive_due_threads(threads, packs, thread_id)
    found = await load_overview(client, packs, thread_id)
    assert found.archive == done.manifest.archive_id
    assert name in found.unreadable_archives[0]
    seen = await preview_action(client, packs, thread_id, "revive")
    assert name in seen.warnings[0]
    warnings: list[str] = []
    await revive(
        client,
        packs,
        thread_id,
        f"{thread_id}-2",
        task_queue=threads.task_queue,
        on_warning=warnings.append,
    )
    assert f"so {done.manifest.archive_id} is revived" in warnings[0]
    checked = await check_archives(client, packs)
    assert checked.status == "warning"
    assert name in checked.text
    forget(monkeypatch, thread_id)
    past = await Timeline.open(client, packs, thread_id)
    assert (past.archive, len(past.passed_over)) == (done.manifest, 1)
    await threads.store.delete([done.manifest.file_key.replace(".parquet", ".json")])
    with pytest.raises(BlobCorrupt, match=name):  # No readable archive is left.
        await Timeline.open(client, packs, thread_id)


async def test_a_dry_run_counts_all_runs_that_would_be_deleted(
    threads: Threads, thread_id: str
) -> None:
    packs, client = PackStore(threads.store), threads.client
    await say(threads, thread_id, "hello", "two")
    await reset_to_first_answer(threads, thread_id)
    await say(threads, thread_id, "other two")

    async def is_counted() -> bool:
        plan = await plan_archive(client, packs, thread_id, "free")
        return plan.runs_deleted == 2

    await wait_until(is_counted)
    assert (await archive(client, packs, thread_id, then="free")).runs_deleted == 2


@pytest.mark.guarantee(93)
async def test_a_deletion_record_names_who_freed_an_archived_thread(
    threads: Threads, thread_id: str
) -> None:
    packs, client = PackStore(threads.store), threads.client
    await say(threads, thread_id, "hello")
    closed = await archive(client, packs, thread_id, then="close", by="ann", reason="it is over")
    assert (await list_archives(client, packs, thread_id=thread_id)).freed == ()
    plan = await plan_archive(client, packs, thread_id, "free")
    assert (plan.existing, plan.runs_deleted) == (closed.manifest.archive_id, 1)
    done = await archive(client, packs, thread_id, then="free", by="bob", reason="no room")
    assert (done.is_new, done.manifest.by) == (False, "ann")
    [record] = (await list_archives(client, packs, thread_id=thread_id)).freed
    assert (record.by, record.reason, record.thread_id) == ("bob", "no room", thread_id)
    assert record.archive_id == closed.manifest.archive_id


async def test_histories_stay_if_the_deletion_record_cannot_be_written(
    threads: Threads, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs, client = PackStore(threads.store), threads.client
    await say(threads, thread_id, "hello")

    async def full(*_arguments: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(manifests, "write_freed", full)
    with pytest.raises(OSError, match="full"):
        await archive(client, packs, thread_id, then="free")
    description = await client.get_workflow_handle(thread_id).describe()
    assert description.status == WorkflowExecutionStatus.COMPLETED


async def test_a_new_archive_is_the_newest_despite_an_earlier_writers_clock(
    threads: Threads, thread_id: str
) -> None:
    packs, client = PackStore(threads.store), threads.client
    thread = thread_key(client.namespace, thread_id)
    await say(threads, thread_id, "hello")
    ahead = make_archive_id(time.time_ns() // 1_000_000 + 300_000, bytes(4))
    # Not even readable.
    await threads.store.put(manifests.make_archive_key(thread, ahead, manifests.MANIFEST), b"{")
    done = await archive(client, packs, thread_id)
    assert await manifests.list_ids(packs.store, thread) == [ahead, done.manifest.archive_id]
    assert await manifests.load_newest(packs, thread) == done.manifest
    assert done.manifest.archived_ms < manifests.parse_archive_ms(ahead)


@pytest.mark.guarantee(97)
async def test_previews_match_the_outcome(threads: Threads, thread_id: str) -> None:
    packs, client = PackStore(threads.store), threads.client

    async def preview(action: Action, **arguments: object) -> Preview:
        return await preview_action(client, packs, thread_id, action, arguments)

    await say(threads, thread_id, "hello", "two", "three")
    with pytest.raises(DecisionRefused, match="there is no approval '9-1-aa'"):
        await preview("decide", approval_id="9-1-aa", approve=True)
    await threads.send(thread_id, "restart api")
    await wait_for(threads, thread_id, lambda status: status.pending > 0)
    [approval] = await list_pending(client, thread_id)
    outcome = await preview("decide", approval_id=approval.id, approve=True)
    assert (outcome.is_reversible, approval.id in outcome.sentence) == (False, True)
    outcome = await preview("archive", then="close")
    assert (outcome.is_reversible, outcome.confirm) == (False, thread_id)
    manifest = (await archive(client, packs, thread_id, then="close")).manifest
    with pytest.raises(DecisionRefused, match="has ended"):
        await preview("decide", approval_id=approval.id, approve=True)
    for then in ("keep", "close"):
        outcome = await preview("archive", then=then)
        assert (outcome.is_reversible, outcome.confirm, outcome.warnings) == (True, "", ())
        assert outcome.after_bytes == outcome.before_bytes
        assert "nothing is written" in outcome.sentence
    outcome = await preview("archive", then="free")
    assert (outcome.is_reversible, outcome.confirm) == (False, thread_id)
    assert outcome.after_bytes == manifest.size_bytes
    whole, half = await preview("revive"), await preview("revive", seq=manifest.entries // 2)
    assert whole.after_bytes == 2 * manifest.size_bytes
    assert (
        half.after_bytes
        == manifest.size_bytes + manifest.size_bytes * (manifest.entries // 2) // manifest.entries
    )


async def test_a_preview_does_not_promise_that_a_compaction_can_be_undone(
    threads: Threads, thread_id: str
) -> None:
    packs, client = PackStore(threads.store), threads.client
    await say(threads, thread_id, *(f"{each} " + "word " * 2000 for each in "abcd"), agent="short")
    outcome = await preview_action(client, packs, thread_id, "compact")
    assert outcome.before_bytes is not None
    assert outcome.after_bytes is not None
    assert outcome.after_bytes < outcome.before_bytes
    # Nor need it be confirmed: nothing is lost.
    assert (outcome.is_reversible, outcome.confirm) == (False, "")
    assert "The journal keeps everything" in outcome.sentence
