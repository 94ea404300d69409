"""Freed records: who freed an archived thread and why, written before its histories are deleted.

An archive that existed before names only its own author. So each time a thread is freed, a separate
record is written next to the archive: stored objects are immutable.
"""

import dataclasses
import os
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import to_json

from everlong import limits
from everlong.archive import checked_json
from everlong.archive.manifest import (
    FREED,
    MANIFEST,
    archive_key,
    archive_ms,
    check_sealed,
    new_archive_id,
)
from everlong.errors import BlobCorrupt, KeyMissing
from everlong.models import thread_key
from everlong.storage.keys import MANIFEST_PURPOSE, SALT_BYTES, Keys, open_bytes, seal_bytes
from everlong.storage.pack_store import PackStore

VERSION: Final = 2
# `by` and `reason` have a few hundred characters.
_RECORD_BYTES_MAX: Final = 16 * limits.KIB


@dataclass(frozen=True, kw_only=True)
class Freed:
    """Record that a thread was freed: its histories are deleted, and a sweep will delete its packs."""

    version: Literal[2] = VERSION
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

    version: Literal[2] = VERSION
    key_id: str
    salt: Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * SALT_BYTES}}}$")]
    sealed: Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$")]


_FREED: Final = TypeAdapter(Freed)
_SEALED: Final = TypeAdapter(_Sealed)


async def write(packs: PackStore, freed: Freed) -> str:
    """Write a freed record; return its id once it is durable."""
    freed_id = new_archive_id(freed.freed_ms, os.urandom(4))
    key = _key(freed.thread, freed.archive_id, freed_id)
    keys = await packs.keys()
    stored = freed if keys is None else _seal(_FREED.dump_json(freed), keys, key)
    await packs.store.put(key, checked_json.dump(dataclasses.asdict(stored)))
    return freed_id


async def read(packs: PackStore, thread: str, archive_id: str, freed_id: str) -> Freed:
    """Read a freed record, checked."""
    key = _key(thread, archive_id, freed_id)
    data = await packs.store.get_range(key, 0, _RECORD_BYTES_MAX + 1)
    fields = checked_json.load(data, key, version=VERSION)
    kind = _Sealed if "sealed" in fields else Freed
    if tuple(fields) != tuple(each.name for each in dataclasses.fields(kind)):
        raise checked_json.malformed_error(key)
    try:
        if kind is Freed:
            check_sealed(packs, "", key)
            found = _FREED.validate_json(to_json(fields), strict=True)
        else:
            record = _SEALED.validate_json(to_json(fields), strict=True)
            found = _FREED.validate_json(await _open(packs, record, key), strict=True)
    except ValidationError:  # Not chained: pydantic quotes its input.
        raise checked_json.malformed_error(key) from None
    if (
        (found.thread, found.archive_id) != (thread, archive_id)
        or thread_key(found.namespace, found.thread_id) != thread
        or archive_ms(freed_id) != found.freed_ms
    ):
        raise BlobCorrupt(f"{key!r} is about another archive. Restore it from a backup.")
    return found


def _key(thread: str, archive_id: str, freed_id: str) -> str:
    # Named like an archive's manifest, so that a sweep deletes it by age; no manifest has such a name.
    return archive_key(thread, f"{archive_id}{FREED}{freed_id}", MANIFEST)


def _seal(data: bytes, keys: Keys, key: str) -> _Sealed:
    salt = os.urandom(SALT_BYTES)
    own = keys.derive(keys.active, MANIFEST_PURPOSE, salt)
    sealed = seal_bytes(own, 0, data, key.encode())
    return _Sealed(key_id=keys.active, salt=salt.hex(), sealed=sealed.hex())


async def _open(packs: PackStore, record: _Sealed, key: str) -> bytes:
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
