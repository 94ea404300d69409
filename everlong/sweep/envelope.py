"""Envelope of the files that a sweep saves in the store: its index, and unfinished listings.

A file is compressed, bound to its key, and checked as a whole: a file that is damaged, truncated, of
another version or of another key is never read in part. Where keys are configured, files are sealed,
and unsealed files are rejected.
"""

import hashlib
import os
import struct
from typing import Final

from everlong import limits
from everlong.errors import BlobCorrupt, KeyMissing, ObjectTooLarge, UnknownVersion
from everlong.storage.keys import SALT_BYTES, Keys, open_bytes, seal_bytes
from everlong.storage.objects import compressor, inflate

_MAGIC: Final = b"EVSI"
_VERSION: Final = 1
# Magic, version, length of the key id (0 if not sealed), plain size; little-endian.
_HEADER: Final = struct.Struct("<4sBBQ")
_DIGEST_BYTES: Final = 32
_PURPOSE: Final = b"everlong-sweep"


def wrap(plain: bytes, place: str, keys: Keys | None) -> bytes:
    """Return the file that holds some bytes and is stored under the key `place`."""
    if len(plain) > limits.SWEEP_INDEX_BYTES_MAX:
        raise ObjectTooLarge(f"{len(plain)} bytes do not fit into one file")
    body = compressor().compress(plain)
    if keys is None:
        header = _HEADER.pack(_MAGIC, _VERSION, 0, len(plain))
        return header + _digest(header, place, body) + body
    key_id, salt = keys.active.encode(), os.urandom(SALT_BYTES)
    header = _HEADER.pack(_MAGIC, _VERSION, len(key_id), len(plain)) + key_id + salt
    key = keys.derive(keys.active, _PURPOSE, salt)
    return header + seal_bytes(key, 0, body, header + place.encode())


def sealing_key_id(data: bytes) -> str:
    """Return the id of the key that a file is sealed with; empty if it is not sealed."""
    length = _parse(data)[0]
    return data[_HEADER.size : _HEADER.size + length].decode("latin-1")


def unwrap(data: bytes, place: str, keys: Keys | None) -> bytes:
    """Return the bytes in a file stored under the key `place`; an `EverlongError` if it is damaged."""
    key_id_bytes, size_bytes = _parse(data)
    if key_id_bytes:
        if keys is None:
            raise KeyMissing("the file is sealed, and no keys are configured here")
        end = _HEADER.size + key_id_bytes + SALT_BYTES
        key = keys.derive(sealing_key_id(data), _PURPOSE, data[end - SALT_BYTES : end])
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


def _parse(data: bytes) -> tuple[int, int]:
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
