import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from everlong import limits
from everlong.errors import BlobCorrupt, BlobMissing, RefRefused, UnknownVersion
from everlong.models import (
    Entry,
    Kind,
    Message,
    Ref,
    Segment,
    SegmentRef,
    Slice,
    ToolCall,
    Totals,
    build_body,
    build_entry,
)
from everlong.storage.cache import CachedBlobStore
from everlong.storage.encryption_keys import Keyring
from everlong.storage.journal import Journal
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore, object_key
from everlong.storage.segments import parse_segment, serialize_segment
from tests.support.fake_stores import CountingStore
from tests.support.journal_builder import (
    THREAD,
    append_entries,
    entry,
    journal,
    newest_segment,
    noisy,
    texts,
)
from tests.support.sample_payloads import KEY_1, flip_bit, read_objects


async def segment_ref(store: MemoryBlobStore, data: bytes, count: int = 1) -> SegmentRef:
    ref, _ = await PackStore(store).write_body(THREAD, Kind.SEGMENT, data)
    return SegmentRef(ref=ref, first_seq=1, count=count)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3000), min_size=1, max_size=40), min_size=1, max_size=12),
    st.data(),
)
async def test_a_journal_reads_back_what_was_appended(
    batches: list[list[int]], data: st.DataObject
) -> None:
    log = journal()
    head: SegmentRef | None = None
    appended: list[Entry] = []
    for sizes in batches:
        batch = [noisy(len(appended) + i, size) for i, size in enumerate(sizes, 1)]
        head, _ = await log.append(head, batch)
        appended += batch
        assert head.first_seq + head.count == len(appended) + 1
    assert head is not None
    read = await log.read(head)
    assert [each.seq for each in read] == list(range(1, len(appended) + 1))
    assert await log.bodies(read) == [each.body for each in appended]
    assert [each.size_bytes for each in read] == [each.size_bytes for each in appended]
    assert all(
        (each.body is None) == (each.size_bytes > limits.ENTRY_BODY_BYTES_MAX) for each in read
    )
    first = data.draw(st.integers(1, len(appended)))
    last = data.draw(st.integers(first, len(appended) + 3))
    assert await log.read(head, first, last) == read[first - 1 : last]
    assert await log.newest(head) == read[-1]
    assert await log.entry(head, first) == read[first - 1]


@pytest.mark.guarantee(57)
async def test_a_long_message_is_stored_once_outside_its_entry() -> None:
    store = CountingStore()
    log = journal(store)
    bodies = ["a" * 5000, "b", noisy(3, 5000).body]
    first, _ = await log.append(None, [entry(1, "a" * 5000), entry(2, "b"), noisy(3, 5000)])
    assert store.puts == 1
    head, written_bytes = await log.append(first, [entry(seq) for seq in range(4, 8)])
    assert (await newest_segment(log, head)).before == ()
    assert written_bytes < 1500
    for place in (first, head):
        long, short, longer = await log.read(place, 1, 3)
        assert (long.body, long.ref) == (None, first.ref)
        assert long.part == Slice(start=0, size_bytes=long.size_bytes)
        assert longer.part == Slice(start=long.size_bytes, size_bytes=longer.size_bytes)
        assert short.ref is None
        store.gets = 0
        found = await log.messages([long, short, longer])
        assert store.gets == 1
        assert [message.text for message in found[:2]] == bodies[:2]
        assert build_body(found[2]) == bodies[2]


