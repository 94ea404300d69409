"""The object format, which is what an inline payload holds; and bodies, which are packs."""

import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from everlong import limits
from everlong.errors import (
    BlobCorrupt,
    BlobMissing,
    KeyMissing,
    ObjectTooLarge,
    UnknownVersion,
)
from everlong.models import Kind, Ref, thread_key
from everlong.storage.encryption_keys import Keys
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.objects import HEADER, build_object, get_key_id, parse_object
from everlong.storage.pack_store import PackStore, object_key, open_packs
from tests.support.sample_payloads import KEY_1, KEY_2, flip_bit, noise

THREAD = thread_key("default", "ops-7")
TEXT = b"the same sentence again and again. " * 200
KEYS = Keys({"k1": KEY_1, "k2": KEY_2})
EITHER = pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "sealed"])


@EITHER
@given(plaintext=st.binary(max_size=5000))
def test_unseal_returns_what_was_sealed(keys: Keys | None, plaintext: bytes) -> None:
    assert parse_object(build_object(plaintext, keys), keys) == plaintext


def test_sealing_compresses_only_where_it_pays() -> None:
    assert len(build_object(TEXT)) < len(TEXT) / 10
    assert len(build_object(noise(5000))) == 5000 + HEADER.size
    assert len(build_object(TEXT, KEYS)) < len(TEXT) / 10


@pytest.mark.guarantee(20)
def test_a_sealed_object_shows_nothing_and_opens_with_no_other_key() -> None:
    sealed = build_object(b"hunter2", KEYS)
    assert b"hunter2" not in sealed
    assert build_object(b"hunter2", KEYS) != sealed
    assert get_key_id(sealed) == "k1"
    assert get_key_id(build_object(b"hunter2")) == ""
    with pytest.raises(KeyMissing, match="'k1', and no keys are configured here"):
        parse_object(sealed)
    with pytest.raises(KeyMissing, match="'k1', which this process does not have"):
        parse_object(sealed, Keys({"k2": KEY_2}))
    with pytest.raises(BlobCorrupt, match="the key of that id is another"):
        parse_object(sealed, Keys({"k1": KEY_2}))


@EITHER
@pytest.mark.parametrize("plaintext", [b"", b"short", TEXT])
def test_a_flipped_bit_in_a_sealed_object_is_detected(keys: Keys | None, plaintext: bytes) -> None:
    sealed = build_object(plaintext, keys)
    detected = 0
    for bit in range(8 * len(sealed)):
        try:
            # A few bits of a zstd frame have no meaning. A body that is neither compressed nor
            # sealed is as it would be without us.
            opened = parse_object(flip_bit(sealed, bit), keys)
            assert opened == plaintext or (not keys and plaintext == b"short")
        except (BlobCorrupt, KeyMissing, UnknownVersion):
            detected += 1
    if keys:
        assert detected == 8 * len(sealed)
    elif plaintext == b"short":
        assert detected == 8 * HEADER.size
    else:
        assert detected > 0.9 * 8 * len(sealed)


@EITHER
@pytest.mark.parametrize("plaintext", [b"", b"short", TEXT])
def test_a_truncated_object_is_detected(keys: Keys | None, plaintext: bytes) -> None:
    sealed = build_object(plaintext, keys)
    for length in range(len(sealed)):
        with pytest.raises((BlobCorrupt, KeyMissing)):
            parse_object(sealed[:length], keys)
    with pytest.raises(BlobCorrupt):
        parse_object(sealed + b"x", keys)


@pytest.mark.guarantee(6)
def test_an_object_that_would_inflate_beyond_its_declared_size_is_refused() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(50 * limits.MIB))
    with pytest.raises(BlobCorrupt, match="disagree"):
        parse_object(HEADER.pack(b"EVLG", 1, 1, 0, 10) + bomb)
    with pytest.raises(BlobCorrupt, match="declares"):
        parse_object(HEADER.pack(b"EVLG", 1, 1, 0, limits.OBJECT_BYTES_MAX + 1) + bomb)
    # A frame without a declared size could inflate to any size.
    stream = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 10)
    with pytest.raises(BlobCorrupt, match="disagree"):
        parse_object(HEADER.pack(b"EVLG", 1, 1, 0, 10) + stream)


@pytest.mark.guarantee(7)
def test_a_small_object_that_would_inflate_beyond_its_bound_is_refused() -> None:
    for data in (bytes(50 * limits.MIB), bytes(16 * limits.KIB + 1)):
        bomb = zstandard.ZstdCompressor().compress(data)
        with pytest.raises(BlobCorrupt, match="declares"):
            parse_object(b"\x03" + bomb[4:])
    # A frame without a declared size, and data that is no frame.
    stream = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 10)
    for data in (stream[4:], b"", b"\xff" * 20):
        with pytest.raises(BlobCorrupt):
            parse_object(b"\x03" + data)


