"""Damaged archives: opening, reading and verifying each report the damage."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped] # It has no types.
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from everlong.archive import Facts, Manifest, StoredArchive, writer
from everlong.archive import manifest as manifests
from everlong.archive.rows import Row
from everlong.errors import BlobCorrupt, ConfigError, EverlongError, UnknownVersion
from everlong.storage.encryption_keys import Keyring
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.objects import run_in_thread
from everlong.storage.pack_store import PackStore
from tests.support.sample_archive import ThreadBuilder, build_thread
from tests.support.sample_payloads import KEY_1, flip_bit


async def _read(packs: PackStore, manifest: Manifest) -> tuple[Facts, list[Row]]:
    archive = await StoredArchive.open(packs, manifest)
    return archive.facts, await run_in_thread(archive.file.read, 1, archive.file.rows)


@pytest.mark.guarantee(98)
@pytest.mark.parametrize("keys", [None, Keyring({"k1": KEY_1})], ids=["plain", "sealed"])
async def test_a_flipped_bit_is_reported_or_changes_no_content(keys: Keyring | None) -> None:
    store = MemoryBlobStore()
    life = await build_thread(PackStore(store, keys))
    manifest = await life.write_archive()
    whole = store._objects[manifest.file_key]
    good = await _read(life.packs, manifest)
    footer_at = manifest.size_bytes - manifest.footer_bytes
    refusals = 0
    for at in range(0, footer_at, 9):
        store._objects[manifest.file_key] = flip_bit(whole, 8 * at + at % 8)
        try:
            # A page has a checksum. Damage of its header is refused or has no effect.
            assert await _read(life.packs, manifest) == good, at
        except BlobCorrupt:
            refusals += 1
    assert refusals > footer_at // 9 * 3 // 4
    for at in range(footer_at, manifest.size_bytes, 11):
        store._objects[manifest.file_key] = flip_bit(whole, 8 * at + at % 8)
        with pytest.raises(BlobCorrupt, match="the footer of archive"):
            await _read(life.packs, manifest)


async def test_a_truncated_file_is_not_opened() -> None:
    store = MemoryBlobStore()
    life = await build_thread(PackStore(store))
    manifest = await life.write_archive()
    for left in (0, 4, manifest.size_bytes - 1):
        store._objects[manifest.file_key] = store._objects[manifest.file_key][:left]
        with pytest.raises(BlobCorrupt, match="the footer of archive"):
            await StoredArchive.open(life.packs, manifest)


async def _forge(
    life: ThreadBuilder, path: Path, facts: bytes | None, change: Callable[[pa.Table], pa.Table]
) -> Manifest:
    """Put another file in an archive's place, with a manifest that fits it."""
    store, manifest = life.packs.store, await life.write_archive()
    path.write_bytes(await store.get(manifest.file_key))
    table = pq.read_table(path)
    metadata = table.schema.metadata[b"everlong"] if facts is None else facts
    pq.write_table(change(table).replace_schema_metadata({b"everlong": metadata}), path)
    await store.delete([manifest.file_key])
    await store.put(manifest.file_key, path.read_bytes())
    return dataclasses.replace(manifest, **vars(writer._hash_file(path)))


async def test_a_file_with_other_columns_is_reported_as_corrupt(tmp_path: Path) -> None:
    changes: list[Callable[[pa.Table], pa.Table]] = [
        lambda table: table.rename_columns(
            ["sdq" if name == "seq" else name for name in table.column_names]
        ),
        lambda table: table.drop_columns(["resume_ms"]),
        lambda table: table.set_column(7, "tool_calls", pa.array([["x"]] * table.num_rows)),
        lambda table: table.set_column(
            4, "text", pa.array([b"\xff"] * table.num_rows).view(pa.string())
        ),
    ]
    for number, change in enumerate(changes):
        life = await build_thread(PackStore(MemoryBlobStore()))
        manifest = await _forge(life, tmp_path / str(number), None, change)
        with pytest.raises(BlobCorrupt, match="cannot be read"):
            await _read(life.packs, manifest)


async def test_a_file_without_its_thread_is_refused(tmp_path: Path) -> None:
    cases: list[tuple[bytes, type[EverlongError], str]] = [
        (b"{", BlobCorrupt, "does not name its thread"),
        (b"\xff", BlobCorrupt, "does not name its thread"),
        (b'{"version":2}', UnknownVersion, "upgrade"),
    ]
    for number, (facts, error, words) in enumerate(cases):
        life = await build_thread(PackStore(MemoryBlobStore()))
        manifest = await _forge(life, tmp_path / str(number), facts, lambda table: table)
        with pytest.raises(error, match=words):
            await StoredArchive.open(life.packs, manifest)


async def test_the_footer_digest_covers_the_bytes_that_parquet_declares(tmp_path: Path) -> None:
    for keys in (None, Keyring({"k1": KEY_1})):
        life = await build_thread(PackStore(MemoryBlobStore(), keys))
        manifest = await life.write_archive()
        data = await life.packs.store.get(manifest.file_key)
        footer_bytes = 8 + int.from_bytes(data[-8:-4], "little")
        assert manifest.footer_bytes == footer_bytes < len(data)
        assert manifest.footer_sha256 == hashlib.sha256(data[-footer_bytes:]).hexdigest()


async def test_an_export_is_verified_whole(tmp_path: Path) -> None:
    store = MemoryBlobStore()
    life = await build_thread(PackStore(store))
    manifest = await life.write_archive()
    # The first byte of the file, which no read of its content needs.
    store._objects[manifest.file_key] = flip_bit(store._objects[manifest.file_key], 0)
    with pytest.raises(BlobCorrupt, match="its bytes differ from those that were written"):
        await writer.export(life.packs, manifest, tmp_path / "ops-7.parquet")
    assert list(tmp_path.iterdir()) == []


async def test_a_failed_export_is_reported_and_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = await build_thread(PackStore(MemoryBlobStore()))
    manifest = await life.write_archive()
    mine = tmp_path / "mine.parquet"
    mine.write_text("mine")
    for path, words in (
        (tmp_path / "no" / "x.parquet", "not a directory"),
        (mine / "x.parquet", "not a directory"),
        (mine, "already exists"),
    ):
        with pytest.raises(ConfigError, match=words):
            await writer.export(life.packs, manifest, path)
    assert mine.read_text() == "mine"

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("everlong.archive.parquet.export", full)
    with pytest.raises(ConfigError, match="No space left"):
        await writer.export(life.packs, manifest, tmp_path / "new.parquet")
    assert list(tmp_path.iterdir()) == [mine]


async def test_a_manifest_with_an_oversized_footer_is_refused() -> None:
    life = await build_thread(PackStore(MemoryBlobStore()))
    manifest = await life.write_archive()
    key = manifests.make_archive_key(life.thread, manifest.archive_id, manifests.MANIFEST)
    stored = await life.packs.store.get(key)
    forged = stored.replace(
        f'"footer_bytes": {manifest.footer_bytes}'.encode(), b'"footer_bytes": 1e12'
    )
    assert forged != stored
    fields = {**json.loads(stored), "footer_bytes": 10**12}
    del fields["digest"]
    for data in (forged, manifests.dump_checked(fields)):
        with pytest.raises(BlobCorrupt):
            manifests.load(data, key)
