"""Manifest of an archive: a JSON object next to the file. An archive exists once its manifest does.

Listings of archives read manifests, so a manifest holds no message content. The facts about the thread
inside the file (`Facts`) are sealed with the file, where keys are configured.

A manifest is checked before it is used: its bytes by their own digest, its fields one by one, its key
by the thread that it names, its tag where keys are configured. The file is checked against its manifest
when it is opened.

A thread whose histories are deleted has a freed record next to the manifest: stored objects are
immutable, and an archive that existed before names only its own author.
"""

import dataclasses
import hashlib
import heapq
import hmac
import json
import operator
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, NamedTuple, NoReturn

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import to_json

from everlong import limits
from everlong.errors import (
    ArchiveNotFound,
    BlobCorrupt,
    BlobMissing,
    EverlongError,
    KeyMissing,
    RefRefused,
    UnknownVersion,
)
from everlong.models import SegmentRef, Status, ThreadStatus, thread_key
from everlong.models.journal import Bytes
from everlong.storage.base import BlobStore
from everlong.storage.encryption_keys import (
    MANIFEST_PURPOSE,
    SALT_BYTES,
    Keys,
    open_bytes,
    seal_bytes,
)
from everlong.storage.pack_store import PackStore

PREFIX: Final = "archive/v1/"
FILE: Final = ".parquet"
MANIFEST: Final = ".json"
FREED: Final = "-freed-"
VERSION: Final = 2
_ID: Final = "[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}"
# A manifest, or a freed record, which has its own id after that of the archive.
_KEY: Final = re.compile(rf"archive/v1/([0-9a-f]{{32}})/({_ID})(?:{FREED}({_ID}))?\.json")
# A manifest has about 1 KB.
_MANIFEST_BYTES_MAX: Final = 64 * limits.KIB
# Manifests of a thread that are read, newest first, to find a readable one or one of a given journal.
_SEARCHED_MAX: Final = 100
_TAG: Final = b'"tag": "'
# A row group takes 2 KB of the footer, and has 1,024 entries or 8 MiB: enough for 30 million entries.
_FOOTER_BYTES_MAX: Final = 64 * limits.MIB


Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about the thread, in the file's metadata under `everlong`."""

    version: Literal[1] = 1
    archive_id: str
    thread_id: str
    namespace: str
    thread: str
    """The thread's key in the store."""
    entries: int
    archived_ms: int
    by: str = ""
    reason: str = ""
    status: ThreadStatus
    """Status of the thread when it was archived, with its policy and its counters."""
    labels: Annotated[tuple[str, ...], Field(exclude_if=operator.not_)] = ()
    """Its labels, which a revived thread gets."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The JSON object next to an archive's file."""

    version: Literal[2] = VERSION
    archive_id: Annotated[str, Field(pattern=r"^[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}$")]
    """Time of writing and a random suffix: ids sort by time."""
    thread_id: Annotated[str, Field(min_length=1)]
    namespace: Annotated[str, Field(min_length=1)]
    thread: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    agent: str
    status: Status
    """Status of the thread when it was archived."""
    entries: Annotated[int, Field(ge=0)]
    """Number of rows: entries 1 to this seq."""
    first_ms: Count = 0
    last_ms: Count = 0
    snapshot_seq: Count = 0
    """Seq of the newest compaction, whose snapshot is in force; 0 without a compaction."""
    snapshots_missing: Count = 0
    """Number of older snapshots that were already deleted from the store. Their rows have none."""
    head: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """Digest of the journal's head. Equal heads mean equal journals."""
    steps: Count = 0
    tokens: Count = 0
    cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    archived_ms: Count
    by: str = ""
    reason: str = ""
    """`by` and `reason` are empty if the file is sealed: the file has them."""
    size_bytes: Bytes
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Digest of the stored file."""
    footer_bytes: Annotated[int, Field(ge=0, le=_FOOTER_BYTES_MAX)]
    footer_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Digest of the file's footer, which locates everything in it. Readers check it on opening."""
    key_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,32}$")] = ""
    """Id of the key that the file is sealed with; empty if it is not sealed."""
    salt: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""
    tag: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""
    """Proof that a writer with the key wrote this. It is the last field before the digest."""

    @property
    def file_key(self) -> str:
        """Store key of the file."""
        return make_archive_key(self.thread, self.archive_id, FILE)


_MANIFESTS: Final = TypeAdapter(Manifest)
_FIELDS: Final = tuple(field.name for field in dataclasses.fields(Manifest))
_FACTS: Final = TypeAdapter(Facts)


