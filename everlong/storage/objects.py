"""The object format: a header and a body, which may be compressed and sealed (docs/wire-format.md).

It is what an inline payload holds. Version 1 is plain; version 2 is sealed with a key.
"""

import os
import struct
import threading
from typing import Final

import zstandard

from everlong import limits
from everlong.errors import BlobCorrupt, KeyMissing, ObjectTooLarge, UnknownVersion
from everlong.models import Ref
from everlong.models import thread_key as thread_key
from everlong.storage.keys import INLINE_PURPOSE, SALT_BYTES, Keys, open_bytes, seal_bytes
from everlong.storage.threads import in_thread

MAGIC: Final = b"EVLG"
PLAIN, SEALED = 1, 2  # Versions.
# Magic, version, compression, length of the key id, plaintext size; little-endian.
HEADER: Final = struct.Struct("<4sBBHQ")
_STORED, _ZSTD = 0, 1
# Level 3 is zstd's default. On 200 results of `testing.workload`, level 9 saves 7% more and takes 4
# to 5 times as long.
LEVEL: Final = 3
# To make a compressor or a decompressor takes longer than to use it on a few KiB. Each serves one OS
# thread at a time, so each thread keeps its own. Only threads that work on bytes have one: the event
# loop's and the pools of `threads`.
_THREAD: Final = threading.local()
_LAYOUT: Final = "v1"


# Where payloads lie whose thread nobody knows.
NO_THREAD: Final = thread_key("", "")


def thread_prefix(thread: str) -> str:
    """Return the listing prefix of all objects of a thread."""
    return f"{_LAYOUT}/{thread}/"


def object_key(ref: Ref) -> str:
    """Return the store key of what a ref names."""
    return f"{thread_prefix(ref.thread)}{ref.digest}.pack"


def seal(plaintext: bytes, keys: Keys | None = None) -> bytes:
    """Return the object for a plaintext: compressed where that pays, sealed where there are keys."""
    if len(plaintext) > limits.OBJECT_BYTES_MAX:
        raise ObjectTooLarge(
            f"{len(plaintext)} bytes are not kept: {limits.OBJECT_BYTES_MAX} is the most that one "
            "payload may have. Pass them by a path or a link instead."
        )
    body, compression = plaintext, _STORED
    if len(plaintext) >= limits.COMPRESS_BYTES_MIN:
        squeezed = compressor().compress(plaintext)
        if len(squeezed) <= limits.COMPRESS_RATIO_MAX * len(plaintext):
            body, compression = squeezed, _ZSTD
    if keys is None:
        return HEADER.pack(MAGIC, PLAIN, compression, 0, len(plaintext)) + body
    key_id, salt = keys.active.encode(), os.urandom(SALT_BYTES)
    header = HEADER.pack(MAGIC, SEALED, compression, len(key_id), len(plaintext)) + key_id + salt
    key = keys.derive(keys.active, INLINE_PURPOSE, salt)
    return header + seal_bytes(key, 0, body, header)


def declared_bytes(data: bytes) -> int:
    """Return the plaintext size that an object declares, after checking its header."""
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise BlobCorrupt("not an Everlong object: its header is missing")
    _, version, compression, key_id_bytes, size_bytes = HEADER.unpack_from(data)
    if version not in (PLAIN, SEALED):
        raise UnknownVersion(
            f"object format version {version} is newer than this Everlong reads ({SEALED}). Upgrade "
            "Everlong on this worker or client."
        )
    if size_bytes > limits.OBJECT_BYTES_MAX or (version == PLAIN) != (key_id_bytes == 0):
        raise BlobCorrupt(f"object header is damaged, or declares {size_bytes} bytes")
    if compression not in (_STORED, _ZSTD):
        raise BlobCorrupt(f"object header names compression {compression}, which does not exist")
    return int(size_bytes)


def sealing_key_id(data: bytes) -> str:
    """Return the id of the key that an object is sealed with; empty if it is not."""
    declared_bytes(data)
    key_id_bytes = HEADER.unpack_from(data)[3]
    return data[HEADER.size : HEADER.size + key_id_bytes].decode("latin-1")


def unseal(data: bytes, keys: Keys | None = None) -> bytes:
    """Return the plaintext of an object. Never inflates beyond the size that it declares."""
    size_bytes = declared_bytes(data)
    _, _, compression, key_id_bytes, _ = HEADER.unpack_from(data)
    body = data[HEADER.size :]
    if key_id_bytes:
        body = _opened(data, HEADER.size + key_id_bytes + SALT_BYTES, keys)
    if compression == _ZSTD:
        body = inflate(body, size_bytes)
    if len(body) != size_bytes:
        raise BlobCorrupt(f"object holds {len(body)} bytes but declares {size_bytes}")
    return body


def _opened(data: bytes, header_bytes: int, keys: Keys | None) -> bytes:
    key_id = sealing_key_id(data)
    if keys is None:
        raise KeyMissing(
            f"a payload is sealed with key {key_id!r}, and no keys are configured here. Configure the "
            "keys that the writer has; what waits goes on by itself."
        )
    salt = data[header_bytes - SALT_BYTES : header_bytes]
    key = keys.derive(key_id, INLINE_PURPOSE, salt)
    return open_bytes(key, 0, data[header_bytes:], data[:header_bytes])


def compressor() -> zstandard.ZstdCompressor:
    """Return the compressor of this OS thread, without a dictionary."""
    found: zstandard.ZstdCompressor | None = getattr(_THREAD, "compressor", None)
    if found is None:
        found = _THREAD.compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    return found


def _decompressor(dictionary: bytes) -> zstandard.ZstdDecompressor:
    """Return the decompressor of this OS thread; with a dictionary, a new one."""
    if dictionary:
        return zstandard.ZstdDecompressor(raw_dictionary(dictionary))
    found: zstandard.ZstdDecompressor | None = getattr(_THREAD, "decompressor", None)
    if found is None:
        found = _THREAD.decompressor = zstandard.ZstdDecompressor()
    return found


def raw_dictionary(data: bytes) -> zstandard.ZstdCompressionDict:
    """Return bytes as a dictionary for zstd: content that frames may repeat."""
    return zstandard.ZstdCompressionDict(data, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def inflate(body: bytes, size_bytes: int, dictionary: bytes = b"") -> bytes:
    """Decompress one zstd frame that has to give exactly that many bytes."""
    try:
        # zstandard allocates what the frame's own header claims, so that claim is checked first.
        if zstandard.frame_content_size(body) != size_bytes:
            raise BlobCorrupt("compressed frame and header disagree on the size")
        return _decompressor(dictionary).decompress(body, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BlobCorrupt(f"it does not decompress: {error}") from error


async def seal_object(plaintext: bytes, keys: Keys | None = None) -> bytes:
    """Seal without holding the event loop up: large plaintexts are compressed in a thread."""
    if len(plaintext) < limits.LOOP_BYTES_MAX:
        return seal(plaintext, keys)
    return await in_thread(seal, plaintext, keys)


async def unseal_object(data: bytes, keys: Keys | None = None) -> bytes:
    """Unseal without holding the event loop up."""
    if declared_bytes(data) < limits.LOOP_BYTES_MAX:
        return unseal(data, keys)
    return await in_thread(unseal, data, keys)
