"""The pack format: one immutable object for one payload or body (docs/reference/wire-format.md).

A pack consists of a head and frames. The head's manifest lists the extents of the data: some are in the
pack's own frames, the others in the frames of earlier packs of the same thread. A manifest may also name
a **base**, an earlier pack whose data this pack's data begins with; then the manifest lists only the
extents after that. A base has no base itself, so a reader needs at most two manifests.

A small pack may be compressed with a **dictionary**: a run of an earlier pack that the payload refers to
anyway. Every payload that refers to such a pack also refers to its dictionary's pack. The dictionary's
pack may have a dictionary too, up to a bound.

A pack's name is the digest of its head, the head holds the digest of every frame, and a manifest names
the packs that it refers to. Therefore a ref determines every byte, and a wrong byte is detected before
it is decompressed. This module only builds and parses bytes; `pack_store` reads and writes them.
"""

import collections
import dataclasses
import hashlib
import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import zstandard

from everlong import limits
from everlong.errors import BlobCorrupt, KeyMissing, ObjectTooLarge, UnknownVersion
from everlong.storage.encryption_keys import (
    PACK_PURPOSE,
    SALT_BYTES,
    TAG_BYTES,
    Keys,
    open_bytes,
    seal_bytes,
)
from everlong.storage.objects import (
    LEVEL,
    SMALL_BYTES_MAX,
    build_dictionary,
    get_compressor,
    get_small_compressor,
    inflate,
    inflate_small,
    map_in_threads,
)

MAGIC: Final = b"EVPK"
VERSION: Final = 2
DIGEST_BYTES: Final = 32
# Frames begin at multiples of this in the pack's stream, so an offset determines its frame. zstd gains
# little from larger frames, and a reader of one extent inflates one frame.
FRAME_BYTES: Final = limits.MIB

# Writers stay within `limits.PACKS_MAX`, the settled packs, and `limits.EXTENTS_MAX`. A reader accepts
# more, within these bounds.
SOURCES_MAX: Final = 256
EXTENTS_MAX: Final = 4096
# A writer's stream has no more bytes than its payload.
FRAMES_MAX: Final = limits.OBJECT_BYTES_MAX // FRAME_BYTES
# Bound on a payload's metadata, which mostly has some dozens of bytes. It is also the server's bound
# on a whole payload.
ENVELOPE_BYTES_MAX: Final = 2 * limits.MIB
# A snapshot is compressed with the whole previous snapshot as its dictionary, which is one frame.
DICTIONARY_BYTES_MAX: Final = FRAME_BYTES
# Length of a chain of dictionaries: each must be read before the next.
DICTIONARIES_MAX: Final = 8

# Little-endian. Magic, version, length of the key id, two reserved zero bytes, length of the head.
_PRELUDE: Final = struct.Struct("<4sBBHI")
# Data bytes, CRC-32 of the data, bytes taken from the base, then the sizes of the rest: envelope bytes,
# sources, frames, extents. If bytes are taken from a base, the base is the first source.
_COUNTS: Final = struct.Struct("<QIQIHII")
# The dictionary, after the counts: source, start in its stream, length. All are 0 without a dictionary.
_DICTIONARY: Final = struct.Struct("<HII")
_FRAME: Final = struct.Struct("<BII32s")  # Compression, stored bytes, plain bytes, digest.
_EXTENT: Final = struct.Struct("<HII")  # Source (0: this pack), start in its stream, length.
EXTENT_BYTES: Final = _EXTENT.size
_STORED, _ZSTD, _ZSTD_DICTIONARY, _ZSTD_BUILTIN = 0, 1, 2, 3
# A writer uses at least a quarter of every pack that it refers to (limits.SPARSE_RATIO). A pack that
# inflates to far more than 4 times its data was forged to exhaust readers.
_INFLATE_FACTOR_MAX: Final = 16
# Bound on the inflated frames that a read keeps. Extents are read frame by frame, so only dictionaries
# need a frame again. A read holds its data, these frames and one more, whatever the packs declare.
_KEPT_BYTES_MAX: Final = 16 * limits.MIB
# Bytes that a read may inflate again for dictionaries, if its frames do not fit in memory: each of 88
# packs has a chain of at most 3 dictionaries, of one or two frames. All but the last of a chain have
# at most 256 KiB.
_AGAIN_BYTES_MAX: Final = 512 * limits.MIB
_HEAD_PART, _FRAME_PART = 0, 1  # Numbers of the sealed parts: first the head, then the frames.
_KEY_ID_BYTES_MAX: Final = 255
_HEAD_BYTES_MAX: Final = (
    _PRELUDE.size
    + (_KEY_ID_BYTES_MAX + SALT_BYTES + TAG_BYTES)
    + (_COUNTS.size + _DICTIONARY.size)
    + (DIGEST_BYTES * SOURCES_MAX + _FRAME.size * FRAMES_MAX + _EXTENT.size * EXTENTS_MAX)
)