def make_archive_id(now_ms: int, random: bytes) -> str:
    """Return an id that sorts by time."""
    moment = datetime.fromtimestamp(now_ms / 1000, UTC)
    return f"{moment:%Y%m%dT%H%M%S}{now_ms % 1000:03}Z-{random[:4].hex()}"


def parse_archive_ms(archive_id: str) -> int:
    """Return the time in an archive's id, in Unix milliseconds."""
    moment = datetime.strptime(archive_id[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1000 + int(archive_id[15:18])


def make_next_archive_id(earlier: Sequence[str], now_ms: int, random: bytes) -> str:
    """Return an id that sorts after all earlier ids, even if another machine's clock is ahead."""
    try:
        return make_archive_id(max(now_ms, parse_archive_ms(max(earlier)) + 1), random)
    except ValueError:  # No earlier ids, or one without a valid time.
        return make_archive_id(now_ms, random)


def get_head_digest(head: SegmentRef | None) -> str:
    """Return the digest of a journal's head, as manifests have it."""
    return "" if head is None else head.ref.digest


def make_archive_key(thread: str, archive_id: str, suffix: str) -> str:
    """Return the store key of an archive's file or manifest."""
    return f"{PREFIX}{thread}/{archive_id}{suffix}"


def dump_facts(facts: Facts) -> str:
    """Return the facts as JSON, for the file's metadata."""
    return _FACTS.dump_json(facts).decode()


def parse_facts(text: str | bytes, manifest: Manifest) -> Facts:
    """Parse the facts in a file. Raises if they differ from the manifest."""
    try:
        facts = _FACTS.validate_json(text)
    except ValidationError as error:
        # Not chained: pydantic quotes its input.
        if error.errors(include_input=False)[0]["type"] == "json_invalid":
            raise BlobCorrupt(
                f"archive {manifest.file_key!r} does not name its thread. Restore it from a backup of "
                "the store."
            ) from None
        raise UnknownVersion(
            f"archive {manifest.file_key!r} has a version that this Everlong does not read; upgrade "
            "Everlong here."
        ) from None
    if (facts.archive_id, facts.thread) != (manifest.archive_id, manifest.thread):
        raise BlobCorrupt(
            f"{manifest.file_key!r} is the file of another archive. Restore it from a backup of the "
            "store."
        )
    expected = build_manifest_fields(facts, is_sealed=bool(manifest.key_id))
    if differing := [name for name in expected if expected[name] != getattr(manifest, name)]:
        raise BlobCorrupt(
            f"archive {manifest.file_key!r} and its manifest differ in {', '.join(differing)}. Restore "
            "both from a backup of the store."
        )
    return facts


def build_manifest_fields(facts: Facts, *, is_sealed: bool) -> dict[str, Any]:
    """Return the fields of a manifest that come from the facts."""
    status = facts.status
    return {
        "archive_id": facts.archive_id,
        "thread_id": facts.thread_id,
        "namespace": facts.namespace,
        "thread": facts.thread,
        "agent": status.agent,
        "status": status.status,
        "entries": facts.entries,
        "head": get_head_digest(status.head),
        "steps": status.counters.steps,
        "tokens": status.counters.tokens,
        "cost_usd": status.counters.cost_usd,
        "archived_ms": facts.archived_ms,
        "by": "" if is_sealed else facts.by,
        "reason": "" if is_sealed else facts.reason,
    }


def dump(manifest: Manifest, keys: Keys | None) -> bytes:
    """Return the stored form of a manifest, with its digest, and with its tag if there are keys."""
    fields: dict[str, Any] = _MANIFESTS.dump_python(manifest, mode="json")
    del fields["tag"]
    tag = ""
    if keys is not None and manifest.key_id:
        tag = _make_tag(dump_prefix(fields) + b",\n  " + _TAG, manifest.key_id, keys)
    return dump_checked({**fields, "tag": tag})


def load(data: bytes, key: str) -> Manifest:
    """Parse a manifest, and check everything but its tag."""
    fields = load_checked(data, key, version=VERSION)
    if tuple(fields) != _FIELDS:
        raise make_malformed_error(key)
    try:
        manifest = _MANIFESTS.validate_json(to_json(fields), strict=True)
    except ValidationError:  # Not chained: pydantic quotes its input.
        raise make_malformed_error(key) from None
    if not _is_consistent(manifest):
        raise make_malformed_error(key)
    if (
        make_archive_key(manifest.thread, manifest.archive_id, MANIFEST) != key
        or thread_key(manifest.namespace, manifest.thread_id) != manifest.thread
    ):
        raise BlobCorrupt(
            f"{key!r} is the manifest of another archive, or of another thread. Restore it from a "
            "backup of the store; until then it is passed over."
        )
    return manifest


def _is_consistent(manifest: Manifest) -> bool:
    """Return whether the fields of a manifest are consistent with each other."""
    is_sealed = bool(manifest.key_id)
    return (
        manifest.footer_bytes <= manifest.size_bytes
        and manifest.first_ms <= manifest.last_ms
        and manifest.snapshot_seq <= manifest.entries
        and manifest.snapshots_missing <= manifest.entries
        and bool(manifest.salt) == bool(manifest.tag) == is_sealed
        and not (is_sealed and (manifest.by or manifest.reason))
    )


def _make_tag(data: bytes, key_id: str, keys: Keys) -> str:
    """Return the tag of a manifest, over all bytes before it."""
    key = keys.derive(key_id, MANIFEST_PURPOSE)
    return hashlib.blake2b(data, key=key, digest_size=16).hexdigest()


def check_sealed(packs: PackStore, key_id: str, key: str) -> None:
    """Reject an unsealed archive if keys are configured."""
    try:
        packs.check_sealed(key_id, key)
    except RefRefused:
        # Another remedy than for histories: archives do not expire by themselves.
        raise RefRefused(
            f"archive {key!r} is not sealed, and keys are configured here, so it is not read. If it "
            "was written before keys were configured, read it with accept_unsealed "
            "(EVERLONG_ACCEPT_UNSEALED=1): revive the thread, and archive the new one, which is sealed."
        ) from None


async def fetch(packs: PackStore, thread: str, archive_id: str) -> tuple[Manifest, bytes]:
    """Read a manifest and its bytes. Its tag is not checked yet: see `check_tag`."""
    key = make_archive_key(thread, archive_id, MANIFEST)
    try:
        # A range, so that no cache keeps it: an archive may be deleted by another process.
        data = await packs.store.get_range(key, 0, _MANIFEST_BYTES_MAX + 1)
    except BlobMissing as error:
        raise ArchiveNotFound(
            f"this thread has no archive {archive_id!r}. List its archives with: everlong archives"
        ) from error
    return load(data[: _MANIFEST_BYTES_MAX + 1], key), data


async def check_tag(packs: PackStore, manifest: Manifest, data: bytes) -> Manifest:
    """If keys are configured, reject a manifest that was written without the key that it names."""
    key = make_archive_key(manifest.thread, manifest.archive_id, MANIFEST)
    check_sealed(packs, manifest.key_id, key)
    keys = await packs.keys(manifest.key_id) if manifest.key_id else None
    signed = data[: data.rindex(_TAG) + len(_TAG)]
    if keys is not None and not hmac.compare_digest(
        _make_tag(signed, manifest.key_id, keys), manifest.tag
    ):
        raise BlobCorrupt(
            f"manifest {key!r} was changed by a writer without its key, or the key "
            f"{manifest.key_id!r} is different here. Compare the keys; if they are equal, find the "
            "writer, and restore the manifest from a backup of the store."
        )
    return manifest


async def read(packs: PackStore, thread: str, archive_id: str) -> Manifest:
    """Read a manifest, checked."""
    return await check_tag(packs, *await fetch(packs, thread, archive_id))


async def list_ids(store: BlobStore, thread: str) -> list[str]:
    """Return the ids of a thread's archives, oldest first."""
    return sorted([archive_id async for _, archive_id in iter_ids(store, thread)])


class Listed(NamedTuple):
    """An archive in a listing of the store."""

    thread: str
    archive_id: str
    freed_id: str = ""
    """Id of the newest freed record; empty if the thread was never freed."""


async def list_newest(
    store: BlobStore, thread: str | None, before: str, count: int
) -> tuple[list[Listed], bool]:
    """Return the newest archives before an id, and whether there are more.

    All names are listed, but only `count` are held in memory.
    """
    kept: list[tuple[str, str]] = []
    freed: dict[tuple[str, str], str] = {}
    more = False
    async for key, archive_id, freed_id in _iter_names(store, thread):
        each = (archive_id, key)
        if before and archive_id >= before:
            continue
        if freed_id:
            if len(kept) < count or each >= kept[0]:  # Older archives are not returned.
                freed[each] = max(freed_id, freed.get(each, ""))
            continue
        heapq.heappush(kept, each)
        if len(kept) > count:
            heapq.heappop(kept)
            more = True
    newest_first = sorted(kept, reverse=True)
    return [Listed(key, name, freed.get((name, key), "")) for name, key in newest_first], more


async def iter_ids(store: BlobStore, thread: str | None = None) -> AsyncIterator[tuple[str, str]]:
    """Yield thread key and id of every archive of a store or a thread, in no particular order."""
    async for key, archive_id, freed_id in _iter_names(store, thread):
        if not freed_id:
            yield key, archive_id


async def _iter_names(store: BlobStore, thread: str | None) -> AsyncIterator[tuple[str, str, str]]:
    async for each in store.list(PREFIX if thread is None else f"{PREFIX}{thread}/"):
        if found := _KEY.fullmatch(each.key):
            yield found[1], found[2], found[3] or ""


UNREADABLE: Final = (BlobCorrupt, BlobMissing, KeyMissing, RefRefused, UnknownVersion)
"""Errors of stored bytes, or of the keys here. An outage of the store is not among them."""


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """An archive that cannot be read here."""

    archive_id: str
    error: EverlongError

    def __str__(self) -> str:
        return f"{self.archive_id}: {self.error}"


@dataclasses.dataclass(frozen=True)
class Found:
    """Result of a search for a thread's newest archive."""

    manifest: Manifest | None
    """The newest readable archive; None without one."""
    passed_over: tuple[Unreadable, ...] = ()
    """Newer archives that cannot be read."""


async def iter_readable(
    packs: PackStore, thread: str, on_unreadable: Callable[[Unreadable], None]
) -> AsyncIterator[Manifest]:
    """Yield the readable manifests of a thread, newest first, within bounds.

    An outage of the store is raised: it says nothing about the archive.
    """
    for archive_id in reversed((await list_ids(packs.store, thread))[-_SEARCHED_MAX:]):
        try:
            manifest = await read(packs, thread, archive_id)
        except ArchiveNotFound:  # Deleted after it was listed.
            continue
        except UNREADABLE as error:
            on_unreadable(Unreadable(archive_id, error))
            continue
        yield manifest


async def find_newest(packs: PackStore, thread: str) -> Found:
    """Return a thread's newest readable archive, and newer ones that cannot be read."""
    passed_over: list[Unreadable] = []
    async for manifest in iter_readable(packs, thread, passed_over.append):
        return Found(manifest, tuple(passed_over))
    return Found(None, tuple(passed_over))


async def load_newest(packs: PackStore, thread: str) -> Manifest | None:
    """Return the manifest of a thread's newest readable archive; None without one."""
    return (await find_newest(packs, thread)).manifest


_FREED_VERSION: Final = 2
# `by` and `reason` have a few hundred characters.
_RECORD_BYTES_MAX: Final = 16 * limits.KIB


@dataclass(frozen=True, kw_only=True)
class Freed:
    """Record that a thread was freed: its histories are deleted, and a sweep will delete its packs."""

    version: Literal[2] = _FREED_VERSION
    archive_id: str
    """The archive that remains of the thread."""
    thread_id: str
    namespace: str
    thread: str
    """The thread's key in the store."""
    freed_ms: int
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class _Sealed:
    """A record as it is stored where keys are configured."""

    version: Literal[2] = _FREED_VERSION
    key_id: str
    salt: Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * SALT_BYTES}}}$")]
    sealed: Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$")]


