"""Records of sweeps in the store: ids of a namespace's threads, logs of moves, and reports.

Stored objects are immutable, so each record is a separate object, named by its time.
"""

import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from everlong import limits
from everlong.errors import BlobMissing
from everlong.models import SweepReport
from everlong.storage.base import BlobStore

PREFIX: Final = "sweep/"
_STAMPED: Final = re.compile(r".*/(?P<ms>[0-9]{13})-[0-9a-f]{8}(-[0-9]+)?\.json")
_REPORT: Final = TypeAdapter(SweepReport)
# Attempts to read all records while other sweeps merge them.
_READS_MAX: Final = 3
# With fewer obsolete ids than this, the records are not rewritten.
_GONE_MIN: Final = 1000


@dataclass(frozen=True)
class SeenIds:
    """Ids of workflows and schedules that a namespace has or had."""

    workflow_ids: frozenset[str] = frozenset()
    schedule_ids: frozenset[str] = frozenset()
    version: Literal[1] = 1

    def __or__(self, other: "SeenIds") -> "SeenIds":
        return SeenIds(
            self.workflow_ids | other.workflow_ids, self.schedule_ids | other.schedule_ids
        )

    def __sub__(self, other: "SeenIds") -> "SeenIds":
        return SeenIds(
            self.workflow_ids - other.workflow_ids, self.schedule_ids - other.schedule_ids
        )

    def __bool__(self) -> bool:
        return bool(self.workflow_ids or self.schedule_ids)


_SEEN: Final = TypeAdapter(SeenIds)


async def record_seen(store: BlobStore, namespace_id: str, workflow_id: str) -> None:
    """Record that a thread belongs to a namespace, before its last history is deleted.

    A sweep that never saw the thread would otherwise count its objects as foreign.
    """
    stamp = f"{time.time_ns() // 1_000_000:013d}-{os.urandom(4).hex()}"
    await Records(store, namespace_id, stamp).write_seen(SeenIds(frozenset({workflow_id})))


class Records:
    """The records of one namespace."""

    def __init__(self, store: BlobStore, namespace_id: str, stamp: str = "") -> None:
        self._store = store
        self.place = f"{PREFIX}{namespace_id}"
        """Prefix of all records of the namespace."""
        self.stamp = stamp
        self._batches = 0

    async def begin(self, by: str, reason: str) -> int | None:
        """Log the start of a sweep; return the store's own time of the record, if the store has it."""
        key = await self._log({"action": "begin", "by": by, "reason": reason, "objects": []})
        found = [info.modified_ms async for info in self._store.list(key) if info.key == key]
        return found[0] if found else None

    async def load_seen(self) -> SeenIds:
        """Return the ids of all workflows and schedules that sweeps of this namespace have seen."""
        found = SeenIds()
        for _ in range(_READS_MAX):
            records = await self._list_keys("seen")
            more, read = await self._parse_seen(records)
            found |= more
            if read == records:
                break
        return found

    async def add_seen(self, known: SeenIds, new: SeenIds, gone: SeenIds) -> None:
        """Record new ids. If many ids are obsolete, replace all records with one of the others.

        A sweep with a new index asks Temporal about each id that is not listed, so obsolete ids must not
        accumulate.
        """
        if new:
            await self.write_seen(new)
        records = await self._list_keys("seen")
        is_stale = len(gone.workflow_ids) > max(_GONE_MIN, len(known.workflow_ids) // 2)
        if is_stale or len(records) > limits.SWEEP_RECORDS_MAX:
            # Read again, since another sweep may have added a record. The merged record is written
            # before the others are deleted.
            everyone, read = await self._parse_seen(records)
            await self.write_seen(everyone - gone, "-1")
            await self._store.delete(read)

    async def _parse_seen(self, records: Iterable[str]) -> tuple[SeenIds, list[str]]:
        """Return the ids in some records, and the keys of the records that could be read."""
        found, read = SeenIds(), []
        for key in records:
            try:
                found |= _SEEN.validate_json(await self._store.get(key))
            # Missing: merged meanwhile, so its ids are in a newer record. Invalid: written by a newer
            # Everlong, so its threads count as foreign here, and their objects are kept.
            except (BlobMissing, ValidationError):
                continue
            read.append(key)
        return found, read

    async def write_seen(self, seen: SeenIds, end: str = "") -> None:
        """Add a record of ids."""
        await self._store.put(f"{self.place}/seen/{self.stamp}{end}.json", _SEEN.dump_json(seen))

    async def log(self, action: str, objects: Sequence[tuple[str, int]]) -> None:
        """Log keys and sizes of objects before they are quarantined, restored or deleted."""
        listed = [{"key": key, "size_bytes": size_bytes} for key, size_bytes in objects]
        await self._log({"action": action, "objects": listed})

    async def _log(self, record: dict[str, object]) -> str:
        self._batches += 1
        key = f"{self.place}/log/{self.stamp}-{self._batches}.json"
        data = json.dumps({**record, "version": 1}, separators=(",", ":"))
        await self._store.put(key, data.encode())
        return key

    async def write_report(self, report: SweepReport) -> None:
        """Write a report, and delete the oldest reports and old log records."""
        await self._store.put(f"{self.place}/reports/{self.stamp}.json", _REPORT.dump_json(report))
        oldest_ms = report.started_ms - 1000 * limits.SWEEP_LOG_SECONDS
        old = [key for key in await self._list_keys("log") if _parse_ms(key) < oldest_ms]
        reports = await self._list_keys("reports")
        await self._store.delete([*old, *reports[: -limits.SWEEP_REPORTS_MAX]])

    async def read_last_report(self) -> SweepReport | None:
        """Return the newest report that can be read."""
        for key in reversed(await self._list_keys("reports")):
            try:
                return _REPORT.validate_json(await self._store.get(key))
            except (BlobMissing, ValidationError):  # Deleted meanwhile, or from a newer Everlong.
                continue
        return None

    async def _list_keys(self, kind: str) -> list[str]:
        """Return the keys of one kind of record, the oldest first."""
        keys = [info.key async for info in self._store.list(f"{self.place}/{kind}/")]
        return sorted((key for key in keys if _STAMPED.fullmatch(key)), key=_parse_ms)


def _parse_ms(key: str) -> int:
    found = _STAMPED.fullmatch(key)
    return int(found["ms"]) if found else 0