def compute_stored_bytes_max(stream_bytes: int, envelope_bytes: int = ENVELOPE_BYTES_MAX) -> int:
    """Return the largest stored size of a pack with such a stream: sealed and not compressed."""
    frames = stream_bytes // FRAME_BYTES + 1
    return _HEAD_BYTES_MAX + envelope_bytes + stream_bytes + TAG_BYTES * frames


class Extent(NamedTuple):
    """A run of bytes in the stream of this pack (source 0) or of an earlier pack."""

    source: int
    start: int
    length: int


class DamagedPack(BlobCorrupt):
    """A pack is damaged: the pack that was read, or a pack that it refers to."""

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
    """Contents of a new pack."""

    envelope: bytes = dataclasses.field(repr=False)
    """Stored unchanged; the codec keeps a payload's metadata here."""
    size_bytes: int
    crc: int
    extents: Sequence[Extent]
    sources: Sequence[bytes] = ()
    """Names of the packs that extents refer to: source n is the n-th, counted from 1."""
    base_bytes: int = 0
    """Bytes that the data shares with the start of the first source's data. The extents follow them."""
    stream: Sequence[memoryview] = ()
    """The bytes that no earlier pack holds, in order."""
    dictionary: Extent | None = None
    """Place of the dictionary, if there is one."""
    dictionary_data: bytes = dataclasses.field(default=b"", repr=False)
    level: int = LEVEL
    """Level of compression. Readers do not depend on it."""


def build_contents(data: bytes, level: int = LEVEL) -> Contents:
    """Return the contents of a pack without sources."""
    return Contents(
        envelope=b"",
        size_bytes=len(data),
        crc=zlib.crc32(data),
        extents=[Extent(0, 0, len(data))] if data else [],
        stream=[memoryview(data)] if data else [],
        level=level,
    )


def share_ends(contents: Contents, data: bytes, source: "Pack", source_data: bytes) -> Contents:
    """Return `contents`, the whole of `data`, with its beginning and end taken from an earlier pack.

    The earlier pack must have no sources. Only the bytes that the two do not share are stored.
    """
    most = min(len(data), len(source_data))
    start_bytes = _count_common_bytes(most, lambda length: data[:length] == source_data[:length])
    most -= start_bytes
    end_bytes = _count_common_bytes(
        most,
        lambda length: data[len(data) - length :] == source_data[len(source_data) - length :],
    )
    if start_bytes + end_bytes < limits.SPARSE_RATIO * len(source_data):
        return contents
    middle = memoryview(data)[start_bytes : len(data) - end_bytes]
    extents = [
        Extent(1, 0, start_bytes),
        Extent(0, 0, len(middle)),
        Extent(1, len(source_data) - end_bytes, end_bytes),
    ]
    return dataclasses.replace(
        contents,
        extents=[extent for extent in extents if extent.length],
        sources=[source.name],
        stream=[middle] if middle else [],
    )


