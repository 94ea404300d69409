"""A fork begins as another thread's past, shares its packs, and is apart from it ever after."""

import dataclasses
import random

import pytest

from everlong import limits
from everlong.errors import BlobCorrupt, BlobMissing, RefRefused, ThreadError
from everlong.models import Entry, Kind, Message, Segment, SegmentRef, thread_key
from everlong.storage.encryption_keys import Keyring
from everlong.storage.journal import Journal
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore, object_key
from everlong.storage.segments import serialize_segment
from tests.support.fake_stores import CountingStore
from tests.support.journal_builder import (
    append_entries,
    entry,
    journal,
    newest_segment,
    noisy,
    texts,
)
from tests.support.sample_payloads import KEY_1, flip_bit, read_objects


def make_fork_entry(seq: int) -> Entry:
    data = {"thread_id": "ops-7", "seq": seq - 1}
    return Entry(seq=seq, kind=Kind.FORK, time_ms=0, size_bytes=32, data=data)


async def store_segment(
    store: MemoryBlobStore, thread_id: str, segment: Segment, count: int = 1
) -> SegmentRef:
    """Store a segment that no writer would create."""
    thread = thread_key("default", thread_id)
    ref, _ = await PackStore(store).write_body(thread, Kind.SEGMENT, serialize_segment(segment)[0])
    return SegmentRef(ref=ref, first_seq=1, count=count, folded=not segment.entries)


async def append_more(log: Journal, head: SegmentRef, count: int, text: str) -> SegmentRef:
    for _ in range(count):
        head, _ = await log.append(head, [entry(head.first_seq + head.count, text)])
    return head


@pytest.mark.guarantee(76)
async def test_a_fork_at_any_entry_is_the_prefix() -> None:
    store = MemoryBlobStore()
    parent = journal(store)
    head = await append_entries(parent, 100)
    whole = await parent.read(head)
    for seq in range(1, 101):
        fork = journal(store, f"fork-{seq}")
        branch, _ = await fork.fork(head, seq, make_fork_entry(seq + 1))
        assert await fork.read(branch) == [*whole[:seq], make_fork_entry(seq + 1)]
        branch = await append_more(fork, branch, 2, "on")
        assert await fork.read(branch, 1, seq) == whole[:seq]
        assert await texts(fork, branch, seq + 2) == ["on", "on"]


@pytest.mark.guarantee(76)
async def test_a_fork_copies_no_body_and_writes_one_object() -> None:
    store = CountingStore()
    parent = journal(store)
    head: SegmentRef | None = None
    for seq in range(1, 61):
        head, _ = await parent.append(head, [noisy(seq, 20_000)])
    assert head is not None
    fork = journal(store, "fork")
    for seq in (10, 31, 33, 59, 60):
        store.puts = store.gets = 0
        branch, written_bytes = await fork.fork(head, seq, make_fork_entry(seq + 1))
        assert store.puts == 1
        assert store.gets <= 5
        assert written_bytes < 5000
        longer, written_bytes = await fork.append(branch, [entry(seq + 2)])
        assert written_bytes < 5000
        for end in (branch, longer):
            bodies = await fork.bodies(await fork.read(end, 1, seq))
            assert bodies == [noisy(each, 20_000).body for each in range(1, seq + 1)]
    keys = [key for key in await read_objects(store) if thread_key("default", "fork") in key]
    assert len(keys) == 10


@pytest.mark.guarantee(76)
async def test_a_fork_and_its_parent_do_not_see_each_other() -> None:
    store = MemoryBlobStore()
    parent, fork, again = (journal(store, name) for name in ("ops-7", "fork", "again"))
    head = await append_entries(parent, 50)
    branch, _ = await fork.fork(head, 40, make_fork_entry(41))
    twig, _ = await again.fork(branch, 41, make_fork_entry(42))
    head = await append_more(parent, head, 300, "parent" * 200)
    branch = await append_more(fork, branch, 300, "fork" * 200)
    twig = await append_more(again, twig, 300, "again" * 200)
    past = [f"text {seq}" for seq in range(1, 51)]
    assert await texts(parent, head) == [*past, *["parent" * 200] * 300]
    assert (await fork.entry(branch, 41)).kind == Kind.FORK
    assert [each.kind for each in await again.read(twig, 40, 43)] == [
        Kind.MESSAGE,
        Kind.FORK,
        Kind.FORK,
        Kind.MESSAGE,
    ]
    assert await texts(fork, branch, 42) == ["fork" * 200] * 300
    assert await texts(again, twig, 43) == ["again" * 200] * 300
    for log, end in ((fork, branch), (again, twig)):
        assert [each.text for each in await log.messages(await log.read(end, 1, 40))] == past[:40]
    found = await again.last(twig, Kind.FORK, 41)
    assert found == make_fork_entry(41)


