"""Forged packs in a store that others can write: refused, or read in bounded memory."""

import asyncio
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload

from everlong import limits
from everlong.codecs import EverlongCodec
from everlong.codecs.refs import PackRef
from everlong.errors import BlobCorrupt, ObjectTooLarge
from everlong.storage import pack_store
from everlong.storage import packs as packs_module
from everlong.storage.file import FileBlobStore
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import ByteBudget, PackStore, open_packs
from everlong.storage.packs import (
    ENVELOPE_BYTES_MAX,
    FRAME_BYTES,
    Pack,
    build_contents,
    build_pack,
)
from tests.support import forged_packs
from tests.support.forged_packs import MIB, THREAD, forge, put
from tests.support.sample_payloads import noise, payload, text, workflow
from tests.support.scale import scaled


async def read(root: Path, ref: PackRef) -> bytes:
    packs = PackStore(FileBlobStore(root))
    return (await packs.read(THREAD, ref.pack, ref.size_bytes)).data


async def measure_peak(root: Path, ref: PackRef) -> tuple[int, int]:
    """Read a pack; return the size of its data, and the peak of other memory, both in bytes."""
    tracemalloc.start()
    try:
        data = await read(root, ref)
        return len(data), tracemalloc.get_traced_memory()[1] - len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.guarantee(6)
async def test_a_pack_that_names_a_source_twice_is_refused(tmp_path: Path) -> None:
    for times in (2, 200):
        with pytest.raises(BlobCorrupt, match="names the same pack twice"):
            await read(tmp_path, forged_packs.repeated_source(tmp_path, times, 64 * limits.KIB))
    once = forged_packs.repeated_source(tmp_path, 1, 64 * limits.KIB)
    assert await read(tmp_path, once) == bytes(2 * 64 * limits.KIB)


@pytest.mark.guarantee(6)
@pytest.mark.parametrize(
    "forged",
    [
        lambda root: forged_packs.many_sources(root, 64, 2, 64 * limits.KIB),
        lambda root: forged_packs.many_sources(root, 16, 8, 64 * limits.KIB),
        lambda root: forged_packs.one_frame(root, 48 * MIB),
    ],
    ids=["sources", "frames", "repeated-frame"],
)
async def test_inflated_sources_of_a_pack_are_not_all_in_memory(
    tmp_path: Path, forged: Callable[[Path], PackRef]
) -> None:
    ref = forged(tmp_path)
    size_bytes, peak_bytes = await measure_peak(tmp_path, ref)
    assert size_bytes == ref.size_bytes
    # Frames that are kept, one more, and the manifests. The streams have 128 MiB.
    assert peak_bytes < packs_module._KEPT_BYTES_MAX + 6 * MIB


async def test_extents_in_any_order_inflate_a_frame_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inflated: list[tuple[bytes, int]] = []
    inflate_frame = Pack.inflate_frame

    def count(self: Pack, number: int, dictionary: Callable[[], bytes]) -> bytes:
        inflated.append((self.name, number))
        return inflate_frame(self, number, dictionary)

    monkeypatch.setattr(Pack, "inflate_frame", count)
    monkeypatch.setattr(packs_module, "_KEPT_BYTES_MAX", FRAME_BYTES)
    name = put(tmp_path, forged_packs.zeros(frames=20))
    extents = [
        (1, frame * FRAME_BYTES + at, 10_000)
        for at in range(0, 80_000, 10_000)
        for frame in range(20)
    ]
    random.Random(0).shuffle(extents)
    pack = forge(size_bytes=1_600_000, extents=extents, sources=[name])
    ref = PackRef(THREAD, put(tmp_path, pack), 1_600_000, 2)
    assert await read(tmp_path, ref) == bytes(1_600_000)
    assert len(inflated) == len(set(inflated)) == 20


