"""The index in the store: what sweeps have read from histories and packs, for a process without it.

It is a cache. A file that is missing or damaged means that some histories are read again, and nothing
else. So each file stands by itself: it holds runs, and for each of them everything that the index
would need to follow it. That matters for payloads. Only a ref tells how to decode one, so a run that
counts as read must come with what its payloads led to; by their bytes alone they may lead to less, and
an object in use would be taken for garbage.

A file holds the runs of the threads whose keys begin with the same digits. A manifest names the files
that belong together, and is written last. No file is ever changed: a sweep writes new ones, then the
manifest, then deletes what that replaces. A sweep that is killed in between leaves the manifest of
before, or files that no manifest names; the latter are deleted after two days.

Stale is safe. What is said of a run holds for its first events for ever, and what is said of a pack
holds for ever. A run that Temporal has no more is dropped when Temporal says so, as always.
"""

import hashlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from everlong import limits
from everlong.errors import EverlongError
from everlong.models import thread_key
from everlong.storage.base import BlobStore
from everlong.storage.pack_store import PackStore
from everlong.storage.thread_pool import in_thread
from everlong.sweep.envelope import sealing_key_id, unwrap, wrap
from everlong.sweep.index import SweepIndex
from everlong.sweep.links import Link
from everlong.sweep.progress import with_progress

_LOG: Final = logging.getLogger(__name__)
_DIGITS: Final = "0123456789abcdef"
# 65,536 files of 50,000 rows: 3 billion rows.
_DEPTH_MAX: Final = 4
_MANIFEST: Final = "manifest"
# Newest manifests that are tried.
_MANIFESTS_MAX: Final = 3

_Name = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Thread = Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")]
_Link = tuple[_Name, _Thread, Annotated[int, Field(ge=0, le=3)]]


@dataclass(frozen=True)
class StoredRun:
    """A run, how far it was read, and what it leads to."""

    run_id: str
    workflow_id: str
    root: str
    is_open: bool
    last_event: Annotated[int, Field(ge=0)]
    is_final: bool
    links: list[_Link]
    beside: list[_Link]
    """What it held beside its history when it was last read."""


@dataclass(frozen=True)
class StoredPack:
    """A pack, and what it leads to."""

    name: _Name
    is_decoded: bool
    links: list[_Link]


@dataclass(frozen=True)
class Shard:
    """One file: what is known of the threads whose keys begin with the same digits."""

    identity: str
    digits: Annotated[str, Field(pattern=r"^[0-9a-f]{0,4}$")]
    runs: list[StoredRun]
    packs: list[StoredPack]
    threads: list[tuple[str, str]]
    """Workflow ids and their roots, of threads that have objects."""
    asked: list[_Thread]
    quiet: dict[_Thread, str]
    """Threads without new objects, and a digest of those that they have."""
    version: Literal[1] = 1


@dataclass(frozen=True)
class Manifest:
    """Names the files of an index."""

    identity: str
    files: dict[str, str]
    """Keys, by the digits of the file."""
    is_settled: bool
    """Whether all was marked when it was written: then the digests of threads hold."""
    version: Literal[1] = 1


_SHARD: Final = TypeAdapter(Shard)
_MANIFESTS: Final = TypeAdapter(Manifest)


