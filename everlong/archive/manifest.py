"""What an archive says of itself, beside its file and in it. An archive exists once its manifest does.

The manifest is for whoever lists archives, and holds nothing that was said. What the file says of its
thread (`Facts`) is sealed with it, where there are keys.
"""

import dataclasses
import hashlib
import heapq
import hmac
import re
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import from_json, to_json

from everlong import limits
from everlong.errors import (
    ArchiveNotFound,
    BlobCorrupt,
    BlobMissing,
    RefRefused,
    UnknownVersion,
)
from everlong.models import SegmentRef, ThreadStatus
from everlong.models.journal import Bytes
from everlong.storage.blobs import BlobStore
from everlong.storage.keys import MANIFEST_PURPOSE, Keys
from everlong.storage.packstore import PackStore

PREFIX: Final = "archive/v1/"
FILE: Final = ".parquet"
MANIFEST: Final = ".json"
FREED: Final = "-freed-"
_ID: Final = "[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}"
# A manifest, or what says who freed the thread, which has an id of its own after that of the archive.
_KEY: Final = re.compile(rf"archive/v1/([0-9a-f]{{32}})/({_ID})(?:{FREED}({_ID}))?\.json")
# A manifest has about 1 KB.
_MANIFEST_BYTES_MAX: Final = 64 * limits.KIB
# A row group takes 2 KB of it, and has 1,024 entries or 8 MiB: so it is enough for 30 million entries.
_FOOTER_BYTES_MAX: Final = 64 * limits.MIB


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the file says of its thread, in its metadata under `everlong`."""

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
    """How the thread was, with its policy and its counters."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The JSON beside an archive's file."""

    version: Literal[1] = 1
    archive_id: Annotated[str, Field(pattern=r"^[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}$")]
    """When it was written, and what tells it from others of that moment: ids sort by time."""
    thread_id: str
    namespace: str
    thread: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    agent: str
    status: str
    """How the thread was: `archived`, `stopped`, `waiting`, ..."""
    entries: Annotated[int, Field(ge=0)]
    """Rows of the file: entries 1 to this one."""
    first_ms: int = 0
    last_ms: int = 0
    snapshot_seq: int = 0
    """The newest compaction, whose snapshot is in force; 0 if there was none."""
    snapshots_missing: int = 0
    """Older snapshots that were gone from the store already. Their rows have none."""
    head: str = ""
    """Digest of the journal's head: the same one is the same journal."""
    steps: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    archived_ms: int
    by: str = ""
    reason: str = ""
    """Both empty where the file is sealed: they are in it."""
    size_bytes: Bytes
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Of the file as it is stored."""
    footer_bytes: Annotated[int, Field(ge=0, le=_FOOTER_BYTES_MAX)]
    footer_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Of the file's end, which says where everything in it lies: all who open it check that."""
    key_id: str = ""
    """The key that the file is sealed with; empty if it is not."""
    salt: str = ""
    tag: str = ""
    """What proves that somebody with the key wrote this."""

    @property
    def file_key(self) -> str:
        """Where the file lies."""
        return archive_key(self.thread, self.archive_id, FILE)


_MANIFESTS: Final = TypeAdapter(Manifest)
_FACTS: Final = TypeAdapter(Facts)


def new_archive_id(now_ms: int, random: bytes) -> str:
    """Return an id that sorts by time."""
    moment = datetime.fromtimestamp(now_ms / 1000, UTC)
    return f"{moment:%Y%m%dT%H%M%S}{now_ms % 1000:03}Z-{random[:4].hex()}"


