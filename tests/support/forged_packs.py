"""Forged packs and payloads of an attacker who can write to the store but has no keys."""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zstandard
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads

from everlong import limits
from everlong.codecs.payloads import INLINE_ENCODING
from everlong.codecs.refs import PackRef
from everlong.models import thread_key
from everlong.storage.objects import HEADER
from everlong.storage.pack_store import pack_key
from everlong.storage.packs import FRAME_BYTES, MAGIC, _hash

THREAD = thread_key("default", "forged")
MIB = limits.MIB
ZEROS = zstandard.ZstdCompressor().compress(bytes(FRAME_BYTES))
"""A frame of 1 MiB in some 50 bytes."""

Forged = tuple[bytes, bytes]
"""Name and bytes of a pack."""


def forge(
    *,
    size_bytes: int,
    frames: Sequence[tuple[int, int, bytes]] = (),
    extents: Sequence[tuple[int, int, int]] = (),
    sources: Sequence[bytes] = (),
    crc: int | None = None,
    base_bytes: int = 0,
    dictionary: tuple[int, int, int] = (0, 0, 0),
    envelope: bytes = b"\0",
) -> Forged:
    """Return a pack with any manifest. A frame is compression, plain bytes and stored bytes."""
    if crc is None:
        crc = crc_of_zeros(size_bytes)
    counts = (len(envelope), len(sources), len(frames), len(extents))
    manifest = struct.pack("<QIQIHII", size_bytes, crc, base_bytes, *counts)
    manifest += struct.pack("<HII", *dictionary) + envelope + b"".join(sources)
    for compression, plain_bytes, stored in frames:
        manifest += struct.pack("<BII32s", compression, len(stored), plain_bytes, _hash(stored))
    for extent in extents:
        manifest += struct.pack("<HII", *extent)
    head = struct.pack("<4sBBHI", MAGIC, 2, 0, 0, len(manifest)) + manifest
    return _hash(head), head + b"".join(stored for _, _, stored in frames)


def crc_of_zeros(size_bytes: int) -> int:
    crc = 0
    for at in range(0, size_bytes, MIB):
        crc = zlib.crc32(bytes(min(MIB, size_bytes - at)), crc)
    return crc


def put(root: Path, pack: Forged) -> bytes:
    """Write a pack into a file store; return its name."""
    path = root / pack_key(THREAD, pack[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack[1])
    return pack[0]


def zeros(number: int = 0, frames: int = 1) -> Forged:
    """Return a pack of `frames` MiB of zeros, another one for each number."""
    return forge(size_bytes=0, frames=[(1, FRAME_BYTES, ZEROS)] * frames, envelope=b"%d" % number)


def repeated_source(root: Path, times: int, used_bytes: int) -> PackRef:
    """Return a ref whose pack names one source many times, and uses a part of its frames each time."""
    source = put(root, zeros(frames=2))
    extents = [
        (number, frame * FRAME_BYTES, used_bytes)
        for number in range(1, times + 1)
        for frame in (0, 1)
    ]
    size_bytes = 2 * times * used_bytes
    pack = forge(size_bytes=size_bytes, extents=extents, sources=[source] * times)
    return PackRef(THREAD, put(root, pack), size_bytes, times + 1)


def many_sources(root: Path, count: int, frames: int, used_bytes: int) -> PackRef:
    """Return a ref whose pack names many sources once, and uses a part of each of their frames."""
    sources = [put(root, zeros(number, frames)) for number in range(count)]
    extents = [
        (number, frame * FRAME_BYTES, used_bytes)
        for frame in range(frames)
        for number in range(1, count + 1)
    ]
    size_bytes = count * frames * used_bytes
    pack = forge(size_bytes=size_bytes, extents=extents, sources=sources)
    return PackRef(THREAD, put(root, pack), size_bytes, count + 1)


def one_frame(root: Path, size_bytes: int) -> PackRef:
    """Return a ref whose pack repeats one frame up to a size."""
    extents = [
        (0, 0, min(FRAME_BYTES, size_bytes - at)) for at in range(0, size_bytes, FRAME_BYTES)
    ]
    pack = forge(size_bytes=size_bytes, frames=[(1, FRAME_BYTES, ZEROS)], extents=extents)
    return PackRef(THREAD, put(root, pack), size_bytes, 1)


def sparse_file(root: Path, size_bytes: int) -> PackRef:
    """Write an object that is far larger than its ref claims, as a sparse file."""
    name = _hash(b"sparse %d" % size_bytes)
    path = root / pack_key(THREAD, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size_bytes)
    return PackRef(THREAD, name, 1000, 1)


def large_sources(root: Path, count: int, stored_bytes: int) -> PackRef:
    """Return a ref whose pack names large sources and uses hardly any of their bytes."""
    sources = []
    for number in range(count):
        filler = b"%08d" % number + bytes(stored_bytes)
        frames = [(0, min(FRAME_BYTES, len(filler)), filler[:FRAME_BYTES])]
        frames += [
            (0, len(filler[at : at + FRAME_BYTES]), filler[at : at + FRAME_BYTES])
            for at in range(FRAME_BYTES, len(filler), FRAME_BYTES)
        ]
        sources.append(put(root, forge(size_bytes=0, frames=frames)))
    extents = [(number, 8, 10) for number in range(1, count + 1)]
    pack = forge(size_bytes=10 * count, extents=extents, sources=sources)
    return PackRef(THREAD, put(root, pack), 10 * count, count + 1)


def inline_bomb(size_bytes: int) -> Payload:
    """Return an inline payload of zeros, compressed to a few KiB."""
    plain = Payload(metadata={"encoding": b"binary/plain"}, data=bytes(size_bytes))
    text = plain.SerializeToString()
    body = zstandard.ZstdCompressor().compress(text)
    data = HEADER.pack(b"EVLG", 1, 1, 0, len(text)) + body
    return Payload(metadata={"encoding": INLINE_ENCODING}, data=data)


def as_json(payloads: Sequence[Payload]) -> dict[str, Any]:
    """Return payloads as a request to the codec server has them."""
    found: dict[str, Any] = json_format.MessageToDict(Payloads(payloads=payloads))
    return found


def refs(*given: PackRef) -> list[Payload]:
    return [ref.to_payload(None) for ref in given]


def peak_bytes(pid: int) -> int:
    """Return the peak of a process's resident memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def reset_peak(pid: int) -> None:
    """Reset the peak to the current resident memory."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
