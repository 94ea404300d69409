"""What an archive would do, told before it is done."""

import dataclasses
from pathlib import Path

from temporalio.client import Client

from everlong.admin.service.archiving import (
    Then,
    find_archive,
    not_journalled,
    why_not_freed,
)
from everlong.admin.service.deleting import runs_of
from everlong.admin.service.sizes import ThreadSize, size
from everlong.admin.wording import bytes_text, counted
from everlong.archive import Manifest, writer
from everlong.client.errors import translated
from everlong.client.time_travel import Past
from everlong.models import ThreadStatus, seq_after, thread_key
from everlong.models.thread_ids import show_id
from everlong.storage.packstore import PackStore

_ENDED = frozenset({"stopped", "archived", "terminated", "failed", "canceled", "timed_out"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArchivePlan:
    """What archiving a thread would do."""

    thread_id: str
    then: Then
    status: str
    entries: int
    left_out: int
    """Entries and messages that are not journalled, and would not be in the archive. A thread that is
    asked to end journals them first."""
    size: ThreadSize | None
    """What the thread takes up; None if the server does not know it any more."""
    existing: str
    """An archive of the same journal, which would be read back; empty if one would be written."""
    ends: bool
    """Whether the thread would be ended."""
    runs_deleted: int
    """Runs whose histories would be deleted."""
    refused: str
    """Why they would not be, though that is asked for; empty if they would."""

    def lines(self) -> list[str]:
        """Return it in words."""
        if self.size is None:
            return ["the server has no history of the thread; its newest archive is read back"]
        entries = f"{self.entries:,} entries of thread {show_id(self.thread_id)} ({self.status})"
        if self.existing:
            lines = [f"archive {self.existing} has the {entries}, and is read back"]
        else:
            lines = [f"{entries} are archived"]
        if self.ends:
            lines.append("the thread is asked to end first, at its next safe point")
        if self.left_out:
            lines.append(f"{self.left_out:,} more are not journalled, and not in the archive")
        if self.refused:
            lines.append(f"then deleting its histories is refused: {self.refused}")
        elif self.then == "free":
            lines.append(
                f"then {counted(self.runs_deleted, 'run')} are deleted, for good, and a sweep may free "
                f"{self.size.blobs:,} objects of {bytes_text(self.size.blob_bytes)}"
            )
        return [*lines, "nothing was done"]


async def archive_plan(
    client: Client, packs: PackStore, thread_id: str, then: Then = "keep"
) -> ArchivePlan:
    """Return what `archive` would do. Nothing is written."""
    past = await Past.open(client, packs, thread_id)
    found, is_gone = past.status, past.archive is not None
    ends = then != "keep" and not is_gone and found.status not in _ENDED
    frees = then == "free" and not is_gone
    refused = why_not_freed(thread_id, found) if frees and not ends else ""
    return ArchivePlan(
        thread_id=thread_id,
        then=then,
        status=found.status,
        entries=seq_after(found.head) - 1,
        left_out=0 if ends or is_gone else not_journalled(found),
        size=None if is_gone else await size(client, packs.store, thread_id),
        existing="" if ends else await _existing(client, packs, thread_id, found),
        ends=ends,
        runs_deleted=await _count_runs(client, thread_id) if frees and not refused else 0,
        refused=refused,
    )


async def _existing(client: Client, packs: PackStore, thread_id: str, found: ThreadStatus) -> str:
    existing = await find_archive(packs, thread_key(client.namespace, thread_id), found)
    return "" if existing is None else existing.archive_id


async def _count_runs(client: Client, thread_id: str) -> int:
    with translated(thread_id):
        description = await client.get_workflow_handle(thread_id).describe()
    return len(await runs_of(client, thread_id, description.run_id))


def check_export(path: Path) -> None:
    """Refuse a path that an archive cannot be exported to, before anything is done."""
    writer.check_target(path)


async def export_archive(packs: PackStore, manifest: Manifest, path: Path) -> int:
    """Write an archive to disk as a plain Parquet file, for any tool; return its rows."""
    return await writer.export(packs, manifest, path)