async def test_repeatedly_inflated_dictionaries_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs_module, "_KEPT_BYTES_MAX", FRAME_BYTES)
    monkeypatch.setattr(packs_module, "_AGAIN_BYTES_MAX", 4 * MIB)
    monkeypatch.setattr(packs_module, "_INFLATE_FACTOR_MAX", 1)
    holder = forged_packs.zeros(frames=40)
    put(tmp_path, holder)
    users = []
    for number in range(40):
        # All of them take their dictionary from another frame of the same pack.
        own = forge(
            size_bytes=0,
            frames=[(2, FRAME_BYTES, forged_packs.ZEROS)],
            sources=[holder[0]],
            dictionary=(1, number * FRAME_BYTES, 1000),
            envelope=b"%d" % number,
        )
        users.append(put(tmp_path, own))
    size_bytes = 40 * FRAME_BYTES + 40 * FRAME_BYTES
    extents = [(1, frame * FRAME_BYTES, FRAME_BYTES) for frame in range(40)]
    extents += [(number, 0, FRAME_BYTES) for number in range(2, 42)]
    pack = forge(size_bytes=size_bytes, extents=extents, sources=[holder[0], *users])
    ref = PackRef(THREAD, put(tmp_path, pack), size_bytes, 42)
    with pytest.raises(BlobCorrupt, match="inflated again and again"):
        await read(tmp_path, ref)
    monkeypatch.setattr(packs_module, "_AGAIN_BYTES_MAX", 40 * MIB)
    assert len(await read(tmp_path, ref)) == size_bytes


@pytest.mark.guarantee(6)
async def test_an_object_that_is_larger_than_its_ref_allows_is_not_read(tmp_path: Path) -> None:
    ref = forged_packs.sparse_file(tmp_path, 40 * 1024 * MIB)
    for packs in (PackStore(FileBlobStore(tmp_path)), open_packs(tmp_path.as_uri())):
        with pytest.raises(BlobCorrupt, match="the ref to it allows"):
            await packs.read(THREAD, ref.pack, ref.size_bytes)
        with pytest.raises(BlobCorrupt, match="the ref to it allows"):
            await packs.open(THREAD, ref.pack)


async def test_a_source_that_is_larger_than_its_use_allows_is_not_read(tmp_path: Path) -> None:
    few = forged_packs.large_sources(tmp_path, 3, 100_000)
    with pytest.raises(BlobCorrupt, match="would be inflated"):
        await read(tmp_path, few)
    with pytest.raises(BlobCorrupt, match="the ref to it allows"):
        await read(tmp_path, forged_packs.large_sources(tmp_path, 3, 4 * MIB))


async def test_a_store_with_a_budget_reads_no_more_at_a_time(tmp_path: Path) -> None:
    held: list[int] = []
    budget = ByteBudget(24 * MIB)
    packs = PackStore(FileBlobStore(tmp_path), budget=budget)
    names = []
    for number in range(6):
        data = noise(400_000, number)
        name, stored = build_pack(build_contents(data), THREAD, None)
        names.append(put(tmp_path, (name, stored)))

    async def one(name: bytes) -> None:
        await packs.read(THREAD, name, 400_000)
        held.append(budget.taken_bytes)

    await asyncio.gather(*map(one, names))
    assert len(held) == 6
    assert budget.taken_bytes == 0
    with pytest.raises(ObjectTooLarge, match="this server holds"):
        await packs.read(THREAD, names[0], 30 * MIB)


async def test_packs_that_are_more_than_a_server_holds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_store, "_HEADS_BYTES", 200_000)
    ref = forged_packs.many_sources(tmp_path, 100, 1, 100)
    packs = PackStore(FileBlobStore(tmp_path), budget=ByteBudget(MIB))
    with pytest.raises(BlobCorrupt, match="would be inflated"):
        await packs.read(THREAD, ref.pack, ref.size_bytes)
    padded = [
        put(tmp_path, forge(size_bytes=0, frames=[(0, 4, b"abcd")], envelope=noise(5000, number)))
        for number in range(60)
    ]
    extents = [(number, 0, 4) for number in range(1, 61)]
    pack = forge(size_bytes=240, extents=extents, sources=padded)
    put(tmp_path, pack)
    with pytest.raises(ObjectTooLarge, match="more than this server holds for it"):
        await packs.read(THREAD, pack[0], 240)


