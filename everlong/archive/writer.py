"""Archive writer: writes a journal to one file, uploads it, reads all of it back, and verifies it.

The manifest is written last. A process that is killed before leaves at most a file without a manifest,
which no listing shows; it is deleted when the thread is archived again a day or more later.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from everlong import limits
from everlong.archive import manifest as manifests
from everlong.archive.manifest import FILE, MANIFEST, PREFIX, Facts, Manifest, make_archive_key
from everlong.archive.reader import StoredArchive
from everlong.archive.rows import Row, has_snapshot, to_row
from everlong.errors import BlobCorrupt, BlobMissing, ConfigError
from everlong.models import Entry, Kind, SegmentRef, seq_after
from everlong.storage.base import BlobStore, put_file
from everlong.storage.cache import CachedBlobStore
from everlong.storage.encryption_keys import ARCHIVE_PURPOSE, SALT_BYTES, Keys
from everlong.storage.journal import JournalReader
from everlong.storage.objects import run_in_thread
from everlong.storage.pack_store import PackStore
from everlong.storage.segments import MESSAGE_KINDS

# A file ends with the footer, its length in 4 bytes, and 4 magic bytes: sealed or plain.
_END_BYTES: Final = 8
_READ_BYTES: Final = 8 * limits.MIB


# Bounds of one read: entries, and bytes of messages. A single message may have 64 MiB. So with an
# unfinished row group, writing an archive takes a few hundred MiB of memory at most.
_SCAN_ENTRIES: Final = 256
_BATCH_BYTES: Final = 8 * limits.MIB
# Age at which a file without a manifest is an orphan, and not an archive that is being written.
_LEFT_BEHIND_MS: Final = 24 * 3600 * 1000

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the action, the entries done, and the total."""


def ignore_progress(_what: str, _done: int, _total: int) -> None:
    """Ignore progress."""


async def iter_rows(
    journal: JournalReader, head: SegmentRef | None, *, snapshots: bool = True
) -> AsyncIterator[list[Row]]:
    """Yield the rows of a journal, in batches of bounded bytes.

    With `snapshots=False` no snapshot is read.
    """
    last_seq = seq_after(head) - 1
    newest = await journal.last(head, Kind.COMPACTION) if snapshots else None
    for from_seq in range(1, last_seq + 1, _SCAN_ENTRIES):
        entries = await journal.read(head, from_seq, min(last_seq, from_seq + _SCAN_ENTRIES - 1))
        for batch in _split_batches(entries):
            yield await _build_rows(journal, head, batch, newest)


def _split_batches(entries: Sequence[Entry]) -> list[list[Entry]]:
    batches: list[list[Entry]] = []
    size_bytes = _BATCH_BYTES
    for entry in entries:
        own_bytes = entry.size_bytes + (entry.original.size_bytes if entry.original else 0)
        if size_bytes + own_bytes > _BATCH_BYTES:
            batches.append([])
            size_bytes = 0
        batches[-1].append(entry)
        size_bytes += own_bytes
    return batches


async def _build_rows(
    journal: JournalReader,
    head: SegmentRef | None,
    entries: Sequence[Entry],
    newest: Entry | None,
) -> list[Row]:
    message_entries = [entry for entry in entries if entry.kind in MESSAGE_KINDS]
    cut = [entry for entry in message_entries if entry.original is not None]
    whole = await journal.bodies(message_entries, whole=True)
    shown = await journal.bodies(cut)
    bodies = {entry.seq: body for entry, body in zip(message_entries, whole, strict=True)}
    shorts = {entry.seq: body for entry, body in zip(cut, shown, strict=True)}
    rows = []
    for entry in entries:
        snapshot = None
        if entry.kind == Kind.COMPACTION and head is not None and newest is not None:
            snapshot = await _read_snapshot(journal, head, entry, newest)
        rows.append(to_row(entry, bodies.get(entry.seq), shorts.get(entry.seq), snapshot))
    return rows