def archive_ms(archive_id: str) -> int:
    """Return when an archive was begun, by its id."""
    moment = datetime.strptime(archive_id[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1000 + int(archive_id[15:18])


def later_id(earlier: Sequence[str], now_ms: int, random: bytes) -> str:
    """Return an id that sorts after those there are, also if another machine's clock is ahead."""
    try:
        return new_archive_id(max(now_ms, archive_ms(max(earlier)) + 1), random)
    except ValueError:  # There are none, or that is no time.
        return new_archive_id(now_ms, random)


def head_text(head: SegmentRef | None) -> str:
    """Return a journal's head as a manifest has it."""
    return "" if head is None else head.ref.digest


def archive_key(thread: str, archive_id: str, suffix: str) -> str:
    """Return the store key of an archive's file or manifest."""
    return f"{PREFIX}{thread}/{archive_id}{suffix}"


def facts_json(facts: Facts) -> str:
    """Return what a file says of its thread."""
    return _FACTS.dump_json(facts).decode()


def facts_of(text: str | bytes, manifest: Manifest) -> Facts:
    """Read what a file says of its thread, which has to be the one that its manifest tells of."""
    try:
        facts = _FACTS.validate_json(text)
    except ValidationError as error:
        # Not chained: pydantic quotes what it was given.
        if error.errors(include_input=False)[0]["type"] == "json_invalid":
            raise BlobCorrupt(
                f"archive {manifest.file_key!r} does not say whose it is. Restore it from a backup of "
                "the store."
            ) from None
        raise UnknownVersion(
            f"archive {manifest.file_key!r} is of a version that this Everlong does not read; upgrade "
            "Everlong here."
        ) from None
    if (facts.archive_id, facts.thread) != (manifest.archive_id, manifest.thread):
        raise BlobCorrupt(
            f"{manifest.file_key!r} is another archive's file. Restore it from a backup of the store."
        )
    return facts


def dump(manifest: Manifest, keys: Keys | None) -> bytes:
    """Return a manifest as it is stored, with its tag where there are keys."""
    if keys is not None and manifest.key_id:
        tag = _tag(_MANIFESTS.dump_json(manifest), manifest.key_id, keys)
        manifest = dataclasses.replace(manifest, tag=tag)
    return _MANIFESTS.dump_json(manifest, indent=2) + b"\n"


def load(data: bytes, key: str) -> Manifest:
    """Read a manifest, unchecked but for its form."""
    try:
        manifest = _MANIFESTS.validate_json(data)
    except ValidationError:
        raise UnknownVersion(
            f"manifest {key!r} is damaged, or of a version that this Everlong does not read. Restore "
            "it, or upgrade Everlong here."
        ) from None
    if archive_key(manifest.thread, manifest.archive_id, MANIFEST) != key:
        raise BlobCorrupt(f"manifest {key!r} tells of another archive. Restore it from a backup.")
    return manifest


def _tag(data: bytes, key_id: str, keys: Keys) -> str:
    """Return the tag of a manifest as it is stored: fields of a later version count too."""
    told = to_json({**from_json(data), "tag": ""})
    key = keys.derive(key_id, MANIFEST_PURPOSE)
    return hashlib.blake2b(told, key=key, digest_size=16).hexdigest()


def check_sealed(packs: PackStore, key_id: str, key: str) -> None:
    """Refuse what is not sealed, where keys are configured."""
    try:
        packs.check_sealed(key_id, key)
    except RefRefused:
        # Another remedy than that of histories: archives do not go away by themselves.
        raise RefRefused(
            f"archive {key!r} is not sealed, and keys are configured here, so it is not read. If it "
            "was written before there were keys, read it with accept_unsealed "
            "(EVERLONG_ACCEPT_UNSEALED=1): revive the thread, and archive the new one, which is sealed."
        ) from None


async def _checked(packs: PackStore, manifest: Manifest, data: bytes) -> Manifest:
    """Refuse a manifest that nobody with the key wrote, where there are keys."""
    key = archive_key(manifest.thread, manifest.archive_id, MANIFEST)
    check_sealed(packs, manifest.key_id, key)
    keys = await packs.keys(manifest.key_id) if manifest.key_id else None
    if keys is not None and not hmac.compare_digest(
        _tag(data, manifest.key_id, keys), manifest.tag
    ):
        raise BlobCorrupt(
            f"manifest {key!r} was changed by somebody who does not have its key, or the key "
            f"{manifest.key_id!r} is another here. Compare the keys; if they are the same, find out who "
            "it was, and restore it from a backup of the store."
        )
    return manifest


async def read(packs: PackStore, thread: str, archive_id: str) -> Manifest:
    """Read a manifest, checked."""
    key = archive_key(thread, archive_id, MANIFEST)
    try:
        # A range, so that no cache keeps it: an archive may be deleted by another process.
        data = await packs.store.get_range(key, 0, _MANIFEST_BYTES_MAX)
    except BlobMissing as error:
        raise ArchiveNotFound(
            f"there is no archive {archive_id!r} of this thread. See what there is with: "
            "everlong archives"
        ) from error
    return await _checked(packs, load(data, key), data)


async def ids(store: BlobStore, thread: str) -> list[str]:
    """Return the ids of a thread's archives, the oldest first."""
    return sorted([archive_id async for _, archive_id in all_ids(store, thread)])


class Listed(NamedTuple):
    """An archive, as a listing of the store has it."""

    thread: str
    archive_id: str
    freed_id: str = ""
    """Of the newest record of who freed the thread; empty if nobody has."""


async def newest_ids(
    store: BlobStore, thread: str | None, before: str, count: int
) -> tuple[list[Listed], bool]:
    """Return the newest archives before an id, and whether there are more.

    All names are listed, and only so many are kept.
    """
    kept: list[tuple[str, str]] = []
    freed: dict[tuple[str, str], str] = {}
    more = False
    async for key, archive_id, freed_id in _names(store, thread):
        each = (archive_id, key)
        if before and archive_id >= before:
            continue
        if freed_id:
            if len(kept) < count or each >= kept[0]:  # Older ones will not be kept either.
                freed[each] = max(freed_id, freed.get(each, ""))
            continue
        heapq.heappush(kept, each)
        if len(kept) > count:
            heapq.heappop(kept)
            more = True
    newest_first = sorted(kept, reverse=True)
    return [Listed(key, name, freed.get((name, key), "")) for name, key in newest_first], more


async def all_ids(store: BlobStore, thread: str | None = None) -> AsyncIterator[tuple[str, str]]:
    """Yield thread key and id of every archive of a store or a thread, in no particular order."""
    async for key, archive_id, freed_id in _names(store, thread):
        if not freed_id:
            yield key, archive_id


async def _names(store: BlobStore, thread: str | None) -> AsyncIterator[tuple[str, str, str]]:
    async for each in store.list(PREFIX if thread is None else f"{PREFIX}{thread}/"):
        if found := _KEY.fullmatch(each.key):
            yield found[1], found[2], found[3] or ""


async def newest(packs: PackStore, thread: str) -> Manifest | None:
    """Return a thread's newest archive, if it has one."""
    found = await ids(packs.store, thread)
    return await read(packs, thread, found[-1]) if found else None
