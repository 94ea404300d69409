"""The object format: a header and a body, which may be compressed and sealed.

docs/reference/wire-format.md describes it byte by byte.

An inline payload holds one object. Version 1 is plain, version 2 is sealed with a key, and version 3
is a small plain object without a header.

Small objects are compressed with a built-in dictionary of the field names that Everlong writes
(`tools.train_dictionary` created it). The dictionary is part of the format and never changes.
"""

import asyncio
import os
import struct
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import zstandard

from everlong import limits
from everlong.errors import BlobCorrupt, KeyMissing, ObjectTooLarge, UnknownVersion
from everlong.storage.encryption_keys import (
    INLINE_PURPOSE,
    SALT_BYTES,
    Keys,
    open_bytes,
    seal_bytes,
)

P = ParamSpec("P")
T = TypeVar("T")

_THREADS: Final = min(8, (os.cpu_count() or 1) + 2)

MAGIC: Final = b"EVLG"
PLAIN, SEALED, SMALL = 1, 2, 3  # Versions.
# Magic, version, compression, length of the key id, plaintext size; little-endian.
HEADER: Final = struct.Struct("<4sBBHQ")
_STORED, _ZSTD, _ZSTD_BUILTIN = 0, 1, 2
# The first byte of a small object, which continues with a zstd frame without its magic number. An object
# with a header begins with the first byte of `MAGIC`, so the two cannot be confused.
_SMALL_START: Final = bytes([SMALL])
_FRAME_MAGIC: Final = b"\x28\xb5\x2f\xfd"
# The built-in dictionary is used up to this size. It saves about 170 bytes: half of the payload of an
# Everlong activity, and 1% of an object of this size.
SMALL_BYTES_MAX: Final = 16 * limits.KIB
_BUILTIN: Final = Path(__file__).with_name("dictionary-1.bin").read_bytes()
# zstd's default. Payloads are encoded within a workflow task, so there is no time for a higher level.
LEVEL: Final = 3
# Journals are written by activities and kept for months. On results of `testing.workload`, level 8 saves
# 9% more than level 3 and compresses 36 MB/s, a quarter of its speed. The next levels save 1% each.
JOURNAL_LEVEL: Final = 8
# Creating a compressor or a decompressor takes longer than using it on a few KiB. Each serves one OS
# thread at a time, so each thread keeps its own: only the event loop's thread and the pools below use
# them.
_THREAD: Final = threading.local()


def build_object(plaintext: bytes, keys: Keys | None = None) -> bytes:
    """Return the object of a plaintext: compressed if that saves bytes, sealed if there are keys."""
    if len(plaintext) > limits.OBJECT_BYTES_MAX:
        raise ObjectTooLarge(
            f"{len(plaintext)} bytes are not stored: {limits.OBJECT_BYTES_MAX} is the limit of one "
            "payload. Pass them by a path or a link instead."
        )
    body, compression = _compress(plaintext)
    if keys is None:
        if compression == _ZSTD_BUILTIN:
            return _SMALL_START + body.removeprefix(_FRAME_MAGIC)
        return HEADER.pack(MAGIC, PLAIN, compression, 0, len(plaintext)) + body
    key_id, salt = keys.active.encode(), os.urandom(SALT_BYTES)
    header = HEADER.pack(MAGIC, SEALED, compression, len(key_id), len(plaintext)) + key_id + salt
    key = keys.derive(keys.active, INLINE_PURPOSE, salt)
    return header + seal_bytes(key, 0, body, header)


def _compress(plaintext: bytes) -> tuple[bytes, int]:
    """Return the body of an object and its compression."""
    if len(plaintext) < limits.COMPRESS_BYTES_MIN:
        return plaintext, _STORED
    if len(plaintext) <= SMALL_BYTES_MAX:
        body, compression = get_small_compressor().compress(plaintext), _ZSTD_BUILTIN
    else:
        body, compression = get_compressor().compress(plaintext), _ZSTD
    if len(body) <= limits.COMPRESS_RATIO_MAX * len(plaintext):
        return body, compression
    return plaintext, _STORED


