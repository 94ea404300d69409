"""Cost of a journal: its writes and reads do not depend on its age."""

import asyncio
import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlong import limits
from everlong.models import Entry, Kind, SegmentRef, Totals, add_up, thread_key
from everlong.storage.journal import Journal
from tests.support.fake_stores import CountingStore
from tests.support.journal_builder import append_entries, entry, journal, newest_segment, noisy


@pytest.mark.guarantee(57)
@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=60))
async def test_each_segment_is_at_least_twice_as_long_as_the_next(batches: list[int]) -> None:
    """Unless the two have more than 32 entries together."""
    log = journal()
    head: SegmentRef | None = None
    seq = 1
    for size in batches:
        head, _ = await log.append(head, [entry(seq + i) for i in range(size)])
        seq += size
    assert head is not None
    places = [*(await newest_segment(log, head)).before, head]
    counts = [place.count for place in places if not place.folded]
    assert all(
        older >= 2 * newer or older + newer > limits.SEGMENT_ENTRIES_MAX
        for older, newer in itertools.pairwise(counts)
    )
    assert max(counts) <= limits.SEGMENT_ENTRIES_MAX
    # Those that wait to be folded, those that are merged still, and one fold.
    assert len(places) <= limits.FOLD_SEGMENTS + 6 + 1


@pytest.mark.guarantee(57)
async def test_an_append_is_one_put_and_a_read_a_few_gets() -> None:
    store = CountingStore()
    log = journal(store)
    head: SegmentRef | None = None
    folds: set[str] = set()
    for step in range(500):
        before = store.puts
        head, written_bytes = await log.append(
            head, [entry(2 * step + 1, "x" * 600), entry(2 * step + 2, "y" * 5000)]
        )
        names = {
            place.ref.digest for place in (await newest_segment(log, head)).before if place.folded
        }
        assert store.puts == before + 1 + len(names - folds)
        assert written_bytes > 0
        folds |= names
    assert len(folds) == 500 // 16 // limits.FOLD_SEGMENTS
    store.gets = 0
    assert len(await log.read(head)) == 1000
    assert store.gets <= 1000 / limits.SEGMENT_ENTRIES_MAX + 8


@pytest.mark.guarantee(57)
@pytest.mark.parametrize("text_bytes", [130, 2048], ids=["300 byte entries", "2 KiB bodies"])
async def test_an_append_costs_the_same_at_any_age(text_bytes: int) -> None:
    store = CountingStore()
    log = journal(store)
    head: SegmentRef | None = None
    costs: list[tuple[int, int, int]] = []
    for first in range(1, 4401, 2):
        store.puts = store.gets = 0
        batch = [noisy(first, text_bytes), noisy(first + 1, text_bytes)]
        head, written_bytes = await log.append(head, batch)
        assert store.puts <= 2
        costs.append((written_bytes, store.puts, store.gets))
    young, old = zip(*costs[100:300], strict=True), zip(*costs[2000:2200], strict=True)
    for early, late in zip(young, old, strict=True):
        assert sum(late) <= 1.1 * sum(early)


@pytest.mark.guarantee(58)
async def test_twenty_entries_of_five_thousand_take_a_few_gets() -> None:
    store = CountingStore()
    log = journal(store)
    head = await append_entries(log, 5000, 2)
    for first_seq in (4981, 2500, 1):
        store.gets = 0
        found = await log.read(head, first_seq, first_seq + 19)
        assert [each.seq for each in found] == list(range(first_seq, first_seq + 20))
        assert store.gets <= 8
        store.gets = 0
        assert (await log.entry(head, first_seq)).seq == first_seq
        assert store.gets <= 4


@pytest.mark.guarantee(58)
async def test_folds_of_folds_lead_to_every_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """33 entries are too many to be merged, so that each append adds a segment."""
    monkeypatch.setattr(limits, "FOLD_PLACES_MAX", 8)
    store = CountingStore()
    log = journal(store)
    head = await append_entries(log, 33 * 600, 33)
    places = (await newest_segment(log, head)).before
    assert [place.folded for place in places[:3]] == [True] * 3
    assert sum(place.folded for place in places) <= 4
    assert len(places) <= 4 + limits.FOLD_SEGMENTS + 2
    for first_seq in (1, 33, 5000, 33 * 300, 33 * 598 - 20):
        store.gets = 0
        found = await log.read(head, first_seq, first_seq + 66)
        assert [each.seq for each in found] == list(range(first_seq, first_seq + 67))
        assert store.gets <= 12
    assert len(await log.read(head)) == 33 * 600


