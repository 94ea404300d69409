"""Bodies of a journal that repeat earlier ones: excerpts of long messages, and snapshots in a row."""

import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from everlong import limits
from everlong.errors import BlobCorrupt, BlobMissing
from everlong.models import Kind, Ref, thread_key
from everlong.storage.encryption_keys import Keyring
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore, object_key
from everlong.storage.packs import Pack

THREAD: Final = thread_key("default", "ops-7")
OTHER: Final = thread_key("default", "ops-8")


def text(seed: int, words: int) -> str:
    source = random.Random(seed)
    return " ".join(f"{source.getrandbits(32):08x}" for _ in range(words))


def snapshots(number: int) -> list[bytes]:
    """Return snapshots of a thread: each drops some of the oldest notes and adds new ones."""
    notes = [text(seed, 12) for seed in range(200 + 30 * number)]
    return [json.dumps(notes[30 * n : 200 + 30 * n]).encode() for n in range(number)]


async def write_all(packs: PackStore, bodies: Sequence[bytes]) -> list[Ref]:
    refs: list[Ref] = []
    for body in bodies:
        previous = refs[-1] if refs else None
        ref, _ = await packs.write_body(THREAD, Kind.SNAPSHOT, body, previous=previous)
        refs.append(ref)
    return refs


async def open_pack(packs: PackStore, ref: Ref) -> Pack:
    return await packs.open(ref.thread, bytes.fromhex(ref.digest))


async def stored_bytes(packs: PackStore, ref: Ref) -> int:
    return len(await packs.store.get(object_key(ref)))


async def test_a_snapshot_stores_only_its_new_part() -> None:
    packs = PackStore(MemoryBlobStore())
    bodies = snapshots(9)
    refs = await write_all(packs, bodies)
    sizes = [await stored_bytes(packs, ref) for ref in refs]
    # Three in a row use a dictionary, and the fourth uses none.
    chain = [len((await open_pack(packs, ref)).sources) for ref in refs]
    assert chain == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    for size, sources in zip(sizes, chain, strict=True):
        assert sources == 0 or size < sizes[0] / 2
    for ref, body in zip(refs, bodies, strict=True):
        assert await PackStore(packs.store).read_body(ref) == body


async def test_a_snapshot_unlike_the_last_one_uses_no_dictionary() -> None:
    packs = PackStore(MemoryBlobStore())
    first, second = (json.dumps([text(n * 1000 + i, 12) for i in range(200)]) for n in (1, 2))
    _, ref = await write_all(packs, [first.encode(), second.encode()])
    assert (await open_pack(packs, ref)).sources == []


@pytest.mark.parametrize(
    ("previous", "body"),
    [
        (text(1, 200), text(1, 200_000)),  # Beyond one frame.
        (text(1, 120_000), text(1, 200_000)),  # A dictionary of over 1 MiB.
        (text(1, 60_000), text(1, 1000)),  # A reader would inflate too much for too little.
    ],
    ids=["long", "long dictionary", "short"],
)
async def test_an_unreadable_body_is_not_written(previous: str, body: str) -> None:
    packs = PackStore(MemoryBlobStore())
    _, ref = await write_all(packs, [previous.encode(), body.encode()])
    assert (await open_pack(packs, ref)).sources == []
    assert await packs.read_body(ref) == body.encode()


async def test_a_snapshot_of_another_thread_is_no_dictionary() -> None:
    packs = PackStore(MemoryBlobStore())
    body = snapshots(1)[0]
    other, _ = await packs.write_body(OTHER, Kind.SNAPSHOT, body)
    ref, _ = await packs.write_body(THREAD, Kind.SNAPSHOT, body, previous=other)
    assert (await open_pack(packs, ref)).sources == []


