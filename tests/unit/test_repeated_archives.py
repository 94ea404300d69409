"""Repeated archives: of revived threads, or by a machine whose clock is fast."""

import dataclasses

import pytest

from everlong.archive import StoredArchive, restore, writer
from everlong.archive import manifest as manifests
from everlong.errors import EverlongError
from everlong.models import (
    Entry,
    ForkNote,
    Kind,
    Message,
    SegmentRef,
    build_entry,
    build_note,
)
from everlong.storage.journal import Journal
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore, object_key
from everlong.storage.segments import parse_compaction
from tests.support import fake_namespace
from tests.support.sample_archive import NOW_MS, ThreadBuilder, build_thread


async def without_older_snapshot(store: MemoryBlobStore) -> ThreadBuilder:
    """Return a thread whose first snapshot is gone from the store."""
    life = await build_thread(PackStore(store))
    [older, _] = await compactions(life.journal, life.head)
    del store._objects[object_key(parse_compaction(older).snapshot.ref)]
    return life


async def compactions(journal: Journal, head: SegmentRef | None) -> list[Entry]:
    return [each for each in await journal.read(head) if each.kind == Kind.COMPACTION]


async def revive_thread(
    life: ThreadBuilder, manifest: manifests.Manifest, new_id: str
) -> ThreadBuilder:
    archive = await StoredArchive.open(life.packs, manifest)
    seq = manifest.entries
    last = build_note(seq + 1, Kind.FORK, ForkNote(thread_id=life.thread_id, seq=seq), NOW_MS)
    again = ThreadBuilder(life.packs, new_id, fake_namespace.NAMESPACE)
    found = await restore.restore_journal(
        life.packs, again.thread, archive, last, writer.ignore_progress
    )
    again.head = found.head
    assert found.snapshot is not None
    assert found.snapshot.ref.thread == again.thread
    return again


async def test_a_thread_revived_without_an_older_snapshot_is_archived_and_revived_again() -> None:
    store = MemoryBlobStore()
    life = await without_older_snapshot(store)
    first = await life.write_archive()
    assert first.snapshots_missing == 1
    again = await revive_thread(life, first, "again")
    old = [key for key in store._objects if key.startswith(f"v1/{life.thread}/")]
    await store.delete(old)
    assert again.head is not None
    gone, newest = await compactions(again.journal, again.head)
    assert "snapshot" not in (gone.data or {})
    assert (gone.data or {})["reason"] == "asked"
    assert b"what was before" in await again.journal.snapshot(again.head, newest)
    with pytest.raises(EverlongError):
        await again.journal.snapshot(again.head, gone)
    second = await again.write_archive(5)
    assert (second.snapshots_missing, second.snapshot_seq) == (1, newest.seq)
    third = await revive_thread(again, second, "third")
    assert (await third.write_archive(6)).snapshots_missing == 1


@pytest.mark.guarantee(101)
async def test_a_sweep_of_a_thread_revived_without_an_older_snapshot_is_complete() -> None:
    store = MemoryBlobStore()
    world = fake_namespace.FakeNamespace(store)
    life = await without_older_snapshot(store)
    again = await revive_thread(life, await life.write_archive(), "again")
    assert again.head is not None
    await store.delete([key for key in store._objects if key.startswith(f"v1/{life.thread}/")])
    world.start("again", first=await world.name_head("again", again.head))
    left = {key for key in await world.keys() if again.thread in key}
    for _ in range(3):
        report = await world.sweep(whole_store=True)
        assert not report.incomplete
    assert await world.keys() <= left
    assert len(await again.journal.read(again.head)) == 25
    assert (await again.write_archive(7)).entries == 25


async def test_the_sender_of_a_message_is_in_the_archive_and_in_a_revived_journal() -> None:
    life = ThreadBuilder(PackStore(MemoryBlobStore()))
    entry = build_entry(1, Kind.MESSAGE, Message(role="user", text="hello"), NOW_MS)
    await life.add(dataclasses.replace(entry, data={"by": "ann"}))
    await life.compact()
    again = await revive_thread(life, await life.write_archive(), "again")
    [note] = await again.journal.read(again.head, 1, 1)
    assert note.data == {"by": "ann"}
    [message] = await again.journal.messages([note])
    assert message.text == "hello"


async def test_a_new_archive_is_the_newest_even_if_another_clock_was_ahead() -> None:
    ahead = manifests.make_archive_id(NOW_MS + 300_000, b"\xff\xff\xff\xff")
    later = manifests.make_next_archive_id([ahead], NOW_MS, b"\x00\x00\x00\x00")
    assert later > ahead
    assert manifests.parse_archive_ms(later) == NOW_MS + 300_001
    assert (
        manifests.parse_archive_ms(manifests.make_next_archive_id([], NOW_MS, bytes(4))) == NOW_MS
    )
    earlier = manifests.make_archive_id(NOW_MS - 5, bytes(4))
    assert (
        manifests.parse_archive_ms(manifests.make_next_archive_id([earlier], NOW_MS, bytes(4)))
        == NOW_MS
    )
    # A foreign file whose name looks like an archive's.
    for odd in ("99999999T999999999Z-00000000", "99991231T235959999Z-00000000"):
        assert (
            manifests.parse_archive_ms(manifests.make_next_archive_id([odd], NOW_MS, bytes(4)))
            == NOW_MS
        )
