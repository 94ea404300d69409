import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ActivitySerializationContext,
    PayloadCodec,
    WorkflowSerializationContext,
)
from temporalio.exceptions import FailureError

from everlong import limits
from everlong.codecs import EverlongCodec
from everlong.codecs.codec import INLINE_ENCODING, REF_ENCODING
from everlong.errors import (
    BlobCorrupt,
    BlobMissing,
    ConfigError,
    ObjectTooLarge,
    StoreUnavailable,
    UnknownVersion,
)
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.objects import thread_key, thread_prefix
from tests.stores import FlakyStore

payloads = st.builds(
    Payload,
    metadata=st.dictionaries(st.text(max_size=20), st.binary(max_size=50), max_size=4),
    data=st.one_of(
        st.binary(max_size=2000),
        st.integers(min_value=0, max_value=60_000).map(lambda n: (b"line of a log\n" * 5000)[:n]),
        st.integers(min_value=0, max_value=60_000).map(
            lambda n: hashlib.shake_256(b"noise").digest(n)
        ),
    ),
)


def noise(size: int) -> Payload:
    data = hashlib.shake_256(b"noise").digest(size)
    return Payload(metadata={"encoding": b"binary/plain"}, data=data)


async def stored_keys(store: MemoryBlobStore) -> list[str]:
    return [info.key async for info in store.list("")]


@settings(max_examples=200, deadline=None)
@given(st.lists(payloads, max_size=4), st.sampled_from([0, 100, limits.INLINE_BYTES_MAX]))
async def test_decode_returns_what_was_encoded(items: list[Payload], inline_bytes_max: int) -> None:
    codec = EverlongCodec(MemoryBlobStore(), inline_bytes_max=inline_bytes_max)
    assert await codec.decode(await codec.encode(items)) == items


async def test_small_payloads_stay_as_they_are() -> None:
    payload = Payload(metadata={"encoding": b"json/plain"}, data=b'"hello"')
    assert await EverlongCodec(MemoryBlobStore()).encode([payload]) == [payload]


async def test_compressible_payloads_stay_inline() -> None:
    store = MemoryBlobStore()
    payload = Payload(metadata={"encoding": b"json/plain"}, data=b"a line of a log\n" * 50_000)
    [encoded] = await EverlongCodec(store).encode([payload])
    assert encoded.metadata["encoding"] == INLINE_ENCODING
    assert encoded.ByteSize() < 1000
    assert await stored_keys(store) == []


async def test_large_payloads_become_a_short_ref() -> None:
    store = MemoryBlobStore()
    codec = EverlongCodec(store)
    [encoded] = await codec.encode([noise(100_000)])
    assert encoded.metadata["encoding"] == REF_ENCODING
    assert encoded.ByteSize() < 300
    assert len(await stored_keys(store)) == 1
    assert await codec.decode([encoded]) == [noise(100_000)]


async def test_encoding_the_same_again_adds_no_object() -> None:
    store = MemoryBlobStore()
    codec = EverlongCodec(store)
    first = await codec.encode([noise(100_000)])
    assert await codec.encode([noise(100_000)]) == first
    assert len(await stored_keys(store)) == 1


async def test_objects_lie_under_the_thread_of_the_context() -> None:
    store = MemoryBlobStore()
    codec = EverlongCodec(store)
    workflow = WorkflowSerializationContext(namespace="ns", workflow_id="ops-7")
    activity = ActivitySerializationContext(
        namespace="ns",
        workflow_id="ops-8",
        workflow_type=None,
        activity_type="a",
        activity_task_queue="q",
        is_local=False,
        activity_id=None,
    )
    for context, thread_id in ((workflow, "ops-7"), (activity, "ops-8")):
        encoded = await codec.with_context(context).encode([noise(100_000)])
        prefix = thread_prefix(thread_key("ns", thread_id))
        assert any(key.startswith(prefix) for key in await stored_keys(store))
        # A ref describes itself: it is read without the context it was written in.
        assert await codec.decode(encoded) == [noise(100_000)]