async def test_a_body_of_its_own_is_durable_before_its_entry() -> None:
    store = CountingStore()
    log = journal(store)
    message = Message(role="tool", text="x" * 5000, call_id="c1", tool="read")
    result, written_bytes = await log.write_body_entry(
        Kind.TOOL_RESULT, message, 7, preview="a page"
    )
    assert (store.puts, result.body, result.part) == (1, None, None)
    assert written_bytes > 0
    assert result.size_bytes == len(to_json(build_body(message)))
    assert result.ref is not None
    assert result.ref.preview == "a page"
    assert await log.messages([result]) == [message]
    short, none = await log.write_body_entry(
        Kind.MESSAGE, Message(role="user", text="hi"), 8, seq=2
    )
    assert (none, store.puts, short.seq, short.ref) == (0, 1, 2, None)
    # Both have the seq that results have until the workflow gives them theirs.
    other, _ = await log.write_body_entry(Kind.TOOL_RESULT, Message(role="tool", text="y" * 900), 7)
    assert [each.text[0] for each in await log.messages([result, other])] == ["x", "y"]
    head, _ = await log.append(None, [result, short])
    assert await log.read(head) == [result, short]


async def test_a_whole_message_is_read_on_request() -> None:
    log = journal()
    whole = Message(role="tool", text="x" * 9000, call_id="c1", tool="read")
    stored_whole, _ = await log.write_body_entry(Kind.TOOL_RESULT, whole, 7)
    for text in ("x[...]x", "x" * 700 + "[...]"):
        shown = dataclasses.replace(whole, text=text)
        result, _ = await log.write_body_entry(Kind.TOOL_RESULT, shown, 7)
        result = dataclasses.replace(result, original=stored_whole.ref)
        head, _ = await log.append(None, [result, entry(2, "hi")])
        read = await log.read(head)
        assert await log.messages(read[:1]) == [shown]
        assert await log.messages(read[:1], whole=True) == [whole]
        assert (await log.messages(read, whole=True))[1].text == "hi"


async def test_only_messages_are_messages() -> None:
    log = journal()
    calls = (ToolCall(id="c1", tool="read", arguments="{}"),)
    reply = Message(role="assistant", text="Look.", tool_calls=calls)
    first = Entry(seq=1, kind=Kind.REPLY, time_ms=0, size_bytes=0, body=build_body(reply), tokens=5)
    note = Entry(seq=2, kind=Kind.CONTROL, time_ms=0, size_bytes=20, data={"action": "pause"})
    head, _ = await log.append(None, [first, note])
    read = await log.read(head)
    assert read[1] == note
    assert await log.messages(read[:1]) == [reply]
    with pytest.raises(ValueError, match="entry 2, a control, is no message"):
        await log.messages(read)
    with pytest.raises(ValueError, match="entry 2, a control, has no body"):
        await log.bodies(read)


async def test_the_newest_entry_of_a_kind_is_found_from_the_end() -> None:
    store = CountingStore()
    log = journal(store)
    head: SegmentRef | None = None
    for seq in range(1, 1001):
        kind = Kind.COMPACTION if seq in (100, 990) else Kind.MESSAGE
        head, _ = await log.append(head, [entry(seq, kind=kind)])
    store.gets = 0
    found = await log.last(head, Kind.COMPACTION)
    assert found is not None
    assert found.seq == 990
    assert store.gets <= 6
    found = await log.last(head, Kind.COMPACTION, 989)
    assert found is not None
    assert found.seq == 100
    found = await log.last(head, Kind.COMPACTION, 100)
    assert found is not None
    assert found.seq == 100
    assert await log.last(head, Kind.COMPACTION, 99) is None
    assert await log.last(head, Kind.COMPACTION, 989, first_seq=101) is None
    store.gets = 0
    assert await log.last(head, Kind.FORK) is None
    assert store.gets <= 50
    assert await log.last(None, Kind.FORK) is None


@pytest.mark.guarantee(45)
async def test_two_appends_to_one_head_are_independent() -> None:
    """A step that is tried again after a crash, and its lost twin."""
    log = journal()
    head, _ = await log.append(None, [entry(1)])
    lost, _ = await log.append(head, [entry(2, "lost" * 500)])
    kept, _ = await log.append(head, [entry(2, "kept" * 500)])
    assert await texts(log, kept) == ["hello", "kept" * 500]
    assert await texts(log, lost) == ["hello", "lost" * 500]


