"""The pack format: one immutable object for one payload or body (docs/wire-format.md).

A pack holds a head and frames. The head's manifest lists the extents that the data consists of: some
lie in the pack's own frames, the others in the frames of earlier packs of the same thread. A manifest
may also name a **base**, an earlier pack whose data this one begins with; then it lists only the
extents that follow. A base has no base itself, so a reader needs two manifests at most.

A small pack may be compressed with a **dictionary**: a run of an earlier pack that the payload points
to anyway. Every payload that points to such a pack points to its dictionary's pack too. That one may
have a dictionary itself, but not many in a row.

A pack is named by the digest of its head, the head holds the digest of every frame, and a manifest
names the packs that it points into. So a ref fixes every byte, and a byte that does not match is found
before it is decompressed. This module has only the bytes; `packstore` reads and writes them.
"""

import dataclasses
import hashlib
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import zstandard

from everlong import limits
from everlong.errors import BlobCorrupt, KeyMissing, ObjectTooLarge, UnknownVersion
from everlong.storage.keys import (
    PACK_PURPOSE,
    SALT_BYTES,
    TAG_BYTES,
    Keys,
    open_bytes,
    seal_bytes,
)
from everlong.storage.objects import LEVEL, compressor, inflate, raw_dictionary
from everlong.storage.threads import side_by_side

MAGIC: Final = b"EVPK"
VERSION: Final = 2
DIGEST_BYTES: Final = 32
# Frames begin at multiples of this in the pack's stream, so an offset tells its frame. zstd gains
# little from more, and a reader that needs one extent inflates one frame.
FRAME_BYTES: Final = limits.MIB

# Writers stay within `limits.PACKS_MAX`, the settled packs, and `limits.EXTENTS_MAX`. A reader accepts
# more, within these bounds.
SOURCES_MAX: Final = 1024
EXTENTS_MAX: Final = 65_536
DICTIONARY_BYTES_MAX: Final = 64 * limits.KIB
# Dictionaries in a row: each has to be read before the next.
DICTIONARIES_MAX: Final = 8

# Little-endian. Magic, version, length of the key id, two reserved zero bytes, length of the head.
_PRELUDE: Final = struct.Struct("<4sBBHI")
# Data bytes, CRC-32 of the data, bytes taken from the base, then how much follows: envelope bytes,
# sources, frames, extents. If bytes are taken from a base, it is the first source.
_COUNTS: Final = struct.Struct("<QIQIHII")
# The dictionary, after the counts: a source, the start in its stream, a length. All 0 if there is none.
_DICTIONARY: Final = struct.Struct("<HII")
_FRAME: Final = struct.Struct("<BII32s")  # Compression, stored bytes, plain bytes, digest.
_EXTENT: Final = struct.Struct("<HII")  # Source (0: this pack), start in its stream, length.
EXTENT_BYTES: Final = _EXTENT.size
_STORED, _ZSTD, _ZSTD_DICTIONARY = 0, 1, 2
# A writer uses at least a quarter of every pack that it points to (limits.SPARSE_RATIO). What needs
# far more than that to be inflated was made to fill a reader's memory.
_INFLATE_FACTOR_MAX: Final = 16
_HEAD_PART, _FRAME_PART = 0, 1  # Numbers of the sealed parts: the head, then the frames.


class Extent(NamedTuple):
    """A run of bytes in the stream of a pack: of this one (source 0), or of an earlier one."""

    source: int
    start: int
    length: int


class DamagedPack(BlobCorrupt):
    """What was to be read from a pack is not there. It may be one that another points to."""

    def __init__(self, message: str, name: bytes) -> None:
        super().__init__(message)
        self.name = name


class _Frame(NamedTuple):
    compression: int
    stored_bytes: int
    plain_bytes: int
    digest: bytes


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a new pack is to hold."""

    envelope: bytes = dataclasses.field(repr=False)
    """Carried along as it is; the codec keeps a payload's metadata here."""
    size_bytes: int
    crc: int
    extents: Sequence[Extent]
    sources: Sequence[bytes] = ()
    """Digests of the packs that extents point into: source n is the n-th, from 1."""
    base_bytes: int = 0
    """Bytes of the data that are the beginning of the first source's data; the extents follow them."""
    stream: Sequence[memoryview] = ()
    """The bytes that no earlier pack has, in order."""
    dictionary: Extent | None = None
    """Where the dictionary lies, if there is one."""
    dictionary_data: bytes = dataclasses.field(default=b"", repr=False)


