"""The pack format: what is written is read back, and what was not written is refused."""

import dataclasses
import random
import struct
import tracemalloc
import zlib
from collections.abc import Sequence

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from everlong import limits
from everlong.errors import BlobCorrupt, EverlongError, KeyMissing, ObjectTooLarge, UnknownVersion
from everlong.models import thread_key
from everlong.storage.encryption_keys import Keys
from everlong.storage.packs import (
    DICTIONARIES_MAX,
    DICTIONARY_BYTES_MAX,
    FRAME_BYTES,
    FRAMES_MAX,
    MAGIC,
    SOURCES_MAX,
    Contents,
    Extent,
    Pack,
    _hash,
    build_contents,
    build_pack,
    parse_key_id,
)
from tests.support.sample_payloads import KEY_1, KEY_2, bits, flip_bit, noise, text
from tests.support.scale import scaled

THREAD = thread_key("default", "ops-7")
OTHER = thread_key("default", "ops-8")
KEYS = Keys({"k1": KEY_1, "k2": KEY_2})
EITHER = pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "sealed"])


def read(data: bytes, name: bytes, keys: Keys | None, sources: Sequence[Pack] = ()) -> bytes:
    return Pack(data, name, THREAD, keys).assemble(sources)


def build_pointing_pack(
    own: bytes, extents: list[Extent], sources: list[tuple[bytes, bytes]]
) -> Contents:
    """The contents of a pack with extents into others, which are given by name and stream."""
    streams = [own, *(stream for _, stream in sources)]
    data = b"".join(streams[s][start : start + length] for s, start, length in extents)
    return Contents(
        envelope=b"envelope",
        size_bytes=len(data),
        crc=zlib.crc32(data),
        extents=extents,
        sources=[name for name, _ in sources],
        stream=[memoryview(own)] if own else [],
    )


sizes = st.integers(0, 5000) | st.integers(-9, 9).map(lambda n: FRAME_BYTES + n)