async def test_a_gap_in_the_sequence_is_refused() -> None:
    log = journal()
    with pytest.raises(ValueError, match="at least one"):
        await log.append(None, [])
    with pytest.raises(ValueError, match="entry 2 does not follow entry 0"):
        await log.append(None, [entry(2)])
    head, _ = await log.append(None, [entry(1)])
    with pytest.raises(ValueError, match="entry 4 does not follow entry 2"):
        await log.append(head, [entry(2), entry(4)])
    nowhere = dataclasses.replace(entry(2), body=None, part=Slice(start=0, size_bytes=1))
    with pytest.raises(ValueError, match="names a part of a pack, and no pack"):
        await log.append(head, [nowhere])
    with pytest.raises(ValueError, match="no entry 2, only 1 to 1"):
        await log.entry(head, 2)


@pytest.mark.guarantee(8)
async def test_a_segment_of_a_newer_version_is_refused_by_name() -> None:
    store = MemoryBlobStore()
    head = await segment_ref(store, b'{"before":[],"entries":[],"version":3,"secret":"hunter2"}')
    with pytest.raises(UnknownVersion, match="segment version 3 is not") as raised:
        await journal(store).read(head)
    assert "hunter2" not in str(raised.value)
    head = await segment_ref(store, b'{"before":[],"entries":[{"seq":"hunter2"}],"version":2}')
    with pytest.raises(UnknownVersion, match="seq") as raised:
        await journal(store).read(head)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "body", [b"[]", b"hunter2", b'{"parts":["hunter2"]}', b'{"parts":[{"part_kind":"text"}]}']
)
async def test_an_invalid_body_is_refused_without_quoting_it(body: bytes) -> None:
    store = MemoryBlobStore()
    ref, _ = await PackStore(store).write_body(THREAD, Kind.MESSAGE, body)
    odd = dataclasses.replace(entry(1), body=None, ref=ref)
    with pytest.raises(UnknownVersion, match="cannot be parsed") as raised:
        await journal(store).messages([odd])
    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None


async def test_a_part_outside_of_its_pack_is_refused() -> None:
    store = MemoryBlobStore()
    ref, _ = await PackStore(store).write_body(THREAD, Kind.SEGMENT, b"{}" * 50)
    part = Slice(start=90, size_bytes=11)
    with pytest.raises(BlobCorrupt, match="at 90, 11 bytes long, in a pack of 100"):
        await journal(store).messages(
            [dataclasses.replace(entry(1), body=None, ref=ref, part=part)]
        )


async def test_a_head_that_claims_other_entries_is_refused() -> None:
    log = journal()
    head = await append_entries(log, 40)
    for forged in (
        dataclasses.replace(head, count=head.count + 1),
        dataclasses.replace(head, first_seq=head.first_seq + 1),
        dataclasses.replace(head, count=0),
    ):
        with pytest.raises(BlobCorrupt, match="does not hold the entries"):
            await log.read(forged)
    with pytest.raises(RefRefused, match="not the newest of a journal"):
        await log.newest(dataclasses.replace(head, folded=True))


@pytest.mark.parametrize("levels", [limits.FOLD_LEVELS_MAX, limits.FOLD_LEVELS_MAX + 1])
async def test_endless_folds_are_refused(levels: int) -> None:
    store = MemoryBlobStore()
    log = journal(store)
    place = await append_entries(log, 1)
    for _ in range(levels):
        fold = serialize_segment(Segment(before=(place,), entries=()))[0]
        place = dataclasses.replace(await segment_ref(store, fold), folded=True)
    newest = serialize_segment(Segment(before=(place,), entries=(entry(2),)))[0]
    head = dataclasses.replace(await segment_ref(store, newest), first_seq=2)
    if levels <= limits.FOLD_LEVELS_MAX:
        assert [each.seq for each in await log.read(head)] == [1, 2]
        assert len(await log.read((await log.fork(head, 1, entry(2)))[0])) == 2
        return
    with pytest.raises(BlobCorrupt, match="folded more than 8 times"):
        await log.read(head)
    with pytest.raises(BlobCorrupt, match="folded more than 8 times"):
        await log.fork(head, 1, entry(2))