async def test_forks_of_folds_continue_and_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """33 entries are too many to be merged, so that each append adds a segment."""
    monkeypatch.setattr(limits, "FOLD_PLACES_MAX", 8)
    store = MemoryBlobStore()
    parent = journal(store)
    end = 33 * 150
    head = await append_entries(parent, end, 33)
    whole = await parent.read(head)
    chosen = random.Random(1)
    for number in range(8):
        seq = chosen.randint(1, end)
        fork = journal(store, f"fork-{number}")
        branch, _ = await fork.fork(head, seq, make_fork_entry(seq + 1))
        places = (await newest_segment(fork, branch)).before
        assert len(places) <= limits.FOLD_SEGMENTS + 4
        added: list[Entry] = [make_fork_entry(seq + 1)]
        for _ in range(70):
            batch = [entry(added[-1].seq + i, "on") for i in range(1, 34)]
            branch, _ = await fork.append(branch, batch)
            added += batch
        assert await fork.read(branch) == [*whole[:seq], *added]
        places = (await newest_segment(fork, branch)).before
        assert sum(place.folded for place in places) <= 4
        assert len(places) <= limits.FOLD_SEGMENTS + 6
        first = chosen.randint(1, seq)
        assert await fork.read(branch, first, seq) == whole[first - 1 : seq]


async def test_the_depth_of_forks_of_forks_is_bounded() -> None:
    store = MemoryBlobStore()
    head = await append_entries(journal(store), 3)
    for depth in range(1, limits.SHARES_MAX + 1):
        log = journal(store, f"fork-{depth}")
        head, _ = await log.fork(head, 3 + depth - 1, make_fork_entry(3 + depth))
        assert len((await newest_segment(log, head)).shares) == depth
        assert len(await log.read(head)) == 3 + depth
    with pytest.raises(ThreadError, match="17 deep, and 16 is the most"):
        await journal(store, "too deep").fork(head, 1, make_fork_entry(2))
    # Back into a thread that it came from: one name fewer.
    back, _ = await journal(store, "fork-7").fork(head, 18, make_fork_entry(19))
    assert [each.seq for each in await journal(store, "fork-7").read(back)] == list(range(1, 20))


async def test_a_fork_of_an_unknown_seq_is_refused() -> None:
    store = MemoryBlobStore()
    head = await append_entries(journal(store), 3)
    for seq in (0, 4):
        with pytest.raises(ValueError, match=f"no entry {seq}, only 1 to 3"):
            await journal(store, "fork").fork(head, seq, make_fork_entry(seq + 1))
    with pytest.raises(ValueError, match="entry 4 does not follow entry 2"):
        await journal(store, "fork").fork(head, 2, make_fork_entry(4))


async def test_a_head_of_another_thread_is_refused() -> None:
    store = MemoryBlobStore()
    parent, fork = journal(store), journal(store, "fork")
    head = await append_entries(parent, 3)
    branch, _ = await fork.fork(head, 3, make_fork_entry(4))
    # Also by a fork of it, and by one whose fork it is.
    for log, foreign in ((fork, head), (parent, branch), (journal(store, "other"), head)):
        for reading in (log.read(foreign), log.newest(foreign), log.last(foreign, Kind.MESSAGE)):
            with pytest.raises(RefRefused, match="belongs to another thread"):
                await reading
        with pytest.raises(RefRefused, match="belongs to another thread"):
            await log.append(foreign, [entry(5)])


@pytest.mark.guarantee(13)
async def test_a_ref_that_a_segment_does_not_share_is_refused() -> None:
    store = MemoryBlobStore()
    victim, other = journal(store, "victim"), journal(store, "other")
    secret = await append_entries(victim, 1)
    message = Message(role="user", text="a secret" * 100)
    result, _ = await victim.write_body_entry(Kind.MESSAGE, message, 0)
    with pytest.raises(RefRefused, match="belongs to another thread"):
        await other.messages([result])
    hidden = dataclasses.replace(entry(1), original=result.ref)
    for new in (result, hidden):
        with pytest.raises(RefRefused, match="belongs to another thread"):
            await other.append(None, [new])
        own = await store_segment(store, "other", Segment(before=(), entries=(new,)))
        with pytest.raises(RefRefused, match="belongs to another thread"):
            await other.read(own)
        with pytest.raises(RefRefused, match="belongs to another thread"):
            await other.append(await append_entries(other, 1), [dataclasses.replace(new, seq=2)])
        with pytest.raises(RefRefused, match="belongs to another thread"):
            await other.fork(await append_entries(other, 1), 1, dataclasses.replace(new, seq=2))
    by_place = Segment(before=(secret,), entries=(entry(2),))
    place = dataclasses.replace(await store_segment(store, "other", by_place), first_seq=2)
    assert (await other.newest(place)).seq == 2
    with pytest.raises(RefRefused, match="belongs to another thread"):
        await other.read(place)
    with pytest.raises(RefRefused, match="belongs to another thread"):
        await other.append(place, [entry(3)])
    assert len(await journal(store, "victim").read(secret)) == 1


