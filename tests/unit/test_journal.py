import hashlib
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from everlong import limits
from everlong.errors import UnknownVersion
from everlong.models import Entry, Kind, Message, Ref, Segment, SegmentRef
from everlong.storage.journal import Journal
from everlong.storage.keys import Keyring
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.objects import object_key, seal, thread_key
from everlong.storage.packstore import PackStore
from tests.payloads import KEY_1, stored
from tests.stores import CountingStore

THREAD = thread_key("default", "ops-7")


def entry(seq: int, text: str = "hello") -> Entry:
    message = Message(role="user", text=text)
    size_bytes = len(TypeAdapter(Message).dump_json(message))
    return Entry(seq=seq, kind=Kind.MESSAGE, time_ms=seq, size_bytes=size_bytes, message=message)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=40))
async def test_a_journal_reads_back_what_was_appended(batches: list[int]) -> None:
    journal = Journal(PackStore(MemoryBlobStore()), THREAD)
    head: SegmentRef | None = None
    appended: list[Entry] = []
    for size in batches:
        batch = [entry(len(appended) + 1 + i) for i in range(size)]
        head, _ = await journal.append(head, batch)
        appended += batch
        assert head.first_seq + head.count == len(appended) + 1
    assert await journal.read(head) == appended
    assert head is not None
    assert await journal.newest(head) == appended[-1]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=60))
async def test_each_segment_is_at_least_twice_as_long_as_the_next(batches: list[int]) -> None:
    journal = Journal(PackStore(MemoryBlobStore()), THREAD)
    head: SegmentRef | None = None
    seq = 1
    for size in batches:
        head, _ = await journal.append(head, [entry(seq + i) for i in range(size)])
        seq += size
    assert head is not None
    segment: Segment = await journal._segment(head)
    counts = [place.count for place in segment.before] + [head.count]
    assert all(older >= 2 * newer for older, newer in itertools.pairwise(counts))
    assert len(counts) <= 1 + math.log2(seq)


async def test_an_append_is_one_put_and_a_read_a_few_gets() -> None:
    store = CountingStore()
    journal = Journal(PackStore(store), THREAD)
    head: SegmentRef | None = None
    for step in range(500):
        before = store.puts
        head, _ = await journal.append(head, [entry(2 * step + 1), entry(2 * step + 2)])
        assert store.puts == before + 1
    store.gets = 0
    assert len(await journal.read(head)) == 1000
    assert store.gets <= 1 + math.log2(1000)


async def test_bytes_written_grow_with_the_logarithm_not_the_length() -> None:
    journal = Journal(PackStore(MemoryBlobStore()), THREAD)
    head: SegmentRef | None = None
    written: list[int] = []
    for step in range(1024):
        head, written_bytes = await journal.append(head, [entry(step + 1)])
        written.append(written_bytes)
    # Mean over a whole power of two, since a binary counter's cost is uneven.
    first, second = sum(written[256:512]) / 256, sum(written[512:1024]) / 512
    assert second < 1.3 * first


async def test_a_long_message_is_stored_once_and_beside_its_entry() -> None:
    store = CountingStore()
    journal = Journal(PackStore(store), THREAD)
    long = entry(1, text="x" * 5000)
    head, _ = await journal.append(None, [long])
    [stored] = await journal.read(head)
    assert stored.message is None
    assert stored.ref is not None
    assert stored.ref.preview == "x" * limits.PREVIEW_CHARS_MAX
    assert await journal.messages([stored]) == [long.message]
    assert store.puts == 2


async def test_two_appends_to_one_head_do_not_disturb_each_other() -> None:
    """A step that is tried again after a crash, and its lost twin."""
    journal = Journal(PackStore(MemoryBlobStore()), THREAD)
    head, _ = await journal.append(None, [entry(1)])
    lost, _ = await journal.append(head, [entry(2, "lost")])
    kept, _ = await journal.append(head, [entry(2, "kept")])
    assert [each.message and each.message.text for each in await journal.read(kept)] == [
        "hello",
        "kept",
    ]
    assert len(await journal.read(lost)) == 2


async def test_segments_do_not_grow_beyond_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEGMENT_ENTRIES_MAX", 8)
    journal = Journal(PackStore(MemoryBlobStore()), THREAD)
    head: SegmentRef | None = None
    for seq in range(1, 101):
        head, _ = await journal.append(head, [entry(seq)])
    assert [each.seq for each in await journal.read(head)] == list(range(1, 101))
    assert head is not None
    segment = await journal._segment(head)
    assert max(place.count for place in segment.before) <= 8


async def test_an_empty_append_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        await Journal(PackStore(MemoryBlobStore()), THREAD).append(None, [])


async def test_a_segment_of_a_newer_version_is_refused_by_name() -> None:
    store = MemoryBlobStore()
    newer = b'{"before": [], "entries": [], "version": 2, "secret": "hunter2"}'
    ref, _ = await PackStore(store).write_body(THREAD, Kind.SEGMENT, newer)
    with pytest.raises(UnknownVersion, match="version") as raised:
        await Journal(PackStore(store), THREAD).read(SegmentRef(ref=ref, first_seq=1, count=1))
    assert "hunter2" not in str(raised.value)


async def test_a_journal_from_before_there_were_packs_goes_on() -> None:
    store = MemoryBlobStore()
    journal = Journal(PackStore(store), THREAD)
    plaintext = TypeAdapter(Segment).dump_json(Segment(before=(), entries=(entry(1), entry(2))))
    digest = hashlib.blake2b(plaintext, digest_size=32).hexdigest()
    ref = Ref(thread=THREAD, digest=digest, size_bytes=len(plaintext), kind=Kind.SEGMENT)
    await store.put(object_key(ref), seal(plaintext))
    head, _ = await journal.append(SegmentRef(ref=ref, first_seq=1, count=2), [entry(3)])
    segment = await journal._segment(head)
    assert [place.ref.pack for place in segment.before] == [False]
    assert head.ref.pack
    assert [each.seq for each in await journal.read(head)] == [1, 2, 3]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=12))
async def test_a_sealed_journal_reads_back_and_shows_nothing(sizes: list[int]) -> None:
    store = MemoryBlobStore()
    journal = Journal(PackStore(store, Keyring({"k1": KEY_1})), THREAD)
    head: SegmentRef | None = None
    for seq, size in enumerate(sizes, 1):
        head, _ = await journal.append(head, [entry(seq, "hunter2" * (size // 7 + 1))])
    messages = await journal.messages(await journal.read(head))
    assert [len(message.text) // 7 for message in messages] == [size // 7 + 1 for size in sizes]
    for data in (await stored(store)).values():
        assert b"hunter2" not in data
        assert b"hello" not in data
