"""Rules of archiving, without a server: due threads, freeable threads, and their reports."""

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseResponse
from typer.testing import CliRunner

from everlong.admin.preview import describe_plan
from everlong.archive import manifest as manifests
from everlong.cli import app
from everlong.cli import archives as commands
from everlong.client import archives
from everlong.client.archives import ArchivePage, ArchivePlan
from everlong.client.lookup import ThreadSize, find_head
from everlong.errors import ConfigError, KeyMissing, StoreUnavailable, ThreadError, ThreadNotFound
from everlong.models import Counters, Kind, Message, Status, ThreadStatus
from everlong.storage import BlobStore
from everlong.storage.encryption_keys import Keyring
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore
from tests.support.sample_archive import NAMESPACE, ThreadBuilder, build_thread
from tests.support.sample_payloads import KEY_1, KEY_2
from tests.unit.test_archive_deletion_records import make_record

CLIENT: Any = SimpleNamespace(namespace=NAMESPACE)


def make_ended_status(
    status: Status, *, tail: int = 0, waiting: int = 0, answered: int = 1
) -> ThreadStatus:
    return ThreadStatus(
        agent="ops",
        status=status,
        counters=Counters(messages=1, answered=answered),
        head=None,
        waiting_messages=waiting,
        tail_entries=tail,
        last_failure="",
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (make_ended_status(Status.ARCHIVED, answered=0), ""),
        (make_ended_status(Status.DONE, answered=0), ""),
        (make_ended_status(Status.TERMINATED), ""),
        (make_ended_status(Status.TERMINATED, tail=2), "its last 2 entries and messages"),
        (make_ended_status(Status.TERMINATED, waiting=1), "its last 1 entries and messages"),
        (
            make_ended_status(Status.TERMINATED, tail=2, waiting=3),
            "its last 5 entries and messages",
        ),
        (make_ended_status(Status.TERMINATED, answered=0), "in the middle of a turn (terminated)"),
    ],
)
def test_only_a_fully_journalled_thread_may_be_freed(found: ThreadStatus, words: str) -> None:
    why = archives.explain_unfreeable("ops-7", found)
    assert bool(why) == bool(words)
    assert words in why


