"""Restore: writes an archive's journal into a new thread, which needs no packs of other threads."""

import dataclasses
from typing import Final

from pydantic_core import to_json

from everlong import limits
from everlong.archive.reader import StoredArchive
from everlong.archive.rows import Row, drop_snapshot, read_body, to_entry
from everlong.archive.writer import Progress
from everlong.models import CompactionNote, Entry, Kind, SegmentRef, SnapshotRef, build_note
from everlong.storage.journal import Journal
from everlong.storage.objects import run_in_thread
from everlong.storage.pack_store import PackStore
from everlong.storage.segments import MESSAGE_KINDS, parse_compaction

# Long messages are stored outside their segment, so a segment stays small enough to read.
_APPEND_BYTES: Final = limits.MIB


@dataclasses.dataclass
class RestoredJournal:
    """A journal that was restored from an archive."""

    head: SegmentRef | None = None
    snapshot: SnapshotRef | None = None
    """The newest snapshot, stored under the new thread."""
    written_bytes: int = 0


class _Writer:
    """Appends rows to a journal, a bounded number of bytes at a time."""

    def __init__(self, packs: PackStore, thread: str) -> None:
        self._packs = packs
        self._thread = thread
        self._journal = Journal(packs, thread)
        self._entries: list[Entry] = []
        self._bytes = 0
        self.restored = RestoredJournal()

    async def add(self, row: Row) -> None:
        await self.append(await self._entry(row))

    async def append(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._bytes += entry.size_bytes
        if len(self._entries) >= limits.SEGMENT_ENTRIES_MAX or self._bytes >= _APPEND_BYTES:
            await self.flush()

    async def flush(self) -> None:
        if not self._entries:
            return
        head, written_bytes = await self._journal.append(self.restored.head, self._entries)
        self.restored.head = head
        self.restored.written_bytes += written_bytes
        self._entries, self._bytes = [], 0

    async def _entry(self, row: Row) -> Entry:
        entry = to_entry(row)
        if entry.kind == Kind.COMPACTION:
            if row.snapshot is None:
                return drop_snapshot(entry)
            return await self._compaction(entry, row.snapshot.encode())
        if entry.kind not in MESSAGE_KINDS:
            return entry
        body = read_body(row, whole=False)
        if row.shown is None:
            return dataclasses.replace(entry, body=body)
        whole = to_json(read_body(row, whole=True))
        original, written_bytes = await self._packs.write_body(self._thread, entry.kind, whole)
        self.restored.written_bytes += written_bytes
        return dataclasses.replace(entry, body=body, original=original)

    async def _compaction(self, entry: Entry, snapshot: bytes) -> Entry:
        """Store a snapshot under the new thread, and point its entry there."""
        compacted = parse_compaction(entry)
        ref, written_bytes = await self._packs.write_body(self._thread, Kind.SNAPSHOT, snapshot)
        self.restored.written_bytes += written_bytes
        self.restored.snapshot = dataclasses.replace(compacted.snapshot, ref=ref)
        moved: CompactionNote = dataclasses.replace(compacted, snapshot=self.restored.snapshot)
        return build_note(entry.seq, entry.kind, moved, entry.time_ms)


async def restore_journal(
    packs: PackStore, thread: str, archive: StoredArchive, last: Entry, on_progress: Progress
) -> RestoredJournal:
    """Write an archive's journal into a thread, before the entry `last`, which is appended after it."""
    writer = _Writer(packs, thread)
    for first_seq, count in archive.file.groups:
        last_seq = min(first_seq + count, last.seq) - 1
        for row in await run_in_thread(archive.file.read, first_seq, last_seq):
            await writer.add(row)
        on_progress("written", last_seq, last.seq - 1)
        if last_seq == last.seq - 1:
            break
    await writer.append(last)
    await writer.flush()
    return writer.restored