_FREED_ADAPTER: Final = TypeAdapter(Freed)
_SEALED: Final = TypeAdapter(_Sealed)


async def write_freed(packs: PackStore, freed: Freed) -> str:
    """Write a freed record; return its id once it is durable."""
    freed_id = make_archive_id(freed.freed_ms, os.urandom(4))
    key = _make_freed_key(freed.thread, freed.archive_id, freed_id)
    keys = await packs.keys()
    stored = freed if keys is None else _seal_freed(_FREED_ADAPTER.dump_json(freed), keys, key)
    await packs.store.put(key, dump_checked(dataclasses.asdict(stored)))
    return freed_id


async def read_freed(packs: PackStore, thread: str, archive_id: str, freed_id: str) -> Freed:
    """Read a freed record, checked."""
    key = _make_freed_key(thread, archive_id, freed_id)
    data = await packs.store.get_range(key, 0, _RECORD_BYTES_MAX + 1)
    fields = load_checked(data, key, version=_FREED_VERSION)
    kind = _Sealed if "sealed" in fields else Freed
    if tuple(fields) != tuple(each.name for each in dataclasses.fields(kind)):
        raise make_malformed_error(key)
    try:
        if kind is Freed:
            check_sealed(packs, "", key)
            found = _FREED_ADAPTER.validate_json(to_json(fields), strict=True)
        else:
            record = _SEALED.validate_json(to_json(fields), strict=True)
            found = _FREED_ADAPTER.validate_json(await _open_freed(packs, record, key), strict=True)
    except ValidationError:  # Not chained: pydantic quotes its input.
        raise make_malformed_error(key) from None
    if (
        (found.thread, found.archive_id) != (thread, archive_id)
        or thread_key(found.namespace, found.thread_id) != thread
        or parse_archive_ms(freed_id) != found.freed_ms
    ):
        raise BlobCorrupt(f"{key!r} is about another archive. Restore it from a backup.")
    return found


