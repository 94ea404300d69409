"""Damaged manifests: every change since their write is noticed, without keys too."""

import dataclasses
import hashlib
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.archive import StoredArchive
from everlong.archive import manifest as manifests
from everlong.archive import writer as archive_writer
from everlong.errors import BlobCorrupt, EverlongError, StoreUnavailable, UnknownVersion
from everlong.storage.encryption_keys import Keyring
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore
from tests.support.sample_archive import ThreadBuilder, build_thread
from tests.support.sample_payloads import KEY_1, flip_bit
from tests.unit.test_archive_deletion_records import list_record_keys, make_record

SEALED = Keyring({"k1": KEY_1})
EITHER = pytest.mark.parametrize("keys", [None, SEALED], ids=["plain", "sealed"])


def make_key(manifest: manifests.Manifest) -> str:
    return manifests.make_archive_key(manifest.thread, manifest.archive_id, manifests.MANIFEST)


def damage(data: bytes, chosen: random.Random) -> bytes:
    """Return bytes that differ from these by one accident."""
    at = chosen.randrange(len(data))
    kinds: list[Callable[[], bytes]] = [
        lambda: flip_bit(data, 8 * at + chosen.randrange(8)),
        lambda: data[:at] + bytes([chosen.randrange(256)]) + data[at + 1 :],
        lambda: data[:at] + data[at + 1 :],
        lambda: data[:at] + chosen.choice([b" ", b"\n", b"0", b"\0"]) + data[at:],
        lambda: data[:at],
        lambda: data[at:],
        lambda: data + data[:at],
        lambda: data[:at] + bytes(chosen.randrange(1, 64)) + data[at:],
        # Two lines change places, or one is there twice or missing.
        lambda: _lines(data, chosen),
    ]
    while (damaged := chosen.choice(kinds)()) == data:
        pass
    return damaged