async def test_a_payload_with_too_much_metadata_is_neither_written_nor_read(
    tmp_path: Path,
) -> None:
    codec = EverlongCodec(MemoryBlobStore()).with_context(workflow())
    fits = payload(noise(9000), note=noise(ENVELOPE_BYTES_MAX - 100))
    [ref] = await codec.encode([fits])
    assert await codec.decode([ref]) == [fits]
    with pytest.raises(ObjectTooLarge, match="bytes of metadata"):
        await codec.encode([payload(noise(9000), note=noise(ENVELOPE_BYTES_MAX + 1))])
    pack = forge(size_bytes=0, envelope=bytes(ENVELOPE_BYTES_MAX + 1))
    put(tmp_path, pack)
    with pytest.raises(BlobCorrupt, match="bytes of metadata: too many"):
        await PackStore(FileBlobStore(tmp_path)).open(THREAD, pack[0])


async def test_large_payloads_of_one_call_are_decoded_sequentially(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "DECODE_ALONE_BYTES_MIN", 100_000)
    under_way, most = 0, 0
    decode_one = EverlongCodec._decode

    async def watched(self: EverlongCodec, given: Payload) -> Payload:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        found = await decode_one(self, given)
        under_way -= 1
        return found

    monkeypatch.setattr(EverlongCodec, "_decode", watched)
    codec = EverlongCodec(MemoryBlobStore())
    large = [payload(noise(200_000, seed)) for seed in range(4)]
    small = [payload(noise(9000, seed)) for seed in range(4)]
    assert await codec.decode(await codec.encode(large)) == large
    assert most == 1
    assert await codec.decode(await codec.encode(small)) == small
    assert most == 4


async def test_a_codec_refuses_payloads_above_its_byte_budget() -> None:
    codec = EverlongCodec(MemoryBlobStore(), decode_bytes_max=3 * MIB)
    bomb = forged_packs.inline_bomb(2 * MIB)
    [found] = await codec.decode([bomb])
    assert len(found.data) == 2 * MIB
    for bombs in ([bomb] * 2, [forged_packs.inline_bomb(4 * MIB)]):
        with pytest.raises(ObjectTooLarge, match="over 3145728 bytes in all"):
            await codec.decode(bombs)


@pytest.mark.guarantee(6)
@settings(max_examples=scaled(15, 60), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    steps=st.integers(3, 30),
    sealed=st.booleans(),
    kept_bytes=st.sampled_from([1, 30_000, packs_module._KEPT_BYTES_MAX]),
)
async def test_encoder_output_always_decodes(
    seed: int, steps: int, sealed: bool, kept_bytes: int
) -> None:
    """Lists that grow, are cut, edited and joined, in compressible and other text."""
    chooser = random.Random(seed)
    store = MemoryBlobStore()
    keys = {"k": bytes(range(32))} if sealed else None
    writer = EverlongCodec(store, keys=keys).with_context(workflow())
    body = text(chooser.randrange(4000, 60_000), seed % 7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs_module, "_KEPT_BYTES_MAX", kept_bytes)
        for step in range(steps):
            piece = chooser.choice([text, noise])(chooser.choice([300, 5000, 90_000]), step)
            at = chooser.randrange(len(body) + 1)
            match chooser.randrange(5):
                case 0:
                    body = body[:at] + piece + body[at:]
                case 1:
                    body = body[at:] + piece
                case 2:
                    body = piece + body[: max(at, 4000)] * 2
                case _:
                    body += piece
            body = body[-3 * MIB :]
            value = payload(body)
            encoded = await writer.encode([value])
            # One without memory, and one with a server's bounds.
            for reader in (
                EverlongCodec(store, keys=keys),
                EverlongCodec(PackStore(store, writer.packs.keyring, budget=ByteBudget(80 * MIB))),
            ):
                assert await reader.decode(encoded) == [value]
