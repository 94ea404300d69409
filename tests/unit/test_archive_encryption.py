"""Encrypted archives: no message is stored in plain text, and any tool with the key reads them."""

import dataclasses
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from everlong.archive import ArchivedJournal, Manifest, StoredArchive, writer
from everlong.archive import manifest as manifests
from everlong.errors import BlobCorrupt, EverlongError, KeyMissing, RefRefused
from everlong.storage.encryption_keys import Keyring
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore
from tests.support.sample_archive import build_thread
from tests.support.sample_payloads import KEY_1, KEY_2

# As docs/how-to/archive.md has it: the key of one file, from the team's key and the manifest.
WITH_THE_KEY = """
import base64, hashlib, json, sys
import duckdb
import pyarrow.parquet as pq
from pyarrow.parquet import encryption
path, manifest, key = sys.argv[1], json.loads(sys.argv[2]), bytes.fromhex(sys.argv[3])
file_key = hashlib.blake2b(
    key=key, salt=bytes.fromhex(manifest["salt"]), person=b"everlong-archive", digest_size=32
).digest()
opening = encryption.create_decryption_properties(footer_key=file_key)
print(pq.read_table(path, decryption_properties=opening).num_rows)
base64_key = base64.b64encode(file_key).decode()
duckdb.execute(f"pragma add_parquet_key('archive', '{base64_key}')")
print(duckdb.execute(
    "select count(*), max(length(text)) from read_parquet(?, encryption_config={footer_key: 'archive'})",
    [path],
).fetchall())
assert not [name for name in sys.modules if name.split(".")[0] == "everlong"]
"""


def open_sealed(store: MemoryBlobStore, key_id: str = "k1", key: bytes = KEY_1) -> PackStore:
    return PackStore(store, Keyring({key_id: key}))


async def stored_manifest(store: MemoryBlobStore, manifest: Manifest) -> tuple[str, str]:
    key = manifests.make_archive_key(manifest.thread, manifest.archive_id, manifests.MANIFEST)
    return key, (await store.get(key)).decode()


@pytest.mark.guarantee(100)
async def test_no_message_is_stored_in_plain_text() -> None:
    store = MemoryBlobStore()
    life = await build_thread(open_sealed(store))
    manifest = await life.write_archive()
    data = await store.get(manifest.file_key)
    _, listed = await stored_manifest(store, manifest)
    for text in ("why is it slow", "x" * 100, "it is over", "eu-1", "search_logs", "steps_max"):
        assert text.encode() not in data
        assert text not in listed
    assert manifest.key_id == "k1"
    archive = await StoredArchive.open(life.packs, manifest)
    assert archive.facts.reason == "it is over"
    [first] = await ArchivedJournal(archive).messages(await life.journal.read(life.head, 1, 1))
    assert first.text == "why is it slow?"


@pytest.mark.guarantee(100)
async def test_a_parquet_tool_with_the_key_reads_the_file(tmp_path: Path) -> None:
    store = MemoryBlobStore()
    life = await build_thread(open_sealed(store))
    manifest = await life.write_archive()
    _, listed = await stored_manifest(store, manifest)
    path = tmp_path / "sealed.parquet"
    path.write_bytes(await store.get(manifest.file_key))
    result = subprocess.run(
        [sys.executable, "-I", "-c", WITH_THE_KEY, str(path), listed, KEY_1.hex()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n")[:2] == [
        str(manifest.entries),
        f"[({manifest.entries}, 100009)]",
    ]


async def test_a_wrong_or_missing_key_reads_nothing() -> None:
    store = MemoryBlobStore()
    manifest = await (await build_thread(open_sealed(store))).write_archive()
    with pytest.raises(KeyMissing, match="EVERLONG_KEYS"):
        await StoredArchive.open(PackStore(store), manifest)
    with pytest.raises(KeyMissing):
        await StoredArchive.open(open_sealed(store, "k2", KEY_2), manifest)
    with pytest.raises(BlobCorrupt, match="sealed with another key"):
        await StoredArchive.open(open_sealed(store, "k1", KEY_2), manifest)
    rotated = PackStore(store, Keyring({"k2": KEY_2, "k1": KEY_1}))
    assert (await StoredArchive.open(rotated, manifest)).file.rows == manifest.entries


@pytest.mark.guarantee(100)
async def test_a_manifest_written_without_the_key_is_refused() -> None:
    store = MemoryBlobStore()
    life = await build_thread(open_sealed(store))
    manifest = await life.write_archive()
    key, listed = await stored_manifest(store, manifest)
    await manifests.read(life.packs, life.thread, manifest.archive_id)
    await store.put(key, listed.replace('"agent": "ops"', '"agent": "spy"').encode())
    with pytest.raises(BlobCorrupt, match="it is damaged"):
        await manifests.read(life.packs, life.thread, manifest.archive_id)
    fields = {**json.loads(listed), "agent": "spy"}
    del fields["digest"]
    await store.put(key, manifests.dump_checked(fields))
    with pytest.raises(BlobCorrupt, match="changed by a writer without its key"):
        await manifests.read(life.packs, life.thread, manifest.archive_id)
    await store.put(key, listed.encode())
    with pytest.raises(BlobCorrupt, match="or the key 'k1' is different here"):
        await manifests.read(open_sealed(store, "k1", KEY_2), life.thread, manifest.archive_id)


async def test_a_tag_covers_all_bytes_before_it() -> None:
    store = MemoryBlobStore()
    life = await build_thread(open_sealed(store))
    manifest = await life.write_archive()
    key, listed = await stored_manifest(store, manifest)
    fields = json.loads(listed)
    del fields["digest"]
    changes: dict[str, object] = {
        "steps": 99,
        "salt": "00" * 16,
        "first_ms": 5,
        "sha256": "0" * 64,
        "tag": "0" * 32,
    }
    for name, value in changes.items():
        # With a digest that fits: only the tag finds it.
        await store.put(key, manifests.dump_checked({**fields, name: value}))
        with pytest.raises(BlobCorrupt, match="without its key"):
            await manifests.read(life.packs, life.thread, manifest.archive_id)
    await store.put(key, manifests.dump_checked(fields))
    assert await manifests.read(life.packs, life.thread, manifest.archive_id) == manifest


@pytest.mark.guarantee(100)
async def test_an_unsealed_archive_is_refused_with_keys() -> None:
    store = MemoryBlobStore()
    plain = await build_thread(PackStore(store))
    manifest = await plain.write_archive()
    packs = open_sealed(store)
    for reading in (
        manifests.read(packs, plain.thread, manifest.archive_id),
        StoredArchive.open(packs, manifest),
    ):
        # Archives stay: to wait until they are gone, as histories are, is no remedy.
        with pytest.raises(RefRefused, match=r"EVERLONG_ACCEPT_UNSEALED.*revive the thread"):
            await reading
    lenient = PackStore(store, Keyring({"k1": KEY_1}), accept_unsealed=True)
    assert (await manifests.read(lenient, plain.thread, manifest.archive_id)) == manifest


@pytest.mark.guarantee(100)
async def test_a_changed_sealed_file_is_refused_even_with_a_changed_digest() -> None:
    store = MemoryBlobStore()
    life = await build_thread(open_sealed(store))
    manifest = await life.write_archive()
    whole = await store.get(manifest.file_key)
    for at in range(100, len(whole) - 100, len(whole) // 12):
        damaged = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        await store.put(manifest.file_key, damaged)
        forged = dataclasses.replace(manifest, sha256=hashlib.sha256(damaged).hexdigest())
        with pytest.raises(EverlongError):
            await writer.verify(life.packs, life.journal, life.head, forged)