class StoredIndex:
    """The index of one namespace in the store.

    Args:
        index: The index of the sweep.
        store: The store itself.
        packs: Has the keys by which files are sealed.
        namespace: Name of the namespace.
        identity: Of the namespace and of how payloads are read. An index of another one is not read.
        place: Prefix of all records of the namespace.
        stamp: Of the sweep: its time and its id.
        on_progress: Called with the progress.

    """

    def __init__(
        self,
        index: SweepIndex,
        store: BlobStore,
        packs: PackStore,
        *,
        namespace: str,
        identity: str,
        place: str,
        stamp: str,
        on_progress: Callable[[str], None],
    ) -> None:
        self._index = index
        self._store = store
        self._packs = packs
        self._namespace = namespace
        self._identity = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
        self._place = f"{place}/index/"
        self._stamp = stamp
        self._on_progress = on_progress
        self.is_settled = False
        """Whether all was marked in this sweep: then no object is new to a run that was read."""
        self._numbers = itertools.count(1)
        self._saved_at = time.monotonic()
        self._seconds = 0.0
        """What the last save took."""

    async def load(self) -> None:
        """Fill an empty index with what is stored. What cannot be read is left out."""
        keys = {info.key async for info in self._store.list(self._place)}
        if not self._index.is_empty:
            # Files that another sweep has replaced since are written again.
            self._index.run_many(
                "DELETE FROM saved WHERE key = ?",
                ((key,) for (key,) in self._index.run("SELECT key FROM saved") if key not in keys),
            )
            return
        self._index.run("DELETE FROM saved")
        manifests = sorted((key for key in keys if key.endswith(_MANIFEST)), reverse=True)
        for key in manifests[:_MANIFESTS_MAX]:
            manifest = await self._read(key, _MANIFESTS)
            if manifest is not None and manifest.identity == self._identity:
                await self._load(manifest)
                return

    async def _load(self, manifest: Manifest) -> None:
        is_whole = manifest.is_settled
        for number, (digits, key) in enumerate(sorted(manifest.files.items()), 1):
            what = f"reading the index, {number} of {len(manifest.files)}"
            shard = await with_progress(self._read(key, _SHARD), self._on_progress, what)
            if shard is None or (shard.identity, shard.digits) != (self._identity, digits):
                _LOG.warning("a part of the index of sweeps is missing or damaged: %s", key)
                is_whole = False
                continue
            await self._index.compute(partial(self._add, shard), self._on_progress)
            self._index.run("INSERT OR REPLACE INTO saved VALUES (?, ?)", digits, key)
        if not is_whole:
            # An object of one thread may be named by a run of another, which is read again now.
            self._index.run("DELETE FROM quiet")

    async def _read(self, key: str, shape: TypeAdapter[Any]) -> Any:
        """Return what a file holds; None if it cannot be read."""
        try:
            data = await self._store.get(key)
            keys = await self._packs.keys(sealing_key_id(data))
            return shape.validate_json(await in_thread(unwrap, data, key, keys))
        except (EverlongError, ValidationError) as error:
            _LOG.warning("the index of sweeps: %s: %s", key, type(error).__name__)
            return None

    def _add(self, shard: Shard) -> None:
        index, namespace = self._index, self._namespace
        with index.transaction():
            for run in shard.runs:
                index.run(
                    "INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
                    run.run_id,
                    run.workflow_id,
                    run.root,
                    thread_key(namespace, run.workflow_id),
                    run.is_open,
                    run.last_event,
                    run.is_final,
                )
                index.add_links(run.run_id, map(_link, run.links))
                index.add_links(f"{run.run_id}/beside", map(_link, run.beside))
            for pack in shard.packs:
                name = bytes.fromhex(pack.name)
                index.add_links(name, map(_link, pack.links))
                index.note_scanned(name, is_decoded=pack.is_decoded)
            index.run_each(
                "INSERT OR REPLACE INTO threads VALUES (?, ?, ?)",
                ((thread_key(namespace, each), each, root) for each, root in shard.threads),
            )
            index.run_each("INSERT OR IGNORE INTO asked VALUES (?)", ((x,) for x in shard.asked))
            index.run_each("INSERT OR IGNORE INTO quiet VALUES (?, ?)", shard.quiet.items())

    async def settle(self) -> None:
        """After the store was listed: threads whose objects are as they were have nothing new."""
        if self._index.scalar("SELECT 1 FROM quiet LIMIT 1") is not None:
            await self._index.compute(self._settle, self._on_progress)

    def _settle(self) -> None:
        known = "SELECT digest FROM quiet WHERE thread = ?"
        same = [
            (thread,)
            for thread, digest in _digests(self._index, "", _DIGITS[-1] * 33)
            if self._index.scalar(known, thread) == digest
        ]
        self._index.run_many("UPDATE objects SET is_new = 0 WHERE thread = ?", same)
        self._index.run("DELETE FROM quiet")

    async def checkpoint(self) -> None:
        """Save what has been read so far, now and then: reading all histories may take days."""
        pause = max(limits.SWEEP_SAVE_SECONDS, 10 * self._seconds)
        if time.monotonic() - self._saved_at >= pause:
            await self.save()

    async def save(self) -> None:
        """Write what has changed. If it cannot be written, the next sweep reads more."""
        started = time.monotonic()
        try:
            await self._save(is_settled=self.is_settled)
        except EverlongError as error:
            _LOG.warning("the index of sweeps was not saved: %s", error)
        self._saved_at = time.monotonic()
        self._seconds = self._saved_at - started

    async def _save(self, *, is_settled: bool) -> None:
        before = dict(self._index.run("SELECT shard, key FROM saved"))
        shards = await self._index.compute(partial(self._divide, before), self._on_progress)
        changed = [each for each in shards if each not in before or self._is_touched(each)]
        if not changed and len(before) == len(shards):
            return
        keys = await self._packs.keys()
        files = {each: before[each] for each in shards if each in before}
        for digits in changed:
            key = f"{self._place}{self._stamp}-{next(self._numbers):06d}-{digits or 'all'}.bin"
            collect = partial(self._collect, digits, is_settled=is_settled)
            plain = await self._index.compute(collect, self._on_progress)
            data = await in_thread(wrap, plain, key, keys)
            await with_progress(self._store.put(key, data), self._on_progress, "saving the index")
            files[digits] = key
        manifest = Manifest(self._identity, files, is_settled)
        key = f"{self._place}{self._stamp}-{next(self._numbers):06d}.{_MANIFEST}"
        await self._store.put(key, wrap(_MANIFESTS.dump_json(manifest), key, keys))
        with self._index.transaction():
            self._index.run("DELETE FROM saved")
            self._index.run_each("INSERT INTO saved VALUES (?, ?)", files.items())
            if is_settled:
                self._index.run("DELETE FROM touched")
        await self._delete_old(key, {*before.values()} - {*files.values()}, {*files.values()})

    async def _delete_old(self, manifest: str, replaced: set[str], used: set[str]) -> None:
        """Delete what was replaced, older manifests, and what sweeps that were killed have left."""
        own_ms = int(self._stamp[:13])
        oldest = f"{self._place}{own_ms - int(1000 * limits.SWEEP_LISTING_SECONDS_MAX):013d}"
        old = [
            info.key
            async for info in self._store.list(self._place)
            if info.key not in used
            and info.key != manifest
            and (
                info.key in replaced
                or info.key < oldest
                or (info.key.endswith(_MANIFEST) and info.key < manifest)
            )
        ]
        await self._store.delete(old)

    def _divide(self, before: dict[str, str]) -> list[str]:
        """Return by which digits the index is divided. It never becomes coarser than it was."""
        rows = self._index.scalar(
            "SELECT (SELECT COUNT(*) FROM links) + (SELECT COUNT(*) FROM scanned) "
            "+ (SELECT COUNT(*) FROM runs) + (SELECT COUNT(*) FROM threads)"
        )
        depth = max(map(len, before), default=0)
        while depth < _DEPTH_MAX and rows > limits.SWEEP_INDEX_ROWS * 16**depth:
            depth += 1
        return ["".join(each) for each in itertools.product(_DIGITS, repeat=depth)]

    def _is_touched(self, digits: str) -> bool:
        statement = "SELECT 1 FROM touched WHERE thread BETWEEN ? AND ? LIMIT 1"
        return self._index.scalar(statement, *_bounds(digits)) is not None

    def _collect(self, digits: str, *, is_settled: bool) -> bytes:
        """Return a shard as bytes: as many runs as fit, each with all that it leads to."""
        index, low_high = self._index, _bounds(digits)
        contents = _Contents(index)
        for row in index.run(
            "SELECT run_id, workflow_id, root, is_open, last_event, is_final FROM runs "
            "WHERE thread BETWEEN ? AND ?",
            *low_high,
        ):
            contents.add_run(*row)
        threads = index.run(
            "SELECT workflow_id, root FROM threads WHERE thread BETWEEN ? AND ? AND ("
            "EXISTS (SELECT 1 FROM objects WHERE objects.thread = threads.thread) "
            "OR EXISTS (SELECT 1 FROM copies WHERE copies.thread = threads.thread))",
            *low_high,
        )
        # A workflow that has runs is not asked for; if those are not in the file, it has to be.
        asked = index.run(
            "SELECT thread FROM asked WHERE thread BETWEEN ? AND ? "
            "AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.thread = asked.thread)",
            *low_high,
        )
        quiet = dict(_digests(index, *low_high)) if is_settled else {}
        for (thread,) in index.run(
            "SELECT DISTINCT thread FROM objects WHERE is_new AND thread BETWEEN ? AND ?", *low_high
        ):
            quiet.pop(thread, None)
        shard = Shard(
            self._identity,
            digits,
            contents.runs,
            contents.packs,
            threads,
            [each for (each,) in asked],
            quiet,
        )
        return _SHARD.dump_json(shard)


