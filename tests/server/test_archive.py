"""Archives of threads on a real server: kept, closed, freed, read again, revived."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from everlong import Policy
from everlong.admin.entries import load_entry_page
from everlong.admin.series import load_series
from everlong.archive import manifest as manifests
from everlong.archive import writer
from everlong.client import archives, lookup
from everlong.client.archives import archive, archive_due, list_archives
from everlong.client.fork import fork as fork_thread
from everlong.client.fork import revive
from everlong.client.lookup import list_ended_runs
from everlong.client.status import read_status
from everlong.client.thread import ThreadHandle
from everlong.client.time_travel import compare_states as diff_states
from everlong.client.time_travel import read_state
from everlong.client.wait import wait_for_status
from everlong.embedded import TemporalServer
from everlong.errors import ArchiveNotFound, ControlRefused, ThreadEnded, ThreadNotFound
from everlong.models import Kind, thread_key
from everlong.storage import BlobStore
from everlong.storage.pack_store import PackStore, thread_prefix
from everlong.telemetry import Telemetry
from tests.server.test_cli_threads import open_cli
from tests.support.governed_agent import build_governed_agent
from tests.support.threads import Threads, open_threads, read_journal

LONG = "long " * 20_000


@pytest.fixture
async def threads(server: TemporalServer, store: BlobStore) -> AsyncIterator[Threads]:
    agents = (
        build_governed_agent(),
        build_governed_agent(Policy(steps_max=1, on_limit="archive"), name="brief"),
    )
    async with open_threads(server.address, store, *agents) as opened, opened.worker():
        yield opened


async def say(threads: Threads, thread_id: str, *texts: str, agent: str = "ops") -> None:
    for text in texts:
        await threads.wait_for_answers(thread_id, await threads.send(thread_id, text, agent=agent))


async def is_running(threads: Threads, thread_id: str) -> bool:
    description = await threads.client.get_workflow_handle(thread_id).describe()
    return description.status == WorkflowExecutionStatus.RUNNING


def forget(monkeypatch: pytest.MonkeyPatch, thread_id: str) -> None:
    """Have the server not know a thread: it takes half a minute to delete a history."""
    describe = WorkflowHandle.describe

    async def forgetful(handle: Any, **options: Any) -> Any:
        if handle.id == thread_id:
            raise RPCError("workflow not found", RPCStatusCode.NOT_FOUND, b"")
        return await describe(handle, **options)

    monkeypatch.setattr(WorkflowHandle, "describe", forgetful)


async def test_an_archived_open_thread_continues_and_its_journal_names_the_archiver(
    threads: Threads, thread_id: str
) -> None:
    packs = PackStore(threads.store)
    await say(threads, thread_id, "hello", LONG)
    first = await archive(threads.client, packs, thread_id, by="ann", reason="before the move")
    assert first.is_new
    assert not first.is_closed
    assert await is_running(threads, thread_id)
    assert first.manifest.entries == 4
    await say(threads, thread_id, "still there?")
    entries = await read_journal(threads.client, packs, thread_id)
    [control] = [each.data for each in entries if each.kind == Kind.CONTROL]
    assert control is not None
    assert control["action"] == "archive"
    assert control["by"] == "ann"
    assert control["reason"] == f"before the move ({first.manifest.archive_id})"
    second = await archive(threads.client, packs, thread_id, then="keep", by="ann")
    assert second.manifest.entries == 7
    page = await list_archives(threads.client, packs, thread_id=thread_id)
    assert [each.archive_id for each in page.archives] == [
        second.manifest.archive_id,
        first.manifest.archive_id,
    ]


@pytest.mark.guarantee(98)
async def test_a_closed_thread_ends_with_a_complete_journal(
    threads: Threads, thread_id: str
) -> None:
    packs = PackStore(threads.store)
    await say(threads, thread_id, "hello", "remember the api is slow")
    done = await archive(threads.client, packs, thread_id, then="close", by="ann", reason="over")
    assert done.is_closed
    assert done.manifest.status == "archived"
    status = await read_status(threads.client, thread_id)
    assert (status.status, status.tail_entries) == ("archived", 0)
    entries = await read_journal(threads.client, packs, thread_id)
    assert done.manifest.entries == len(entries)
    assert (entries[-1].data or {}).get("reason") == "over"
    with pytest.raises(ThreadEnded):
        await threads.send(thread_id, "one more")
    again = await archive(threads.client, packs, thread_id, then="close", by="bob")
    assert not again.is_new
    assert again.manifest == done.manifest


@pytest.mark.guarantee(101)
async def test_a_freed_thread_is_read_from_its_archive_and_revived(
    threads: Threads, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs, client = PackStore(threads.store), threads.client
    await say(threads, thread_id, "hello", "remember the api is slow", LONG)
    # By default a context of this size is small enough, and a compaction would change nothing.
    await ThreadHandle(client, thread_id).configure({"compact_to_bytes": 8192}, by="ann")
    await ThreadHandle(client, thread_id).compact()
    await wait_for_status(
        client, thread_id, lambda status: status.counters.compactions > 0, seconds_max=90
    )
    await say(threads, thread_id, "one more")
    last_seq = len(await read_journal(client, packs, thread_id))
    view = await read_state(client, packs, thread_id, last_seq)
    diff = await diff_states(client, packs, thread_id, 2, last_seq)
    before_free = [message.text for message in await threads.conversation(thread_id)]
    done = await archive(client, packs, thread_id, then="free", by="ann", reason="over")
    assert done.runs_deleted >= 1
    forget(monkeypatch, thread_id)
    # As a sweep does, once nothing names them any more.
    prefix = thread_prefix(thread_key(client.namespace, thread_id))
    await threads.store.delete([each.key async for each in threads.store.list(prefix)])

    assert await read_state(client, packs, thread_id, last_seq) == view
    after = await diff_states(client, packs, thread_id, 2, last_seq)
    assert (after.context_added, after.facts_added) == (diff.context_added, diff.facts_added)
    assert [each.seq for each in after.entries] == [each.seq for each in diff.entries]
    assert [message.text for message in await threads.conversation(thread_id)] == before_free
    assert (await load_series(client, packs, thread_id)).entries == done.manifest.entries
    gone = await archive(client, packs, thread_id, then="free")
    assert (gone.manifest, gone.is_new) == (done.manifest, False)
    with pytest.raises(ThreadNotFound, match="everlong revive"):
        await fork_thread(client, packs, thread_id, 2, "other", task_queue=threads.task_queue)

    new_id = f"{thread_id}-again"
    start = await revive(
        client, packs, thread_id, new_id, task_queue=threads.task_queue, by="bob", reason="back"
    )
    assert start.state.snapshot is not None
    await say(threads, new_id, "where were we?")
    conversation = await threads.conversation(new_id)
    assert [message.text for message in conversation[:-2]] == before_free
    assert conversation[-1].text == "you said where were we?"
    entries = await read_journal(client, packs, new_id)
    [fork] = [each for each in entries if each.kind == Kind.FORK]
    assert fork.data == {
        "thread_id": thread_id,
        "seq": done.manifest.entries,
        "by": "bob",
        "reason": "back",
    }
    page = await load_entry_page(client, packs, new_id)
    assert all(each.summary for each in page.entries)
    revived = await read_state(client, packs, new_id, last_seq)
    assert (revived.context, revived.facts) == (view.context, view.facts)
    newest = await read_state(client, packs, new_id, len(entries))
    assert [fact.text for fact in newest.facts] == ["the api is slow"]
    with pytest.raises(ArchiveNotFound, match="has no archive"):
        await revive(client, packs, new_id, "third", task_queue=threads.task_queue)


@pytest.mark.guarantee(99)
async def test_histories_stay_if_the_archive_cannot_be_written(
    threads: Threads, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs, client = PackStore(threads.store), threads.client
    await say(threads, thread_id, "hello")

    async def full(_key: str, _path: Path) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(threads.store, "put_file", full)
        with pytest.raises(OSError, match="full"):
            await archive(client, packs, thread_id, then="free")
    assert not await is_running(threads, thread_id)
    assert (await list_archives(client, packs, thread_id=thread_id)).archives == ()
    done = await archive(client, packs, thread_id, then="free")
    assert done.is_new
    assert done.runs_deleted >= 1


class Kill(Exception):
    """Stands for the end of the process."""


async def kill(*_arguments: object, **_options: object) -> None:
    raise Kill


@pytest.mark.guarantee(99)
async def test_a_repeat_repairs_a_kill_between_manifest_and_note(
    threads: Threads, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs, client = PackStore(threads.store), threads.client
    await say(threads, thread_id, "hello")
    with monkeypatch.context() as patched:
        patched.setattr(archives, "_record_archive", kill)
        with pytest.raises(Kill):
            await archive(client, packs, thread_id, by="ann", reason="move")
    [listed] = (await list_archives(client, packs, thread_id=thread_id)).archives
    done = await archive(client, packs, thread_id, by="ann", reason="move")
    assert (done.is_new, done.manifest) == (False, listed)
    await say(threads, thread_id, "still there?")
    entries = await read_journal(client, packs, thread_id)
    [control] = [each.data or {} for each in entries if each.kind == Kind.CONTROL]
    assert (control["by"], control["reason"]) == ("ann", f"move ({listed.archive_id})")


@pytest.mark.guarantee(99)
async def test_a_repeat_repairs_a_kill_at_any_step_of_freeing(
    threads: Threads, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs, client = PackStore(threads.store), threads.client
    await say(threads, thread_id, "hello", "and more")
    steps = [
        (archives, "_wait_for_end", 0),
        (writer, "put_file", 0),
        (writer, "verify", 0),
        (manifests, "dump", 0),
        (archives, "list_ended_runs", 1),
        (manifests, "write_freed", 1),
        (archives, "delete_runs", 1),
        (lookup, "_delete_run", 1),
    ]
    for module, name, listed in steps:
        with monkeypatch.context() as patched:
            patched.setattr(module, name, kill if name != "dump" else killed_at_once)
            with pytest.raises(Kill):
                await archive(client, packs, thread_id, then="free", by="ann")
        page = await list_archives(client, packs, thread_id=thread_id)
        assert len(page.archives) == listed, name
        # All of it is there as before.
        assert (await read_journal(client, packs, thread_id))[0].seq == 1
    done = await archive(client, packs, thread_id, then="free", by="ann")
    assert not done.is_new
    assert done.runs_deleted >= 1
    assert done.manifest.status == "archived"


def killed_at_once(*_arguments: object) -> None:
    raise Kill


@pytest.mark.guarantee(99)
async def test_a_damaged_archive_is_rewritten_before_anything_is_freed(
    threads: Threads, thread_id: str
) -> None:
    packs, client = PackStore(threads.store), threads.client
    await say(threads, thread_id, "hello")
    first = await archive(client, packs, thread_id, then="close")
    await threads.store.delete([first.manifest.file_key])
    await threads.store.put(first.manifest.file_key, b"damaged")
    second = await archive(client, packs, thread_id, then="close")
    assert second.is_new
    manifest = manifests.make_archive_key(
        second.manifest.thread, second.manifest.archive_id, manifests.MANIFEST
    )
    await threads.store.delete([manifest])
    await threads.store.put(manifest, b"{")
    third = await archive(client, packs, thread_id, then="free")
    assert third.is_new
    assert third.runs_deleted >= 1


@pytest.mark.guarantee(99)
async def test_histories_of_a_thread_that_has_continued_are_not_deleted(
    threads: Threads, thread_id: str
) -> None:
    packs, client = PackStore(threads.store), threads.client
    await say(threads, thread_id, "hello")
    await archive(client, packs, thread_id, then="close")
    with pytest.raises(ControlRefused, match="has gone on since"):
        await list_ended_runs(client, thread_id, "an earlier run")
    assert (await read_status(client, thread_id)).status == "archived"


async def test_archiving_emits_a_span(threads: Threads, thread_id: str) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    packs, client = PackStore(threads.store), threads.client
    await say(threads, thread_id, "hello")
    spans = Telemetry(tracer_provider=provider).spans
    done = await archive(client, packs, thread_id, then="close", spans=spans)
    [span] = [each for each in exporter.get_finished_spans() if each.name == "everlong.archive"]
    attributes = dict(span.attributes or {})
    assert attributes["everlong.archive.then"] == "close"
    assert attributes["everlong.archive.entries"] == done.manifest.entries
    assert attributes["everlong.archive.bytes"] == done.manifest.size_bytes
    assert attributes["gen_ai.agent.name"] == "ops"
    with pytest.raises(ThreadNotFound):
        await archive(client, packs, f"{thread_id}-missing", spans=spans)
    failed = exporter.get_finished_spans()[-1]
    assert (failed.name, failed.status.is_ok) == ("everlong.archive", False)


@pytest.mark.guarantee(99)
async def test_threads_ended_by_a_limit_are_archived_when_due(
    threads: Threads, thread_id: str
) -> None:
    packs, client = PackStore(threads.store), threads.client
    await say(threads, thread_id, "hello", agent="brief")
    # An archive of before is none of its end.
    await archive(client, packs, thread_id)
    await threads.send(thread_id, "and more", agent="brief")
    await wait_for_status(
        client, thread_id, lambda status: status.status == "archived", seconds_max=90
    )
    key = thread_key(client.namespace, thread_id)
    assert len(await manifests.list_ids(packs.store, key)) == 1

    async def due() -> bool:
        found = await archive_due(client, packs, count_max=1000)
        # Those of other tests have other stores.
        assert not [each for each in found.failed if each.startswith(thread_id)]
        return any(each.thread_id == thread_id for each in found.archived)

    deadline = time.monotonic() + 90
    while not await due():  # Visibility lags a little.
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    assert len(await manifests.list_ids(packs.store, key)) == 2
    assert not await due()


async def test_the_cli_archives_shows_and_revives(
    server: TemporalServer, tmp_path: Path, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cli(server, tmp_path) as cli:
        await cli("send", thread_id, "hello", "--agent", "ops")
        plan = await cli("archive", thread_id, "--then", "free", "--dry-run")
        assert "thread ends first" in plan
        assert "nothing was done" in plan
        assert "no archive of thread" in await cli("archives", thread_id)
        export = tmp_path / "plain.parquet"
        done = await cli.json("archive", thread_id, "--then", "free", "--export", str(export))
        assert done["runs_deleted"] >= 1
        assert export.read_bytes()[:4] == b"PAR1"
        archive_id = done["manifest"]["archive_id"]
        assert archive_id in await cli("archives")
        forget(monkeypatch, thread_id)
        shown = await cli("show", thread_id)
        assert "the server no longer has its history" in shown
        assert (await cli.json("show", thread_id))["archive"]["archive_id"] == archive_id
        assert "you said hello" in await cli("journal", thread_id)
        whole = await cli.json("journal", thread_id)
        assert whole[1]["message"]["text"] == "you said hello"
        assert "context" in await cli("show", thread_id, "--at", "2")
        assert "entries 1 to 2" in await cli("diff", thread_id, "1", "2")
        new_id = f"{thread_id}-again"
        assert "Where were we?" in await cli("revive", thread_id, new_id)
        assert "you said more" in await cli("send", new_id, "more")
        assert json.loads(await cli("archives", new_id, "--json"))["archives"] == []
