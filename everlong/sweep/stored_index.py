"""Stored index: the links of histories and packs, saved in the store for workers with another disk.

It is a cache: if a file is missing or damaged, some histories are read again, and that is the only
effect. Therefore each file is self-contained: it holds runs, and for each run every link that the index
needs to follow it. This matters for payloads. Only a ref says how to decode a payload, so a run that
counts as read must come with the links of its decoded payloads. Their bytes alone may show fewer links,
and an object in use would be taken for garbage.

A file holds the runs of the threads whose keys begin with the same digits. A manifest names the files
that belong together, and is written last. No file is ever changed: a sweep writes new files, then the
manifest, then deletes the files that it replaces. A sweep that is killed in between leaves the previous
manifest valid, or leaves files that no manifest names; those are deleted after two days.

A stale index is safe. The links of a run hold for its first events forever, and the links of a pack
hold forever. A run is dropped only when Temporal reports that it no longer retains the run.

All files that a sweep saves, unfinished listings included, have one envelope. A file is compressed,
bound to its key, and checked as a whole: a file that is damaged, truncated, of another version or of
another key is never read in part. Where keys are configured, files are sealed, and unsealed files are
rejected.
"""

import hashlib
import itertools
import logging
import os
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from everlong import limits
from everlong.errors import BlobCorrupt, EverlongError, KeyMissing, ObjectTooLarge, UnknownVersion
from everlong.models import thread_key
from everlong.storage.base import BlobStore
from everlong.storage.encryption_keys import SALT_BYTES, Keys, open_bytes, seal_bytes
from everlong.storage.objects import get_compressor, inflate, run_in_thread
from everlong.storage.pack_store import PackStore
from everlong.sweep.index import Link, SweepIndex, with_progress

_MAGIC: Final = b"EVSI"
_VERSION: Final = 1
# Magic, version, length of the key id (0 if not sealed), plain size; little-endian.
_HEADER: Final = struct.Struct("<4sBBQ")
_DIGEST_BYTES: Final = 32
_PURPOSE: Final = b"everlong-sweep"


def wrap_file(plain: bytes, place: str, keys: Keys | None) -> bytes:
    """Return the file for some bytes, to be stored under the key `place`."""
    if len(plain) > limits.SWEEP_INDEX_BYTES_MAX:
        raise ObjectTooLarge(f"{len(plain)} bytes do not fit into one file")
    body = get_compressor().compress(plain)
    if keys is None:
        header = _HEADER.pack(_MAGIC, _VERSION, 0, len(plain))
        return header + _digest(header, place, body) + body
    key_id, salt = keys.active.encode(), os.urandom(SALT_BYTES)
    header = _HEADER.pack(_MAGIC, _VERSION, len(key_id), len(plain)) + key_id + salt
    key = keys.derive(keys.active, _PURPOSE, salt)
    return header + seal_bytes(key, 0, body, header + place.encode())


def read_key_id(data: bytes) -> str:
    """Return the id of the key that a file is sealed with; empty if it is not sealed."""
    length = _parse_header(data)[0]
    return data[_HEADER.size : _HEADER.size + length].decode("latin-1")


def unwrap_file(data: bytes, place: str, keys: Keys | None) -> bytes:
    """Return the bytes in a file stored under the key `place`; an `EverlongError` if it is damaged."""
    key_id_bytes, size_bytes = _parse_header(data)
    if key_id_bytes:
        if keys is None:
            raise KeyMissing("the file is sealed, and no keys are configured here")
        end = _HEADER.size + key_id_bytes + SALT_BYTES
        key = keys.derive(read_key_id(data), _PURPOSE, data[end - SALT_BYTES : end])
        body = open_bytes(key, 0, data[end:], data[:end] + place.encode())
    else:
        if keys is not None:
            raise BlobCorrupt("the file is not sealed, and keys are configured here")
        end = _HEADER.size + _DIGEST_BYTES
        header, body = data[: _HEADER.size], data[end:]
        if data[_HEADER.size : end] != _digest(header, place, body):
            raise BlobCorrupt("the file's digest does not match")
    plain = inflate(body, size_bytes)
    if len(plain) != size_bytes:
        raise BlobCorrupt(f"the file holds {len(plain)} bytes but declares {size_bytes}")
    return plain


def _parse_header(data: bytes) -> tuple[int, int]:
    if len(data) < _HEADER.size or data[: len(_MAGIC)] != _MAGIC:
        raise BlobCorrupt("the file has no header")
    _, version, key_id_bytes, size_bytes = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise UnknownVersion(f"the file has version {version}")
    if size_bytes > limits.SWEEP_INDEX_BYTES_MAX:
        raise BlobCorrupt(f"the file declares {size_bytes} bytes")
    return key_id_bytes, size_bytes


