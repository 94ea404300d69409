"""The payload codec, as the SDK calls it."""

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
import zstandard
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    NexusSerializationContext,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
)
from temporalio.exceptions import FailureError

from everlong import limits
from everlong.codecs import EverlongCodec, pack_layout
from everlong.codecs.budget import BUDGET, CompletionBudget
from everlong.codecs.payloads import INLINE_ENCODING, plain_bytes
from everlong.codecs.refs import ENCODING as REF_ENCODING
from everlong.codecs.refs import RETIRED_ENCODING, parse_ref
from everlong.errors import (
    BlobCorrupt,
    ConfigError,
    ObjectTooLarge,
    PayloadTooLarge,
    StoreUnavailable,
    UnknownVersion,
)
from everlong.models import thread_key
from everlong.storage import objects, packs
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.objects import build_object
from everlong.storage.pack_store import NO_THREAD, open_packs, thread_prefix
from tests.support.fake_stores import CountingStore, FlakyStore
from tests.support.sample_payloads import (
    KEY_1,
    activity,
    noise,
    payload,
    read_objects,
    text,
    workflow,
)

LARGE = payload(noise(100_000))
NEXUS = NexusSerializationContext(endpoint="e", service="s", operation="o")


async def test_small_payloads_stay_as_they_are() -> None:
    item = payload(b'"hello"')
    assert await EverlongCodec(MemoryBlobStore()).encode([item]) == [item]


async def test_compressible_payloads_stay_inline() -> None:
    store = MemoryBlobStore()
    item = payload(b"a line of a log\n" * 1_000)
    [encoded] = await EverlongCodec(store).encode([item])
    assert encoded.metadata["encoding"] == INLINE_ENCODING
    assert encoded.ByteSize() < 1000
    assert plain_bytes(encoded) == item.ByteSize()
    assert await read_objects(store) == {}


async def test_large_payloads_become_a_short_ref() -> None:
    store = MemoryBlobStore()
    codec = EverlongCodec(store)
    [encoded] = await codec.encode([LARGE])
    assert encoded.metadata["encoding"] == REF_ENCODING
    assert encoded.ByteSize() < 120
    assert plain_bytes(encoded) == encoded.external_payloads[0].size_bytes == 100_000
    assert len(await read_objects(store)) == 1
    assert await codec.decode([encoded]) == [LARGE]
    assert codec.stats.payloads == 1
    assert codec.stats.payload_bytes == 100_000
    assert 100_000 < codec.stats.written_bytes < 100_200


async def test_a_sealed_ref_is_short_too() -> None:
    [encoded] = await EverlongCodec(MemoryBlobStore(), keys={"2026-11": KEY_1}).encode([LARGE])
    assert encoded.ByteSize() < 140


async def test_encoding_an_equal_payload_adds_no_object() -> None:
    store = MemoryBlobStore()
    codec = EverlongCodec(store)
    first = await codec.encode([LARGE])
    assert await codec.encode([LARGE]) == first
    assert len(await read_objects(store)) == 1


async def test_objects_are_stored_under_the_thread_of_the_context() -> None:
    store = MemoryBlobStore()
    codec = EverlongCodec(store)
    for context, prefix in (
        (workflow("ops-7"), thread_prefix(thread_key("default", "ops-7"))),
        (activity("ops-8"), thread_prefix(thread_key("default", "ops-8"))),
        (activity(""), thread_prefix(NO_THREAD)),
    ):
        before = set(await read_objects(store))
        encoded = await codec.with_context(context).encode([LARGE])
        [added] = set(await read_objects(store)) - before
        assert added.startswith(prefix)
        # A ref describes itself: it is read without the context it was written in.
        assert await EverlongCodec(store).decode(encoded) == [LARGE]


async def test_a_growing_list_stores_only_its_new_part() -> None:
    store = CountingStore()
    codec = EverlongCodec(store).with_context(workflow())
    body = noise(300_000)
    await codec.encode([payload(body)])
    for step in range(1, 30):
        body += noise(1000, step)
        [encoded] = await codec.encode([payload(body)])
    assert codec.stats.written_bytes < 300_000 + 29 * 1000 * 3
    store.gets = 0
    assert await EverlongCodec(store).decode([encoded]) == [payload(body)]
    assert store.gets <= pack_layout.packs_max(len(body))


class ReversingCodec(PayloadCodec):
    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(metadata=p.metadata, data=p.data[::-1]) for p in payloads]

    decode = encode


class ContextCodec(ReversingCodec, WithSerializationContext):
    """A codec that wants to know where it is."""

    contexts: list[SerializationContext]

    def with_context(self, context: SerializationContext) -> "ContextCodec":
        self.contexts = [context]
        return self


async def test_a_codec_inside_ours_sees_plain_payloads() -> None:
    store = MemoryBlobStore()
    codec = EverlongCodec(store).with_inner(ReversingCodec())
    items = [LARGE, Payload(data=b"abc")]
    encoded = await codec.encode(items)
    assert encoded[1].data == b"cba"
    assert await codec.decode(encoded) == items
    [outer] = await EverlongCodec(store).decode(encoded[:1])
    assert outer.data == LARGE.data[::-1]


