"""Edits within a list, and retried tasks: only new bytes are written."""

import random
import time

import pytest

from everlong import limits
from everlong.codecs import EverlongCodec
from everlong.codecs.budget import BUDGET, CompletionBudget
from everlong.codecs.refs import is_ref
from everlong.codecs.thread_memory import ThreadMemory
from everlong.errors import BlobMissing
from everlong.storage.memory import MemoryBlobStore
from tests.support.fake_stores import CountingStore
from tests.support.pack_model import Store, check
from tests.support.sample_payloads import noise, payload, read_objects, text, workflow


def new_bytes(memory: ThreadMemory, store: Store, data: bytes) -> int:
    plan = memory.plan(b"", data, "", 0.0)
    check(store, memory, plan, data)
    if plan.same_as is None:
        memory.commit(plan, store.add(plan), 0.0)
    return sum(map(len, plan.contents.stream))


@pytest.mark.guarantee(9)
@pytest.mark.parametrize("inserted", [0, 1, 100, 3000, 40_000])
@pytest.mark.parametrize("appended", [0, 2000])
def test_an_edit_in_the_middle_stores_only_new_bytes(inserted: int, appended: int) -> None:
    memory, store = ThreadMemory(), Store()
    body = noise(400_000)
    new_bytes(memory, store, body)
    changed = body[:100_000] + noise(inserted, 2) + body[100_008:] + noise(appended, 3)
    assert new_bytes(memory, store, changed) <= inserted + appended + 200


@pytest.mark.guarantee(9)
def test_many_small_edits_do_not_grow_the_head_without_bound() -> None:
    memory, store = ThreadMemory(), Store()
    source = random.Random(5)
    body = bytearray(noise(200_000))
    written = []
    for _ in range(800):
        place = source.randrange(len(body) - 8)
        body[place : place + 8] = source.randbytes(8)
        plan = memory.plan(b"", bytes(body), "", 0.0)
        assert len(plan.contents.extents) <= limits.EXTENTS_MAX
        memory.commit(plan, store.add(plan), 0.0)
        written.append(sum(map(len, plan.contents.stream)))
    # The first, and one whole again every 256 changes.
    assert sum(size >= 200_000 for size in written) <= 1 + 800 // 200
    assert sorted(written)[len(written) // 2] < 3000


@pytest.mark.guarantee(10)
@pytest.mark.parametrize("changes", [250, 300, 600, 1500])
def test_many_edits_at_once_keep_the_head_within_its_bound(changes: int) -> None:
    memory, store = ThreadMemory(), Store()
    body = bytearray(noise(3_000_000))
    new_bytes(memory, store, bytes(body))
    for change in range(changes):
        place = change * 2000 + 100
        body[place : place + 8] = noise(8, change)
    plan = memory.plan(b"", bytes(body), "", 0.0)
    check(store, memory, plan, bytes(body))
    assert len(plan.runs) <= limits.EXTENTS_MAX
    assert changes > 250 or plan.new_bytes <= 20 * changes


@pytest.mark.guarantee(10)
@pytest.mark.parametrize("seed", range(3))
def test_rewritten_runs_leave_no_pack_without_its_dictionary(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(limits, "EXTENTS_MAX", 64)
    memory, store = ThreadMemory(), Store()
    source = random.Random(seed)
    parts = [text(3000, 10 * seed + part) for part in range(4)]
    was_bounded = False
    for _ in range(130):
        data = b"".join(parts)
        plan = memory.plan(b"", data, "", 0.0)
        check(store, memory, plan, data)
        was_bounded |= bool(plan.moved) and len(plan.runs) > 20
        memory.commit(plan, store.add(plan), 0.0)
        for _ in range(source.randint(1, 4)):
            size = source.choice([300, 1500, 3000, 6000, 12_000])
            parts.insert(source.randrange(len(parts) + 1), text(size, source.randrange(10**9)))
    assert was_bounded  # Or else this showed nothing.


@pytest.mark.guarantee(9)
async def test_a_retried_task_does_not_write_again() -> None:
    store = CountingStore()
    codec = EverlongCodec(store, keys={"k": bytes(32)}).with_context(workflow())
    items = [payload(noise(20_000, seed)) for seed in range(200)]
    first = [(await codec.encode([item]))[0] for item in items]
    puts = store.puts
    again = [(await codec.encode([item]))[0] for item in items]
    assert (store.puts, again) == (puts, first)
    assert await EverlongCodec(store, keys={"k": bytes(32)}).decode(again) == items


@pytest.mark.guarantee(27)
async def test_an_overlong_completion_keeps_the_rest_inline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryBlobStore()
    codec = EverlongCodec(store).with_context(workflow())
    items = [payload(noise(20_000, seed)) for seed in range(40)]
    token = BUDGET.set(CompletionBudget())
    try:
        encoded = [(await codec.encode([item]))[0] for item in items[:20]]
        assert all(map(is_ref, encoded))
        now = time.monotonic() + limits.COMPLETION_SECONDS_MAX + 1
        monkeypatch.setattr(time, "monotonic", lambda: now)
        encoded += [(await codec.encode([item]))[0] for item in items[20:]]
    finally:
        BUDGET.reset(token)
    assert not any(map(is_ref, encoded[20:]))
    assert len(await read_objects(store)) == 20
    assert await EverlongCodec(store).decode(encoded) == items


@pytest.mark.guarantee(4)
async def test_a_lost_pack_is_not_referenced_again() -> None:
    store = MemoryBlobStore()
    codec = EverlongCodec(store).with_context(workflow())
    body = noise(100_000)
    [old] = await codec.encode([payload(body)])
    [key] = await read_objects(store)
    await codec.encode([payload(body + noise(9000, 1))])
    await store.delete([key])
    reader = EverlongCodec(store).with_context(workflow())
    # A failed read forgets the thread: the next pack references no earlier one.
    reader._offloader = codec._offloader
    for seed in range(4):  # The writer's own memory has let go of it.
        await codec.encode([payload(noise(200_000, 50 + seed))])
    with pytest.raises(BlobMissing):
        await reader.decode([old])
    [new] = await codec.encode([payload(body + noise(9000, 2))])
    assert await EverlongCodec(store).decode([new]) == [payload(body + noise(9000, 2))]