def whole(data: bytes) -> Contents:
    """Return the contents of a pack that points nowhere else."""
    return Contents(
        envelope=b"",
        size_bytes=len(data),
        crc=zlib.crc32(data),
        extents=[Extent(0, 0, len(data))] if data else [],
        stream=[memoryview(data)] if data else [],
    )


def build_pack(contents: Contents, thread: str, keys: Keys | None) -> tuple[bytes, bytes]:
    """Return the name and the bytes of a pack."""
    if contents.size_bytes > limits.OBJECT_BYTES_MAX:
        raise ObjectTooLarge(
            f"{contents.size_bytes} bytes are not stored: {limits.OBJECT_BYTES_MAX} is the most that "
            "one payload may have. Pass them by a path or a link instead."
        )
    key_id, salt, key = b"", b"", b""
    if keys is not None:
        key_id, salt = keys.active.encode(), os.urandom(SALT_BYTES)
        key = keys.derive(keys.active, PACK_PURPOSE, salt)
    pieces = _framed(contents.stream)
    build = partial(_build_frame, key, contents.dictionary_data)
    if len(pieces) > 1:
        built = side_by_side(build, range(len(pieces)), pieces)
    else:
        built = [build(number, piece) for number, piece in enumerate(pieces)]
    table, frames = [frame for frame, _ in built], [stored for _, stored in built]
    counts = _COUNTS.pack(
        contents.size_bytes,
        contents.crc,
        contents.base_bytes,
        len(contents.envelope),
        len(contents.sources),
        len(table),
        len(contents.extents),
    )
    manifest = b"".join(
        [
            counts,
            _DICTIONARY.pack(*(contents.dictionary or (0, 0, 0))),
            contents.envelope,
            *contents.sources,
            *(_FRAME.pack(*frame) for frame in table),
            *(_EXTENT.pack(*extent) for extent in contents.extents),
        ]
    )
    head_bytes = len(manifest) + (0 if keys is None else TAG_BYTES)
    prelude = _PRELUDE.pack(MAGIC, VERSION, len(key_id), 0, head_bytes) + key_id + salt
    if key:
        manifest = seal_bytes(key, _HEAD_PART, manifest, prelude + bytes.fromhex(thread))
    head = prelude + manifest
    return _digest(head), b"".join([head, *frames])


def _build_frame(
    key: bytes, dictionary: bytes, number: int, plain: memoryview
) -> tuple[_Frame, bytes]:
    if dictionary:
        stored, compression = _compressor_with(dictionary).compress(plain), _ZSTD_DICTIONARY
    else:
        stored, compression = compressor().compress(plain), _ZSTD
    if len(stored) >= len(plain):
        stored, compression = bytes(plain), _STORED
    if key:
        stored = seal_bytes(key, _FRAME_PART + number, stored)
    return _Frame(compression, len(stored), len(plain), _digest(stored)), stored


def _compressor_with(dictionary: bytes) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(
        level=LEVEL, write_checksum=True, dict_data=raw_dictionary(dictionary)
    )


