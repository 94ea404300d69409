"""Bodies that were parsed before are used again, and only while the store returns the same object."""

import pytest

from everlong.errors import BlobCorrupt, BlobMissing, KeyMissing
from everlong.models import Kind, Message, thread_key
from everlong.storage.cache import CachedBlobStore
from everlong.storage.encryption_keys import Keyring
from everlong.storage.journal import Journal
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore, pack_key

THREAD = thread_key("default", "ops-7")
BODY = b"what a body says" * 40
parses = 0


def parse(data: bytes) -> str:
    global parses
    parses += 1
    return data.decode()


@pytest.fixture(autouse=True)
def count() -> None:
    global parses
    parses = 0


def open_cached(store: MemoryBlobStore, keyring: Keyring | None = None) -> PackStore:
    cache = CachedBlobStore(store, memory_bytes_max=2**20, disk_bytes_max=0)
    return PackStore(cache, keyring)


async def test_a_body_is_parsed_once_while_the_cache_has_it() -> None:
    packs = open_cached(MemoryBlobStore())
    ref, _ = await packs.write_body(THREAD, Kind.SEGMENT, BODY)
    for _ in range(3):
        assert await packs.parse_body(ref, parse) == BODY.decode()
    assert parses == 1


async def test_a_deleted_object_is_missing_even_if_it_was_parsed_before() -> None:
    packs = open_cached(MemoryBlobStore())
    ref, _ = await packs.write_body(THREAD, Kind.SEGMENT, BODY)
    await packs.parse_body(ref, parse)
    await packs.store.delete([pack_key(THREAD, bytes.fromhex(ref.digest))])
    with pytest.raises(BlobMissing):
        await packs.parse_body(ref, parse)


async def test_other_bytes_under_the_same_name_are_verified_again() -> None:
    store = MemoryBlobStore()
    packs = PackStore(store)
    ref, _ = await packs.write_body(THREAD, Kind.SEGMENT, BODY)
    key = pack_key(THREAD, bytes.fromhex(ref.digest))
    await packs.parse_body(ref, parse)
    stored = await store.get(key)
    await store.put(key, stored[:-1] + bytes([stored[-1] ^ 1]))
    with pytest.raises(BlobCorrupt):
        await packs.parse_body(ref, parse)


async def test_a_body_is_unreadable_once_its_key_is_gone() -> None:
    keys = {"old": b"o" * 32, "new": b"n" * 32}
    packs = open_cached(MemoryBlobStore(), Keyring({"old": keys["old"]}))
    ref, _ = await packs.write_body(THREAD, Kind.SEGMENT, BODY)
    await packs.parse_body(ref, parse)
    packs.keyring = Keyring({"new": keys["new"]})
    with pytest.raises(KeyMissing):
        await packs.parse_body(ref, parse)


async def test_parsed_bodies_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlong.storage.pack_store._PARSED_BYTES_MAX", 64 * 1024)
    packs = open_cached(MemoryBlobStore())
    written = [
        await packs.write_body(THREAD, Kind.SEGMENT, BODY + bytes(str(each), "ascii"))
        for each in range(200)
    ]
    refs = [ref for ref, _ in written]
    for ref in refs:
        await packs.parse_body(ref, parse)
    for ref in reversed(refs):
        await packs.parse_body(ref, parse)
    kept = 2 * len(refs) - parses
    assert 20 < kept < 64


async def test_a_message_that_a_model_changes_does_not_change_the_journal() -> None:
    packs = open_cached(MemoryBlobStore())
    thinking = {"part_kind": "thinking", "content": "hm", "signature": "s"}
    parts = [{"part_kind": "text", "content": "hi"}, thinking]
    message = Message(role="assistant", text="hi", native={"parts": parts, "kind": "response"})
    journal = Journal(packs, THREAD)
    entry, _ = await journal.write_body_entry(Kind.REPLY, message, 1)
    head, _ = await journal.append(None, [entry])
    for _ in range(2):
        [read] = await journal.messages(await journal.read(head))
        assert read.native is not None
        assert read.native["parts"][1].pop("signature") == "s"
