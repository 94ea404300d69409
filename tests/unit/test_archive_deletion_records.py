"""Deletion records: who freed a thread, stored with its archive, and sealed with keys."""

import dataclasses

import pytest

from everlong.archive import Freed, Manifest, writer
from everlong.archive import manifest as manifests
from everlong.errors import BlobCorrupt, KeyMissing, RefRefused, UnknownVersion
from everlong.policy import Retention
from everlong.storage.encryption_keys import Keyring
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore
from everlong.sweep.listing import parse_key
from tests.support.fake_namespace import FakeNamespace
from tests.support.sample_archive import NOW_MS, build_thread
from tests.support.sample_payloads import KEY_1, KEY_2

SEALED = Keyring({"k1": KEY_1})


def make_record(manifest: Manifest, by: str = "bob", ms: int = NOW_MS) -> Freed:
    return Freed(
        archive_id=manifest.archive_id,
        thread_id=manifest.thread_id,
        namespace=manifest.namespace,
        thread=manifest.thread,
        freed_ms=ms,
        by=by,
        reason="no room",
    )


def list_record_keys(store: MemoryBlobStore) -> list[str]:
    return [key for key in store._objects if manifests.FREED in key]


@pytest.mark.parametrize("keys", [None, SEALED], ids=["plain", "sealed"])
async def test_a_deletion_record_reads_back_and_changes_no_archive(
    keys: Keyring | None,
) -> None:
    store = MemoryBlobStore()
    life = await build_thread(PackStore(store, keys))
    manifest = await life.write_archive()
    record = make_record(manifest)
    freed_id = await manifests.write_freed(life.packs, record)
    assert (
        await manifests.read_freed(life.packs, life.thread, manifest.archive_id, freed_id) == record
    )
    assert await manifests.list_ids(store, life.thread) == [manifest.archive_id]
    assert await manifests.load_newest(life.packs, life.thread) == manifest
    [key] = list_record_keys(store)
    assert (b"no room" in store._objects[key]) == (keys is None)
    day_ms = 24 * 3600 * 1000
    assert await writer.delete_orphans(store, life.thread, NOW_MS + 9 * day_ms) == 0


async def test_a_listing_names_the_latest_deletion_record() -> None:
    life = await build_thread(PackStore(MemoryBlobStore()))
    kept, gone = await life.write_archive(0), await life.write_archive(1)
    await manifests.write_freed(life.packs, make_record(gone, "ann", NOW_MS))
    last = await manifests.write_freed(life.packs, make_record(gone, "bob", NOW_MS + 5))
    listed, more = await manifests.list_newest(life.packs.store, None, "", 10)
    assert [(each.archive_id, each.freed_id) for each in listed] == [
        (gone.archive_id, last),
        (kept.archive_id, ""),
    ]
    assert not more
    [newest], more = await manifests.list_newest(life.packs.store, None, "", 1)
    assert (newest.freed_id, more) == (last, True)


async def test_a_record_is_not_read_with_another_key_or_in_another_place() -> None:
    store = MemoryBlobStore()
    life = await build_thread(PackStore(store, SEALED))
    first, second = await life.write_archive(0), await life.write_archive(1)
    freed_id = await manifests.write_freed(life.packs, make_record(first))
    place = (life.thread, first.archive_id, freed_id)
    for keys, error in (
        (None, KeyMissing),
        (Keyring({"k2": KEY_2}), KeyMissing),
        (Keyring({"k1": KEY_2}), BlobCorrupt),
    ):
        with pytest.raises(error):
            await manifests.read_freed(PackStore(store, keys), *place)
    [key] = list_record_keys(store)
    store._objects[key.replace(first.archive_id, second.archive_id)] = store._objects[key]
    with pytest.raises(BlobCorrupt, match="cannot be read"):
        await manifests.read_freed(life.packs, life.thread, second.archive_id, freed_id)


async def test_a_plain_record_is_refused_with_keys_and_after_a_move() -> None:
    store = MemoryBlobStore()
    life = await build_thread(PackStore(store))
    first, second = await life.write_archive(0), await life.write_archive(1)
    freed_id = await manifests.write_freed(life.packs, make_record(first))
    with pytest.raises(RefRefused, match="EVERLONG_ACCEPT_UNSEALED"):
        await manifests.read_freed(
            PackStore(store, SEALED), life.thread, first.archive_id, freed_id
        )
    [key] = list_record_keys(store)
    store._objects[key.replace(first.archive_id, second.archive_id)] = store._objects[key]
    with pytest.raises(BlobCorrupt, match="another archive"):
        await manifests.read_freed(life.packs, life.thread, second.archive_id, freed_id)
    store._objects[key] = store._objects[key].replace(b'"version": 2', b'"version": 3')
    with pytest.raises(UnknownVersion):
        await manifests.read_freed(life.packs, life.thread, first.archive_id, freed_id)


async def test_a_sweep_treats_a_record_like_an_archive() -> None:
    world = FakeNamespace(MemoryBlobStore())
    life = await build_thread(world.packs)
    manifest = dataclasses.replace(await life.write_archive(), namespace=world.namespace)
    await manifests.write_freed(world.packs, make_record(manifest))
    [key] = [each for each in await world.keys("archive/") if manifests.FREED in each]
    assert parse_key(key) == (life.thread, b"")
    await world.sweep(whole_store=True)
    assert key in await world.keys("archive/")
    none = Retention(payload_seconds=0, journal_seconds=0, archive_seconds=0, quarantine_seconds=0)
    await world.sweep(none, whole_store=True)
    assert await world.keys("archive/") == set()