def _digest(header: bytes, place: str, body: bytes) -> bytes:
    return hashlib.blake2b(
        header + place.encode() + b"\0" + body, digest_size=_DIGEST_BYTES, person=_PURPOSE
    ).digest()


_LOG: Final = logging.getLogger(__name__)
_DIGITS: Final = "0123456789abcdef"
# 65,536 files of 50,000 rows: 3 billion rows.
_DEPTH_MAX: Final = 4
_MANIFEST: Final = "manifest"
# Manifests that are tried, newest first.
_MANIFESTS_MAX: Final = 3

_Name = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Thread = Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")]
_Link = tuple[_Name, _Thread, Annotated[int, Field(ge=0, le=3)]]


@dataclass(frozen=True)
class StoredRun:
    """A run, how far it was read, and its links."""

    run_id: str
    workflow_id: str
    root: str
    is_open: bool
    last_event: Annotated[int, Field(ge=0)]
    is_final: bool
    links: list[_Link]
    beside: list[_Link]
    """Links of payloads outside its history (memo, pending activities), as of the last read."""


@dataclass(frozen=True)
class StoredPack:
    """A pack and its links."""

    name: _Name
    is_decoded: bool
    links: list[_Link]


@dataclass(frozen=True)
class Shard:
    """One file: the threads whose keys begin with the same digits."""

    identity: str
    digits: Annotated[str, Field(pattern=r"^[0-9a-f]{0,4}$")]
    runs: list[StoredRun]
    packs: list[StoredPack]
    threads: list[tuple[str, str]]
    """Workflow id and root of each thread that has objects."""
    asked: list[_Thread]
    quiet: dict[_Thread, str]
    """Threads without new objects, each with a digest of its objects."""
    version: Literal[1] = 1


@dataclass(frozen=True)
class Manifest:
    """List of the files of an index."""

    identity: str
    files: dict[str, str]
    """Keys, by the digits of the file."""
    is_settled: bool
    """Whether the mark was complete when it was written: then the digests of threads hold."""
    version: Literal[1] = 1


_SHARD: Final = TypeAdapter(Shard)
_MANIFESTS: Final = TypeAdapter(Manifest)