async def _read_snapshot(
    journal: JournalReader, head: SegmentRef, entry: Entry, newest: Entry
) -> bytes | None:
    """Return the snapshot of a compaction. Older ones may be deleted: no thread resumes from them."""
    try:
        if not has_snapshot(entry):
            raise BlobMissing("It was deleted before the thread was revived.")
        return await journal.snapshot(head, entry)
    except BlobMissing as error:
        if entry.seq != newest.seq:
            return None
        raise BlobMissing(
            f"the snapshot of entry {entry.seq} is missing from the store, and it is the one in force: "
            f"without it neither the thread nor a revived one can continue. The thread is not archived, "
            f"and nothing was freed. {error}"
        ) from error


async def write(
    packs: PackStore, journal: JournalReader, facts: Facts, on_progress: Progress = ignore_progress
) -> Manifest:
    """Write an archive of a journal, verify it, then write and return its manifest."""
    store = _strip_cache(packs.store)
    keys = await packs.keys()
    salt = os.urandom(SALT_BYTES) if keys is not None else b""
    key = None if keys is None else keys.derive(keys.active, ARCHIVE_PURPOSE, salt)
    with tempfile.TemporaryDirectory(prefix="everlong-archive-") as folder:
        path = Path(folder, "archive.parquet")
        span = await _write_file(path, journal, facts, key, on_progress)
        written = await run_in_thread(_hash_file, path)
        manifest = _build_manifest(facts, span, keys, salt, written)
        await put_file(store, manifest.file_key, path)
    await verify(packs, journal, facts.status.head, manifest, on_progress)
    listed = manifests.dump(manifest, keys)
    place = make_archive_key(facts.thread, facts.archive_id, MANIFEST)
    loaded = manifests.load(listed, place)  # A manifest that would be unreadable is not written.
    await store.put(place, listed)
    return loaded


@dataclasses.dataclass
class _Span:
    """Times and snapshots of a journal, collected while it is read."""

    first_ms: int = 0
    last_ms: int = 0
    snapshot_seq: int = 0
    snapshots_missing: int = 0

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.first_ms = min(self.first_ms or row.time_ms, row.time_ms)
            self.last_ms = max(self.last_ms, row.time_ms)
            if row.kind == Kind.COMPACTION:
                self.snapshot_seq = row.seq
                self.snapshots_missing += row.snapshot is None


@dataclasses.dataclass(frozen=True)
class _Digests:
    """Sizes and digests of a file, as its manifest has them."""

    size_bytes: int
    sha256: str
    footer_bytes: int
    footer_sha256: str


def _hash_file(path: Path) -> _Digests:
    """Return the digests of a file on disk after its writer has closed it."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(size_bytes - _END_BYTES)
        footer_bytes = int.from_bytes(file.read(4), "little") + _END_BYTES
        file.seek(size_bytes - footer_bytes)
        footer_sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return _Digests(size_bytes, sha256, footer_bytes, footer_sha256)


async def _write_file(
    path: Path, journal: JournalReader, facts: Facts, key: bytes | None, on_progress: Progress
) -> _Span:
    # Imported here: pyarrow comes with an extra, and only archives need it.
    from everlong.archive.parquet import ArchiveWriter

    span = _Span()
    writer = await run_in_thread(ArchiveWriter, path, manifests.dump_facts(facts), key)
    async for rows in iter_rows(journal, facts.status.head):
        span.add(rows)
        await run_in_thread(writer.add, rows)
        on_progress("written", rows[-1].seq, facts.entries)
    await run_in_thread(writer.close)
    return span


def _build_manifest(
    facts: Facts, span: _Span, keys: Keys | None, salt: bytes, written: _Digests
) -> Manifest:
    return Manifest(
        **manifests.build_manifest_fields(facts, is_sealed=keys is not None),
        first_ms=span.first_ms,
        last_ms=span.last_ms,
        snapshot_seq=span.snapshot_seq,
        snapshots_missing=span.snapshots_missing,
        size_bytes=written.size_bytes,
        sha256=written.sha256,
        footer_bytes=written.footer_bytes,
        footer_sha256=written.footer_sha256,
        key_id="" if keys is None else keys.active,
        salt=salt.hex(),
    )


async def _hash_stored(store: BlobStore, manifest: Manifest) -> tuple[int, str]:
    """Return the size and the digest of the file in the store."""
    digest, at = hashlib.sha256(), 0
    while at <= manifest.size_bytes:
        data = await store.get_range(manifest.file_key, at, _READ_BYTES)
        if not data:
            break
        await run_in_thread(digest.update, data)
        at += len(data)
    return at, digest.hexdigest()


async def verify(
    packs: PackStore,
    journal: JournalReader | None,
    head: SegmentRef | None,
    manifest: Manifest,
    on_progress: Progress = ignore_progress,
) -> StoredArchive:
    """Check an archive in its store: every byte, and every row against the journal's, if given."""
    store = _strip_cache(packs.store)
    if await _hash_stored(store, manifest) != (manifest.size_bytes, manifest.sha256):
        raise _make_mismatch_error(manifest, "its bytes differ from those that were written")
    archive = await StoredArchive.open(packs, manifest, store)
    if journal is not None:
        await _compare(archive, journal, head, on_progress)
    return archive


