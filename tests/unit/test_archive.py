"""Archives: one file holds all that a journal does, or it is not listed."""

import asyncio
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from everlong import limits
from everlong.archive import ArchivedJournal, StoredArchive, parquet, restore
from everlong.archive import manifest as manifests
from everlong.archive import writer as archive_writer
from everlong.archive.rows import Row, read_body
from everlong.errors import (
    ArchiveNotFound,
    BlobCorrupt,
    BlobMissing,
    EverlongError,
    StoreUnavailable,
)
from everlong.models import Kind, SegmentRef, build_note, seq_after, thread_key
from everlong.storage.cache import CachedBlobStore
from everlong.storage.journal import Journal
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore, object_key
from everlong.storage.segments import MESSAGE_KINDS, parse_compaction
from tests.support.sample_archive import NAMESPACE, NOW_MS, ThreadBuilder, build_thread
from tests.support.sample_payloads import flip_bit, noise

WITHOUT_US = """
import sys, duckdb, pyarrow.parquet as pq
path = sys.argv[1]
table = pq.read_table(path)
assert table.num_rows == int(sys.argv[2]), table.num_rows
assert b"thread_id" in pq.read_metadata(path).metadata[b"everlong"]
[(count, longest)] = duckdb.sql(
    f"select count(*), max(length(text)) from '{path}' where kind = 'tool_result'"
).fetchall()
[(calls,)] = duckdb.sql(
    f"select count(*) from (select unnest(tool_calls) from '{path}')"
).fetchall()
assert not [name for name in sys.modules if name.split(".")[0] == "everlong"]
print(count, longest, calls)
"""


@pytest.mark.guarantee(98)
async def test_an_archive_holds_every_journal_entry() -> None:
    life = await build_thread(PackStore(MemoryBlobStore()))
    manifest = await life.write_archive()
    archive = await StoredArchive.open(life.packs, manifest)
    past = ArchivedJournal(archive)
    entries = await life.journal.read(life.head)
    assert manifest.entries == len(entries) == archive.file.rows
    assert (manifest.first_ms, manifest.last_ms) == (entries[0].time_ms, entries[-1].time_ms)
    bare = [dataclasses.replace(each, body=None, ref=None, part=None) for each in entries]
    found = await past.read(life.head)
    assert [dataclasses.replace(each, original=None) for each in found] == [
        dataclasses.replace(each, original=None) for each in bare
    ]
    assert {each.kind for each in found} >= set(Kind) - {
        Kind.SEGMENT,
        Kind.SNAPSHOT,
        Kind.ARGUMENTS,
    }
    spoken = [each for each in entries if each.kind in MESSAGE_KINDS]
    for whole in (False, True):
        assert await past.bodies(spoken, whole=whole) == await life.journal.bodies(
            spoken, whole=whole
        )
        assert await past.messages(spoken, whole=whole) == await life.journal.messages(
            spoken, whole=whole
        )
    assert life.head is not None
    for kind in (Kind.COMPACTION, Kind.REPLY, Kind.FORK):
        there, here = await past.last(life.head, kind), await life.journal.last(life.head, kind)
        assert there is not None
        assert here is not None
        assert there.seq == here.seq
    [_, newest] = [each for each in entries if each.kind == Kind.COMPACTION]
    assert manifest.snapshot_seq == newest.seq
    snapshot = await past.snapshot(life.head, newest)
    assert snapshot == await life.journal.snapshot(life.head, newest)
    assert archive.facts == life.facts()


async def test_a_message_is_in_the_file_once() -> None:
    life = await build_thread(PackStore(MemoryBlobStore()))
    archive = await StoredArchive.open(life.packs, await life.write_archive())
    rows = await asyncio.to_thread(archive.file.read, 1, archive.file.rows)
    twice = [row.seq for row in rows if row.body is not None]
    natives = [row.seq for row in rows if row.text and "I looked" in row.text]
    assert twice == natives
    assert read_body(rows[natives[0] - 1], whole=True)["model_name"] == "some-model"


