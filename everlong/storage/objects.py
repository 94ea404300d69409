"""The object format, version 1: a header and a body, which may be compressed (docs/wire-format.md).

A stored object and the data of an inline payload are the same bytes. A stored one is named by its
thread and the digest of its plaintext: writing it twice is harmless, and every read is checked.
"""

import asyncio
import hashlib
import struct
from typing import Final

import zstandard

from everlong import limits
from everlong.errors import BlobCorrupt, BlobMissing, ObjectTooLarge, UnknownVersion
from everlong.models import Kind, Ref, printable
from everlong.storage.blobs import BlobStore

MAGIC: Final = b"EVLG"
VERSION: Final = 1
# Magic, version, compression, two reserved zero bytes, plaintext size; little-endian.
HEADER: Final = struct.Struct("<4sBBHQ")
_COMPRESSION_OFFSET: Final = 5
_STORED, _ZSTD = 0, 1
# Level 3 is zstd's default. On 200 results of `testing.workload`, level 9 saves 7% more and takes 4
# to 5 times as long.
_LEVEL: Final = 3
_LAYOUT: Final = "v1"


def thread_key(namespace: str, thread_id: str) -> str:
    """Return the fixed-length name under which a thread's objects lie, whatever its id looks like."""
    name = f"{namespace}\0{thread_id}".encode()
    return hashlib.blake2b(name, digest_size=16, person=b"everlong-thread").hexdigest()


def thread_prefix(thread: str) -> str:
    """Return the listing prefix of all objects of a thread."""
    return f"{_LAYOUT}/{thread}/"


def object_key(ref: Ref) -> str:
    """Return the store key of the object that a ref names."""
    return thread_prefix(ref.thread) + ref.digest


def seal(plaintext: bytes) -> bytes:
    """Return the object for a plaintext: compressed where that pays."""
    if len(plaintext) > limits.OBJECT_BYTES_MAX:
        raise ObjectTooLarge(
            f"{len(plaintext)} bytes are not stored: {limits.OBJECT_BYTES_MAX} is the most that an "
            "object holds. Pass them by a path or a link instead."
        )
    body, compression = plaintext, _STORED
    if len(plaintext) >= limits.COMPRESS_BYTES_MIN:
        squeezed = zstandard.ZstdCompressor(level=_LEVEL).compress(plaintext)
        if len(squeezed) <= limits.COMPRESS_RATIO_MAX * len(plaintext):
            body, compression = squeezed, _ZSTD
    return HEADER.pack(MAGIC, VERSION, compression, 0, len(plaintext)) + body


def declared_bytes(data: bytes) -> int:
    """Return the plaintext size that an object declares, after checking its header."""
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise BlobCorrupt("not an Everlong object: its header is missing")
    _, version, compression, reserved, size_bytes = HEADER.unpack_from(data)
    if version != VERSION:
        raise UnknownVersion(
            f"object format version {version} is newer than this Everlong reads ({VERSION}). Upgrade "
            "Everlong on this worker or client."
        )
    if size_bytes > limits.OBJECT_BYTES_MAX or reserved != 0:
        raise BlobCorrupt(f"object header is damaged, or declares {size_bytes} bytes")
    if compression not in (_STORED, _ZSTD):
        raise BlobCorrupt(f"object header names compression {compression}, which does not exist")
    return int(size_bytes)


def unseal(data: bytes) -> bytes:
    """Return the plaintext of an object. Never inflates beyond the size that it declares."""
    size_bytes = declared_bytes(data)
    compression = data[_COMPRESSION_OFFSET]
    body = data[HEADER.size :]
    if compression == _ZSTD:
        body = _inflate(body, size_bytes)
    if len(body) != size_bytes:
        raise BlobCorrupt(f"object holds {len(body)} bytes but declares {size_bytes}")
    return body


def _inflate(body: bytes, size_bytes: int) -> bytes:
    try:
        # zstandard allocates what the frame's own header claims, so that claim is checked first.
        if zstandard.frame_content_size(body) != size_bytes:
            raise BlobCorrupt("compressed frame and object header disagree on the size")
        return zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BlobCorrupt(f"object does not decompress: {error}") from error


async def seal_object(plaintext: bytes) -> bytes:
    """Seal without holding the event loop up: large plaintexts are compressed in a thread."""
    if len(plaintext) < limits.LOOP_BYTES_MAX:
        return seal(plaintext)
    return await asyncio.to_thread(seal, plaintext)


async def unseal_object(data: bytes) -> bytes:
    """Unseal without holding the event loop up."""
    if declared_bytes(data) < limits.LOOP_BYTES_MAX:
        return unseal(data)
    return await asyncio.to_thread(unseal, data)


async def write_object(
    store: BlobStore,
    thread: str,
    kind: Kind,
    plaintext: bytes,
    *,
    preview: str = "",
    sealed: bytes | None = None,
) -> tuple[Ref, int]:
    """Store a plaintext; return its ref, once it is durable, and the bytes that were written.

    A caller that has sealed it already passes the result along.
    """
    if len(plaintext) < limits.LOOP_BYTES_MAX:
        digest = _digest(plaintext)
    else:
        digest = await asyncio.to_thread(_digest, plaintext)
    if sealed is None:
        sealed = await seal_object(plaintext)
    ref = Ref(
        thread=thread,
        digest=digest,
        size_bytes=len(plaintext),
        kind=kind,
        preview=printable(preview, limits.PREVIEW_CHARS_MAX),
    )
    await store.put(object_key(ref), sealed)
    return ref, len(sealed)


async def read_object(store: BlobStore, ref: Ref) -> bytes:
    """Return the plaintext that a ref names, checked against its digest and size."""
    try:
        data = await store.get(object_key(ref))
    except BlobMissing as error:
        raise BlobMissing(f"{ref.kind} of {ref.size_bytes} bytes: {error}") from error
    if ref.size_bytes < limits.LOOP_BYTES_MAX:
        return _verified(data, ref, store)
    return await asyncio.to_thread(_verified, data, ref, store)


def _verified(data: bytes, ref: Ref, store: BlobStore) -> bytes:
    try:
        if declared_bytes(data) != ref.size_bytes:
            raise BlobCorrupt("its size is not the one of its ref")
        plaintext = unseal(data)
        if _digest(plaintext) != ref.digest:
            raise BlobCorrupt("its content does not match its digest")
    except BlobCorrupt as error:
        raise BlobCorrupt(
            f"{ref.kind} {object_key(ref)!r} in {store!r} is damaged: {error}. Restore it from a "
            "backup; what waits for it goes on by itself."
        ) from error
    return plaintext


def _digest(plaintext: bytes) -> str:
    return hashlib.blake2b(plaintext, digest_size=32).hexdigest()