async def test_a_lost_or_damaged_segment_is_named() -> None:
    store = MemoryBlobStore()
    log = journal(store)
    head = await append_entries(log, 40)
    key = object_key((await newest_segment(log, head)).before[0].ref)
    whole = await store.get(key)
    await store.delete([key])
    with pytest.raises(BlobMissing, match=key):
        await log.read(head)
    assert len(await log.read(head, 33)) == 8
    await store.put(key, flip_bit(whole, 8 * len(whole) - 8))
    with pytest.raises(BlobCorrupt, match=key):
        await log.read(head)


@pytest.mark.guarantee(8)
@pytest.mark.parametrize("version", [{"version": 1}, {}], ids=["1", "none"])
async def test_a_segment_of_version_1_or_of_none_is_refused_by_name(
    version: dict[str, int],
) -> None:
    store = MemoryBlobStore()
    packs = PackStore(store)
    message = {"role": "user", "text": "hello", "tool_calls": [], "call_id": ""}
    entries = [{"seq": 1, "kind": "message", "time_ms": 1, "size_bytes": 9, "message": message}]
    text = to_json({"before": [], "entries": entries, **version})
    ref, _ = await packs.write_body(THREAD, Kind.SEGMENT, text)
    named = f"segment version {version['version']} is not" if version else r"at \('version',\)"
    with pytest.raises(UnknownVersion, match=named):
        await Journal(packs, THREAD).read(SegmentRef(ref=ref, first_seq=1, count=1))


@pytest.mark.guarantee(20)
@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=12))
async def test_a_sealed_journal_reads_back_and_shows_nothing(sizes: list[int]) -> None:
    store = MemoryBlobStore()
    log = Journal(PackStore(store, Keyring({"k1": KEY_1})), THREAD)
    head: SegmentRef | None = None
    for seq, size in enumerate(sizes, 1):
        head, _ = await log.append(head, [entry(seq, "hunter2" * (size // 7 + 1))])
    messages = await log.messages(await log.read(head))
    assert [len(message.text) // 7 for message in messages] == [size // 7 + 1 for size in sizes]
    for data in (await read_objects(store)).values():
        assert b"hunter2" not in data


def test_a_segment_without_long_bodies_is_only_its_json() -> None:
    segment = Segment(before=(), entries=(entry(1),))
    assert json.loads(serialize_segment(segment)[0])["version"] == 2
    longer = serialize_segment(
        Segment(before=(), entries=(entry(1, "line\nline" * 100), entry(2)))
    )[0]
    assert longer.count(b"\n") == 1


def test_a_writers_cached_segment_equals_the_stored_one() -> None:
    call = ToolCall(id="c1", tool="read", arguments='{"path": "a\u2028b"}')
    reply = build_entry(1, Kind.REPLY, Message(role="assistant", text="é", tool_calls=(call,)), 1)
    note = Entry(seq=2, kind=Kind.LIMIT, time_ms=2, size_bytes=9, data={"value": 1.5, "why": None})
    long = Ref(thread=THREAD, digest="ab" * 32, size_bytes=9, kind=Kind.MESSAGE, preview="x")
    entries = (
        dataclasses.replace(reply, tokens=7, cost_usd=0.001),
        note,
        entry(3, "line\nline" * 1000),
        dataclasses.replace(entry(4), original=long),
    )
    plaintext, written = serialize_segment(
        Segment(before=(), entries=entries, totals=Totals(steps=3))
    )
    assert written.entries != entries
    assert parse_segment(plaintext) == written


async def test_an_append_is_read_back_without_being_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Journal(
        PackStore(
            CachedBlobStore(MemoryBlobStore(), memory_bytes_max=limits.MIB, disk_bytes_max=0)
        ),
        THREAD,
    )
    head, _ = await log.append(None, [entry(1), entry(2, "x" * 5000)])
    monkeypatch.setattr(PackStore, "read", None)
    assert [each.seq for each in await log.read(head)] == [1, 2]
