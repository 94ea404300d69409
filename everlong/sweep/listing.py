"""Listing: adds the objects of the store to the index. Keys of other applications are ignored.

A thread's key is a digest, so the keys of all objects are spread evenly over its first digit. A store
that lists in order is listed in 16 concurrent ranges, one for each digit. Each range has a cursor,
which is committed together with the rows before it: an interrupted listing continues behind it, in the
same sweep. The index is on a local disk, so a long listing is also saved in the store, in parts: a
worker with another disk reads the parts, and lists the keys behind them. A sweep deletes its parts when
it ends.

The ranges divide the listing only. Any history may name any object, so an object is known to be
unreachable only once all histories have been read. No range is swept before all ranges are listed and
all histories are marked. See `sweep`.
"""

import asyncio
import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from everlong import limits
from everlong.errors import EverlongError, StoreUnavailable
from everlong.storage import quarantine
from everlong.storage.base import BlobInfo, BlobStore, OutOfOrder, RangeLister, get_range_lister
from everlong.storage.objects import run_in_thread
from everlong.storage.pack_store import NO_THREAD, PackStore, gather_bounded
from everlong.sweep.index import SweepIndex, with_progress
from everlong.sweep.stored_index import read_key_id, unwrap_file, wrap_file

_OBJECT: Final = re.compile(r"v1/([0-9a-f]{32})/([0-9a-f]{64})\.pack")
_ARCHIVE: Final = re.compile(r"archive/v1/([0-9a-f]{32})/[0-9A-Za-z-]+\.(?:json|parquet)")
_ADD: Final = (
    "INSERT INTO objects (key, thread, name, size_bytes, modified_ms, class, is_new, listed) "
    "VALUES (?, ?, ?, ?, ?, ?, 1, ?) ON CONFLICT DO UPDATE SET "
    "is_new = MAX(is_new, modified_ms != excluded.modified_ms), "
    "modified_ms = excluded.modified_ms, listed = excluded.listed"
)
# For a store without modification times, the first listing of an object counts as its time.
_ADD_UNDATED: Final = _ADD.replace("modified_ms != excluded.modified_ms", "0").replace(
    "modified_ms = excluded.modified_ms, ", ""
)
_ADD_COPY: Final = "INSERT OR IGNORE INTO copies VALUES (?, ?, ?, ?, ?, ?)"
_FOLDERS: Final = ("v1/", "archive/v1/")
# Consecutive failures of a range at the same cursor.
_TRIES_MAX: Final = 5
_DIGITS: Final = "0123456789abcdef"
_END: Final = "g"  # Sorts after all digits.
_ALL: Final = "z"  # End of the single range that is listed before it is split into 16.


_Row = tuple[str, int, int]  # Key, size in bytes, modification time in Unix milliseconds.
# The end of the range with `_` for `/`, the number of the part, and the start of the listing.
_NAME: Final = re.compile(r"([0-9a-z_]+)-([0-9]{6})-([0-9]{13})\.bin")
# Two attempts of one sweep may write parts with the same number, so each part has its start and end.
_PART: Final = TypeAdapter(tuple[str, str, list[_Row]])


class Cursor(NamedTuple):
    """How far a range of keys has been listed."""

    folder: str
    before: str
    """The exclusive end of the range."""
    after: str
    """The last key that was listed; the same as `before` if all were."""
    kept: str
    """The last key that is in a part in the store."""
    parts: int
    """Number of parts in the store."""


class StoredPart(NamedTuple):
    """One part of a listing in the store."""

    before: str
    number: int
    began_ms: int
    key: str

    @property
    def folder(self) -> str:
        """The folder that was listed."""
        return self.before[: self.before.rindex("/") + 1]


class _Listed(NamedTuple):
    """A listing, unfinished or done."""

    number: int
    began_ms: int
    is_done: bool


def parse_key(key: str) -> tuple[str, bytes] | None:
    """Return the thread and the name of an object that a sweep may delete; an archive has no name."""
    if found := _OBJECT.fullmatch(key):
        # Objects without a thread, such as payloads that no workflow sent, have no history to check.
        return None if found[1] == NO_THREAD else (found[1], bytes.fromhex(found[2]))
    if found := _ARCHIVE.fullmatch(key):
        return found[1], b""
    return None


