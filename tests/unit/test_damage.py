"""Damage to what is stored or in history: found, named, and healed by restoring the bytes."""

import contextlib
import dataclasses
import logging
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload

from everlong.codecs import EverlongCodec
from everlong.codecs.payloads import OUR_ENCODINGS
from everlong.codecs.refs import parse_ref
from everlong.errors import (
    BlobCorrupt,
    BlobMissing,
    EverlongError,
    KeyMissing,
    RefRefused,
    UnknownVersion,
)
from everlong.models import thread_key
from everlong.storage import encryption_keys as keys_module
from everlong.storage import open_store
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import open_packs, pack_key
from everlong.storage.packs import Pack
from tests.support.sample_payloads import (
    KEY_1,
    KEY_2,
    bits,
    flip_bit,
    noise,
    payload,
    read_objects,
    text,
    workflow,
)

SECRET = b"hunter2 is the password"
THREAD = thread_key("default", "ops-7")
EITHER = pytest.mark.parametrize("keys", [None, {"k1": KEY_1}], ids=["plain", "sealed"])
Keys = dict[str, bytes] | None


async def chain(store: MemoryBlobStore, keys: Keys, workflow_id: str = "ops-7") -> list[Payload]:
    """Store a payload that points into two earlier packs; return its ref and the payload."""
    codec = EverlongCodec(store, keys=keys).with_context(workflow(workflow_id))
    body = SECRET + noise(9_000, 1)
    for seed, size in ((2, 4000), (3, 4000)):
        await codec.encode([payload(body)])
        body += noise(size, seed)
    [ref] = await codec.encode([payload(body, extra=SECRET)])
    found = parse_ref(ref)
    assert found.packs == len(await read_objects(store)) == 3
    return [ref, payload(body, extra=SECRET)]


async def outcome(codec: EverlongCodec, damaged: Payload, original: Payload) -> str:
    """Decode what was damaged: it has to be found, or to do no harm, or not to look like ours."""
    try:
        [decoded] = await codec.decode([damaged])
    except EverlongError as error:
        return "shown" if SECRET.decode() in str(error) else type(error).__name__
    if decoded == original:
        return "harmless"
    assert decoded == damaged
    assert damaged.metadata.get("encoding") not in OUR_ENCODINGS
    assert damaged.metadata.get("encoding") != original.metadata["encoding"]
    return "not ours"


@pytest.mark.guarantee(3)
@EITHER
async def test_a_flipped_bit_anywhere_in_a_ref_is_found_or_does_no_harm(keys: Keys) -> None:
    store = MemoryBlobStore()
    ref, original = await chain(store, keys)
    found: dict[str, int] = {}
    for bit in bits(ref.SerializeToString(), 100_000):
        with contextlib.suppress(DecodeError):  # Protobuf rejects these before our codec.
            damaged = Payload.FromString(flip_bit(ref.SerializeToString(), bit))
            codec = EverlongCodec(store, keys=keys)
            each = await outcome(codec, damaged, original)
            found[each] = found.get(each, 0) + 1
    assert "shown" not in found
    assert found["not ours"] > 100
    if keys:
        # The tag covers everything but the size that is declared to Temporal.
        assert found["RefRefused"] > 8 * 50
        assert found["harmless"] < 40
    else:
        assert found["BlobMissing"] == 8 * (16 + 32)
        assert found["harmless"] < 60


@EITHER
async def test_a_flipped_bit_in_the_data_of_a_ref_is_found_by_a_codec_that_wrote_it(
    keys: Keys,
) -> None:
    store = MemoryBlobStore()
    codec = EverlongCodec(store, keys=keys).with_context(workflow())
    original = payload(noise(9000))
    [ref] = await codec.encode([original])
    for bit in range(8 * len(ref.data)):
        damaged = Payload(metadata=ref.metadata, data=flip_bit(ref.data, bit))
        each = await outcome(codec, damaged, original)
        assert not keys or each != "harmless"