async def test_a_codec_inside_ours_gets_the_context() -> None:
    inner = ContextCodec()
    context = workflow()
    EverlongCodec(MemoryBlobStore(), inner=inner).with_context(context)
    assert inner.contexts == [context]


async def test_a_read_only_codec_encodes_nothing() -> None:
    store = CountingStore()
    [ref] = await EverlongCodec(store).encode([LARGE])
    reading = EverlongCodec(store).as_read_only()
    assert await reading.encode([LARGE]) == [LARGE]
    assert await reading.decode([ref]) == [LARGE]
    assert store.puts == 1
    assert await EverlongCodec(store, read_only=True).encode([LARGE]) == [LARGE]


@pytest.mark.guarantee(5)
@pytest.mark.parametrize("encoding", [INLINE_ENCODING, REF_ENCODING, RETIRED_ENCODING])
@pytest.mark.parametrize("data", [b"", b"not an object", b"line of a log\n" * 5000])
async def test_payloads_that_look_like_ours_come_back_as_they_were(
    encoding: bytes, data: bytes
) -> None:
    codec = EverlongCodec(MemoryBlobStore())
    item = Payload(metadata={"encoding": encoding}, data=data)
    once = await codec.encode([item])
    twice = await codec.encode(once)
    assert await codec.decode(once) == [item]
    assert await codec.decode(await codec.decode(twice)) == [item]


@pytest.mark.guarantee(7)
@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("context", [workflow(), NEXUS], ids=["workflow", "nexus"])
async def test_an_unreadably_large_payload_is_refused_even_if_it_compresses_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, context: SerializationContext, down: bool
) -> None:
    monkeypatch.setattr(limits, "OBJECT_BYTES_MAX", 100_000)
    store = FlakyStore(tmp_path)
    codec = EverlongCodec(store).with_context(context)
    if down:
        store.down = True
        with contextlib.suppress(StoreUnavailable):
            await codec._offloader.write("", LARGE, LARGE.data)
    with pytest.raises(ObjectTooLarge, match=r"10000\d bytes are not"):
        await codec.encode([Payload(data=bytes(100_001))])


@pytest.mark.guarantee(48)
async def test_payloads_of_our_own_activities_do_not_need_the_store() -> None:
    store = MemoryBlobStore()
    context = activity(activity_type="everlong.run_tool")
    codec = EverlongCodec(store, inline_bytes_max=0).with_context(context)
    encoded = await codec.encode([payload(noise(60_000))])
    assert await read_objects(store) == {}
    assert await codec.decode(encoded) == [payload(noise(60_000))]


async def test_local_activity_arguments_stay_inline_and_results_are_offloaded() -> None:
    store = MemoryBlobStore()
    codec = EverlongCodec(store)
    local = codec.with_context(activity(is_local=True))
    token = BUDGET.set(CompletionBudget())
    try:
        assert await local.encode([LARGE]) == [LARGE]
    finally:
        BUDGET.reset(token)
    [encoded] = await local.encode([LARGE])
    assert encoded.metadata["encoding"] == REF_ENCODING
    assert await local.decode([encoded]) == [LARGE]


async def test_nexus_payloads_stay_inline_or_are_refused() -> None:
    store = MemoryBlobStore()
    codec = EverlongCodec(store).with_context(NEXUS)
    item = payload(text(200_000))
    [encoded] = await codec.encode([item])
    assert encoded.metadata["encoding"] == INLINE_ENCODING
    assert await EverlongCodec(MemoryBlobStore()).decode([encoded]) == [item]
    for large in (payload(noise(2_000_000)), payload(b"x", extra=noise(2_000_000))):
        with pytest.raises(PayloadTooLarge, match=r"set nexus_offload=True on both sides"):
            await codec.encode([large])
    assert await read_objects(store) == {}
    sharing = EverlongCodec(store, nexus_offload=True).with_context(NEXUS)
    [ref] = await sharing.encode([payload(noise(2_000_000))])
    assert ref.metadata["encoding"] == REF_ENCODING


@pytest.mark.parametrize(
    ("budget", "encoding"),
    [
        (CompletionBudget(goes_to_history=False), b"json/plain"),
        (CompletionBudget(leaves_namespace=True), b"json/plain"),
        (CompletionBudget(), REF_ENCODING),
    ],
)
async def test_short_lived_or_outbound_payloads_are_not_stored(
    budget: CompletionBudget, encoding: bytes
) -> None:
    store = MemoryBlobStore()
    token = BUDGET.set(budget)
    try:
        [encoded] = await EverlongCodec(store).with_context(workflow()).encode([LARGE])
    finally:
        BUDGET.reset(token)
    assert encoded.metadata["encoding"] == encoding
    assert len(await read_objects(store)) == (encoding == REF_ENCODING)