class Pack:
    """A pack that has been read: its manifest is checked, its frames are checked as they are used."""

    def __init__(self, data: bytes, name: bytes, thread: str, keys: Keys | None) -> None:
        prelude_bytes, key_id, salt, manifest_end = _parse_prelude(data)
        if _digest(memoryview(data)[:manifest_end]) != name:
            raise BlobCorrupt("its head does not match its name")
        self.name = name
        self.key_id = key_id
        self._key = b""
        manifest = data[prelude_bytes:manifest_end]
        if key_id:
            if keys is None:
                raise KeyMissing(
                    f"it is sealed with key {key_id!r}, and no keys are configured here. Configure "
                    "the keys that the writer has; what waits goes on by itself."
                )
            self._key = keys.derive(key_id, PACK_PURPOSE, salt)
            bound = data[:prelude_bytes] + bytes.fromhex(thread)
            manifest = open_bytes(self._key, _HEAD_PART, manifest, bound)
        self._data = data
        self._frames: list[_Frame] = []
        self._offsets: list[int] = []
        self._plain: dict[int, bytes] = {}
        self._read_with: Mapping[bytes, Pack] = {}
        self._parse_manifest(manifest, manifest_end)

    def _parse_manifest(self, manifest: bytes, offset: int) -> None:
        try:
            size_bytes, crc, base_bytes, envelope_bytes, sources, frames, extents = (
                _COUNTS.unpack_from(manifest)
            )
            if sources > SOURCES_MAX or extents > EXTENTS_MAX:
                raise BlobCorrupt(f"it lists {sources} packs and {extents} extents: too many")
            dictionary = Extent(*_DICTIONARY.unpack_from(manifest, _COUNTS.size))
            place = _COUNTS.size + _DICTIONARY.size
            self.envelope = manifest[place : place + envelope_bytes]
            place += envelope_bytes
            self.sources = [
                manifest[place + DIGEST_BYTES * n : place + DIGEST_BYTES * (n + 1)]
                for n in range(sources)
            ]
            place += DIGEST_BYTES * sources
            table_end = place + _FRAME.size * frames
            self._frames = [_Frame(*each) for each in _FRAME.iter_unpack(manifest[place:table_end])]
            end = table_end + _EXTENT.size * extents
            self.extents = [Extent(*each) for each in _EXTENT.iter_unpack(manifest[table_end:end])]
        except struct.error:
            raise BlobCorrupt("its manifest is cut short") from None
        for frame in self._frames:
            self._offsets.append(offset)
            offset += frame.stored_bytes
        extent_bytes = base_bytes + sum(extent.length for extent in self.extents)
        if end != len(manifest) or offset != len(self._data):
            raise BlobCorrupt("its parts do not add up to its length")
        if extent_bytes != size_bytes or size_bytes > limits.OBJECT_BYTES_MAX:
            raise BlobCorrupt(f"its extents add up to {extent_bytes} bytes, not {size_bytes}")
        if any(extent.source > sources for extent in self.extents):
            raise BlobCorrupt("an extent names a pack that is not listed")
        if any(extent.length == 0 for extent in self.extents):
            raise BlobCorrupt("an extent is empty")
        if base_bytes and not sources:
            raise BlobCorrupt("it begins with the data of a base, and names none")
        if dictionary.source > sources or dictionary.length > DICTIONARY_BYTES_MAX:
            raise BlobCorrupt("it names a dictionary that is not listed, or is too large")
        self.dictionary = dictionary if dictionary.length else None
        self.base_bytes = int(base_bytes)
        self.size_bytes = int(size_bytes)
        self._crc = int(crc)

    @property
    def stored(self) -> bytes:
        """The object that the store returned."""
        return self._data

    @property
    def stream_bytes(self) -> int:
        """How many bytes lie in this pack itself, uncompressed."""
        return sum(frame.plain_bytes for frame in self._frames)

    @property
    def base(self) -> bytes | None:
        """The name of the pack whose data this one begins with, if it has one."""
        return self.sources[0] if self.base_bytes else None

    def resolve(self, base: "Pack | None") -> tuple[list[bytes], list[Extent]]:
        """Return the packs to read, in order, and the extents of all of the data in them.

        Source 0 is this pack and source n the n-th of the list, as in a manifest without a base.
        """
        if base is None:
            return list(self.sources), list(self.extents)
        if base.base_bytes:
            raise BlobCorrupt("its base has a base")
        if base.size_bytes < self.base_bytes:
            raise BlobCorrupt(f"its base has {base.size_bytes} bytes, not {self.base_bytes}")
        numbers = {name: number for number, name in enumerate(self.sources, 1)}
        numbers[self.name] = 0
        extents: list[Extent] = []
        left_bytes = self.base_bytes
        for source, start, length in base.extents:
            if not left_bytes:
                break
            name = base.sources[source - 1] if source else base.name
            taken = min(length, left_bytes)
            extents.append(Extent(numbers.setdefault(name, len(numbers)), start, taken))
            left_bytes -= taken
        names = sorted(numbers, key=lambda name: numbers[name])
        return names[1:], extents + self.extents

    def assemble(self, sources: Sequence["Pack"], extents: Sequence[Extent] | None = None) -> bytes:
        """Return the data, from this pack's frames and those of the packs that `resolve` names."""
        if extents is None:
            _, extents = self.resolve(sources[0] if self.base_bytes else None)
        packs = [self, *sources]
        by_name = {pack.name: pack for pack in packs}
        for pack in packs:
            pack._read_with = by_name
        stream_bytes = sum(pack.stream_bytes for pack in packs)
        if stream_bytes > _INFLATE_FACTOR_MAX * self.size_bytes:
            raise BlobCorrupt(f"{stream_bytes} bytes would be inflated for {self.size_bytes}")
        parts: list[memoryview] = []
        for source, start, length in extents:
            try:
                parts.extend(packs[source].slices(start, length))
            except BlobCorrupt as error:
                raise DamagedPack(str(error), packs[source].name) from error
        data = b"".join(parts)
        if len(data) != self.size_bytes or zlib.crc32(data) != self._crc:
            raise BlobCorrupt("its extents do not give the data that was written")
        return data

    @property
    def dictionary_name(self) -> bytes | None:
        """The name of the pack that its dictionary is taken from, if it has one."""
        if self.dictionary is None or not self.dictionary.source:
            return None
        return self.sources[self.dictionary.source - 1]

    def _read_dictionary(self) -> bytes:
        """Return the dictionary, from the packs that are read with this one."""
        pack: Pack | None = self
        for _ in range(DICTIONARIES_MAX):
            pack = None if pack is None else self._read_with.get(pack.dictionary_name or b"")
        holder = self._read_with.get(self.dictionary_name or b"")
        if self.dictionary is None or holder is None or pack is not None:
            raise BlobCorrupt("the pack of its dictionary is not read with it, or leads too far")
        _, start, length = self.dictionary
        return b"".join(holder.slices(start, length))

    def slices(self, start: int, length: int) -> list[memoryview]:
        """Return a run of the pack's stream, in pieces, each from a frame that has been checked."""
        found: list[memoryview] = []
        while length > 0:
            number, inside = divmod(start, FRAME_BYTES)
            piece = memoryview(self._frame(number))[inside : inside + length]
            if not piece:
                raise BlobCorrupt("an extent leads beyond the end of a pack")
            found.append(piece)
            start += len(piece)
            length -= len(piece)
        return found

    def _frame(self, number: int) -> bytes:
        if number in self._plain:
            return self._plain[number]
        if number >= len(self._frames):
            raise BlobCorrupt("an extent leads beyond the end of a pack")
        frame, offset = self._frames[number], self._offsets[number]
        stored = self._data[offset : offset + frame.stored_bytes]
        if _digest(stored) != frame.digest:
            raise BlobCorrupt(f"frame {number} does not match its digest")
        if self._key:
            stored = open_bytes(self._key, _FRAME_PART + number, stored)
        if frame.plain_bytes > FRAME_BYTES:
            raise BlobCorrupt(f"frame {number} declares {frame.plain_bytes} bytes")
        if frame.compression == _ZSTD:
            stored = inflate(stored, frame.plain_bytes)
        elif frame.compression == _ZSTD_DICTIONARY:
            stored = inflate(stored, frame.plain_bytes, self._read_dictionary())
        elif frame.compression != _STORED:
            raise BlobCorrupt(f"frame {number} names compression {frame.compression}")
        if len(stored) != frame.plain_bytes:
            raise BlobCorrupt(f"frame {number} holds {len(stored)} bytes")
        self._plain[number] = stored
        return stored


