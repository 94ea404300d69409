"""Forged refs: bytes that another program could have invented are not read."""

import dataclasses
import json
import zlib

import pytest
from temporalio.api.common.v1 import Payload

from everlong import limits
from everlong.codecs import EverlongCodec
from everlong.codecs.offload import Offloader
from everlong.codecs.refs import PackRef, parse_ref
from everlong.errors import ConfigError, ObjectTooLarge, RefRefused, UnknownVersion
from everlong.models import Entry, Kind, Message, Ref, Segment, SegmentRef, build_entry, thread_key
from everlong.storage.encryption_keys import Keyring
from everlong.storage.journal import Journal
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.objects import build_object
from everlong.storage.pack_store import PackStore, pack_key
from everlong.storage.packs import Contents, Extent, build_pack
from everlong.storage.segments import serialize_segment
from tests.support.sample_payloads import KEY_1, noise, payload, workflow

KEYS = {"k1": KEY_1}
SECRET = payload(noise(9000))


async def sealed_ref(store: MemoryBlobStore) -> PackRef:
    [ref] = await EverlongCodec(store, keys=KEYS).with_context(workflow("victim")).encode([SECRET])
    return parse_ref(ref)


@pytest.mark.guarantee(8)
@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "sealed"])
async def test_a_ref_of_version_1_is_refused_by_name_and_never_passed_through(
    keys: dict[str, bytes] | None,
) -> None:
    store = MemoryBlobStore()
    victim = await sealed_ref(store)
    named = {"thread": victim.thread, "digest": victim.pack.hex(), "kind": "payload"}
    ref = Payload(
        metadata={"encoding": b"json/everlong-ref", "everlong-version": b"1"},
        data=json.dumps({**named, "size_bytes": victim.size_bytes}).encode(),
    )
    codec = EverlongCodec(store, keys=keys)
    for read in (codec.decode([ref]), codec.decode([ref, SECRET]), codec.warm(ref)):
        with pytest.raises(UnknownVersion, match="payload ref version 1 ") as raised:
            await read
        assert victim.thread not in str(raised.value)


@pytest.mark.guarantee(21)
@pytest.mark.parametrize("warm", [True, False])
async def test_an_untagged_ref_opens_no_sealed_pack_while_unsealed_ones_are_accepted(
    warm: bool,
) -> None:
    store = MemoryBlobStore()
    packs = PackStore(store, Keyring(KEYS), accept_unsealed=True)
    codec = EverlongCodec(packs)
    if warm:
        [ref] = await codec.with_context(workflow("victim")).encode([SECRET])
        victim = parse_ref(ref)
    else:
        victim = await sealed_ref(store)
    forged = dataclasses.replace(victim, key_id="").to_payload(None)
    with pytest.raises(RefRefused, match="is sealed with key 'k1', and its ref was made with ''"):
        await codec.decode([forged])
    [plain] = await EverlongCodec(store).with_context(workflow()).encode([SECRET])
    assert await codec.decode([plain]) == [SECRET]


async def test_an_unsealed_pack_reads_nothing_of_a_sealed_one() -> None:
    store = MemoryBlobStore()
    victim = await sealed_ref(store)
    contents = Contents(
        envelope=b"",
        size_bytes=100,
        crc=zlib.crc32(SECRET.data[:100]),
        extents=[Extent(1, 0, 100)],
        sources=[victim.pack],
    )
    name, data = build_pack(contents, victim.thread, None)
    await store.put(pack_key(victim.thread, name), data)
    forged = PackRef(victim.thread, name, 100, 2).to_payload(None)
    packs = PackStore(store, Keyring(KEYS), accept_unsealed=True)
    with pytest.raises(RefRefused, match="points to packs of another key"):
        await EverlongCodec(packs).decode([forged])


@pytest.mark.guarantee(13)
async def test_a_journal_reads_nothing_of_another_thread() -> None:
    packs = PackStore(MemoryBlobStore())
    victim = Journal(packs, thread_key("default", "victim"))
    entry = build_entry(1, Kind.MESSAGE, Message(role="user", text="a secret"), 0)
    head, _ = await victim.append(None, [entry])
    other = Journal(packs, thread_key("default", "other"))
    for read in (other.read(head), other.newest(head), other.append(head, [entry])):
        with pytest.raises(RefRefused, match="belongs to another thread"):
            await read
    body, _ = await packs.write_body(thread_key("default", "victim"), Kind.MESSAGE, b"{}")
    by_ref = Entry(seq=1, kind=Kind.MESSAGE, time_ms=0, size_bytes=2, ref=body)
    with pytest.raises(RefRefused, match="belongs to another thread"):
        await other.messages([by_ref])
    assert isinstance(head, SegmentRef)


@pytest.mark.guarantee(13)
@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "sealed"])
@pytest.mark.parametrize("metadata", [{"encoding": b"json/plain"}, {}], ids=["json", "bare"])
async def test_a_payload_that_looks_like_a_segment_leads_no_journal_to_another_thread(
    keys: dict[str, bytes] | None, metadata: dict[str, bytes]
) -> None:
    """A client that may start a workflow under an id can make a worker store any data for that id."""
    packs = PackStore(MemoryBlobStore(), None if keys is None else Keyring(keys))
    victim, other = thread_key("default", "victim"), thread_key("default", "other")
    secret = build_entry(1, Kind.MESSAGE, Message(role="user", text="a secret"), 0)
    head, _ = await Journal(packs, victim).append(None, [secret])
    own = build_entry(2, Kind.MESSAGE, Message(role="user", text="x"), 0)
    text = serialize_segment(Segment(before=(head,), entries=(own,), shares=(victim,)))[0]
    offloader = Offloader(packs)
    written, _ = await offloader.write(other, Payload(metadata=metadata, data=text), text)
    stored = parse_ref(written)
    assert (await Offloader(packs).read(stored, learn=False)).data == text
    ref = Ref(
        thread=other,
        digest=stored.pack.hex(),
        size_bytes=len(text),
        kind=Kind.SEGMENT,
    )
    forged = SegmentRef(ref=ref, first_seq=2, count=1)
    with pytest.raises(RefRefused, match="no part of a journal"):
        await Journal(packs, other).read(forged)


@pytest.mark.guarantee(6)
async def test_payloads_that_inflate_to_too_much_together_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bomb = Payload(
        metadata={"encoding": b"binary/everlong"},
        data=build_object(payload(b"\0" * 900_000).SerializeToString()),
    )
    monkeypatch.setattr(limits, "OBJECT_BYTES_MAX", 1_000_000)
    codec = EverlongCodec(MemoryBlobStore(), decode_bytes_max=2_000_000)
    assert len(await codec.decode([bomb, bomb])) == 2
    with pytest.raises(ObjectTooLarge, match="these 3 payloads decode to over"):
        await codec.decode([bomb, bomb, bomb])


@pytest.mark.guarantee(27)
def test_a_threshold_above_the_servers_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="the server takes payloads of"):
        EverlongCodec(MemoryBlobStore(), inline_bytes_max=limits.FALLBACK_BYTES_MAX + 1)