@pytest.mark.guarantee(3)
@EITHER
async def test_a_flipped_bit_anywhere_in_an_inline_payload_is_found(keys: Keys) -> None:
    codec = EverlongCodec(MemoryBlobStore(), keys=keys)
    original = payload(text(1500), extra=SECRET)
    [inline] = await codec.encode([original])
    serialized = inline.SerializeToString()
    assert len(serialized) < 1200
    harmless = 0
    for bit in bits(serialized, 100_000):
        with contextlib.suppress(DecodeError):
            damaged = Payload.FromString(flip_bit(serialized, bit))
            harmless += await outcome(codec, damaged, original) == "harmless"
    # A few bits of a zstd frame have no meaning.
    assert harmless <= (0 if keys else 8 * len(serialized) // 200)


@pytest.mark.guarantee(3)
@EITHER
async def test_a_flipped_bit_anywhere_in_the_store_is_found_or_does_no_harm(keys: Keys) -> None:
    store = MemoryBlobStore()
    ref, original = await chain(store, keys)
    for key, data in (await read_objects(store)).items():
        for bit in {*range(8 * 160), *bits(data, 150)}:
            await store.put(key, flip_bit(data, bit))
            each = await outcome(EverlongCodec(store, keys=keys), ref, original)
            assert each in {"BlobCorrupt", "UnknownVersion", "KeyMissing", "RefRefused"}
        await store.put(key, data)
    assert await EverlongCodec(store, keys=keys).decode([ref]) == [original]


@pytest.mark.guarantee(3)
@EITHER
async def test_truncated_data_is_found(keys: Keys) -> None:
    store = MemoryBlobStore()
    ref, original = await chain(store, keys)
    codec = EverlongCodec(store, keys=keys)
    for key, data in (await read_objects(store)).items():
        for length in {*range(300), len(data) - 1}:
            await store.put(key, data[:length])
            assert await outcome(codec, ref, original) in {
                "BlobCorrupt",
                "KeyMissing",
                "RefRefused",
            }
        await store.put(key, data)
    [inline] = await codec.encode([payload(text(1500))])
    for short in (ref, inline):
        for length in range(len(short.data)):
            damaged = Payload(metadata=short.metadata, data=short.data[:length])
            assert await outcome(codec, damaged, original) not in {"harmless", "not ours", "shown"}


@EITHER
async def test_swapped_packs_are_found(keys: Keys) -> None:
    store, other = MemoryBlobStore(), MemoryBlobStore()
    ref, original = await chain(store, keys)
    await chain(other, keys, "ops-8")
    good = await read_objects(store)
    foreign = list((await read_objects(other)).values())
    codec = EverlongCodec(store, keys=keys)
    for key, data in good.items():
        for wrong in (*good.values(), *foreign):
            await store.put(key, wrong)
            each = await outcome(codec, ref, original)
            # Without keys an equal pack of another thread is the same bytes.
            assert each == ("harmless" if wrong == data else "BlobCorrupt")
        await store.put(key, data)


@pytest.mark.guarantee(21)
async def test_a_ref_to_another_thread_is_refused_with_keys() -> None:
    store = MemoryBlobStore()
    keys = {"k1": KEY_1}
    ref, _ = await chain(store, keys)
    there = thread_key("default", "ops-8")
    for key, data in (await read_objects(store)).items():
        await store.put(key.replace(THREAD, there), data)
    damaged = Payload(
        metadata=ref.metadata,
        data=ref.data.replace(bytes.fromhex(THREAD), bytes.fromhex(there)),
    )
    with pytest.raises(RefRefused, match="damaged or forged"):
        await EverlongCodec(store, keys=keys).decode([damaged])
    found = parse_ref(damaged)
    tagged = found.to_payload(keys_module.Keys(keys))
    with pytest.raises(BlobCorrupt, match="does not open with its key"):
        await EverlongCodec(store, keys=keys).decode([tagged])


FAULTS: dict[str, tuple[Callable[[bytes], bytes] | None, type[EverlongError], str]] = {
    "missing": (None, BlobMissing, "estore"),
    "empty": (lambda _: b"", BlobCorrupt, "Restore it"),
    "zeros": (lambda data: bytes(len(data)), BlobCorrupt, "Restore it"),
    "head": (lambda data: flip_bit(data, 8 * 40), BlobCorrupt, "Restore it"),
    "frame": (lambda data: flip_bit(data, 8 * len(data) - 1), BlobCorrupt, "Restore it"),
    "version": (lambda data: data[:4] + b"\x09" + data[5:], UnknownVersion, "Upgrade Everlong"),
}


@pytest.mark.guarantee(4)
@EITHER
@pytest.mark.parametrize("cache", ["none", "memory", "disk"])
@pytest.mark.parametrize("which", ["top", "source"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_is_named_and_heals_once_the_bytes_are_restored(
    keys: Keys, cache: str, which: str, fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    written = MemoryBlobStore()
    ref, original = await chain(written, keys)
    found = parse_ref(ref)
    top = pack_key(found.thread, found.pack)
    objects = await read_objects(written)
    pack = Pack(objects[top], found.pack, THREAD, None if keys is None else keys_module.Keys(keys))
    key = top if which == "top" else pack_key(found.thread, pack.sources[0])
    store = open_store((tmp_path / "blobs").as_uri())
    for each, data in objects.items():
        await store.put(each, data)
    packs = open_packs(store, keys=keys, cache_dir=tmp_path / "cache" if cache == "disk" else None)
    codec = EverlongCodec(store, keys=keys) if cache == "none" else EverlongCodec(packs)

    damage, expected, remedy = FAULTS[fault]
    await store.delete([key])
    if damage is not None:
        await store.put(key, damage(objects[key]))
    for _ in range(2):
        with pytest.raises(expected) as raised:
            await codec.decode([ref])
        assert type(raised.value) is expected
        assert THREAD in str(raised.value)
        assert key.rsplit("/")[-1] in str(raised.value)
        assert remedy in str(raised.value)
        shown = "".join(traceback.format_exception(raised.value)) + caplog.text
        assert SECRET.decode() not in shown
        assert repr(KEY_1)[2:20] not in shown
    await store.delete([key])
    await store.put(key, objects[key])
    assert await codec.decode([ref]) == [original]


@pytest.mark.guarantee(22)
async def test_a_missing_key_is_named_and_its_return_heals(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(keys_module, "_UNKNOWN_SECONDS", -1.0)
    store = MemoryBlobStore()
    ref, original = await chain(store, {"k1": KEY_1})
    [inline] = await EverlongCodec(store, keys={"k1": KEY_1}).encode([payload(b"small")])
    found = {"k2": KEY_2}
    codec = EverlongCodec(open_packs(store, keys=lambda: found, cache_dir=tmp_path))
    without = EverlongCodec(open_packs(store))
    for each in (ref, inline):
        with pytest.raises(KeyMissing, match=r"'k1', which this process does not have.*Add it"):
            await codec.decode([each])
        with pytest.raises(KeyMissing, match=r"'k1', and no keys are configured.*Configure"):
            await without.decode([each])
    found["k1"] = KEY_1
    assert await codec.decode([ref, inline]) == [original, payload(b"small")]


@pytest.mark.guarantee(21)
async def test_unsealed_payloads_are_refused_with_keys_unless_accepted() -> None:
    store = MemoryBlobStore()
    ref, original = await chain(store, None)
    with pytest.raises(RefRefused, match=r"is not sealed.*set accept_unsealed"):
        await EverlongCodec(store, keys={"k1": KEY_1}).decode([ref])
    accepting = open_packs(store, keys={"k1": KEY_1}, accept_unsealed=True)
    assert await EverlongCodec(accepting).decode([ref]) == [original]
    found = parse_ref((await chain(sealing := MemoryBlobStore(), {"k1": KEY_1}))[0])
    untagged = dataclasses.replace(found, key_id="").to_payload(None)
    with pytest.raises(RefRefused, match="a payload ref to pack"):
        await EverlongCodec(sealing, keys={"k1": KEY_1}).decode([untagged])
    # And what is written meanwhile is sealed, and points to nothing that is not.
    [sealed] = await EverlongCodec(accepting).with_context(workflow()).encode([original])
    only = EverlongCodec(store, keys={"k1": KEY_1})
    assert await only.decode([sealed]) == [original]


async def test_errors_do_not_quote_payloads() -> None:
    store = MemoryBlobStore()
    ref, _ = await chain(store, {"k1": KEY_1})
    found = parse_ref(ref)
    packs = open_packs(store, keys={"k1": KEY_1})
    reading = await packs.read(found.thread, found.pack, found.size_bytes)
    for shown in (reading, reading.pack, packs, packs.keyring, found, EverlongCodec(packs)):
        assert SECRET.decode() not in repr(shown)
        assert repr(KEY_1)[2:20] not in repr(shown)


@pytest.mark.guarantee(21)
async def test_a_sealed_ref_to_a_pack_replaced_by_a_plain_one_is_refused() -> None:
    store, plain = MemoryBlobStore(), MemoryBlobStore()
    ref, original = await chain(store, {"k1": KEY_1})
    await chain(plain, None)
    for key, data in (await read_objects(store)).items():
        for other in (await read_objects(plain)).values():
            await store.put(key, other)
            with pytest.raises(RefRefused, match=key):
                await EverlongCodec(store, keys={"k1": KEY_1}).decode([ref])
        await store.put(key, data)
    assert await EverlongCodec(store, keys={"k1": KEY_1}).decode([ref]) == [original]