def key_id_of(data: bytes) -> str:
    """Return the id of the key that a pack is sealed with; empty if it is not."""
    return _parse_prelude(data)[1]


def _parse_prelude(data: bytes) -> tuple[int, str, bytes, int]:
    """Return the length of the prelude, key id, salt, and where the head ends."""
    if len(data) < _PRELUDE.size or data[: len(MAGIC)] != MAGIC:
        raise BlobCorrupt("it is not an Everlong pack")
    _, version, key_id_bytes, reserved, head_bytes = _PRELUDE.unpack_from(data)
    if version != VERSION:
        raise UnknownVersion(
            f"pack format version {version} is not one that this Everlong reads ({VERSION}). Upgrade "
            "Everlong on this worker or client."
        )
    salt_start = _PRELUDE.size + key_id_bytes
    prelude_bytes = salt_start + (SALT_BYTES if key_id_bytes else 0)
    end = prelude_bytes + head_bytes
    if reserved != 0 or end > len(data):
        raise BlobCorrupt("its head is damaged")
    key_id = data[_PRELUDE.size : salt_start].decode("latin-1")
    return prelude_bytes, key_id, data[salt_start:prelude_bytes], end


def _framed(stream: Sequence[memoryview]) -> list[memoryview]:
    """Cut a stream into frames. One that lies in a single piece is not copied."""
    joined = stream[0] if len(stream) == 1 else memoryview(b"".join(stream))
    return [joined[at : at + FRAME_BYTES] for at in range(0, len(joined), FRAME_BYTES)]


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