async def test_a_key_rotation_ends_a_chain_of_snapshots() -> None:
    store = MemoryBlobStore()
    old, new = {"k1": bytes(32)}, {"k2": bytes(range(32)), "k1": bytes(32)}
    bodies = snapshots(2)
    first, _ = await PackStore(store, Keyring(old)).write_body(THREAD, Kind.SNAPSHOT, bodies[0])
    packs = PackStore(store, Keyring(new))
    second, _ = await packs.write_body(THREAD, Kind.SNAPSHOT, bodies[1], previous=first)
    assert (await open_pack(packs, second)).sources == []
    third, _ = await packs.write_body(THREAD, Kind.SNAPSHOT, bodies[1], previous=second)
    assert len((await open_pack(packs, third)).sources) == 1
    assert await packs.read_body(third) == bodies[1]


async def test_a_lost_snapshot_is_named_by_those_that_need_it() -> None:
    packs = PackStore(MemoryBlobStore())
    first, second = await write_all(packs, snapshots(2))
    await packs.store.delete([object_key(first)])
    with pytest.raises(BlobMissing, match=first.digest):
        await PackStore(packs.store).read_body(second)


@pytest.mark.parametrize("end_bytes", [0, 1, 5000])
async def test_a_long_message_does_not_repeat_its_excerpt(end_bytes: int) -> None:
    packs = PackStore(MemoryBlobStore())
    long = text(1, 60_000).encode()
    short = long[:20_000] + b"[... left out ...]" + long[len(long) - end_bytes :] * bool(end_bytes)
    excerpt, _ = await packs.write_body(THREAD, Kind.TOOL_RESULT, short)
    alone, alone_bytes = await packs.write_body(THREAD, Kind.TOOL_RESULT, long)
    ref, written_bytes = await packs.write_body(THREAD, Kind.TOOL_RESULT, long, excerpt=excerpt)
    assert ref != alone
    # Hex digits with spaces take about half of their bytes.
    assert written_bytes < alone_bytes - (20_000 + end_bytes) * 0.4
    assert await PackStore(packs.store).read_body(ref) == long
    # A reader of the excerpt needs no other pack.
    assert (await open_pack(packs, excerpt)).sources == []


async def test_an_excerpt_that_has_little_in_common_is_not_used() -> None:
    packs = PackStore(MemoryBlobStore())
    excerpt, _ = await packs.write_body(THREAD, Kind.TOOL_RESULT, text(2, 4000).encode())
    ref, _ = await packs.write_body(
        THREAD, Kind.TOOL_RESULT, text(1, 60_000).encode(), excerpt=excerpt
    )
    assert (await open_pack(packs, ref)).sources == []


async def test_a_body_equal_to_its_excerpt_stores_a_reference() -> None:
    packs = PackStore(MemoryBlobStore())
    body = text(1, 4000).encode()
    excerpt, _ = await packs.write_body(THREAD, Kind.TOOL_RESULT, body)
    ref, written_bytes = await packs.write_body(THREAD, Kind.TOOL_RESULT, body, excerpt=excerpt)
    assert written_bytes < 300
    assert await PackStore(packs.store).read_body(ref) == body


async def test_a_damaged_excerpt_is_found_by_a_read_of_the_whole() -> None:
    store = MemoryBlobStore()
    packs = PackStore(store)
    long = text(1, 60_000).encode()
    excerpt, _ = await packs.write_body(THREAD, Kind.TOOL_RESULT, long[:20_000])
    ref, _ = await packs.write_body(THREAD, Kind.TOOL_RESULT, long, excerpt=excerpt)
    data = bytearray(await store.get(object_key(excerpt)))
    data[-1] ^= 1
    await store.delete([object_key(excerpt)])
    await store.put(object_key(excerpt), bytes(data))
    with pytest.raises(BlobCorrupt, match=excerpt.digest):
        await packs.read_body(ref)


def test_the_built_in_dictionary_has_the_digest_of_the_format() -> None:
    root = Path(__file__).parents[2]
    dictionary = (root / "everlong" / "storage" / "dictionary-1.bin").read_bytes()
    digest = hashlib.blake2b(dictionary, digest_size=32).hexdigest()
    assert len(dictionary) == 8 * limits.KIB
    assert digest in (root / "docs" / "reference" / "wire-format.md").read_text()