def _make_freed_key(thread: str, archive_id: str, freed_id: str) -> str:
    # Named like an archive's manifest, so that a sweep deletes it by age; no manifest has such a name.
    return make_archive_key(thread, f"{archive_id}{FREED}{freed_id}", MANIFEST)


def _seal_freed(data: bytes, keys: Keys, key: str) -> _Sealed:
    salt = os.urandom(SALT_BYTES)
    own = keys.derive(keys.active, MANIFEST_PURPOSE, salt)
    sealed = seal_bytes(own, 0, data, key.encode())
    return _Sealed(key_id=keys.active, salt=salt.hex(), sealed=sealed.hex())


async def _open_freed(packs: PackStore, record: _Sealed, key: str) -> bytes:
    keys = await packs.keys(record.key_id)
    if keys is None:
        raise KeyMissing(
            f"{key!r} is sealed with key {record.key_id!r}, and no keys are configured here. Set "
            "EVERLONG_KEYS."
        )
    own = keys.derive(record.key_id, MANIFEST_PURPOSE, bytes.fromhex(record.salt))
    try:
        return open_bytes(own, 0, bytes.fromhex(record.sealed), key.encode())
    except BlobCorrupt as error:
        raise BlobCorrupt(f"{key!r} cannot be read: {error}") from None