def _count_common_bytes(most: int, agree: Callable[[int], bool]) -> int:
    """Return the largest length up to `most` for which two runs agree, by bisection."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if agree(middle) else (low, middle - 1)
    return low


def build_pack(contents: Contents, thread: str, keys: Keys | None) -> tuple[bytes, bytes]:
    """Return the name and the bytes of a pack."""
    if contents.size_bytes > limits.OBJECT_BYTES_MAX:
        raise ObjectTooLarge(
            f"{contents.size_bytes} bytes are not stored: {limits.OBJECT_BYTES_MAX} is the limit of "
            "one payload. Pass them by a path or a link instead."
        )
    if len(contents.envelope) > ENVELOPE_BYTES_MAX:
        raise ObjectTooLarge(
            f"a payload has {len(contents.envelope)} bytes of metadata, which are not stored: "
            f"{ENVELOPE_BYTES_MAX} is the limit. Move them into its data."
        )
    key_id, salt, key = b"", b"", b""
    if keys is not None:
        key_id, salt = keys.active.encode(), os.urandom(SALT_BYTES)
        key = keys.derive(keys.active, PACK_PURPOSE, salt)
    pieces = _split_into_frames(contents.stream)
    build = partial(_build_frame, key, contents.level, contents.dictionary_data)
    if len(pieces) > 1:
        built = map_in_threads(build, range(len(pieces)), pieces)
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
    return _hash(head), b"".join([head, *frames])


def _build_frame(
    key: bytes, level: int, dictionary: bytes, number: int, plain: memoryview
) -> tuple[_Frame, bytes]:
    if dictionary:
        stored, compression = _compressor_with(dictionary, level).compress(plain), _ZSTD_DICTIONARY
    elif len(plain) <= SMALL_BYTES_MAX:
        stored, compression = get_small_compressor().compress(plain), _ZSTD_BUILTIN
    else:
        stored, compression = get_compressor(level).compress(plain), _ZSTD
    if len(stored) >= len(plain):
        stored, compression = bytes(plain), _STORED
    if key:
        stored = seal_bytes(key, _FRAME_PART + number, stored)
    return _Frame(compression, len(stored), len(plain), _hash(stored)), stored


def _compressor_with(dictionary: bytes, level: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(
        level=level, write_checksum=True, dict_data=build_dictionary(dictionary)
    )


class Pack:
    """A pack that has been read: its manifest is checked, its frames are checked as they are used."""

    def __init__(self, data: bytes, name: bytes, thread: str, keys: Keys | None) -> None:
        prelude_bytes, key_id, salt, manifest_end = _parse_prelude(data)
        if _hash(memoryview(data)[:manifest_end]) != name:
            raise BlobCorrupt("its head does not match its name")
        self.name = name
        self.key_id = key_id
        self._key = b""
        manifest = data[prelude_bytes:manifest_end]
        if key_id:
            if keys is None:
                raise KeyMissing(
                    f"it is sealed with key {key_id!r}, and no keys are configured here. Configure "
                    "the writer's keys; waiting workflows then continue by themselves."
                )
            self._key = keys.derive(key_id, PACK_PURPOSE, salt)
            bound = data[:prelude_bytes] + bytes.fromhex(thread)
            manifest = open_bytes(self._key, _HEAD_PART, manifest, bound)
        self._data = data
        self._frames: list[_Frame] = []
        self._offsets: list[int] = []
        # Unpacked lazily: a source's extents are not needed, and take several times the bytes unpacked.
        self._extents = b""
        self._parse_manifest(manifest, manifest_end)

    def _parse_manifest(self, manifest: bytes, offset: int) -> None:
        try:
            size_bytes, crc, base_bytes, envelope_bytes, sources, frames, extents = (
                _COUNTS.unpack_from(manifest)
            )
            _check_counts(envelope_bytes, sources, frames, extents)
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
            self._extents = manifest[table_end:end]
            extent_bytes = base_bytes + self._check_extents(sources)
        except struct.error:
            raise BlobCorrupt("its manifest is cut short") from None
        for number, frame in enumerate(self._frames):
            if frame.plain_bytes > FRAME_BYTES:
                raise BlobCorrupt(f"frame {number} declares {frame.plain_bytes} bytes")
            self._offsets.append(offset)
            offset += frame.stored_bytes
        if end != len(manifest) or offset != len(self._data):
            raise BlobCorrupt("its parts do not add up to its length")
        if extent_bytes != size_bytes or size_bytes > limits.OBJECT_BYTES_MAX:
            raise BlobCorrupt(f"its extents add up to {extent_bytes} bytes, not {size_bytes}")
        if base_bytes and not sources:
            raise BlobCorrupt("it begins with the data of a base, and names none")
        if len(set(self.sources)) != sources:
            raise BlobCorrupt("it names the same pack twice")
        if dictionary.source > sources or dictionary.length > DICTIONARY_BYTES_MAX:
            raise BlobCorrupt("it names a dictionary that is not listed, or is too large")
        self.dictionary = dictionary if dictionary.length else None
        self.base_bytes = int(base_bytes)
        self.size_bytes = int(size_bytes)
        self._crc = int(crc)

    def _check_extents(self, sources: int) -> int:
        """Check the extents one by one; return their bytes."""
        size_bytes = 0
        for source, _, length in _EXTENT.iter_unpack(self._extents):
            if source > sources:
                raise BlobCorrupt("an extent names a pack that is not listed")
            if length == 0:
                raise BlobCorrupt("an extent is empty")
            size_bytes += length
        return size_bytes

    @property
    def extents(self) -> list[Extent]:
        """The extents that the manifest lists: those of all data, or those after the base's data."""
        return [Extent(*each) for each in _EXTENT.iter_unpack(self._extents)]

    @property
    def stored(self) -> bytes:
        """The stored bytes; empty after `release`."""
        return self._data

    def release(self) -> None:
        """Drop the stored bytes, and keep the manifest. Frames cannot be read after that."""
        self._data = b""

    @property
    def stream_bytes(self) -> int:
        """Size of this pack's own stream, uncompressed."""
        return sum(frame.plain_bytes for frame in self._frames)

    @property
    def stored_stream_bytes(self) -> int:
        """Size of its frames as stored."""
        return sum(frame.stored_bytes for frame in self._frames)

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
        """Return the data, from this pack's frames and those of the packs that `resolve` names.

        It visits the packs frame by frame and copies each frame's bytes to their places. So each frame
        is inflated once and then dropped, in whatever order the extents are.
        """
        if extents is None:
            _, extents = self.resolve(sources[0] if self.base_bytes else None)
        packs = [self, *sources]
        stream_bytes = sum(pack.stream_bytes for pack in packs)
        if stream_bytes > _INFLATE_FACTOR_MAX * self.size_bytes:
            raise BlobCorrupt(f"{stream_bytes} bytes would be inflated for {self.size_bytes}")
        inflation = _Inflater(packs, _INFLATE_FACTOR_MAX * self.size_bytes + _AGAIN_BYTES_MAX)
        # Not a bytearray: `getvalue` returns the buffer itself without a copy.
        buffer = io.BytesIO()
        for source, start, length, offset in _sort_by_frame(packs, extents):
            buffer.seek(offset)
            try:
                for piece in inflation.slices(packs[source], start, length):
                    buffer.write(piece)
            except BlobCorrupt as error:
                raise DamagedPack(str(error), packs[source].name) from error
        data = buffer.getvalue()
        if len(data) != self.size_bytes or zlib.crc32(data) != self._crc:
            raise BlobCorrupt("its extents do not give the data that was written")
        return data

    @property
    def dictionary_name(self) -> bytes | None:
        """The name of the pack that its dictionary is taken from, if it has one."""
        if self.dictionary is None or not self.dictionary.source:
            return None
        return self.sources[self.dictionary.source - 1]

    def check_range(self, start: int, length: int) -> None:
        """Refuse a run that is not inside the pack's stream, according to the manifest."""
        end = start + length
        for number in range(start // FRAME_BYTES, (end - 1) // FRAME_BYTES + 1):
            inside_end = min(end - number * FRAME_BYTES, FRAME_BYTES)
            if number >= len(self._frames) or inside_end > self._frames[number].plain_bytes:
                raise BlobCorrupt("an extent leads beyond the end of a pack")

    def frame_bytes(self, number: int) -> int:
        """Return the plain size of a frame, as the manifest declares it."""
        return self._frames[number].plain_bytes

    def inflate_frame(self, number: int, dictionary: Callable[[], bytes]) -> bytes:
        """Return a frame, checked against its digest before it is opened and inflated."""
        frame, offset = self._frames[number], self._offsets[number]
        stored = self._data[offset : offset + frame.stored_bytes]
        if _hash(stored) != frame.digest:
            raise BlobCorrupt(f"frame {number} does not match its digest")
        if self._key:
            stored = open_bytes(self._key, _FRAME_PART + number, stored)
        if frame.compression == _ZSTD:
            stored = inflate(stored, frame.plain_bytes)
        elif frame.compression == _ZSTD_DICTIONARY:
            stored = inflate(stored, frame.plain_bytes, dictionary())
        elif frame.compression == _ZSTD_BUILTIN:
            stored = inflate_small(stored, frame.plain_bytes)
        elif frame.compression != _STORED:
            raise BlobCorrupt(f"frame {number} names compression {frame.compression}")
        if len(stored) != frame.plain_bytes:
            raise BlobCorrupt(f"frame {number} holds {len(stored)} bytes")
        return stored


def _sort_by_frame(
    packs: Sequence[Pack], extents: Sequence[Extent]
) -> list[tuple[int, int, int, int]]:
    """Return extents with their offsets in the data, in the order of packs and of their frames."""
    placed, offset = [], 0
    for source, start, length in extents:
        try:
            packs[source].check_range(start, length)
        except BlobCorrupt as error:
            raise DamagedPack(str(error), packs[source].name) from error
        placed.append((source, start, length, offset))
        offset += length
    return sorted(placed)


class _Inflater:
    """Inflates the frames of one read on demand, within bounds on memory and work."""

    def __init__(self, packs: Sequence[Pack], bytes_max: int) -> None:
        self._packs = {pack.name: pack for pack in packs}
        self._left_bytes = bytes_max
        # Least recently used first.
        self._kept: collections.OrderedDict[tuple[bytes, int], bytes] = collections.OrderedDict()
        self._kept_bytes = 0
        self._dictionaries: dict[bytes, bytes] = {}

    def slices(self, pack: Pack, start: int, length: int) -> Iterator[memoryview]:
        """Yield a run of a pack's stream, in pieces, each from a frame that has been checked."""
        while length > 0:
            number, inside = divmod(start, FRAME_BYTES)
            piece = memoryview(self._frame(pack, number))[inside : inside + length]
            yield piece
            start += len(piece)
            length -= len(piece)

    def _frame(self, pack: Pack, number: int) -> bytes:
        place = (pack.name, number)
        found = self._kept.get(place)
        if found is not None:
            self._kept.move_to_end(place)
            return found
        self._left_bytes -= pack.frame_bytes(number)
        if self._left_bytes < 0:
            raise BlobCorrupt("its dictionaries would be inflated again and again")
        found = pack.inflate_frame(number, partial(self._dictionary, pack))
        self._kept[place] = found
        self._kept_bytes += len(found)
        while self._kept_bytes > _KEPT_BYTES_MAX:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= len(dropped)
        return found

    def _dictionary(self, pack: Pack) -> bytes:
        """Return the dictionary of a pack, from the packs that are read with it."""
        if pack.name in self._dictionaries:
            return self._dictionaries[pack.name]
        last: Pack | None = pack
        for _ in range(DICTIONARIES_MAX):
            last = None if last is None else self._packs.get(last.dictionary_name or b"")
        holder = self._packs.get(pack.dictionary_name or b"")
        if pack.dictionary is None or holder is None or last is not None:
            raise BlobCorrupt("the pack of its dictionary is not read with it, or leads too far")
        _, start, length = pack.dictionary
        holder.check_range(start, length)
        found = self._dictionaries[pack.name] = b"".join(self.slices(holder, start, length))
        return found


def _check_counts(envelope_bytes: int, sources: int, frames: int, extents: int) -> None:
    """Refuse a manifest that lists more than a reader accepts, before it is unpacked."""
    if sources > SOURCES_MAX or extents > EXTENTS_MAX or frames > FRAMES_MAX:
        raise BlobCorrupt(
            f"it lists {sources} packs, {frames} frames and {extents} extents: too many"
        )
    if envelope_bytes > ENVELOPE_BYTES_MAX:
        raise BlobCorrupt(f"it has {envelope_bytes} bytes of metadata: too many")


def parse_key_id(data: bytes) -> str:
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


def _split_into_frames(stream: Sequence[memoryview]) -> list[memoryview]:
    """Cut a stream into frames. A stream of a single piece is not copied."""
    joined = stream[0] if len(stream) == 1 else memoryview(b"".join(stream))
    return [joined[at : at + FRAME_BYTES] for at in range(0, len(joined), FRAME_BYTES)]


def _hash(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