async def test_excerpts_are_not_in_the_file_twice() -> None:
    life = await build_thread(PackStore(MemoryBlobStore()))
    archive = await StoredArchive.open(life.packs, await life.write_archive())
    rows = await asyncio.to_thread(archive.file.read, 1, archive.file.rows)
    cut = [row for row in rows if row.shown is not None]
    assert [row.original_bytes is not None for row in cut] == [True, True]
    for row in cut:
        # The same letter over and over, too: its beginning and its end do not overlap.
        assert len(row.shown or "") < 400 < len(str(read_body(row, whole=False)))


@pytest.mark.guarantee(98)
async def test_a_lost_current_snapshot_is_an_error_and_older_ones_are_counted() -> None:
    store = MemoryBlobStore()
    life = await build_thread(PackStore(store))
    entries = await life.journal.read(life.head)
    older, newest = (
        object_key(parse_compaction(each).snapshot.ref)
        for each in entries
        if each.kind == Kind.COMPACTION
    )
    kept = store._objects.pop(newest)
    with pytest.raises(BlobMissing, match="it is the one in force"):
        await life.write_archive()
    assert await manifests.list_ids(store, life.thread) == []
    assert not [key for key in store._objects if key.startswith(manifests.PREFIX)]
    store._objects[newest] = kept
    assert (await life.write_archive(1)).snapshots_missing == 0
    del store._objects[older]
    manifest = await life.write_archive(2)
    assert manifest.snapshots_missing == 1
    archive = await StoredArchive.open(life.packs, manifest)
    assert b"what was before" in await archive.snapshot(manifest.snapshot_seq)


async def test_a_row_group_is_fetched_once_when_it_is_read_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive_writer, "_SCAN_ENTRIES", 4)
    store = RangesStore()
    life = ThreadBuilder(PackStore(store))
    for number in range(20):
        await life.step(result=noise(4000, number).hex())
    manifest = await life.write_archive()
    store.bytes_read = 0
    await archive_writer.verify(life.packs, life.journal, life.head, manifest)
    # The digest, and the rows.
    assert store.bytes_read < 3 * manifest.size_bytes


async def test_an_exported_file_is_private_to_its_user(tmp_path: Path) -> None:
    life = await build_thread(PackStore(MemoryBlobStore()))
    path = tmp_path / "ops-7.parquet"
    await archive_writer.export(life.packs, await life.write_archive(), path)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.guarantee(100)