def get_declared_bytes(data: bytes) -> int:
    """Check an object's header, and return the plaintext size that it declares."""
    if data[:1] == _SMALL_START:
        return _get_small_bytes(data)
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise BlobCorrupt("not an Everlong object: its header is missing")
    _, version, compression, key_id_bytes, size_bytes = HEADER.unpack_from(data)
    if version not in (PLAIN, SEALED):
        raise UnknownVersion(
            f"object format version {version} is newer than this Everlong reads ({SMALL}). Upgrade "
            "Everlong on this worker or client."
        )
    if size_bytes > limits.OBJECT_BYTES_MAX or (version == PLAIN) != (key_id_bytes == 0):
        raise BlobCorrupt(f"object header is damaged, or declares {size_bytes} bytes")
    if compression not in (_STORED, _ZSTD, _ZSTD_BUILTIN):
        raise BlobCorrupt(f"object header names compression {compression}, which does not exist")
    return int(size_bytes)


def _get_small_bytes(data: bytes) -> int:
    """Return the plaintext size that a small object declares in its frame."""
    try:
        size_bytes = int(zstandard.frame_content_size(_FRAME_MAGIC + data[1:]))
    except zstandard.ZstdError as error:
        raise BlobCorrupt(f"a small object has no frame: {error}") from error
    if not 0 <= size_bytes <= SMALL_BYTES_MAX:
        raise BlobCorrupt(f"a small object declares {size_bytes} bytes")
    return size_bytes


def get_key_id(data: bytes) -> str:
    """Return the id of the key that an object is sealed with; empty if it is unsealed."""
    get_declared_bytes(data)
    if data[:1] == _SMALL_START:
        return ""
    key_id_bytes = HEADER.unpack_from(data)[3]
    return data[HEADER.size : HEADER.size + key_id_bytes].decode("latin-1")


def parse_object(data: bytes, keys: Keys | None = None) -> bytes:
    """Return the plaintext of an object. It never inflates more than the declared size."""
    size_bytes = get_declared_bytes(data)
    if data[:1] == _SMALL_START:
        return inflate_small(_FRAME_MAGIC + data[1:], size_bytes)
    _, _, compression, key_id_bytes, _ = HEADER.unpack_from(data)
    body = data[HEADER.size :]
    if key_id_bytes:
        body = _open_body(data, HEADER.size + key_id_bytes + SALT_BYTES, keys)
    if compression == _ZSTD:
        body = inflate(body, size_bytes)
    elif compression == _ZSTD_BUILTIN:
        body = inflate_small(body, size_bytes)
    if len(body) != size_bytes:
        raise BlobCorrupt(f"object holds {len(body)} bytes but declares {size_bytes}")
    return body


def _open_body(data: bytes, header_bytes: int, keys: Keys | None) -> bytes:
    key_id = get_key_id(data)
    if keys is None:
        raise KeyMissing(
            f"a payload is sealed with key {key_id!r}, and no keys are configured here. Configure the "
            "writer's keys; waiting workflows then continue by themselves."
        )
    salt = data[header_bytes - SALT_BYTES : header_bytes]
    key = keys.derive(key_id, INLINE_PURPOSE, salt)
    return open_bytes(key, 0, data[header_bytes:], data[:header_bytes])


def get_compressor(level: int = LEVEL) -> zstandard.ZstdCompressor:
    """Return the compressor of this OS thread for a level, without a dictionary."""
    compressors: dict[int, zstandard.ZstdCompressor] | None = getattr(_THREAD, "compressors", None)
    if compressors is None:
        compressors = _THREAD.compressors = {}
    found = compressors.get(level)
    if found is None:
        found = compressors[level] = zstandard.ZstdCompressor(level=level, write_checksum=True)
    return found