class _Contents:
    """Runs of a shard, and the packs that they lead to.

    A run that does not fit, with all that it leads to, is there as one that has not been read. It must
    not be left out: a listing of Temporal's may lack it, and who tells of it is not read again.
    """

    def __init__(self, index: SweepIndex) -> None:
        self._index = index
        self._names: set[bytes] = set()
        self._rows = 0
        self.runs: list[StoredRun] = []
        self.packs: list[StoredPack] = []

    def add_run(
        self,
        run_id: str,
        workflow_id: str,
        root: str,
        is_open: int,
        last_event: int,
        is_final: int,
    ) -> None:
        """Add a run."""
        links: set[Link] = set()
        beside: set[Link] = set()
        if last_event:
            links = self._index.links_of(run_id)
            beside = self._index.links_of(f"{run_id}/beside")
            if not self._add_packs(links | beside):
                links, beside, last_event, is_final = set(), set(), 0, False
        self._rows += 1 + len(links) + len(beside)
        self.runs.append(
            StoredRun(
                run_id,
                workflow_id,
                root,
                bool(is_open),
                last_event,
                bool(is_final),
                _rows(links),
                _rows(beside),
            )
        )

    def _add_packs(self, links: set[Link]) -> bool:
        """Add all that some links lead to, as far as it is known; return whether that fits."""
        packs: list[StoredPack] = []
        names: set[bytes] = set()
        rows = len(links)
        if self._rows + rows > limits.SWEEP_INDEX_ROWS_MAX:
            return False
        ahead = [link.name for link in links if not link.is_leaf]
        while ahead:
            name = ahead.pop()
            if name in self._names or name in names:
                continue
            is_decoded = self._index.scalar("SELECT is_decoded FROM scanned WHERE name = ?", name)
            if is_decoded is None:
                continue
            names.add(name)
            leads_to = self._index.links_of(name)
            rows += 1 + len(leads_to)
            if self._rows + rows > limits.SWEEP_INDEX_ROWS_MAX:
                return False
            packs.append(StoredPack(name.hex(), bool(is_decoded), _rows(leads_to)))
            ahead += [link.name for link in leads_to if not link.is_leaf]
        self._names |= names
        self._rows += rows - len(links)
        self.packs += packs
        return True


def _digests(index: SweepIndex, low: str, high: str) -> Iterator[tuple[str, str]]:
    """Yield threads, and a digest of the keys and times of their objects, in whatever order."""
    rows = index.stream(
        "SELECT thread, key, modified_ms FROM objects WHERE thread BETWEEN ? AND ? ORDER BY thread",
        low,
        high,
    )
    for thread, objects in itertools.groupby(rows, key=lambda row: row[0]):
        total = 0
        for _, key, modified_ms in objects:
            one = hashlib.blake2b(f"{key} {modified_ms}".encode(), digest_size=16)
            total = (total + int.from_bytes(one.digest())) % 2**128
        yield thread, f"{total:032x}"


def _bounds(digits: str) -> tuple[str, str]:
    """Return the first and the last thread key that begin with some digits."""
    return digits.ljust(32, "0"), digits.ljust(32, "f")


def _rows(links: set[Link]) -> list[_Link]:
    return [(each.name.hex(), each.thread, each.is_leaf + 2 * each.is_vouched) for each in links]


def _link(row: _Link) -> Link:
    name, thread, flags = row
    return Link(bytes.fromhex(name), thread, bool(flags & 1), bool(flags & 2))