def _lines(data: bytes, chosen: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    first, second = chosen.sample(range(len(lines)), 2)
    action = chosen.randrange(3)
    if action == 0:
        lines[first], lines[second] = lines[second], lines[first]
    elif action == 1:
        lines.insert(second, lines[first])
    else:
        del lines[first]
    return b"".join(lines)


@pytest.mark.guarantee(98)
@EITHER
async def test_no_damage_of_a_manifest_goes_unnoticed(keys: Keyring | None) -> None:
    store, chosen = MemoryBlobStore(), random.Random(15)
    life = await build_thread(PackStore(store, keys))
    manifest = await life.write_archive()
    whole = store._objects[make_key(manifest)]
    assert await manifests.read(life.packs, life.thread, manifest.archive_id) == manifest
    unnoticed = []
    damages = [flip_bit(whole, bit) for bit in range(8 * len(whole))]
    damages += [whole[:left] for left in range(len(whole))]
    damages += [damage(whole, chosen) for _ in range(2000)]
    for damaged in damages:
        store._objects[make_key(manifest)] = damaged
        try:
            await manifests.read(life.packs, life.thread, manifest.archive_id)
        except (BlobCorrupt, UnknownVersion):
            continue
        unnoticed.append(damaged)
    assert unnoticed == []


@EITHER
async def test_no_damage_of_a_deletion_record_goes_unnoticed(
    keys: Keyring | None,
) -> None:
    store, chosen = MemoryBlobStore(), random.Random(16)
    life = await build_thread(PackStore(store, keys))
    manifest = await life.write_archive()
    freed_id = await manifests.write_freed(life.packs, make_record(manifest))
    [key] = list_record_keys(store)
    whole = store._objects[key]
    for damaged in [damage(whole, chosen) for _ in range(1000)]:
        store._objects[key] = damaged
        with pytest.raises((BlobCorrupt, UnknownVersion)):
            await manifests.read_freed(life.packs, life.thread, manifest.archive_id, freed_id)


@EITHER
async def test_a_manifest_in_the_place_of_another_is_refused(keys: Keyring | None) -> None:
    store = MemoryBlobStore()
    packs = PackStore(store, keys)
    one, other = await build_thread(packs), await build_thread(packs, "ops-8")
    # All at the same moment, so that only the threads differ.
    made = [await one.write_archive(0), await one.write_archive(1), await other.write_archive(0)]
    stored = {make_key(each): store._objects[make_key(each)] for each in made}
    for here in made:
        for there in made:
            if here != there:
                store._objects.update(stored)
                store._objects[make_key(here)] = stored[make_key(there)]
                with pytest.raises(BlobCorrupt, match="of another archive, or of another thread"):
                    await manifests.read(packs, here.thread, here.archive_id)


def forge(manifest: manifests.Manifest, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a manifest as a program writes it that knows the format and not the rules."""
    fields = json.loads(manifests.dump(manifest, None))
    del fields["digest"]
    change(fields)
    return manifests.dump_checked(fields)


CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "unknown": lambda fields: fields.update(later=5),
    "missing": lambda fields: fields.pop("steps"),
    "order": lambda fields: fields.update(tag=fields.pop("tag"), steps=fields.pop("steps")),
    "text": lambda fields: fields.update(entries="19"),
    "float": lambda fields: fields.update(entries=19.0),
    "negative": lambda fields: fields.update(tokens=-1),
    "null": lambda fields: fields.update(cost_usd=None),
    "true": lambda fields: fields.update(steps=True),
    "times": lambda fields: fields.update(first_ms=fields["last_ms"] + 1),
    "snapshot": lambda fields: fields.update(snapshot_seq=fields["entries"] + 1),
    "footer": lambda fields: fields.update(footer_bytes=fields["size_bytes"] + 1),
    "head": lambda fields: fields.update(head="x"),
    "salt": lambda fields: fields.update(salt="00" * 16),
    "key": lambda fields: fields.update(key_id="k1"),
    "empty": lambda fields: fields.update(thread_id=""),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_manifest_with_unknown_fields_is_refused(
    change: Callable[[dict[str, Any]], None],
) -> None:
    manifest = await (await build_thread(PackStore(MemoryBlobStore()))).write_archive()
    with pytest.raises(BlobCorrupt, match="fields that no writer gives it"):
        manifests.load(forge(manifest, change), make_key(manifest))


async def test_a_duplicate_field_is_refused_even_if_the_digest_matches() -> None:
    manifest = await (await build_thread(PackStore(MemoryBlobStore()))).write_archive()
    fields = json.loads(manifests.dump(manifest, None))
    del fields["digest"]
    doubled = manifests.dump_prefix(fields).replace(
        b'"agent": "ops"', b'"agent": "ops",\n  "agent": "ops"'
    )
    prefix = doubled + b',\n  "digest": "'
    data = prefix + hashlib.sha256(prefix).hexdigest().encode() + b'"\n}\n'
    with pytest.raises(BlobCorrupt, match="fields that no writer gives it"):
        manifests.load(data, make_key(manifest))


async def test_a_manifest_of_another_namespace_or_thread_is_refused() -> None:
    manifest = await (await build_thread(PackStore(MemoryBlobStore()))).write_archive()
    for name in ("thread_id", "namespace"):
        data = forge(manifest, lambda fields, name=name: fields.update({name: "other"}))  # type: ignore[misc]
        with pytest.raises(BlobCorrupt, match="of another thread"):
            manifests.load(data, make_key(manifest))


@pytest.mark.guarantee(98)
@pytest.mark.parametrize(
    "changes",
    [
        {"entries": 18},
        {"agent": "spy"},
        {"status": "done"},
        {"steps": 99},
        {"tokens": 99},
        {"cost_usd": 9.5},
        {"head": "0" * 64},
        {"archived_ms": 5},
        {"by": "mallory"},
        {"reason": "none"},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_a_manifest_that_contradicts_its_file_is_refused(
    changes: dict[str, Any],
) -> None:
    life = await build_thread(PackStore(MemoryBlobStore()))
    manifest = dataclasses.replace(await life.write_archive(), **changes)
    with pytest.raises(BlobCorrupt, match=next(iter(changes))):
        await StoredArchive.open(life.packs, manifest)


@pytest.mark.parametrize("name", ["first_ms", "last_ms", "snapshot_seq", "snapshots_missing"])
async def test_a_manifest_that_contradicts_the_journal_is_refused(name: str) -> None:
    life = await build_thread(PackStore(MemoryBlobStore()))
    manifest = await life.write_archive()
    other = dataclasses.replace(manifest, **{name: getattr(manifest, name) + 1})
    with pytest.raises(BlobCorrupt, match="times or snapshots in its manifest differ"):
        await archive_writer.verify(life.packs, life.journal, life.head, other)


async def test_an_overlong_manifest_is_refused() -> None:
    store = MemoryBlobStore()
    life = await build_thread(PackStore(store))
    manifest = await life.write_archive()
    store._objects[make_key(manifest)] += b" " * (1 << 17)
    with pytest.raises(BlobCorrupt):
        await manifests.read(life.packs, life.thread, manifest.archive_id)


async def test_another_version_is_named() -> None:
    manifest = await (await build_thread(PackStore(MemoryBlobStore()))).write_archive()
    data = forge(manifest, lambda fields: fields.update(version=3))
    with pytest.raises(UnknownVersion, match="version 3"):
        manifests.load(data, make_key(manifest))


TEXT = st.text('aä\u2028\n"\\{}:,\0😀 ', max_size=20)


@given(
    st.dictionaries(
        TEXT.filter(lambda name: name not in ("version", "digest")), TEXT | st.integers()
    )
)
def test_every_written_manifest_reads_back(fields: dict[str, Any]) -> None:
    stored = {"version": 2, **fields}
    assert manifests.load_checked(manifests.dump_checked(stored), "key", version=2) == stored


class Thread:
    """A thread with three archives, the newest of which cannot be read."""

    def __init__(self, life: ThreadBuilder, made: list[manifests.Manifest]) -> None:
        self.life = life
        self.made = made
        self.store: Any = life.packs.store

    async def search(self) -> manifests.Found:
        return await manifests.find_newest(self.life.packs, self.life.thread)


@pytest.fixture
async def thread() -> Thread:
    life = await build_thread(PackStore(MemoryBlobStore()))
    made = [await life.write_archive(number) for number in range(3)]
    found = Thread(life, made)
    found.store._objects[make_key(made[2])] = b"{"
    return found


@pytest.mark.guarantee(98)
async def test_an_unreadable_archive_is_skipped_and_named(thread: Thread) -> None:
    found = await thread.search()
    assert found.manifest == thread.made[1]
    [passed] = found.passed_over
    assert passed.archive_id == thread.made[2].archive_id
    assert make_key(thread.made[2]) in str(passed)
    assert "Restore it from a backup" in str(passed)


async def test_an_archive_whose_name_sorts_last_is_skipped(thread: Thread) -> None:
    for name in ("99991231T235959999Z-ffffffff", "99999999T999999999Z-00000000"):
        thread.store._objects[
            manifests.make_archive_key(thread.life.thread, name, manifests.MANIFEST)
        ] = b""
    found = await thread.search()
    assert found.manifest == thread.made[1]
    assert len(found.passed_over) == 3


async def test_unreadable_archives_are_all_named(thread: Thread) -> None:
    for each in thread.made:
        thread.store._objects[make_key(each)] = b"{"
    found = await thread.search()
    assert found.manifest is None
    assert len(found.passed_over) == 3


async def test_a_silent_store_is_no_unreadable_archive(
    thread: Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> bytes:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(thread.store, "get_range", away)
    with pytest.raises(StoreUnavailable):
        await thread.search()


async def test_the_search_ends_after_a_hundred_archives(thread: Thread) -> None:
    for number in range(150):
        key = manifests.make_archive_key(
            thread.life.thread, f"20990101T000000{number:03}Z-00000000", manifests.MANIFEST
        )
        thread.store._objects[key] = b"{"
    found = await thread.search()
    assert found.manifest is None
    assert len(found.passed_over) == 100
    assert all(isinstance(each.error, EverlongError) for each in found.passed_over)