class StoredListing:
    """Parts of the listing of one sweep.

    Args:
        store: The store itself.
        packs: Has the keys that parts are sealed with.
        place: Prefix of all records of the namespace.
        sweep: Id of the sweep, the same in all of its activities.

    """

    def __init__(self, store: BlobStore, packs: PackStore, place: str, sweep: str) -> None:
        self._store = store
        self._packs = packs
        self._all = f"{place}/listing/"
        self._place = f"{self._all}{sweep}/"
        self.sweep = sweep

    async def write(self, cursor: Cursor, start: str, began_ms: int, rows: Sequence[_Row]) -> None:
        """Save the listed rows of a range from `start` on, in one atomic PUT."""
        end = cursor.before.replace("/", "_")
        key = f"{self._place}{end}-{cursor.parts:06d}-{began_ms:013d}.bin"
        plain = json.dumps([start, cursor.kept, rows], separators=(",", ":")).encode()
        keys = await self._packs.keys()
        await self._store.put(key, await run_in_thread(wrap_file, plain, key, keys))

    async def find(self) -> list[StoredPart]:
        """Return the parts of this sweep, by range and number."""
        found: list[StoredPart] = []
        async for info in self._store.list(self._place):
            name = _NAME.fullmatch(info.key.removeprefix(self._place))
            if name is not None:
                before = name[1].replace("_", "/")
                found.append(StoredPart(before, int(name[2]), int(name[3]), info.key))
        return sorted(found)

    async def read(self, part: StoredPart, cursor: Cursor) -> tuple[Cursor, list[BlobInfo]] | None:
        """Return the objects of a part, and the cursor behind it.

        None if the part cannot be read, or does not begin at the cursor: from there the store is listed
        again.
        """
        try:
            data = await self._store.get(part.key)
            keys = await self._packs.keys(read_key_id(data))
            plain = await run_in_thread(unwrap_file, data, part.key, keys)
            start, end, rows = _PART.validate_json(plain)
        except (EverlongError, ValidationError):
            return None
        if (start, part.number) != (cursor.after, cursor.parts + 1):
            return None
        if not start < end <= cursor.before:
            return None
        infos = [BlobInfo(*row) for row in rows]
        return cursor._replace(after=end, kept=end, parts=part.number), infos

    async def delete(self, now_ms: int) -> None:
        """Delete the parts of this sweep, and those of abandoned sweeps."""
        oldest_ms = now_ms - 2000 * limits.SWEEP_LISTING_SECONDS_MAX
        found: list[str] = []
        async for info in self._store.list(self._all):
            name = _NAME.fullmatch(info.key.rpartition("/")[2])
            is_own = info.key.startswith(self._place)
            if is_own or (name is not None and int(name[3]) < oldest_ms):
                found.append(info.key)
        await self._store.delete(found)