# Checked JSON: an object whose last field is a digest of all bytes before it. A reader detects any
# change: a flipped bit, white space, a missing or duplicate field, a truncated end. The digest needs no
# key, so it detects damage but not forgery; where keys are configured, tags and encryption detect it.
DIGEST: Final = "digest"
_START: Final = re.compile(rb'\{\n  "version": ([0-9]{1,9}),\n')
_LAST: Final = b',\n  "digest": "'
_END: Final = re.compile(rb'([0-9a-f]{64})"\n\}\n')
_END_BYTES: Final = 64 + len(b'"\n}\n')


def dump_checked(fields: Mapping[str, Any]) -> bytes:
    """Return the stored form of an object. Its first field is `version`."""
    signed = dump_prefix(fields) + _LAST
    return signed + hashlib.sha256(signed).hexdigest().encode() + b'"\n}\n'


def dump_prefix(fields: Mapping[str, Any]) -> bytes:
    """Return the beginning of the stored form, up to the last of these fields."""
    return to_json(fields, indent=2).removesuffix(b"\n}")


def load_checked(data: bytes, key: str, *, version: int) -> dict[str, Any]:
    """Return the fields of an object, without its digest. Raises if any byte was changed."""
    signed, end = data[:-_END_BYTES], _END.fullmatch(data[-_END_BYTES:])
    is_sound = end is not None and hashlib.sha256(signed).hexdigest().encode() == end[1]
    start = _START.match(data)
    if start is not None and int(start[1]) != version:
        raise UnknownVersion(
            f"{key!r} has version {int(start[1])}, which this Everlong does not read, or it is damaged. "
            "Upgrade Everlong here, or restore the object from a backup of the store."
        )
    if start is None or not is_sound or not signed.endswith(_LAST):
        raise BlobCorrupt(
            f"{key!r} is not what was written: it is damaged. Restore it from a backup of the store; "
            "until then it is passed over."
        )
    try:
        fields: dict[str, Any] = json.loads(
            data.decode(), object_pairs_hook=_reject_duplicates, parse_constant=_refuse
        )
    except (ValueError, RecursionError):
        raise make_malformed_error(key) from None
    del fields[DIGEST]
    return fields


def make_malformed_error(key: str) -> BlobCorrupt:
    """Return the error for an object with a valid digest and invalid fields: no writer makes one."""
    return BlobCorrupt(
        f"{key!r} has fields that no writer gives it: it is forged, or written by another program. Find "
        "out which, and restore it from a backup of the store; until then it is passed over."
    )


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("duplicate field")
    return fields


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")