async def test_metadata_counts_as_much_as_data() -> None:
    store = MemoryBlobStore()
    item = payload(b"x", extra=noise(10_000))
    [encoded] = await EverlongCodec(store).encode([item])
    assert encoded.metadata["encoding"] == REF_ENCODING
    assert await EverlongCodec(store).decode([encoded]) == [item]


@pytest.mark.guarantee(5)
@pytest.mark.parametrize("size", [0, 1000, 100_000])
async def test_unknown_payload_fields_of_a_newer_temporal_are_kept(size: int) -> None:
    # Field 99, which this protocol does not have, with three bytes.
    newer = Payload.FromString(payload(text(size)).SerializeToString() + b"\x9a\x06\x03abc")
    for inline_bytes_max in (0, limits.INLINE_BYTES_MAX):
        codec = EverlongCodec(MemoryBlobStore(), inline_bytes_max=inline_bytes_max)
        [decoded] = await codec.decode(await codec.encode([newer]))
        assert decoded == newer
        assert b"\x9a\x06\x03abc" in decoded.SerializeToString()


@pytest.mark.guarantee(33)
async def test_payloads_of_others_pass_through_decode() -> None:
    foreign = Payload(metadata={"encoding": b"binary/encrypted"}, data=b"\x00\x01")
    for keys in (None, {"k1": KEY_1}):
        codec = EverlongCodec(MemoryBlobStore(), keys=keys)
        assert await codec.decode([foreign, Payload()]) == [foreign, Payload()]


@pytest.mark.guarantee(8)
async def test_a_ref_of_a_newer_version_is_refused_by_name() -> None:
    codec = EverlongCodec(MemoryBlobStore())
    [encoded] = await codec.encode([LARGE])
    newer = Payload(metadata=encoded.metadata, data=b"\x03" + encoded.data[1:])
    with pytest.raises(UnknownVersion, match=r"version 03\. Upgrade Everlong"):
        await codec.decode([newer])


async def test_a_pack_that_holds_no_payload_is_refused() -> None:
    codec = EverlongCodec(MemoryBlobStore())
    [inline] = await codec.encode([payload(b"a line of a log\n" * 1_000)])
    with pytest.raises(BlobCorrupt, match="does not decompress to a payload"):
        await codec.decode([Payload(metadata=inline.metadata, data=build_object(b"hunter2" * 100))])


@pytest.mark.guarantee(29)
async def test_a_prefetch_fetches_every_object_of_a_decode() -> None:
    behind = CountingStore()
    codec = EverlongCodec(behind).with_context(workflow())
    body = noise(100_000)
    await codec.encode([payload(body)])
    [ref] = await codec.encode([payload(body + noise(9000, 1))])
    found = parse_ref(ref)
    assert found.packs == 2
    assert codec.is_wanted(ref)
    assert not codec.is_wanted(payload(b"x"))
    cold = EverlongCodec(open_packs(behind))
    assert await cold.warm(ref) > 100_000
    assert behind.gets == 2
    assert await cold.decode([ref]) == [payload(body + noise(9000, 1))]
    assert behind.gets == 2


@pytest.mark.guarantee(2)
async def test_an_outage_raises_plainly_and_leaves_no_ref(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FlakyStore(tmp_path)
    store.down = True
    with pytest.raises(StoreUnavailable) as raised:
        await EverlongCodec(store).encode([payload(noise(2_000_000))])
    # A plain exception: Temporal retries the task. ApplicationError could end the workflow.
    assert not isinstance(raised.value, FailureError)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_keys_are_given_in_one_place_only() -> None:
    packs = open_packs(MemoryBlobStore())
    with pytest.raises(ConfigError, match="give the keys to it"):
        EverlongCodec(packs, keys={"k1": KEY_1})


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises(ConfigError, match="inline_bytes_max is -1"):
        EverlongCodec(MemoryBlobStore(), inline_bytes_max=-1)


@pytest.mark.parametrize("keys", [None, {"k1": KEY_1}])
async def test_payloads_of_every_compression_level_share_packs_and_are_read(
    monkeypatch: pytest.MonkeyPatch, keys: dict[str, bytes] | None
) -> None:
    store = MemoryBlobStore()
    codec = EverlongCodec(store, keys=keys).with_context(workflow())
    written, items, sizes = [], [], []
    body = text(60_000)
    for number, level in enumerate((1, 19, 3, 9, -5), 1):
        plain = zstandard.ZstdCompressor(level=level)
        small = zstandard.ZstdCompressor(
            level=level, dict_data=objects._build_builtin_dictionary(), write_dict_id=False
        )
        for module in (objects, packs):
            monkeypatch.setattr(module, "get_compressor", lambda _=0, plain=plain: plain)
            monkeypatch.setattr(module, "get_small_compressor", lambda small=small: small)
        body += text(30_000, number)
        both = [payload(body), payload(text(2000, number))]
        written += await codec.encode(both)
        items += both
        sizes.append(len(written[-1].data))
    monkeypatch.undo()
    assert len(set(sizes)) > 1, "the levels made no difference"
    assert len(await read_objects(store)) == 5
    assert await EverlongCodec(store, keys=keys).decode(written) == items