class Reversing(PayloadCodec):
    async def encode(self, payloads):  # type: ignore[no-untyped-def]
        return [Payload(metadata=p.metadata, data=p.data[::-1]) for p in payloads]

    decode = encode


async def test_a_codec_inside_ours_sees_plain_payloads() -> None:
    store = MemoryBlobStore()
    codec = EverlongCodec(store).around(Reversing())
    items = [noise(100_000), Payload(data=b"abc")]
    encoded = await codec.encode(items)
    assert encoded[1].data == b"cba"
    assert await codec.decode(encoded) == items
    [outer] = await EverlongCodec(store).decode(encoded[:1])
    assert outer.data == noise(100_000).data[::-1]


@pytest.mark.parametrize("encoding", [INLINE_ENCODING, REF_ENCODING])
@pytest.mark.parametrize("data", [b"", b"not an object", b"line of a log\n" * 5000])
async def test_payloads_that_look_like_ours_come_back_as_they_were(
    encoding: bytes, data: bytes
) -> None:
    codec = EverlongCodec(MemoryBlobStore())
    payload = Payload(metadata={"encoding": encoding}, data=data)
    once = await codec.encode([payload])
    twice = await codec.encode(once)
    assert await codec.decode(once) == [payload]
    assert await codec.decode(await codec.decode(twice)) == [payload]


async def test_what_could_not_be_read_again_is_refused_even_if_it_compresses_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "OBJECT_BYTES_MAX", 100_000)
    with pytest.raises(ObjectTooLarge):
        await EverlongCodec(MemoryBlobStore()).encode([Payload(data=bytes(100_001))])


async def test_payloads_of_our_own_activities_do_not_need_the_store() -> None:
    store = MemoryBlobStore()
    context = ActivitySerializationContext(
        namespace="ns",
        workflow_id="ops-7",
        workflow_type="everlong.Agent",
        activity_type="everlong.run_tool",
        activity_task_queue="q",
        is_local=False,
        activity_id=None,
    )
    codec = EverlongCodec(store, inline_bytes_max=0).with_context(context)
    encoded = await codec.encode([noise(60_000)])
    assert await stored_keys(store) == []
    assert await codec.decode(encoded) == [noise(60_000)]


async def test_payloads_of_others_pass_through_decode() -> None:
    foreign = Payload(metadata={"encoding": b"binary/encrypted"}, data=b"\x00\x01")
    assert await EverlongCodec(MemoryBlobStore()).decode([foreign, Payload()]) == [
        foreign,
        Payload(),
    ]


async def test_a_flipped_bit_in_a_ref_is_detected() -> None:
    codec = EverlongCodec(MemoryBlobStore())
    [encoded] = await codec.encode([noise(20_000)])
    for bit in range(len(encoded.data) * 8):
        damaged = bytearray(encoded.data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((BlobCorrupt, BlobMissing)):
            await codec.decode([Payload(metadata=encoded.metadata, data=bytes(damaged))])


async def test_a_ref_of_a_newer_version_is_refused_by_name() -> None:
    codec = EverlongCodec(MemoryBlobStore())
    [encoded] = await codec.encode([noise(20_000)])
    encoded.metadata["everlong-version"] = b"2"
    with pytest.raises(UnknownVersion, match="'2'"):
        await codec.decode([encoded])


async def test_an_outage_raises_plainly_and_leaves_no_ref(tmp_path: Path) -> None:
    store = FlakyStore(tmp_path)
    store.down = True
    with pytest.raises(StoreUnavailable) as raised:
        await EverlongCodec(store).encode([noise(20_000)])
    # A plain exception: Temporal retries the task. ApplicationError could end the workflow.
    assert not isinstance(raised.value, FailureError)


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises(ConfigError, match="inline_bytes_max is -1"):
        EverlongCodec(MemoryBlobStore(), inline_bytes_max=-1)
