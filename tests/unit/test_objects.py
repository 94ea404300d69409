import hashlib
import struct

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from everlong import limits
from everlong.errors import BlobCorrupt, BlobMissing, ObjectTooLarge, UnknownVersion
from everlong.models import Kind, Ref
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.objects import (
    HEADER,
    object_key,
    read_object,
    seal,
    thread_key,
    unseal,
    write_object,
)

THREAD = thread_key("default", "ops-7")
TEXT = b"the same sentence again and again. " * 200


@given(st.binary(max_size=5000))
def test_unseal_returns_what_was_sealed(plaintext: bytes) -> None:
    assert unseal(seal(plaintext)) == plaintext


def test_sealing_compresses_only_where_it_pays() -> None:
    assert len(seal(TEXT)) < len(TEXT) / 10
    noise = hashlib.shake_256(b"seed").digest(5000)
    assert len(seal(noise)) == len(noise) + HEADER.size


async def test_a_flipped_bit_anywhere_in_a_stored_object_is_detected_or_harmless() -> None:
    store = MemoryBlobStore()
    detected = 0
    for plaintext in (b"short", TEXT):
        ref, _ = await write_object(store, THREAD, Kind.PAYLOAD, plaintext)
        sealed = await store.get(object_key(ref))
        for bit in range(len(sealed) * 8):
            damaged = bytearray(sealed)
            damaged[bit // 8] ^= 1 << bit % 8
            await store.put(object_key(ref), bytes(damaged))
            try:
                # A few bits of a zstd frame have no meaning.
                assert await read_object(store, ref) == plaintext
            except (BlobCorrupt, UnknownVersion):
                detected += 1
        assert detected > 0.9 * len(sealed) * 8
        detected = 0


async def test_a_truncated_object_is_detected() -> None:
    store = MemoryBlobStore()
    ref, _ = await write_object(store, THREAD, Kind.PAYLOAD, TEXT)
    sealed = await store.get(object_key(ref))
    for length in range(len(sealed)):
        await store.put(object_key(ref), sealed[:length])
        with pytest.raises(BlobCorrupt):
            await read_object(store, ref)


def test_an_object_that_would_inflate_beyond_its_declared_size_is_refused() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(50 * limits.MIB))
    with pytest.raises(BlobCorrupt, match="disagree"):
        unseal(HEADER.pack(b"EVLG", 1, 1, 0, 10) + bomb)
    with pytest.raises(BlobCorrupt, match="declares"):
        unseal(HEADER.pack(b"EVLG", 1, 1, 0, limits.OBJECT_BYTES_MAX + 1) + bomb)
    # A frame that does not tell its size cannot be trusted to be small.
    stream = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 10)
    with pytest.raises(BlobCorrupt, match="disagree"):
        unseal(HEADER.pack(b"EVLG", 1, 1, 0, 10) + stream)


async def test_what_could_not_be_read_again_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "OBJECT_BYTES_MAX", 1000)
    store = MemoryBlobStore()
    await write_object(store, THREAD, Kind.PAYLOAD, b"x" * 1000)
    with pytest.raises(ObjectTooLarge, match="1001 bytes are not stored"):
        await write_object(store, THREAD, Kind.PAYLOAD, b"x" * 1001)


def test_a_newer_format_is_refused_by_name() -> None:
    with pytest.raises(UnknownVersion, match="version 2"):
        unseal(struct.pack("<4sBBHQ", b"EVLG", 2, 0, 0, 0))


async def test_a_missing_object_is_named_with_its_remedy() -> None:
    ref = Ref(thread=THREAD, digest="ab" * 32, size_bytes=10, kind=Kind.TOOL_RESULT)
    with pytest.raises(BlobMissing, match="tool_result of 10 bytes"):
        await read_object(MemoryBlobStore(), ref)


async def test_a_preview_is_short_and_printable() -> None:
    ref, _ = await write_object(
        MemoryBlobStore(), THREAD, Kind.MESSAGE, b"x", preview="line\n\x00\t" + "é" * 500
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