async def test_plain_tools_read_it_without_our_code(tmp_path: Path) -> None:
    life = await build_thread(PackStore(MemoryBlobStore()))
    manifest = await life.write_archive()
    path = tmp_path / "ops-7.parquet"
    assert await archive_writer.export(life.packs, manifest, path) == manifest.entries
    result = subprocess.run(
        [sys.executable, "-I", "-c", WITHOUT_US, str(path), str(manifest.entries)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout.split() == ["4", "100000", "4"]
    assert list(tmp_path.iterdir()) == [path]


class BrokenStore(MemoryBlobStore):
    """Fails at one of the calls that are made to it."""

    calls = 0
    fails_at = -1

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.fails_at:
            raise StoreUnavailable("killed here")

    async def put(self, key: str, data: bytes) -> None:
        self._count()
        await super().put(key, data)
        self._count()

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self._count()
        return await super().get_range(key, start, length)

    async def get(self, key: str) -> bytes:
        self._count()
        return await super().get(key)


@pytest.mark.guarantee(99)
async def test_a_kill_at_any_call_leaves_no_half_archive_and_loses_nothing() -> None:
    store = BrokenStore()
    life = await build_thread(PackStore(store))
    before = dict(store._objects)
    store.calls = 0
    await life.write_archive(0)
    total = store.calls
    assert total > 20
    for fails_at in range(1, total + 1):
        store._objects = dict(before)
        store.calls, store.fails_at = 0, fails_at
        with pytest.raises(StoreUnavailable):
            await life.write_archive(1)
        store.fails_at = -1
        assert {key: store._objects[key] for key in before} == before
        listed = await manifests.load_newest(life.packs, life.thread)
        # Only the very last thing that is done lists it.
        assert (listed is not None) == (fails_at == total)
        manifest = await life.write_archive(2)
        await archive_writer.verify(life.packs, life.journal, life.head, manifest)


@pytest.mark.guarantee(99)
async def test_orphaned_files_are_removed_after_a_day() -> None:
    store = MemoryBlobStore()
    life = await build_thread(PackStore(store))
    kept = await life.write_archive(0)
    half = await life.write_archive(1)
    await store.delete(
        [manifests.make_archive_key(life.thread, half.archive_id, manifests.MANIFEST)]
    )
    day_ms = 24 * 3600 * 1000
    assert await archive_writer.delete_orphans(store, life.thread, NOW_MS + day_ms) == 0
    assert await archive_writer.delete_orphans(store, life.thread, NOW_MS + day_ms + 10) == 1
    assert half.file_key not in store._objects
    assert kept.file_key in store._objects
    with pytest.raises(ArchiveNotFound, match="everlong archives"):
        await manifests.read(life.packs, life.thread, half.archive_id)


@pytest.mark.guarantee(98)
async def test_a_flipped_byte_is_found_wherever_it_is() -> None:
    store = MemoryBlobStore()
    life = await build_thread(PackStore(store))
    manifest = await life.write_archive()
    whole = store._objects[manifest.file_key]
    for at in range(0, len(whole), len(whole) // 40):
        store._objects[manifest.file_key] = flip_bit(whole, 8 * at)
        with pytest.raises(BlobCorrupt, match="its bytes differ"):
            await archive_writer.verify(life.packs, life.journal, life.head, manifest)


@pytest.mark.guarantee(98)
async def test_a_different_row_is_found_even_if_the_digest_matches(tmp_path: Path) -> None:
    store = MemoryBlobStore()
    life = await build_thread(PackStore(store))
    manifest = await life.write_archive()
    archive = await StoredArchive.open(life.packs, manifest)
    rows = await asyncio.to_thread(archive.file.read, 1, manifest.entries)
    changed = {
        "text": "it was fine",
        "tokens": 99,
        "size_bytes": 1,
        "time_ms": 5,
        "data": '{"a":1}',
    }
    for field, value in changed.items():
        other = Row(**{**vars(rows[2]), field: value})
        forged = [*rows[:2], other, *rows[3:]]
        with pytest.raises(BlobCorrupt, match=r"entry 3 differs"):
            await _verify_rows(life, manifest, forged, tmp_path / field)
    with pytest.raises(BlobCorrupt, match="rows, but its manifest declares"):
        await _verify_rows(life, manifest, rows[:-1], tmp_path / "short")
    await _verify_rows(life, manifest, rows, tmp_path / "same")


async def _verify_rows(
    life: ThreadBuilder, manifest: manifests.Manifest, rows: list[Row], path: Path
) -> None:
    writer = parquet.ArchiveWriter(path, manifests.dump_facts(life.facts()), None)
    writer.add(rows)
    writer.close()
    forged = dataclasses.replace(manifest, **vars(archive_writer._hash_file(path)))
    await life.packs.store.put(manifest.file_key, path.read_bytes())
    await archive_writer.verify(life.packs, life.journal, life.head, forged)


@pytest.mark.guarantee(98)
async def test_an_archive_is_verified_from_the_store_and_not_from_the_cache() -> None:
    behind = MemoryBlobStore()
    cached = CachedBlobStore(behind, memory_bytes_max=limits.MIB, disk_bytes_max=0)
    life = await build_thread(PackStore(cached))
    manifest = await life.write_archive()
    cached._memory.put(manifest.file_key, b"a copy that is bad")
    await archive_writer.verify(life.packs, life.journal, life.head, manifest)
    behind._objects[manifest.file_key] = b"bad"
    with pytest.raises(BlobCorrupt):
        await archive_writer.verify(life.packs, life.journal, life.head, manifest)


@pytest.mark.guarantee(101)
async def test_only_requested_parts_of_a_long_journal_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS_MAX", 16)
    store = RangesStore()
    life = ThreadBuilder(PackStore(store))
    for number in range(60):
        await life.step(result=f"{number}: " + noise(4000, number).hex())
    manifest = await life.write_archive()
    store.bytes_read = 0
    archive = await StoredArchive.open(life.packs, manifest)
    past = ArchivedJournal(archive)
    entries = await past.read(life.head, 50, 52)
    assert [each.seq for each in entries] == [50, 51, 52]
    [message] = await past.messages([entries[0]], whole=True)
    assert message.text.startswith("24: ")
    assert len(archive.file.groups) == 8
    assert store.bytes_read < manifest.size_bytes / 2


class RangesStore(MemoryBlobStore):
    """Counts what is read in ranges."""

    bytes_read = 0

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        data = await super().get_range(key, start, length)
        self.bytes_read += len(data)
        return data


async def revive_thread(life: ThreadBuilder, seq: int | None = None) -> tuple[Journal, SegmentRef]:
    archive = await StoredArchive.open(life.packs, await life.write_archive())
    thread = thread_key(NAMESPACE, "ops-8")
    last_seq = archive.manifest.entries if seq is None else seq
    last = build_note(last_seq + 1, Kind.FORK, {"thread_id": "ops-7", "seq": last_seq}, NOW_MS)
    found = await restore.restore_journal(
        life.packs, thread, archive, last, archive_writer.ignore_progress
    )
    assert found.head is not None
    return Journal(life.packs, thread), found.head


@pytest.mark.guarantee(101)
async def test_a_revived_journal_does_not_need_the_old_one() -> None:
    store = MemoryBlobStore()
    life = await build_thread(PackStore(store))
    entries = await life.journal.read(life.head)
    spoken = [each for each in entries if each.kind in MESSAGE_KINDS]
    whole = await life.journal.bodies(spoken, whole=True)
    shown = await life.journal.bodies(spoken)
    journal, head = await revive_thread(life)
    old = [key for key in store._objects if key.startswith(f"v1/{life.thread}/")]
    await store.delete(old)
    again = await journal.read(head)
    assert [(each.seq, each.kind, each.time_ms) for each in again[:-1]] == [
        (each.seq, each.kind, each.time_ms) for each in entries
    ]
    assert again[-1].kind == Kind.FORK
    copies = [each for each in again if each.kind in MESSAGE_KINDS]
    assert await journal.bodies(copies, whole=True) == whole
    assert await journal.bodies(copies) == shown
    for compaction in (each for each in again if each.kind == Kind.COMPACTION):
        assert b"what was before" in await journal.snapshot(head, compaction)


async def test_a_journal_is_revived_up_to_an_entry() -> None:
    life = await build_thread(PackStore(MemoryBlobStore()))
    journal, head = await revive_thread(life, 5)
    assert [each.kind for each in await journal.read(head)][-2:] == [Kind.TOOL_RESULT, Kind.FORK]
    assert seq_after(head) == 7


async def test_archives_are_listed_newest_first_in_pages() -> None:
    life = await build_thread(PackStore(MemoryBlobStore()))
    made = [(await life.write_archive(number)).archive_id for number in range(5)]
    assert made == sorted(made)
    pages: list[str] = []
    before, more = "", True
    while more:
        found, more = await manifests.list_newest(life.packs.store, None, before, 2)
        pages += [each.archive_id for each in found]
        before = found[-1].archive_id
    assert pages == made[::-1]
    assert [manifests.parse_archive_ms(each) - NOW_MS for each in made] == list(range(5))


async def test_a_manifest_of_another_archive_is_refused() -> None:
    store = MemoryBlobStore()
    life = await build_thread(PackStore(store))
    first, second = await life.write_archive(0), await life.write_archive(1)
    keys = [
        manifests.make_archive_key(life.thread, each.archive_id, manifests.MANIFEST)
        for each in (first, second)
    ]
    store._objects[keys[1]] = store._objects[keys[0]]
    with pytest.raises(BlobCorrupt, match="the manifest of another archive"):
        await manifests.read(life.packs, life.thread, second.archive_id)
    store._objects[second.file_key] = store._objects[first.file_key]
    same = {name: getattr(first, name) for name in vars(first) if name.startswith("footer")}
    swapped = dataclasses.replace(second, size_bytes=first.size_bytes, **same)
    with pytest.raises(EverlongError, match="file of another archive"):
        await StoredArchive.open(life.packs, swapped)


async def test_an_archive_of_a_thread_without_entries_is_empty() -> None:
    life = ThreadBuilder(PackStore(MemoryBlobStore()))
    manifest = await life.write_archive()
    archive = await StoredArchive.open(life.packs, manifest)
    assert archive.file.rows == manifest.entries == 0
    assert await ArchivedJournal(archive).read(None) == []