class EndedThreads:
    """Threads that have ended as `archived`, and what each of them would give."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, life: ThreadBuilder) -> None:
        self.life = life
        self.threads: list[Any] = []
        self.heads: dict[str, Any] = {}
        self.newest_runs: dict[str, str] = {}
        self.fails: set[str] = set()
        self.asked: list[str] = []
        monkeypatch.setattr(archives, "_list_ended", self._ended)
        monkeypatch.setattr(archives, "find_head", self._head_of)
        monkeypatch.setattr(archives, "_read_newest_run", self._newest_run)
        monkeypatch.setattr(archives, "archive", self._archive)

    def add(self, thread_id: str, run_id: str = "r1") -> None:
        self.threads.append(
            SimpleNamespace(id=thread_id, run_id=run_id, typed_search_attributes={})
        )

    async def _ended(self, _client: Any) -> AsyncIterator[Any]:
        for each in self.threads:
            yield each

    async def _head_of(self, _client: Any, thread_id: str) -> Any:
        if thread_id not in self.heads:
            raise ThreadNotFound(thread_id)
        return self.heads[thread_id]

    async def _newest_run(self, _client: Any, thread_id: str) -> str:
        return self.newest_runs.get(thread_id, "r1")

    async def _archive(self, _client: Any, _packs: Any, thread_id: str, **given: Any) -> Any:
        assert given["then"] == "keep"
        self.asked.append(thread_id)
        if thread_id in self.fails:
            raise StoreUnavailable("the store is away")
        return SimpleNamespace(manifest=SimpleNamespace(thread_id=thread_id))

    async def archive(
        self, packs: PackStore | None = None, count_max: int = 20
    ) -> archives.DueArchives:
        self.asked = []
        return await archives.archive_due(CLIENT, packs or self.life.packs, count_max=count_max)


def list_archived(found: archives.DueArchives) -> list[str]:
    return [each.thread_id for each in found.archived]


@pytest.fixture
async def ended_threads(monkeypatch: pytest.MonkeyPatch) -> EndedThreads:
    return EndedThreads(monkeypatch, await build_thread(PackStore(MemoryBlobStore())))


async def test_an_ended_thread_is_due_unless_its_journal_is_archived(
    ended_threads: EndedThreads,
) -> None:
    life = ended_threads.life
    ended_threads.add("ops-7")
    ended_threads.heads["ops-7"] = life.head
    assert (await ended_threads.archive()).archived
    await life.write_archive()
    assert not (await ended_threads.archive()).archived
    # Reset, or started again under its id, and ended again.
    ended_threads.heads["ops-7"] = None
    assert (await ended_threads.archive()).archived
    # Only reset: the run that had ended is listed still.
    ended_threads.newest_runs["ops-7"] = "r2"
    assert not (await ended_threads.archive()).archived
    # Freed, and listed still.
    del ended_threads.heads["ops-7"]
    found = await ended_threads.archive()
    assert (found.archived, found.failed) == ((), ())


async def test_an_unreadable_archive_is_rewritten(ended_threads: EndedThreads) -> None:
    store = ended_threads.life.packs.store
    life = await build_thread(PackStore(store, Keyring({"k1": KEY_1})), "sealed")
    await life.write_archive()
    ended_threads.add("sealed")
    ended_threads.add("ops-7")
    other = PackStore(store, Keyring({"k2": KEY_2}))
    passed = await manifests.find_newest(other, life.thread)
    assert passed.manifest is None
    assert [type(each.error) for each in passed.passed_over] == [KeyMissing]
    found = await ended_threads.archive(other)
    assert (list_archived(found), found.failed) == (["sealed", "ops-7"], ())


@pytest.mark.parametrize("name", ["20991231T235959999Z-ffffffff", "99999999T999999999Z-ffffffff"])
async def test_an_unreadable_archive_is_named_and_not_archived_at_each_sweep(
    ended_threads: EndedThreads,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    life = ended_threads.life
    ended_threads.add("ops-7")
    ended_threads.heads["ops-7"] = life.head
    await life.write_archive()
    place = manifests.make_archive_key(life.thread, name, manifests.MANIFEST)
    await life.packs.store.put(place, b"{")
    for _ in range(3):
        found = await ended_threads.archive()
        assert (list_archived(found), found.failed, ended_threads.asked) == ([], (), [])
        [warning] = found.unreadable
        assert warning.startswith(f"thread ops-7: an archive cannot be read and is skipped: {name}")
    assert name in caplog.text
    # It is in the report of the sweep, which people see.
    preserved = await archives.archive_before_sweep(CLIENT, life.packs)
    assert preserved.archived == 0
    assert [name in reason for reason in preserved.failed] == [True]
    # And where archives are listed.
    page = await archives.list_archives(CLIENT, life.packs, thread_id="ops-7")
    assert [each.partition(":")[0] for each in page.unreadable] == [name]
    assert len(page.archives) == 1


async def test_an_older_archive_of_the_same_journal_counts(ended_threads: EndedThreads) -> None:
    life = ended_threads.life
    ended_threads.add("ops-7")
    await life.write_archive(0)
    ended_threads.heads["ops-7"] = life.head
    await life.say(Kind.MESSAGE, Message(role="user", text="and another"))
    await life.write_archive(1)  # An archive of a branch that a reset has undone.
    assert not (await ended_threads.archive()).archived


async def test_a_store_that_fails_while_archives_are_listed_is_raised_and_not_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packs = PackStore(MemoryBlobStore())
    await (await build_thread(packs)).write_archive()

    async def away(*_: object) -> bytes:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(packs.store, "get_range", away)
    with pytest.raises(StoreUnavailable):
        await archives.list_archives(CLIENT, packs)


async def test_a_failed_thread_blocks_no_other_and_bounds_are_reported(
    ended_threads: EndedThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        ended_threads.add(f"t{number}")
    ended_threads.fails = {"t0", "t1"}
    found = await ended_threads.archive()
    assert (list_archived(found), found.is_complete) == (["t2", "t3"], True)
    assert [each.partition(":")[0] for each in found.failed] == ["t0", "t1"]
    assert not (await ended_threads.archive(count_max=1)).is_complete
    assert (await ended_threads.archive(count_max=2)).is_complete
    monkeypatch.setattr(archives, "_LOOKED_AT_MAX", 3)
    found = await ended_threads.archive()
    assert (list_archived(found), found.is_complete) == (["t2"], False)
    monkeypatch.setattr(archives, "_LOOKED_AT_MAX", 4)
    assert (await ended_threads.archive()).is_complete
    monkeypatch.setattr(archives, "_FAILED_MAX", 2)
    assert not (await ended_threads.archive()).is_complete


async def test_a_temporarily_unreadable_manifest_is_reported_and_blocks_no_other(
    ended_threads: EndedThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = manifests.list_ids

    async def away(store: BlobStore, thread: str) -> list[str]:
        if thread == ended_threads.life.thread:
            raise StoreUnavailable("the store is away")
        return await ids(store, thread)

    monkeypatch.setattr(manifests, "list_ids", away)
    ended_threads.add("ops-7")
    ended_threads.add("other")
    found = await ended_threads.archive()
    assert list_archived(found) == ["other"]
    assert found.failed == ("ops-7: the store is away",)


async def test_a_history_without_a_journal_head_is_no_empty_journal() -> None:
    pages = [b"more", b"more", b""]

    async def page(_request: object) -> GetWorkflowExecutionHistoryReverseResponse:
        return GetWorkflowExecutionHistoryReverseResponse(next_page_token=pages.pop(0))

    service = SimpleNamespace(get_workflow_execution_history_reverse=page)
    client: Any = SimpleNamespace(namespace=NAMESPACE, workflow_service=service)
    assert await find_head(client, "ops-7") is None
    pages += [b"more"] * 100
    with pytest.raises(ThreadError, match="the newest 2,000 events"):
        await find_head(client, "ops-7")


async def test_archives_are_listed_with_who_freed_the_thread() -> None:
    store = MemoryBlobStore()
    packs = PackStore(store)
    life, other = await build_thread(packs), await build_thread(packs, "ops-8")
    first, second = await life.write_archive(0), await other.write_archive(1)
    await manifests.write_freed(packs, make_record(first, by="bob"))
    page = await archives.list_archives(CLIENT, packs)
    assert page.archives == (second, first)
    assert [(each.archive_id, each.by, each.reason) for each in page.freed] == [
        (first.archive_id, "bob", "no room")
    ]
    [key] = [key for key in store._objects if manifests.FREED in key]
    store._objects[key] = b"{"
    page = await archives.list_archives(CLIENT, packs)
    assert page.archives == (second, first)
    assert page.unreadable[0].startswith(first.archive_id)
    elsewhere: Any = SimpleNamespace(namespace="elsewhere")
    page = await archives.list_archives(elsewhere, packs, count_max=1)
    assert (page.archives, page.next) == ((), second.archive_id)
    assert "there are older ones" in commands._describe_none(page, None)
    assert commands._describe_none(ArchivePage(archives=()), "x") == "no archive of thread x"
    assert commands._format_authors("ann", "bob") == "ann; freed by bob"
    assert commands._format_authors("", "") == ""


def plan(**given: Any) -> ArchivePlan:
    taken = ThreadSize(runs=1, events=9, history_bytes=9, blobs=3, blob_bytes=5 << 20)
    same = {"thread_id": "ops-7", "then": "free", "status": "archived", "entries": 4, "size": taken}
    other = {"left_out": 0, "existing": "", "ends": False, "runs_deleted": 0, "refused": ""}
    return ArchivePlan(**{**same, **other, **given})


def test_a_plan_describes_its_actions() -> None:
    words = "\n".join(describe_plan(plan(runs_deleted=3, ends=True)))
    assert "archives 4 entries of thread ops-7 (archived)" in words
    assert "thread ends first" in words
    assert "then deletes 3 runs permanently, and a sweep may free 3 objects of 5.0 MiB" in words
    words = "\n".join(describe_plan(plan(refused="it was ended before", left_out=2, existing="a1")))
    assert "archive a1 has the 4 entries" in words
    assert "2 more are not journalled; the archive will lack them" in words
    assert "its histories cannot be deleted: it was ended before" in words
    assert "are deleted" not in words


@dataclasses.dataclass
class TerminalRecord:
    """Records the questions at a terminal, and the archives that were made."""

    words: list[str]
    done: int = 0


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> TerminalRecord:
    found = TerminalRecord([])

    async def archive(_settings: object, _wish: object) -> None:
        found.done += 1

    def confirm(what: str, *, yes: bool) -> None:
        if not yes:
            found.words.append(what)

    monkeypatch.setattr(commands, "_archive", archive)
    monkeypatch.setattr(commands, "confirm", confirm)
    return found


def test_ending_a_thread_asks_for_confirmation(terminal: TerminalRecord) -> None:
    for arguments, words in (
        (["--then", "close"], "cannot be started again"),
        (["--then", "free"], "its histories will be deleted"),
        (["--then", "free", "--yes"], ""),
        (["--then", "free", "--dry-run"], ""),
        ([], ""),
    ):
        terminal.words.clear()
        result = CliRunner().invoke(app, ["archive", "ops-7", *arguments])
        assert result.exit_code == 0, result.output
        assert bool(terminal.words) == bool(words)
        assert words in "".join(terminal.words)
    assert terminal.done == 5


def test_an_unwritable_export_target_stops_the_command(
    terminal: TerminalRecord, tmp_path: Path
) -> None:
    there = tmp_path / "there.parquet"
    there.write_text("mine")
    for path in (there, tmp_path / "no" / "x.parquet"):
        result = CliRunner().invoke(
            app, ["archive", "ops-7", "--then", "free", "--export", str(path)]
        )
        assert isinstance(result.exception, ConfigError)
    assert (terminal.done, terminal.words) == (0, [])
