"""Archive reader: fetches only the requested row groups and columns, as ranges of the file."""

import asyncio
import hashlib
import io
import os
import threading
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from everlong.archive.manifest import Facts, Manifest, check_sealed, parse_facts
from everlong.archive.rows import Row, read_body, read_message, to_entry
from everlong.errors import BlobCorrupt, BlobMissing, KeyMissing
from everlong.models import Entry, Kind, Message, Ref, SegmentRef, Totals, add_up
from everlong.models.journal import Body
from everlong.storage.base import BlobStore
from everlong.storage.encryption_keys import ARCHIVE_PURPOSE
from everlong.storage.objects import run_in_thread
from everlong.storage.pack_store import PackStore

if TYPE_CHECKING:
    from everlong.archive.parquet import ArchiveFile

_MESSAGE: Final = ("role", "text", "tool", "call_id", "tool_calls", "body", "shown")
# An entry without its message takes about 1 KB of memory, so 8 groups of 1,024 entries take 8 MB.
_GROUPS_KNOWN: Final = 8


class StoreFile(io.RawIOBase):
    """A stored object as a file, for a thread that reads ranges of it while the event loop runs.

    The caller passes the end of the file, which it has checked, so it is not fetched again.
    """

    def __init__(self, store: BlobStore, key: str, size_bytes: int, end: bytes) -> None:
        self._store = store
        self._key = key
        self._size = size_bytes
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._at = 0

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def seekable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def tell(self) -> int:
        """See `io.RawIOBase`."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """See `io.RawIOBase`."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        """See `io.RawIOBase`."""
        left = max(0, self._size - self._at)
        size = left if size < 0 else min(size, left)
        if not size:
            return b""
        end_at = self._size - len(self._end)
        stored = min(size, max(0, end_at - self._at))
        data = self._fetch(stored) if stored else b""
        if len(data) == stored and stored < size:
            at = self._at + stored - end_at
            data += self._end[at : at + size - stored]
        self._at += len(data)
        return data

    def _fetch(self, size: int) -> bytes:
        if threading.get_ident() == self._thread:
            raise RuntimeError(
                "read an archive's file in a thread: here it would block the event loop"
            )
        reading = self._store.get_range(self._key, self._at, size)
        return asyncio.run_coroutine_threadsafe(reading, self._loop).result()


class StoredArchive:
    """An archive in a store."""

    def __init__(self, manifest: Manifest, file: "ArchiveFile", facts: Facts) -> None:
        self.manifest = manifest
        self.facts = facts
        self.file = file
        self.passed_over: tuple[str, ...] = ()
        """Newer archives that cannot be read, each with the reason, if the newest was asked for."""
        self._lock = asyncio.Lock()
        # The last row group with its messages: a client that pages through a journal needs it again.
        self._group = -1
        self._rows: list[Row] = []
        self._known: dict[int, list[Entry]] = {}

    @classmethod
    async def open(
        cls, packs: PackStore, manifest: Manifest, store: BlobStore | None = None
    ) -> "StoredArchive":
        """Open the archive of a manifest. Only the footer of the file is read and checked."""
        # Imported here: pyarrow comes with an extra, and only archives need it.
        from everlong.archive.parquet import ArchiveFile

        key = await derive_file_key(packs, manifest)
        store = store or packs.store
        footer = await _read_footer(store, manifest)
        source = StoreFile(store, manifest.file_key, manifest.size_bytes, footer)
        file = await run_in_thread(ArchiveFile, source, key)
        facts = parse_facts(file.facts, manifest)
        if file.rows != manifest.entries:
            raise BlobCorrupt(
                f"archive {manifest.file_key!r} has {file.rows} rows, but its manifest declares "
                f"{manifest.entries}. Restore both from a backup of the store."
            )
        return cls(manifest, file, facts)

    async def entries(self, first_seq: int, last_seq: int) -> list[Entry]:
        """Return the entries of a range, without their messages."""
        found: list[Entry] = []
        async with self._lock:
            for index, (group_seq, count) in enumerate(self.file.groups):
                if group_seq <= last_seq and first_seq < group_seq + count:
                    entries = await self._entries(index)
                    start = max(0, first_seq - group_seq)
                    found += entries[start : last_seq + 1 - group_seq]
        return found

    async def _entries(self, index: int) -> list[Entry]:
        """Return the entries of a row group. A few groups are cached: samples come from all of them."""
        if (entries := self._known.get(index)) is not None:
            return entries
        first_seq, count = self.file.groups[index]
        rows = await run_in_thread(self.file.read, first_seq, first_seq + count - 1, self.file.meta)
        entries = [to_entry(row, self._original(row)) for row in rows]
        while len(self._known) >= _GROUPS_KNOWN:
            self._known.pop(next(iter(self._known)))
        self._known[index] = entries
        return entries

    async def rows(self, seqs: Sequence[int]) -> list[Row]:
        """Return rows with their messages, in the order of `seqs`."""
        wanted = set(seqs)
        found: dict[int, Row] = {}
        async with self._lock:
            for index, (first_seq, count) in enumerate(self.file.groups):
                if wanted.isdisjoint(range(first_seq, first_seq + count)):
                    continue
                if index != self._group:
                    self._rows = await run_in_thread(
                        self.file.read,
                        first_seq,
                        first_seq + count - 1,
                        (*self.file.meta, *_MESSAGE),
                    )
                    self._group = index
                found.update({row.seq: row for row in self._rows if row.seq in wanted})
        return [found[seq] for seq in seqs]

    async def snapshot(self, seq: int) -> bytes:
        """Return the snapshot of the compaction at `seq`."""
        async with self._lock:
            rows = await run_in_thread(self.file.read, seq, seq, (*self.file.meta, "snapshot"))
        if not rows or rows[0].snapshot is None:
            raise BlobMissing(
                f"the snapshot of entry {seq} is not in archive {self.manifest.archive_id!r}: it was "
                "already deleted from the store when the archive was written."
            )
        return rows[0].snapshot.encode()

    def _original(self, row: Row) -> Ref | None:
        """Return a ref for the whole of a long message. It names this archive's file."""
        if row.original_bytes is None:
            return None
        return Ref(
            thread=self.manifest.thread,
            digest=self.manifest.sha256,
            size_bytes=row.original_bytes,
            kind=Kind(row.kind),
        )