class StoredIndex:
    """The index of one namespace in the store.

    Args:
        index: The index of the sweep.
        store: The store without caches.
        packs: Has the keys that files are sealed with.
        namespace: Name of the namespace.
        identity: Identifies the namespace and how payloads are read. Other indexes are not read.
        place: Prefix of all records of the namespace.
        stamp: Time and id of the sweep.
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
        """Whether the mark of this sweep is complete: then no object is new to a run that was read."""
        self._numbers = itertools.count(1)
        self._saved_at = time.monotonic()
        self._seconds = 0.0
        """Duration of the last save."""

    async def load(self) -> None:
        """Fill an empty index from the store, without the files that cannot be read."""
        keys = {info.key async for info in self._store.list(self._place)}
        if not self._index.is_empty:
            # Files that another sweep has deleted meanwhile are written again.
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
            # The runs of the missing file are read again, and may name objects of any thread.
            self._index.run("DELETE FROM quiet")

    async def _read(self, key: str, shape: TypeAdapter[Any]) -> Any:
        """Return the contents of a file; None if it cannot be read."""
        try:
            data = await self._store.get(key)
            keys = await self._packs.keys(read_key_id(data))
            return shape.validate_json(await run_in_thread(unwrap_file, data, key, keys))
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
                index.add_links(run.run_id, map(_parse_link, run.links))
                index.add_links(f"{run.run_id}/beside", map(_parse_link, run.beside))
            for pack in shard.packs:
                name = bytes.fromhex(pack.name)
                index.add_links(name, map(_parse_link, pack.links))
                index.note_scanned(name, is_decoded=pack.is_decoded)
            index.run_each(
                "INSERT OR REPLACE INTO threads VALUES (?, ?, ?)",
                ((thread_key(namespace, each), each, root) for each, root in shard.threads),
            )
            index.run_each("INSERT OR IGNORE INTO asked VALUES (?)", ((x,) for x in shard.asked))
            index.run_each("INSERT OR IGNORE INTO quiet VALUES (?, ?)", shard.quiet.items())

    async def settle(self) -> None:
        """After the listing: clear `is_new` for threads whose objects have not changed."""
        if self._index.scalar("SELECT 1 FROM quiet LIMIT 1") is not None:
            await self._index.compute(self._settle, self._on_progress)

    def _settle(self) -> None:
        known = "SELECT digest FROM quiet WHERE thread = ?"
        same = [
            (thread,)
            for thread, digest in _digest_threads(self._index, "", _DIGITS[-1] * 33)
            if self._index.scalar(known, thread) == digest
        ]
        self._index.run_many("UPDATE objects SET is_new = 0 WHERE thread = ?", same)
        self._index.run("DELETE FROM quiet")

    async def checkpoint(self) -> None:
        """Save the index at intervals: reading all histories may take days."""
        pause = max(limits.SWEEP_SAVE_SECONDS, 10 * self._seconds)
        if time.monotonic() - self._saved_at >= pause:
            await self.save()

    async def save(self) -> None:
        """Write the files that have changed. If that fails, the next sweep reads more histories."""
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
            data = await run_in_thread(wrap_file, plain, key, keys)
            await with_progress(self._store.put(key, data), self._on_progress, "saving the index")
            files[digits] = key
        manifest = Manifest(self._identity, files, is_settled)
        key = f"{self._place}{self._stamp}-{next(self._numbers):06d}.{_MANIFEST}"
        await self._store.put(key, wrap_file(_MANIFESTS.dump_json(manifest), key, keys))
        with self._index.transaction():
            self._index.run("DELETE FROM saved")
            self._index.run_each("INSERT INTO saved VALUES (?, ?)", files.items())
            if is_settled:
                self._index.run("DELETE FROM touched")
        await self._delete_old(key, {*before.values()} - {*files.values()}, {*files.values()})

    async def _delete_old(self, manifest: str, replaced: set[str], used: set[str]) -> None:
        """Delete replaced files, older manifests, and files that killed sweeps left."""
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
        """Return the digits of all shards. The division never becomes coarser than before."""
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
        return self._index.scalar(statement, *_get_key_range(digits)) is not None

    def _collect(self, digits: str, *, is_settled: bool) -> bytes:
        """Return a shard as bytes: as many runs as fit, each with everything that it reaches."""
        index, low_high = self._index, _get_key_range(digits)
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
        # A workflow with runs need not be asked for. If its runs are not in the file, it must be.
        asked = index.run(
            "SELECT thread FROM asked WHERE thread BETWEEN ? AND ? "
            "AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.thread = asked.thread)",
            *low_high,
        )
        quiet = dict(_digest_threads(index, *low_high)) if is_settled else {}
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
    """Runs of a shard, and the packs that they reach.

    A run that does not fit, with everything that it reaches, is written as unread. It must not be left
    out: a visibility listing may lack it, and the history that names it is not read again.
    """

    def __init__(self, index: SweepIndex) -> None:
        self._index = index
        self._names: set[bytes] = set()
        self._format_links = 0
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
            links = self._index.read_links(run_id)
            beside = self._index.read_links(f"{run_id}/beside")
            if not self._add_packs(links | beside):
                links, beside, last_event, is_final = set(), set(), 0, False
        self._format_links += 1 + len(links) + len(beside)
        self.runs.append(
            StoredRun(
                run_id,
                workflow_id,
                root,
                bool(is_open),
                last_event,
                bool(is_final),
                _format_links(links),
                _format_links(beside),
            )
        )

    def _add_packs(self, links: set[Link]) -> bool:
        """Add everything that some links reach by known links; return whether it fits."""
        packs: list[StoredPack] = []
        names: set[bytes] = set()
        rows = len(links)
        if self._format_links + rows > limits.SWEEP_INDEX_ROWS_MAX:
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
            leads_to = self._index.read_links(name)
            rows += 1 + len(leads_to)
            if self._format_links + rows > limits.SWEEP_INDEX_ROWS_MAX:
                return False
            packs.append(StoredPack(name.hex(), bool(is_decoded), _format_links(leads_to)))
            ahead += [link.name for link in leads_to if not link.is_leaf]
        self._names |= names
        self._format_links += rows - len(links)
        self.packs += packs
        return True


def _digest_threads(index: SweepIndex, low: str, high: str) -> Iterator[tuple[str, str]]:
    """Yield each thread with a digest of its objects' keys and times, independent of their order."""
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


def _get_key_range(digits: str) -> tuple[str, str]:
    """Return the first and the last thread key that begin with some digits."""
    return digits.ljust(32, "0"), digits.ljust(32, "f")


def _format_links(links: set[Link]) -> list[_Link]:
    return [(each.name.hex(), each.thread, each.is_leaf + 2 * each.is_vouched) for each in links]


def _parse_link(row: _Link) -> Link:
    name, thread, flags = row
    return Link(bytes.fromhex(name), thread, bool(flags & 1), bool(flags & 2))