def get_small_compressor() -> zstandard.ZstdCompressor:
    """Return the compressor of this OS thread that has the built-in dictionary."""
    found: zstandard.ZstdCompressor | None = getattr(_THREAD, "get_small_compressor", None)
    if found is None:
        found = _THREAD.get_small_compressor = zstandard.ZstdCompressor(
            level=JOURNAL_LEVEL,
            dict_data=_build_builtin_dictionary(),
            write_checksum=True,
            write_dict_id=False,
        )
    return found


def _build_builtin_dictionary() -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(_BUILTIN, dict_type=zstandard.DICT_TYPE_FULLDICT)


def _get_decompressor(dictionary: bytes) -> zstandard.ZstdDecompressor:
    """Return the decompressor of this OS thread; with a dictionary of a pack, a new one."""
    if dictionary:
        return zstandard.ZstdDecompressor(build_dictionary(dictionary))
    found: zstandard.ZstdDecompressor | None = getattr(_THREAD, "decompressor", None)
    if found is None:
        found = _THREAD.decompressor = zstandard.ZstdDecompressor()
    return found


def _get_small_decompressor() -> zstandard.ZstdDecompressor:
    """Return the decompressor of this OS thread that has the built-in dictionary."""
    found: zstandard.ZstdDecompressor | None = getattr(_THREAD, "small_decompressor", None)
    if found is None:
        found = _THREAD.small_decompressor = zstandard.ZstdDecompressor(_build_builtin_dictionary())
    return found


def build_dictionary(data: bytes) -> zstandard.ZstdCompressionDict:
    """Build a zstd dictionary from raw content that frames may repeat."""
    return zstandard.ZstdCompressionDict(data, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def inflate(body: bytes, size_bytes: int, dictionary: bytes = b"") -> bytes:
    """Decompress one zstd frame; any other size than `size_bytes` is an error."""
    return _inflate(_get_decompressor(dictionary), body, size_bytes)


def inflate_small(body: bytes, size_bytes: int) -> bytes:
    """Decompress one zstd frame that was made with the built-in dictionary."""
    return _inflate(_get_small_decompressor(), body, size_bytes)


def _inflate(decompressor: zstandard.ZstdDecompressor, body: bytes, size_bytes: int) -> bytes:
    try:
        # zstandard allocates the size that the frame's header claims, so the claim is checked first.
        if zstandard.frame_content_size(body) != size_bytes:
            raise BlobCorrupt("compressed frame and header disagree on the size")
        return decompressor.decompress(body, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BlobCorrupt(f"it does not decompress: {error}") from error


async def build_object_async(plaintext: bytes, keys: Keys | None = None) -> bytes:
    """Build an object without blocking the event loop: large ones are compressed in an OS thread."""
    if len(plaintext) < limits.LOOP_BYTES_MAX:
        return build_object(plaintext, keys)
    return await run_in_thread(build_object, plaintext, keys)


async def parse_object_async(data: bytes, keys: Keys | None = None) -> bytes:
    """Parse an object without blocking the event loop."""
    if get_declared_bytes(data) < limits.LOOP_BYTES_MAX:
        return parse_object(data, keys)
    return await run_in_thread(parse_object, data, keys)


class _Pools:
    """OS threads for work on bytes: compressing, digesting, comparing.

    asyncio's own pool waits for files: a disk that hangs blocks that pool, but not these. A forked child
    has no threads, so it creates new pools.
    """

    def __init__(self) -> None:
        # Jobs in the first pool wait for subtasks in the second; one pool could deadlock.
        self.whole = ThreadPoolExecutor(_THREADS, thread_name_prefix="everlong-bytes")
        self.parts = ThreadPoolExecutor(_THREADS, thread_name_prefix="everlong-frame")


_pools = _Pools()


def _renew() -> None:
    global _pools
    _pools = _Pools()


os.register_at_fork(after_in_child=_renew)


async def run_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run work on bytes in an OS thread, without blocking the event loop."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_pools.whole, lambda: work(*args, **kwargs))


def map_in_threads(work: Callable[..., T], *arguments: Iterable[object]) -> list[T]:
    """Run a function on several arguments in parallel. zstd, digests and AES release the GIL."""
    return list(_pools.parts.map(work, *arguments))