class ArchivedJournal:
    """The journal of an archived thread, with the interface of `JournalReader`."""

    def __init__(self, archive: StoredArchive) -> None:
        self.archive = archive

    async def read(
        self, head: SegmentRef | None, first_seq: int = 1, last_seq: int | None = None
    ) -> list[Entry]:
        """See `Journal`."""
        end = self.archive.manifest.entries if last_seq is None else last_seq
        return await self.archive.entries(max(1, first_seq), end)

    async def entry(self, head: SegmentRef, seq: int) -> Entry:
        """See `Journal`."""
        found = await self.read(head, seq, seq)
        if not found:
            raise ValueError(
                f"no entry {seq}: the archive has 1 to {self.archive.manifest.entries}"
            )
        return found[0]

    async def newest(self, head: SegmentRef) -> Entry:
        """See `Journal`."""
        return await self.entry(head, self.archive.manifest.entries)

    async def last(
        self,
        head: SegmentRef | None,
        kind: Kind | Collection[Kind],
        before_seq: int | None = None,
        *,
        first_seq: int = 1,
    ) -> Entry | None:
        """See `Journal`. Searches backwards, a row group at a time."""
        kinds = {kind} if isinstance(kind, Kind) else kind
        last_seq = self.archive.manifest.entries
        if before_seq is not None:
            last_seq = min(before_seq, last_seq)
        for group_seq, count in reversed(self.archive.file.groups):
            if group_seq > last_seq or group_seq + count <= first_seq:
                continue
            until = min(last_seq, group_seq + count - 1)
            for entry in reversed(await self.read(head, max(first_seq, group_seq), until)):
                if entry.kind in kinds:
                    return entry
        return None

    async def totals(self, head: SegmentRef, seq: int) -> Totals:
        """See `Journal`. Adds up all entries, a row group at a time."""
        found = Totals()
        for first_seq, count in self.archive.file.groups:
            last_seq = min(seq, first_seq + count - 1)
            if first_seq <= last_seq:
                found = add_up(await self.read(head, first_seq, last_seq), found)
        return found

    async def messages(self, entries: Sequence[Entry], *, whole: bool = False) -> list[Message]:
        """See `Journal`."""
        rows = await self.archive.rows([entry.seq for entry in entries])
        return [read_message(row, whole=whole) for row in rows]

    async def bodies(self, entries: Sequence[Entry], *, whole: bool = False) -> list[Body]:
        """See `Journal`."""
        rows = await self.archive.rows([entry.seq for entry in entries])
        return [read_body(row, whole=whole) for row in rows]

    async def snapshot(self, head: SegmentRef, entry: Entry) -> bytes:
        """See `Journal`."""
        return await self.archive.snapshot(entry.seq)


async def _read_footer(store: BlobStore, manifest: Manifest) -> bytes:
    """Return the footer of the file. Raises `BlobCorrupt` if it is damaged."""
    start = max(0, manifest.size_bytes - manifest.footer_bytes)
    footer = await store.get_range(manifest.file_key, start, manifest.footer_bytes)
    if hashlib.sha256(footer).hexdigest() != manifest.footer_sha256:
        raise BlobCorrupt(
            f"the footer of archive {manifest.file_key!r} is not what was written: the file is damaged. "
            "Restore it from a backup of the store."
        )
    return footer


async def derive_file_key(packs: PackStore, manifest: Manifest) -> bytes | None:
    """Return the key that an archive's file is sealed with; None if it is not sealed."""
    check_sealed(packs, manifest.key_id, manifest.file_key)
    if not manifest.key_id:
        return None
    keys = await packs.keys(manifest.key_id)
    if keys is None:
        raise KeyMissing(
            f"archive {manifest.file_key!r} is sealed with key {manifest.key_id!r}, and no keys are "
            "configured here. Set EVERLONG_KEYS."
        )
    return keys.derive(manifest.key_id, ARCHIVE_PURPOSE, bytes.fromhex(manifest.salt))