@pytest.mark.guarantee(57)
async def test_segments_do_not_grow_beyond_their_bound() -> None:
    log = journal()
    head = await append_entries(log, 300)
    assert [each.seq for each in await log.read(head)] == list(range(1, 301))
    places = (await newest_segment(log, head)).before
    assert max(place.count for place in places if not place.folded) == limits.SEGMENT_ENTRIES_MAX


KINDS = (Kind.MESSAGE, Kind.REPLY, Kind.TOOL_RESULT, Kind.FAILURE)


def make_entry(seq: int) -> Entry:
    """Return an entry of one of four kinds, every fifth with a long body."""
    made = entry(seq, "x" * (700 if seq % 5 == 0 else 20), KINDS[seq % 4])
    return dataclasses.replace(made, tokens=seq, cost_usd=seq / 7000)


async def test_totals_at_any_entry_take_a_few_gets() -> None:
    store = CountingStore()
    log = journal(store)
    head: SegmentRef | None = None
    for first in range(1, 10_001, 20):
        head, _ = await log.append(head, [make_entry(seq) for seq in range(first, first + 20)])
    assert head is not None
    entries = await log.read(head)
    found = Totals()
    expected: list[Totals] = []
    for each in entries:
        found = add_up([each], found)
        expected.append(found)
    for seq in (1, 33, 5000, 9600, 9990, 10_000):
        store.gets = 0
        assert await log.totals(head, seq) == expected[seq - 1]
        assert store.gets <= 4


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(min_value=1, max_value=40), min_size=1, max_size=40),
    st.data(),
)
async def test_totals_cover_all_entries_even_in_a_fork(
    batches: list[int], data: st.DataObject
) -> None:
    log = journal()
    head: SegmentRef | None = None
    seq = 1
    for size in batches:
        head, _ = await log.append(head, [make_entry(seq + i) for i in range(size)])
        seq += size
    assert head is not None
    cut = data.draw(st.integers(min_value=1, max_value=seq - 1))
    fork = Journal(log._packs, thread_key("default", "fork"))
    forked, _ = await fork.fork(head, cut, make_entry(cut + 1))
    forked, _ = await fork.append(forked, [make_entry(cut + 2), make_entry(cut + 3)])
    for of, at, last_seq in ((log, head, seq - 1), (fork, forked, cut + 3)):
        upto = data.draw(st.integers(min_value=1, max_value=last_seq))
        assert await of.totals(at, upto) == add_up(await of.read(at, 1, upto))


async def test_totals_of_a_journal_without_them_are_added_up() -> None:
    """An Everlong that does not know the field has appended: it has left it out."""
    log = journal()
    head = await append_entries(log, 70)
    write = log._segments.write
    bare = dataclasses.replace(await newest_segment(log, head), totals=None)
    head, _ = await write(bare)
    head, _ = await log.append(head, [make_entry(71)])
    assert await log.totals(head, 71) == add_up(await log.read(head))


async def test_the_newest_entry_of_some_kinds_is_found_without_a_second_read() -> None:
    store = CountingStore()
    log = journal(store)
    head = await append_entries(log, 4000, 10)
    head, _ = await log.append(head, [entry(4001, "the answer", Kind.REPLY)])
    store.gets = 0
    found = await log.last(head, (Kind.REPLY, Kind.FAILURE))
    assert found is not None
    assert (found.seq, found.kind, store.gets) == (4001, Kind.REPLY, 1)
    head, _ = await log.append(head, [entry(4002, "no", Kind.FAILURE), entry(4003)])
    found = await log.last(head, (Kind.REPLY, Kind.FAILURE))
    assert found is not None
    assert found.seq == 4002
    assert (await log.last(head, Kind.REPLY)) is not None
    assert (await log.last(head, Kind.REPLY, 4000)) is None


async def test_an_append_reads_the_newest_segment_once() -> None:
    store = CountingStore()
    log = journal(store)
    head, _ = await log.append(None, [entry(1)])
    store.gets = 0
    head, _ = await log.append(head, [entry(2)])
    assert (head.first_seq, head.count, store.gets) == (1, 2, 1)


async def test_an_append_and_a_read_of_one_segment_make_no_task() -> None:
    """A task costs about as much as to parse a small segment."""
    loop = asyncio.get_running_loop()
    made: list[object] = []

    def make(loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> asyncio.Task[Any]:
        made.append(work)
        return asyncio.Task(work, loop=loop, **named)

    log = journal()
    loop.set_task_factory(make)
    try:
        head, _ = await log.append(None, [entry(1, "x" * 2000)])
        head, _ = await log.append(head, [entry(2)])
        [first, second] = await log.read(head)
        assert [each.text for each in await log.messages([first, second])] == ["x" * 2000, "hello"]
    finally:
        loop.set_task_factory(None)
    assert made == []