@pytest.mark.guarantee(13)
async def test_another_threads_segment_cannot_add_to_what_is_shared() -> None:
    """A fork of `parent` reads what `parent` may read only as far as the fork itself says so."""
    store = MemoryBlobStore()
    secret = await append_entries(journal(store, "victim"), 1)
    victim, parent = thread_key("default", "victim"), thread_key("default", "parent")
    shared = Segment(before=(secret,), entries=(entry(2),), shares=(victim,))
    middle = dataclasses.replace(await store_segment(store, "parent", shared), first_seq=2)
    assert len(await journal(store, "parent").read(middle)) == 2
    fold = Segment(before=(secret, middle), entries=(), shares=(victim,))
    folded = await store_segment(store, "parent", fold, 2)
    for shares, readable in (((parent,), False), ((parent, victim), True)):
        segment = Segment(before=(folded,), entries=(entry(3),), shares=shares)
        head = dataclasses.replace(await store_segment(store, "fork", segment), first_seq=3)
        fork = journal(store, "fork")
        if readable:
            assert [each.seq for each in await fork.read(head)] == [1, 2, 3]
        else:
            with pytest.raises(RefRefused, match="belongs to another thread"):
                await fork.read(head)
    # And without its saying so, what the fork shares does not count there.
    bare = Segment(before=(secret, middle), entries=())
    segment = Segment(
        before=(await store_segment(store, "parent", bare, 2),),
        entries=(entry(3),),
        shares=(parent, victim),
    )
    head = dataclasses.replace(await store_segment(store, "fork", segment), first_seq=3)
    with pytest.raises(RefRefused, match="belongs to another thread"):
        await journal(store, "fork").read(head)


async def test_a_ref_is_checked_against_what_the_journal_shares() -> None:
    store = MemoryBlobStore()
    head = await append_entries(journal(store), 3)
    ref, _ = await PackStore(store).write_body(head.ref.thread, Kind.SNAPSHOT, b"{}")
    branch, _ = await journal(store, "fork").fork(head, 2, make_fork_entry(3))
    assert await journal(store).check_ref(None, ref) == ref
    assert await journal(store, "fork").check_ref(branch, ref) == ref
    with pytest.raises(RefRefused, match="belongs to another thread"):
        await journal(store, "fork").check_ref(None, ref)
    with pytest.raises(RefRefused, match="belongs to another thread"):
        await journal(store, "other").check_ref(None, ref)


async def test_lost_objects_of_the_parent_are_named() -> None:
    store = MemoryBlobStore()
    parent, fork = journal(store), journal(store, "fork")
    head: SegmentRef | None = None
    for seq in range(1, 41):
        head, _ = await parent.append(head, [noisy(seq, 2000)])
    assert head is not None
    branch, _ = await fork.fork(head, 36, make_fork_entry(37))
    oldest = (await newest_segment(fork, branch)).before[0]
    body = await fork.entry(branch, 7)
    assert body.ref is not None
    for key, reading in (
        (object_key(oldest.ref), lambda: fork.read(branch)),
        (object_key(body.ref), lambda: fork.messages([body])),
    ):
        whole = await store.get(key)
        await store.delete([key])
        with pytest.raises(BlobMissing, match=key):
            await reading()
        await store.put(key, flip_bit(whole, 8 * len(whole) - 8))
        with pytest.raises(BlobCorrupt, match=key):
            await reading()
        await store.delete([key])
        await store.put(key, whole)
        assert await reading()
    assert (await fork.newest(branch)).kind == Kind.FORK


async def test_a_fork_of_a_sealed_journal_is_sealed() -> None:
    store = MemoryBlobStore()
    packs = PackStore(store, Keyring({"k1": KEY_1}))
    parent = Journal(packs, thread_key("default", "ops-7"))
    head, _ = await parent.append(None, [entry(1, "hunter2" * 200), entry(2, "hunter2")])
    fork = Journal(packs, thread_key("default", "fork"))
    branch, _ = await fork.fork(head, 2, make_fork_entry(3))
    entries = await fork.read(branch)
    assert [each.text[:7] for each in await fork.messages(entries[:2])] == ["hunter2"] * 2
    assert not any(b"hunter2" in data for data in (await read_objects(store)).values())