@EITHER
@settings(max_examples=60, deadline=None)
@given(size=sizes, seed=st.integers(0, 3), compressible=st.booleans())
def test_a_pack_gives_back_what_was_written(
    keys: Keys | None, size: int, seed: int, compressible: bool
) -> None:
    data = (b"a line of a log\n" * (size // 16 + 1))[:size] if compressible else noise(size, seed)
    name, stored = build_pack(build_contents(data), THREAD, keys)
    pack = Pack(stored, name, THREAD, keys)
    assert pack.assemble([]) == data
    assert (pack.size_bytes, pack.stream_bytes) == (size, size)
    assert pack.key_id == ("k1" if keys else "")


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_extents_reach_any_place_of_any_pack(data: st.DataObject) -> None:
    streams = [
        noise(size, seed) for seed, size in enumerate((5000, FRAME_BYTES + 9, 2 * FRAME_BYTES))
    ]
    packs = [build_pack(build_contents(stream), THREAD, KEYS) for stream in streams[1:]]
    extents = []
    for _ in range(data.draw(st.integers(0, 8))):
        source = data.draw(st.integers(0, 2))
        start = data.draw(st.integers(0, len(streams[source]) - 1))
        length = data.draw(st.integers(1, len(streams[source]) - start))
        extents.append(Extent(source, start, length))
    sources = [(name, stream) for (name, _), stream in zip(packs, streams[1:], strict=True)]
    contents = build_pointing_pack(streams[0], [*extents, Extent(2, 0, len(streams[2]))], sources)
    name, stored = build_pack(contents, THREAD, KEYS)
    opened = [Pack(each, named, THREAD, KEYS) for named, each in packs]
    pack = Pack(stored, name, THREAD, KEYS)
    assembled = pack.assemble(opened)
    assert (len(assembled), zlib.crc32(assembled)) == (contents.size_bytes, contents.crc)
    assert pack.envelope == b"envelope"
    assert pack.sources == [named for named, _ in packs]


def test_a_pack_has_a_small_overhead() -> None:
    assert len(build_pack(build_contents(noise(10_000)), THREAD, None)[1]) < 10_000 + 120
    assert len(build_pack(build_contents(noise(10_000)), THREAD, KEYS)[1]) < 10_000 + 180
    plain = len(zstandard.ZstdCompressor(level=3).compress(text(200_000)))
    assert len(build_pack(build_contents(text(200_000)), THREAD, None)[1]) < plain + 120


def test_equal_packs_have_equal_names_only_without_sealing() -> None:
    plain = {build_pack(build_contents(noise(5000)), thread, None) for thread in (THREAD, OTHER)}
    assert len(plain) == 1
    sealed = [build_pack(build_contents(noise(5000)), THREAD, KEYS) for _ in range(2)]
    assert len({name for name, _ in sealed}) == 2
    assert len({stored[-5000:] for _, stored in sealed}) == 2


@pytest.mark.guarantee(3)
@EITHER
@pytest.mark.parametrize(
    ("data", "most"),
    [
        (b"", 10_000),
        (b"short", 10_000),
        (b"line of a log\n" * 30, 10_000),
        (text(5000), 10_000),
        (noise(2 * FRAME_BYTES + 5), 40),
    ],
)
def test_a_flipped_bit_anywhere_in_a_pack_is_detected(
    keys: Keys | None, data: bytes, most: int
) -> None:
    name, stored = build_pack(build_contents(data), THREAD, keys)
    for bit in bits(stored, most):
        with pytest.raises((BlobCorrupt, UnknownVersion)):
            read(flip_bit(stored, bit), name, keys)


@EITHER
def test_a_flipped_bit_in_a_name_is_detected(keys: Keys | None) -> None:
    name, stored = build_pack(build_contents(b"short"), THREAD, keys)
    for bit in range(8 * len(name)):
        with pytest.raises(BlobCorrupt, match="its head does not match its name"):
            read(stored, flip_bit(name, bit), keys)


@EITHER
@pytest.mark.parametrize("data", [b"", b"short", text(3000), noise(2 * FRAME_BYTES + 5)])
def test_a_truncated_or_extended_pack_is_detected(keys: Keys | None, data: bytes) -> None:
    name, stored = build_pack(build_contents(data), THREAD, keys)
    lengths = range(len(stored))
    for length in lengths if len(lengths) < 3000 else random.Random(0).sample(lengths, 50):
        with pytest.raises(BlobCorrupt):
            read(stored[:length], name, keys)
    with pytest.raises(BlobCorrupt):
        read(stored + b"x", name, keys)


@pytest.mark.guarantee(3)
@EITHER
def test_swapped_packs_are_detected(keys: Keys | None) -> None:
    packs = [build_pack(build_contents(noise(3000, seed)), THREAD, keys) for seed in range(2)]
    for (name, _), (_, other) in (packs, packs[::-1]):
        with pytest.raises(BlobCorrupt, match="its head does not match its name"):
            read(other, name, keys)
    contents = build_pointing_pack(
        b"x",
        [Extent(1, 0, 900), Extent(2, 0, 900)],
        [(packs[n][0], noise(3000, n)) for n in (0, 1)],
    )
    name, stored = build_pack(contents, THREAD, keys)
    sources = [Pack(data, named, THREAD, keys) for named, data in packs]
    with pytest.raises(BlobCorrupt, match="do not give the data"):
        read(stored, name, keys, sources[::-1])


@pytest.mark.guarantee(21)
def test_a_sealed_pack_from_another_thread_is_refused() -> None:
    name, stored = build_pack(build_contents(b"of another thread"), OTHER, KEYS)
    with pytest.raises(BlobCorrupt, match="does not open with its key"):
        read(stored, name, KEYS)


@pytest.mark.guarantee(21)
def test_a_sealed_frame_from_another_place_is_refused() -> None:
    data = noise(2 * FRAME_BYTES)
    name, stored = build_pack(build_contents(data), THREAD, KEYS)
    frame = FRAME_BYTES + 16
    first, second = stored[-2 * frame : -frame], stored[-frame:]
    with pytest.raises(BlobCorrupt, match="frame 0 does not match its digest"):
        read(stored[: -2 * frame] + second + first, name, KEYS)


def test_a_pack_names_its_key() -> None:
    name, stored = build_pack(build_contents(b"secret"), THREAD, KEYS)
    assert parse_key_id(stored) == "k1"
    with pytest.raises(KeyMissing, match="'k1', and no keys are configured here"):
        read(stored, name, None)
    with pytest.raises(KeyMissing, match="'k1', which this process does not have"):
        read(stored, name, Keys({"k2": KEY_2}))
    with pytest.raises(BlobCorrupt, match="the key of that id is another"):
        read(stored, name, Keys({"k1": KEY_2}))


@pytest.mark.guarantee(8)
@pytest.mark.parametrize("version", [0, 1, 3, 255])
def test_a_pack_of_another_version_is_refused_by_name(version: int) -> None:
    name, stored = build_pack(build_contents(b"x"), THREAD, None)
    with pytest.raises(UnknownVersion, match=rf"version {version} .*Upgrade"):
        read(stored[:4] + bytes([version]) + stored[5:], name, None)


@pytest.mark.guarantee(7)
def test_a_pack_too_large_to_be_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OBJECT_BYTES_MAX", 1000)
    name, stored = build_pack(build_contents(b"x" * 1000), THREAD, None)
    assert read(stored, name, None) == b"x" * 1000
    with pytest.raises(
        ObjectTooLarge, match="1001 bytes are not stored: 1000 is the limit of one payload"
    ):
        build_pack(build_contents(b"x" * 1001), THREAD, None)
    monkeypatch.setattr(limits, "OBJECT_BYTES_MAX", 999)
    with pytest.raises(BlobCorrupt):
        read(stored, name, None)


# The packs below are forged by an attacker who can write to the store and to history.


def forge(
    *,
    size_bytes: int,
    frames: Sequence[tuple[int, int, bytes]] = (),
    extents: Sequence[tuple[int, int, int]] = (),
    sources: Sequence[bytes] = (),
    counts: tuple[int, int, int, int] | None = None,
    base_bytes: int = 0,
    dictionary: tuple[int, int, int] = (0, 0, 0),
    data: bytes = b"",
) -> tuple[bytes, bytes]:
    """Return name and bytes of a pack with any manifest. Frames: compression, plain bytes, stored."""
    numbers = counts or (0, len(sources), len(frames), len(extents))
    manifest = struct.pack("<QIQIHII", size_bytes, zlib.crc32(data), base_bytes, *numbers)
    manifest += struct.pack("<HII", *dictionary)
    manifest += b"".join(sources)
    for compression, plain_bytes, stored in frames:
        manifest += struct.pack("<BII32s", compression, len(stored), plain_bytes, _hash(stored))
    for extent in extents:
        manifest += struct.pack("<HII", *extent)
    head = struct.pack("<4sBBHI", MAGIC, 2, 0, 0, len(manifest)) + manifest
    return _hash(head), head + b"".join(stored for _, _, stored in frames)


def read_refused(pack: tuple[bytes, bytes], sources: Sequence[Pack] = ()) -> str:
    """Read a pack that has to be refused, without taking much memory; return the message."""
    name, stored = pack
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        with pytest.raises(BlobCorrupt) as raised:
            read(stored, name, None, sources)
        assert tracemalloc.get_traced_memory()[1] - before < len(stored) + 8 * limits.MIB
    finally:
        tracemalloc.stop()
    return str(raised.value)


ZEROS = zstandard.ZstdCompressor().compress(bytes(FRAME_BYTES))
BOMB = zstandard.ZstdCompressor().compress(bytes(50 * limits.MIB))


def test_the_forged_packs_are_valid_without_their_fault() -> None:
    name, stored = forge(
        size_bytes=100_003,
        frames=[(0, 4, b"abcd"), (1, FRAME_BYTES, ZEROS)],
        extents=[(0, 1, 3), (0, FRAME_BYTES, 100_000)],
        data=b"bcd" + bytes(100_000),
    )
    assert read(stored, name, None) == b"bcd" + bytes(100_000)


@pytest.mark.guarantee(6)
@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ((1, 50 * limits.MIB, BOMB), "declares 52428800 bytes"),
        ((1, 100, BOMB), "disagree on the size"),
        ((1, 100, b""), "does not decompress"),
        ((1, FRAME_BYTES, ZEROS[:-4]), "does not decompress"),
        ((1, FRAME_BYTES, ZEROS + b"x"), "does not decompress"),
        ((1, 4, b"abcd"), "does not decompress"),
        ((0, 5, b"abcd"), "holds 4 bytes"),
        ((0, 4, b"abcde"), "holds 5 bytes"),
        ((0, FRAME_BYTES + 1, bytes(FRAME_BYTES + 1)), "declares"),
        ((2, 4, b"abcd"), "the pack of its dictionary is not read with it"),
        ((3, 4, b"abcd"), "does not decompress"),
        ((4, 4, b"abcd"), "compression 4"),
    ],
)
def test_a_frame_with_a_false_declaration_is_refused(
    frame: tuple[int, int, bytes], message: str
) -> None:
    extents = [(0, 0, frame[1] // 4)] * 4
    assert message in read_refused(
        forge(size_bytes=frame[1] // 4 * 4, frames=[frame], extents=extents)
    )


def test_a_frame_header_with_a_false_size_is_refused() -> None:
    for declared in (10, 1000, FRAME_BYTES - 1):
        honest = zstandard.ZstdCompressor().compress(bytes(FRAME_BYTES - 5))
        # Four bytes after magic and descriptor hold the content size: there is no window byte.
        assert honest[5:9] == (FRAME_BYTES - 5).to_bytes(4, "little")
        forged = honest[:5] + declared.to_bytes(4, "little") + honest[9:]
        assert "decompress" in read_refused(
            forge(size_bytes=declared, frames=[(1, declared, forged)], extents=[(0, 0, declared)])
        )
    undeclared = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 10)
    assert "disagree" in read_refused(
        forge(size_bytes=3, frames=[(1, 10, undeclared)], extents=[(0, 0, 3)])
    )


@pytest.mark.parametrize(
    ("extents", "message"),
    [
        ([(0, 0, 5)], "beyond the end"),
        ([(0, 4, 5)], "beyond the end"),
        ([(0, FRAME_BYTES, 5)], "beyond the end"),
        ([(0, 0xFFFFFFFF, 5)], "beyond the end"),
        ([(1, 0, 5)], "a pack that is not listed"),
        ([(0xFFFF, 0, 5)], "a pack that is not listed"),
        ([(0, 0, 4)], "add up to 4 bytes, not 5"),
        ([(0, 0, 4)] * 1000, "add up to 4000 bytes, not 5"),
        ([(0, 0, 3), (0, 0, 2)], "do not give the data"),
    ],
)
def test_extents_out_of_range_are_refused(
    extents: list[tuple[int, int, int]], message: str
) -> None:
    frames = [(0, 4, b"abcd")]
    pack = forge(size_bytes=5, frames=frames, extents=extents, data=b"never")
    assert message in read_refused(pack)


@pytest.mark.guarantee(6)
def test_a_payload_that_repeats_a_frame_beyond_the_bound_is_refused() -> None:
    repeats = limits.OBJECT_BYTES_MAX // FRAME_BYTES + 1
    pack = forge(
        size_bytes=repeats * FRAME_BYTES,
        frames=[(1, FRAME_BYTES, ZEROS)],
        extents=[(0, 0, FRAME_BYTES)] * repeats,
    )
    assert "add up to" in read_refused(pack)


def test_a_pack_that_lists_too_many_others_is_refused() -> None:
    names = [noise(32, seed) for seed in range(SOURCES_MAX + 1)]
    name, stored = forge(size_bytes=0, sources=names[:-1])
    assert Pack(stored, name, THREAD, None).sources == names[:-1]
    assert "too many" in read_refused(forge(size_bytes=0, sources=names))


@pytest.mark.guarantee(6)
@pytest.mark.parametrize(
    "counts",
    [
        (0xFFFFFFFF, 0, 0, 0),
        (0, 0xFFFF, 0, 0),
        (0, 0, 0xFFFFFFFF, 0),
        (0, 0, 0, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (1, 0, 0, 0),
        (0, 1, 0, 0),
        (0, 0, 1, 0),
        (0, 0, 0, 1),
    ],
)
def test_a_manifest_that_counts_more_than_it_holds_is_refused(
    counts: tuple[int, int, int, int],
) -> None:
    assert read_refused(forge(size_bytes=0, counts=counts))


@pytest.mark.guarantee(6)
def test_barely_used_frames_are_not_inflated() -> None:
    frames = [(1, FRAME_BYTES, ZEROS)] * FRAMES_MAX
    extents = [(0, n * FRAME_BYTES, 1) for n in range(FRAMES_MAX)]
    pack = forge(size_bytes=FRAMES_MAX, frames=frames, extents=extents)
    assert "would be inflated" in read_refused(pack)
    more = forge(size_bytes=FRAMES_MAX, frames=[*frames, frames[0]], extents=extents)
    assert "too many" in read_refused(more)
    packs = []
    for number in range(40):
        name, stored = forge(size_bytes=0, frames=[*frames[:20], (0, 1, bytes([number]))])
        packs.append(Pack(stored, name, THREAD, None))
    extents = [(1 + n % 40, n // 40 * FRAME_BYTES, 1) for n in range(800)]
    pack = forge(size_bytes=800, extents=extents, sources=[each.name for each in packs])
    assert "would be inflated" in read_refused(pack, packs)


@settings(max_examples=scaled(100, 300), deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=60))
def test_bytes_that_are_no_pack_are_refused(head: bytes, rest: bytes) -> None:
    for start in (b"", MAGIC, MAGIC + b"\x02\x00\x00\x00" + struct.pack("<I", len(head))):
        data = start + head + rest
        with pytest.raises(EverlongError):
            read(data, _hash(data[: len(start) + len(head)]), None)


def build_continued_pack(
    base: tuple[bytes, bytes], base_data: bytes, added: bytes, *, base_bytes: int | None = None
) -> Contents:
    """The contents of a pack that begins with the data of another."""
    taken = len(base_data) if base_bytes is None else base_bytes
    data = base_data[:taken] + added
    return Contents(
        envelope=b"envelope",
        size_bytes=len(data),
        crc=zlib.crc32(data),
        extents=[Extent(0, 0, len(added))] if added else [],
        sources=[base[0]],
        base_bytes=taken,
        stream=[memoryview(added)] if added else [],
    )


@pytest.mark.guarantee(10)
@EITHER
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 500), st.integers(1, 2000))
def test_a_pack_continues_the_data_of_its_base_up_to_any_byte(
    keys: Keys | None, taken: int, added: int, first_bytes: int
) -> None:
    first_data = noise(first_bytes, 1)
    first = build_pack(build_contents(first_data), THREAD, keys)
    own = noise(150, 2)
    extents = [Extent(1, 0, first_bytes), Extent(0, 10, 140)]
    base = build_pack(build_pointing_pack(own, extents, [(first[0], first_data)]), THREAD, keys)
    base_data = first_data + own[10:]
    taken = max(len(base_data) // 8, min(taken, len(base_data)))
    name, stored = build_pack(
        build_continued_pack(base, base_data, noise(added, 3), base_bytes=taken), THREAD, keys
    )
    pack = Pack(stored, name, THREAD, keys)
    opened = {each: Pack(data, each, THREAD, keys) for each, data in (first, base)}
    names, resolved = pack.resolve(opened[base[0]])
    assert names[0] == pack.base == base[0]
    data = pack.assemble([opened[each] for each in names], resolved)
    assert data == base_data[:taken] + noise(added, 3)


def test_a_base_with_a_base_or_with_too_few_bytes_is_refused() -> None:
    first = build_pack(build_contents(b"first"), THREAD, None)
    second = build_pack(build_continued_pack(first, b"first", b"second"), THREAD, None)
    third = build_pack(build_continued_pack(second, b"firstsecond", b"third"), THREAD, None)
    opened = Pack(second[1], second[0], THREAD, None)
    with pytest.raises(BlobCorrupt, match="its base has a base"):
        Pack(third[1], third[0], THREAD, None).resolve(opened)
    name, stored = forge(size_bytes=9, sources=[first[0]], base_bytes=9)
    with pytest.raises(BlobCorrupt, match="its base has 5 bytes, not 9"):
        Pack(stored, name, THREAD, None).resolve(Pack(first[1], first[0], THREAD, None))
    assert "names none" in read_refused(forge(size_bytes=9, base_bytes=9))
    assert "add up to 10" in read_refused(forge(size_bytes=9, sources=[first[0]], base_bytes=10))


def with_dictionary(own: bytes, holder: tuple[bytes, bytes], extent: Extent) -> Contents:
    """The contents of a pack that is compressed with a run of another, and points to it."""
    dictionary = holder[1][extent.start :][: extent.length]
    contents = build_pointing_pack(
        own, [Extent(1, 0, len(holder[1])), Extent(0, 0, len(own))], [holder]
    )
    return dataclasses.replace(contents, dictionary=extent, dictionary_data=dictionary)


@pytest.mark.guarantee(10)
@EITHER
def test_a_pack_is_compressed_with_a_run_of_another(keys: Keys | None) -> None:
    shared, own = text(8000, 1), text(8000, 1)[2000:6000] + b"and a little more"
    holder = build_pack(build_contents(shared), THREAD, keys)
    contents = with_dictionary(own, (holder[0], shared), Extent(1, 1000, 6000))
    name, stored = build_pack(contents, THREAD, keys)
    alone = dataclasses.replace(contents, dictionary=None, dictionary_data=b"")
    assert len(stored) < len(build_pack(alone, THREAD, keys)[1]) / 3
    opened = Pack(holder[1], holder[0], THREAD, keys)
    assert read(stored, name, keys, [opened]) == shared + own
    with pytest.raises(BlobCorrupt):
        read(stored, name, keys, [Pack(stored, name, THREAD, keys)])


def test_chained_dictionaries_are_read_up_to_a_bound() -> None:
    packs: list[Pack] = []
    last, plain = build_pack(build_contents(text(3000, 0)), THREAD, None), text(3000, 0)
    for number in range(DICTIONARIES_MAX + 1):
        packs.insert(0, Pack(last[1], last[0], THREAD, None))
        own = text(3000, number + 1)
        contents = with_dictionary(own, (last[0], plain), Extent(1, 0, 3000))
        last, plain = build_pack(contents, THREAD, None), own
        top = Pack(last[1], last[0], THREAD, None)
        if number + 1 < DICTIONARIES_MAX:
            assert top.assemble(packs).endswith(own)
    with pytest.raises(BlobCorrupt, match="leads too far"):
        top.assemble(packs)


@pytest.mark.parametrize(
    "dictionary", [(2, 0, 5), (0xFFFF, 0, 5), (1, 0, DICTIONARY_BYTES_MAX + 1)]
)
def test_a_dictionary_that_is_not_listed_or_too_large_is_refused(
    dictionary: tuple[int, int, int],
) -> None:
    pack = forge(size_bytes=0, sources=[noise(32)], dictionary=dictionary)
    assert "names a dictionary" in read_refused(pack)


def test_a_dictionary_beyond_the_end_of_its_pack_is_refused() -> None:
    holder = build_pack(build_contents(b"abcd"), THREAD, None)
    opened = Pack(holder[1], holder[0], THREAD, None)
    pack = forge(
        size_bytes=4,
        frames=[(2, 4, b"abcd")],
        extents=[(0, 0, 4)],
        sources=[holder[0]],
        dictionary=(1, 2, 50),
    )
    assert "beyond the end" in read_refused(pack, [opened])
