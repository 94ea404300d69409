"""What lies in the store, taken into the index. Only what is named as an object of ours counts."""

import re
from collections.abc import Callable
from typing import Any, Final

from everlong import limits
from everlong.storage import quarantine
from everlong.storage.blobs import BlobInfo, BlobStore
from everlong.storage.objects import NO_THREAD
from everlong.sweep.index import SweepIndex

_OBJECT: Final = re.compile(r"v1/([0-9a-f]{32})/([0-9a-f]{64})\.pack")
_ARCHIVE: Final = re.compile(r"archive/v1/([0-9a-f]{32})/[0-9A-Za-z-]+\.(?:json|parquet)")
_ADD: Final = (
    "INSERT INTO objects (key, thread, name, size_bytes, modified_ms, class, is_new, listed) "
    "VALUES (?, ?, ?, ?, ?, ?, 1, ?) ON CONFLICT DO UPDATE SET "
    "is_new = MAX(is_new, modified_ms != excluded.modified_ms), "
    "modified_ms = excluded.modified_ms, listed = excluded.listed"
)
# A store that does not tell when an object was put: since when it is known here.
_ADD_UNDATED: Final = _ADD.replace("modified_ms != excluded.modified_ms", "0").replace(
    "modified_ms = excluded.modified_ms, ", ""
)


def parse_key(key: str) -> tuple[str, bytes] | None:
    """Return the thread and the name of an object that a sweep may take; an archive has no name."""
    if found := _OBJECT.fullmatch(key):
        # What lies there belongs to nobody who can be asked, as payloads that no workflow sent.
        return None if found[1] == NO_THREAD else (found[1], bytes.fromhex(found[2]))
    if found := _ARCHIVE.fullmatch(key):
        return found[1], b""
    return None


async def list_store(
    index: SweepIndex, store: BlobStore, now_ms: int, tell: Callable[[str], None]
) -> None:
    """Take all objects of threads, archives and the quarantine into the index."""
    listing = 1 + (index.one("SELECT MAX(listed) FROM objects") or 0)
    for prefix in ("v1/", "archive/"):
        batch: list[BlobInfo] = []
        async for info in store.list(prefix):
            batch.append(info)
            if len(batch) >= limits.SWEEP_BATCH:
                _add_objects(index, batch, now_ms, listing)
                batch = []
                tell("listing the store")
        _add_objects(index, batch, now_ms, listing)
    index.run("DELETE FROM objects WHERE listed < ?", listing)
    await _list_copies(index, store, tell)


async def _list_copies(index: SweepIndex, store: BlobStore, tell: Callable[[str], None]) -> None:
    """Take the quarantine into the index."""
    index.run("DELETE FROM copies")
    rows: list[tuple[Any, ...]] = []
    async for info in store.list(quarantine.PREFIX):
        copy = quarantine.parse_copy(info)
        parsed = None if copy is None else parse_key(copy.original)
        if copy is None or parsed is None:
            continue
        # The store's own clock counts too: the sweeper's may have been wrong.
        since_ms = max(copy.quarantined_ms, info.modified_ms or 0)
        rows.append((copy.key, copy.original, *parsed, since_ms, copy.size_bytes))
        if len(rows) >= limits.SWEEP_BATCH:
            index.run_many("INSERT OR IGNORE INTO copies VALUES (?, ?, ?, ?, ?, ?)", rows)
            rows = []
            tell("listing the quarantine")
    index.run_many("INSERT OR IGNORE INTO copies VALUES (?, ?, ?, ?, ?, ?)", rows)


def _add_objects(index: SweepIndex, infos: list[BlobInfo], now_ms: int, listing: int) -> None:
    dated: list[tuple[Any, ...]] = []
    undated: list[tuple[Any, ...]] = []
    for info in infos:
        parsed = parse_key(info.key)
        if parsed is None:
            continue
        thread, name = parsed
        kind = "" if name else "archive"
        ms = now_ms if info.modified_ms is None else info.modified_ms
        rows = undated if info.modified_ms is None else dated
        rows.append((info.key, thread, name, info.size_bytes, ms, kind, listing))
    index.run_many(_ADD, dated)
    index.run_many(_ADD_UNDATED, undated)
