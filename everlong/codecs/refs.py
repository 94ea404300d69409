"""The ref that stands in history for an offloaded payload (docs/reference/wire-format.md).

A ref is self-contained: a reader needs the store, and the keys if it is sealed, but no context. Where
keys are configured, a ref carries a tag, and a ref that was written without the key is refused.
"""

import dataclasses
import struct
from typing import Final

from temporalio.api.common.v1 import Payload

from everlong.errors import BlobCorrupt, KeyMissing, RefRefused, UnknownVersion
from everlong.storage.encryption_keys import TAG_BYTES, Keys
from everlong.storage.pack_store import PackStore

ENCODING: Final = b"binary/everlong-ref"
VERSION: Final = 2
# Version, length of the key id; then the key id; then thread, pack, size of the data, packs to read.
_START: Final = struct.Struct("<BB")
_REST: Final = struct.Struct("<16s32sQH")

# Refs of version 1, which no release writes or reads. They are recognised in order to be refused;
# otherwise they would pass through as payloads that Everlong did not write.
RETIRED_ENCODING: Final = b"json/everlong-ref"


@dataclasses.dataclass(frozen=True)
class PackRef:
    """Name of a payload's pack, with its size and key."""

    thread: str
    pack: bytes
    size_bytes: int
    """Size of the payload's data, uncompressed."""
    packs: int
    """Number of packs that a reader needs, this one included."""
    key_id: str = ""
    """Id of the key of its tag; empty without keys."""

    def to_payload(self, keys: Keys | None) -> Payload:
        """Return the payload that goes into history."""
        key_id = self.key_id.encode()
        data = (
            _START.pack(VERSION, len(key_id))
            + key_id
            + _REST.pack(bytes.fromhex(self.thread), self.pack, self.size_bytes, self.packs)
        )
        if keys is not None:
            data += keys.tag(self.key_id, data)
        payload = Payload(metadata={"encoding": ENCODING}, data=data)
        # Temporal's own accounting of bytes outside history.
        payload.external_payloads.add().size_bytes = self.size_bytes
        return payload


def is_ref(payload: Payload) -> bool:
    """Return whether a payload is a ref to one in the store."""
    return payload.metadata.get("encoding") in (ENCODING, RETIRED_ENCODING)


def parse_ref(payload: Payload) -> PackRef:
    """Parse a ref. `check_ref` checks its tag."""
    if payload.metadata.get("encoding") == RETIRED_ENCODING:
        raise UnknownVersion(
            "payload ref version 1 was written before the first release, and no Everlong reads it. "
            "Start the workflow again."
        )
    data = payload.data
    if not data or data[0] != VERSION:
        raise _build_version_error(data[:1].hex())
    if len(data) < _START.size:
        raise _build_damage_error()
    key_id_bytes = data[1]
    rest = _START.size + key_id_bytes
    if len(data) != rest + _REST.size + (TAG_BYTES if key_id_bytes else 0):
        raise _build_damage_error()
    thread, pack, size_bytes, packs = _REST.unpack_from(data, rest)
    key_id = data[_START.size : rest].decode("latin-1")
    return PackRef(thread.hex(), pack, size_bytes, packs, key_id)


async def check_ref(packs: PackStore, payload: Payload, ref: PackRef) -> None:
    """Reject a ref that was not written with the key that it names, where keys are configured."""
    packs.check_sealed(ref.key_id, f"a payload ref to pack {ref.pack.hex()}")
    if not ref.key_id:
        return
    keys = await packs.keys(ref.key_id)
    if keys is None:
        raise KeyMissing(
            f"a payload ref is sealed with key {ref.key_id!r}, and no keys are configured here. "
            "Configure the writer's keys; waiting workflows then continue by themselves."
        )
    data = payload.data
    if not keys.check_tag(ref.key_id, data[:-TAG_BYTES], data[-TAG_BYTES:]):
        raise RefRefused(
            f"a payload ref names key {ref.key_id!r} but was not written with it: it is damaged or "
            "forged. Find the writer of this payload; nothing was read."
        )


def _build_version_error(version: str) -> UnknownVersion:
    return UnknownVersion(
        f"this Everlong does not read payload ref version {version}. Upgrade Everlong on "
        "this worker or client."
    )


def _build_damage_error() -> BlobCorrupt:
    return BlobCorrupt("a payload ref in history is damaged: it does not parse")