async def _compare(
    archive: StoredArchive, journal: JournalReader, head: SegmentRef | None, on_progress: Progress
) -> None:
    """Compare every row with the journal's. One row group is in memory at a time, fetched once."""
    manifest, stored, span = archive.manifest, _iter_stored_rows(archive), _Span()
    async for rows in iter_rows(journal, head):
        span.add(rows)
        for row in rows:
            if row != await anext(stored, None):
                raise _make_mismatch_error(manifest, f"entry {row.seq} differs")
        on_progress("verified", rows[-1].seq, manifest.entries)
    if await anext(stored, None) is not None:
        raise _make_mismatch_error(manifest, "it has more entries")
    if any(getattr(manifest, name) != value for name, value in vars(span).items()):
        raise _make_mismatch_error(manifest, "times or snapshots in its manifest differ")


async def _iter_stored_rows(archive: StoredArchive) -> AsyncIterator[Row]:
    for first_seq, count in archive.file.groups:
        for row in await run_in_thread(archive.file.read, first_seq, first_seq + count - 1):
            yield row


async def delete_orphans(store: BlobStore, thread: str, now_ms: int) -> int:
    """Delete archive files without a manifest that are a day old or more; return how many."""
    listed, files = set(), []
    async for each in store.list(f"{PREFIX}{thread}/"):
        name = each.key.rpartition("/")[2]
        if name.endswith(MANIFEST):
            listed.add(name.removesuffix(MANIFEST))
        elif name.endswith(FILE):
            files.append(name.removesuffix(FILE))
    gone = [
        make_archive_key(thread, each, FILE)
        for each in files
        if each not in listed and _is_old(each, now_ms)
    ]
    if gone:
        await store.delete(gone)
    return len(gone)


def _is_old(archive_id: str, now_ms: int) -> bool:
    try:
        return manifests.parse_archive_ms(archive_id) < now_ms - _LEFT_BEHIND_MS
    except ValueError:  # Not a file of Everlong.
        return False


def _strip_cache(store: BlobStore) -> BlobStore:
    """Return the store without its cache, so that verification reads the stored bytes."""
    return store.inner if isinstance(store, CachedBlobStore) else store


def _make_mismatch_error(manifest: Manifest, what: str) -> BlobCorrupt:
    return BlobCorrupt(
        f"archive {manifest.file_key!r} does not match the thread's journal: {what}. Nothing was "
        "freed. Archive the thread again, or restore the file from a backup of the store."
    )


def check_target(path: Path) -> None:
    """Reject a path that exists, or that an archive cannot be exported to."""
    if path.exists() or path.is_symlink():
        raise ConfigError(f"{str(path)!r} already exists; export to another path, or remove it")
    if not path.parent.is_dir():
        raise ConfigError(f"{str(path.parent)!r} is not a directory; create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{str(path.parent)!r} is not writable; export to another path")


async def export(packs: PackStore, manifest: Manifest, path: Path) -> int:
    """Write an archive to disk as a plain Parquet file, for any tool; return the number of rows.

    All bytes of the archive are checked first.
    """
    from everlong.archive import parquet

    await asyncio.to_thread(check_target, path)
    archive = await verify(packs, None, None, manifest)
    partial = path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")
    try:
        # Readable by this user only, as in a file store: the file holds message content.
        await asyncio.to_thread(partial.touch, 0o600, exist_ok=False)
        rows = await run_in_thread(parquet.export, archive.file, partial)
        await asyncio.to_thread(partial.replace, path)
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(partial.unlink, missing_ok=True)
    return rows