class Listing:
    """Lists the store of one sweep.

    Args:
        index: Receives the objects.
        store: The store to list.
        on_progress: Called with the progress.
        stored: Saves a long listing in the store, so that a worker with another disk can continue it.
            None if no other attempt of this sweep can follow.

    """

    def __init__(
        self,
        index: SweepIndex,
        store: BlobStore,
        on_progress: Callable[[str], None],
        stored: StoredListing | None = None,
    ) -> None:
        self._index = index
        self._store = store
        self._ranges = get_range_lister(store)
        self._on_progress = on_progress
        self._stored = stored
        self._started = time.monotonic()
        self._number = 0
        self._now_ms = 0
        self._count = 0
        self._saving = asyncio.Lock()
        self._unsaved: Counter[tuple[str, str]] = Counter()
        """Number of listed objects of each range that are not saved in the store yet."""

    async def run(self, now_ms: int) -> int:
        """Add all objects of threads, archives and the quarantine to the index.

        Return the time of the listing: its start, also if an earlier attempt started it. The age of an
        object is measured at that time, since it may have been rewritten after it was listed.
        """
        found = await self._resume(now_ms) or self._begin(now_ms)
        self._number, self._now_ms = found.number, found.began_ms
        if not found.is_done:
            for folder in _FOLDERS:
                await self._list_folder(folder)
            with self._index.transaction():
                self._index.run(
                    "INSERT OR IGNORE INTO touched SELECT thread FROM objects WHERE listed < ?",
                    self._number,
                )
                self._index.run("DELETE FROM objects WHERE listed < ?", self._number)
                self._index.run("UPDATE listing SET is_done = 1")
        await self._list_copies()
        return self._now_ms

    async def _resume(self, now_ms: int) -> _Listed | None:
        """Return the listing of an earlier attempt of this sweep, if it is recent."""
        if self._stored is None:
            return None
        oldest_ms = int(now_ms - 1000 * limits.SWEEP_LISTING_SECONDS_MAX)
        rows = self._index.run(
            "SELECT number, began_ms, is_done FROM listing WHERE sweep = ? AND began_ms > ?",
            self._stored.sweep,
            oldest_ms,
        )
        if rows:
            return _Listed(*rows[0])
        return None if self._ranges is None else await self._load(self._stored, oldest_ms)

    async def _load(self, stored: StoredListing, oldest_ms: int) -> _Listed | None:
        """Return the listing that a worker with another disk saved in the store."""
        parts = await with_progress(stored.find(), self._on_progress, "looking for a listing")
        began_ms = min((part.began_ms for part in parts), default=0)
        if began_ms <= oldest_ms:
            return None
        begun = self._begin(began_ms)
        self._number, self._now_ms = begun.number, begun.began_ms
        cursors = {
            cursor.before: cursor
            for folder in {part.folder for part in parts}
            for cursor in _build_cursors(folder)
        }
        for cursor in cursors.values():
            self._move(cursor)
        for part in (each for each in parts if each.before in cursors):
            work = stored.read(part, cursors[part.before])
            found = await with_progress(work, self._on_progress, "reading a listing")
            if found is not None:
                cursors[part.before], infos = found
                self._add_objects(infos, cursors[part.before])
        return begun

    def _begin(self, now_ms: int) -> _Listed:
        begun = _Listed(
            1 + (self._index.scalar("SELECT MAX(number) FROM listing") or 0), now_ms, False
        )
        with self._index.transaction():
            self._index.run("DELETE FROM cursors")
            self._index.run("DELETE FROM listing")
            sweep = "" if self._stored is None else self._stored.sweep
            self._index.run(
                "INSERT INTO listing VALUES (?, ?, ?, 0)", begun.number, sweep, begun.began_ms
            )
        return begun

    async def _list_folder(self, folder: str) -> None:
        if self._ranges is not None:
            try:
                await self._list_ranges(self._ranges, folder)
                return
            except OutOfOrder:  # A range may then lack keys; one stream over all keys lacks none.
                self._on_progress("the store does not list in order: listing it in one stream")
        await _add_pages(self._store.list(f"{folder.partition('/')[0]}/"), self._add_objects)

    async def _list_ranges(self, store: RangeLister, folder: str) -> None:
        """List a folder from its cursors on: first a little in one stream, then all ranges at once."""
        whole = Cursor(folder, folder + _ALL, folder, folder, 0)
        if not self._load_cursors(folder):
            self._move(whole)
            # A small folder is listed in one stream, with no more requests than it needs.
            if await self._list_range(store, whole, limits.SWEEP_SCOUT_OBJECTS):
                return
        for cursor in self._load_cursors(folder):
            if cursor.before == whole.before and cursor.after < cursor.before:
                self._split(cursor)
        left = [each for each in self._load_cursors(folder) if each.after < each.before]
        await with_progress(
            gather_bounded([partial(self._list_with_retries, store, each) for each in left]),
            self._on_progress,
            "listing the store",
        )

    def _load_cursors(self, folder: str) -> list[Cursor]:
        rows = self._index.run(
            "SELECT folder, before, after, kept, parts FROM cursors WHERE folder = ?", folder
        )
        return [Cursor(*row) for row in rows]

    def _split(self, whole: Cursor) -> None:
        """Split the range by first digit. Keys before its cursor are already listed."""
        with self._index.transaction():
            self._index.run("DELETE FROM cursors WHERE folder = ?", whole.folder)
            for each in _build_cursors(whole.folder):
                self._move(each._replace(after=min(max(whole.after, each.after), each.before)))

    async def _list_with_retries(self, store: RangeLister, cursor: Cursor) -> None:
        """List a range; after a failure continue behind its cursor.

        One failed request of many must not end a listing of hours.
        """
        tries = 0
        while tries < _TRIES_MAX:
            try:
                await self._list_range(store, cursor)
                return
            except StoreUnavailable:
                [now] = [x for x in self._load_cursors(cursor.folder) if x.before == cursor.before]
                tries = 1 if now.after > cursor.after else tries + 1
                if tries == _TRIES_MAX:
                    raise
                cursor = now
                await asyncio.sleep(limits.SWEEP_LIST_PAUSE_SECONDS * tries)

    async def _list_range(
        self, store: RangeLister, cursor: Cursor, most: int | None = None
    ) -> bool:
        """List a range, and move its cursor; return whether it reached its end."""
        page: list[BlobInfo] = []
        count = 0
        listed = store.list_range(cursor.folder, cursor.after, cursor.before)
        async with contextlib.aclosing(listed):
            async for info in listed:
                page.append(info)
                if len(page) >= limits.SWEEP_LIST_PAGE:
                    cursor = cursor._replace(after=info.key)
                    self._add_objects(page, cursor)
                    cursor = await self._save_if_due(cursor, len(page))
                    page, count = [], count + len(page)
                    if most is not None and count >= most:
                        return False
        cursor = cursor._replace(after=cursor.before)
        self._add_objects(page, cursor)
        await self._save_if_due(cursor, len(page))
        return True

    async def _save_if_due(self, cursor: Cursor, count: int) -> Cursor:
        """Save a long listing in the store, a part at a time."""
        place = (cursor.folder, cursor.before)
        self._unsaved[place] += count
        is_whole = cursor.after == cursor.before
        if (
            self._stored is None
            or cursor.before == cursor.folder + _ALL
            or not (is_whole or self._unsaved[place] >= limits.SWEEP_LISTING_PART)
            or time.monotonic() - self._started < limits.SWEEP_LISTING_KEEP_SECONDS
        ):
            return cursor
        # One range at a time: a part takes 30 MB of memory while it is built.
        async with self._saving:
            cursor = await self._save_parts(self._stored, cursor)
        self._unsaved[place] = 0
        return cursor

    async def _save_parts(self, stored: StoredListing, cursor: Cursor) -> Cursor:
        while cursor.kept < cursor.after:
            rows = self._index.run(
                "SELECT key, size_bytes, modified_ms FROM objects "
                "WHERE key > ? AND key <= ? AND listed = ? ORDER BY key LIMIT ?",
                cursor.kept,
                cursor.after,
                self._number,
                limits.SWEEP_LISTING_PART,
            )
            is_last = len(rows) < limits.SWEEP_LISTING_PART
            start, kept = cursor.kept, cursor.after if is_last else rows[-1][0]
            cursor = cursor._replace(kept=kept, parts=cursor.parts + 1)
            await stored.write(cursor, start, self._now_ms, rows)
            self._move(cursor)
        return cursor

    def _move(self, cursor: Cursor) -> None:
        self._index.run("INSERT OR REPLACE INTO cursors VALUES (?, ?, ?, ?, ?)", *cursor)

    def _add_objects(self, infos: Sequence[BlobInfo], cursor: Cursor | None = None) -> None:
        dated: list[tuple[Any, ...]] = []
        undated: list[tuple[Any, ...]] = []
        for info in infos:
            parsed = parse_key(info.key)
            if parsed is None:
                continue
            thread, name = parsed
            kind = "" if name else "archive"
            ms = self._now_ms if info.modified_ms is None else info.modified_ms
            rows = undated if info.modified_ms is None else dated
            rows.append((info.key, thread, name, info.size_bytes, ms, kind, self._number))
        with self._index.transaction():
            self._index.run_each(_ADD, dated)
            self._index.run_each(_ADD_UNDATED, undated)
            if cursor is not None:
                self._move(cursor)
        self._count += len(infos)
        self._on_progress(f"listed {self._count} objects")

    async def _list_copies(self) -> None:
        """Add the quarantine to the index. Each sweep lists it fully, since its copies get deleted."""
        self._index.run("DELETE FROM copies")
        if self._ranges is not None:
            try:
                for folder in _FOLDERS:
                    await self._list_copy_ranges(self._ranges, f"{quarantine.PREFIX}{folder}")
                return
            except OutOfOrder:
                self._on_progress("the store does not list in order: listing it in one stream")
        await _add_pages(self._store.list(quarantine.PREFIX), self._add_copies)

    async def _list_copy_ranges(self, store: RangeLister, folder: str) -> None:
        async with contextlib.aclosing(store.list_range(folder, folder, folder + _ALL)) as some:
            last = await _add_pages(some, self._add_copies, limits.SWEEP_SCOUT_OBJECTS)
        if not last:
            return
        left = [
            store.list_range(folder, max(each.after, last), each.before)
            for each in _build_cursors(folder)
            if each.before > last
        ]
        work = [partial(_add_pages, each, self._add_copies) for each in left]
        await with_progress(gather_bounded(work), self._on_progress, "listing the quarantine")

    def _add_copies(self, infos: Sequence[BlobInfo]) -> None:
        rows: list[tuple[Any, ...]] = []
        for info in infos:
            copy = quarantine.parse_copy(info)
            parsed = None if copy is None else parse_key(copy.original)
            if copy is None or parsed is None:
                continue
            # The later of the two times counts: the sweeper's clock may have been wrong.
            since_ms = max(copy.quarantined_ms, info.modified_ms or 0)
            rows.append((copy.key, copy.original, *parsed, since_ms, copy.size_bytes))
        self._index.run_many(_ADD_COPY, rows)
        self._on_progress("listing the quarantine")


def _build_cursors(folder: str) -> list[Cursor]:
    """Return cursors at the beginning of each range of a folder."""
    ends = (*_DIGITS[1:], _END)
    return [
        Cursor(folder, folder + end, folder + digit, folder + digit, 0)
        for digit, end in zip(_DIGITS, ends, strict=True)
    ]


async def _add_pages(
    listed: AsyncIterator[BlobInfo],
    add: Callable[[Sequence[BlobInfo]], None],
    most: int | None = None,
) -> str:
    """Add listed objects, a page at a time. Return the last key if it stopped at `most`."""
    page: list[BlobInfo] = []
    count = 0
    async for info in listed:
        page.append(info)
        if len(page) >= limits.SWEEP_LIST_PAGE:
            add(page)
            page, count = [], count + len(page)
            if most is not None and count >= most:
                return info.key
    add(page)
    return ""