def test_small_object_compression_halves_activity_payloads() -> None:
    ref = f'{{"thread":"{7**33:032x}","digest":"{7**90:064x}","size_bytes":5872,"kind":"segment"}}'
    plaintext = (
        b'{"context":{"agent":"ops","head":{"ref":%s,"first_seq":1,"count":8},"now_ms":'
        b'1795015997687,"turn":{"number":1,"began_ms":1795015996966}},"call_id":"call_1e13f98",'
        b'"tool":"read_file","inline_bytes_max":1024}' % ref.encode()
    )
    assert len(build_object(plaintext)) < len(plaintext) / 2
    assert parse_object(build_object(plaintext)) == plaintext


@EITHER
def test_an_object_too_large_to_be_read_is_not_sealed(
    keys: Keys | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OBJECT_BYTES_MAX", 1000)
    assert parse_object(build_object(b"x" * 1000, keys), keys) == b"x" * 1000
    with pytest.raises(ObjectTooLarge, match="1001 bytes are not stored"):
        build_object(b"x" * 1001, keys)


@pytest.mark.guarantee(8)
def test_a_newer_format_is_refused_by_name() -> None:
    with pytest.raises(UnknownVersion, match=r"version 3 .*Upgrade Everlong"):
        parse_object(struct.pack("<4sBBHQ", b"EVLG", 3, 0, 0, 0))


@pytest.mark.parametrize("keys", [None, {"k1": KEY_1}], ids=["plain", "sealed"])
async def test_a_body_is_a_pack_verified_against_its_ref(
    keys: dict[str, bytes] | None,
) -> None:
    packs = open_packs(MemoryBlobStore(), keys=keys)
    ref, written = await packs.write_body(THREAD, Kind.MESSAGE, TEXT)
    assert ref.size_bytes == len(TEXT)
    assert written == len(await packs.store.get(object_key(ref))) < len(TEXT)
    assert await packs.read_body(ref) == TEXT
    wrong = Ref(thread=THREAD, digest=ref.digest, size_bytes=9, kind=ref.kind)
    with pytest.raises(BlobCorrupt, match="its ref says 9"):
        await packs.read_body(wrong)


async def test_a_body_that_is_missing_is_named() -> None:
    ref = Ref(thread=THREAD, digest="ab" * 32, size_bytes=10, kind=Kind.TOOL_RESULT)
    with pytest.raises(BlobMissing, match=rf"pack 'v1/{THREAD}/{ref.digest}.pack' is missing"):
        await PackStore(MemoryBlobStore()).read_body(ref)


async def test_a_body_that_is_too_large_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OBJECT_BYTES_MAX", 1000)
    packs = PackStore(MemoryBlobStore())
    await packs.write_body(THREAD, Kind.MESSAGE, b"x" * 1000)
    with pytest.raises(ObjectTooLarge, match="1001 bytes are not stored"):
        await packs.write_body(THREAD, Kind.MESSAGE, b"x" * 1001)
    assert len([info async for info in packs.store.list("")]) == 1


async def test_a_preview_is_short_and_printable() -> None:
    ref, _ = await PackStore(MemoryBlobStore()).write_body(
        THREAD, Kind.MESSAGE, b"x", preview="line\n\x00\t" + "é" * 500
    )
    assert ref.preview.isprintable()
    assert len(ref.preview) == limits.PREVIEW_CHARS_MAX


@given(st.text(max_size=50), st.text(max_size=50))
def test_a_thread_key_is_safe_whatever_the_id(namespace: str, thread_id: str) -> None:
    key = thread_key(namespace, thread_id)
    assert len(key) == 32
    assert set(key) <= set("0123456789abcdef")


def test_thread_keys_differ_by_namespace_and_id() -> None:
    assert len({thread_key("a", "b"), thread_key("a", "c"), thread_key("", "ab")}) == 3


def test_a_thread_makes_one_compressor_and_one_decompressor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    def counted(name: str) -> Any:
        real = getattr(zstandard, name)

        def make(*args: Any, **named: Any) -> Any:
            made.append(name)
            return real(*args, **named)

        return make

    for name in ("ZstdCompressor", "ZstdDecompressor"):
        monkeypatch.setattr(zstandard, name, counted(name))

    def use(seed: int) -> bool:
        texts = [noise(2000, seed + n).hex().encode() for n in range(20)]
        return [parse_object(build_object(text)) for text in texts] == texts

    with ThreadPoolExecutor(1) as alone:  # A new thread has made none yet.
        assert all(alone.map(use, range(0, 100, 20)))
    assert sorted(made) == ["ZstdCompressor", "ZstdDecompressor"]


def test_concurrent_seals_do_not_mix_their_bytes() -> None:
    def use(seed: int) -> bool:
        texts = [noise(60_000, seed + n).hex().encode() for n in range(10)]
        return [parse_object(build_object(text)) for text in texts] == texts

    with ThreadPoolExecutor(4) as together:
        assert all(together.map(use, range(0, 80, 10)))


def test_a_decompressor_that_met_damage_serves_the_next_object() -> None:
    sealed = bytearray(build_object(TEXT))
    sealed[-8] ^= 0xFF
    with pytest.raises(BlobCorrupt):
        parse_object(bytes(sealed))
    assert parse_object(build_object(TEXT)) == TEXT
