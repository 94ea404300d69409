"""Matcher: finds the new part of a payload; a plan loses no byte and references few packs."""

import itertools
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyfastcdc import FastCDC

from everlong import limits
from everlong.codecs import matcher, pack_layout
from everlong.codecs.thread_memory import ThreadMemory
from tests.support.pack_model import Store, check, check_memory
from tests.support.sample_payloads import noise
from tests.support.scale import scaled

# An edit of a list: what is done, where (in hundredths), with which of a few items, of what size.
EDITS = st.tuples(
    st.sampled_from(["append", "insert", "delete", "replace", "move", "repeat", "cut", "other"]),
    st.integers(0, 100),
    st.integers(0, 12),
    st.sampled_from([0, 1, 30, 300, 1500, 5000]),
)


OUTCOMES = ["commit", "commit", "lose", "forget", "learn", "wait", "drop"]


def apply_edit(items: list[bytes], edit: tuple[str, int, int, int]) -> list[bytes]:
    kind, place, seed, size = edit
    at = place * len(items) // 100
    item = noise(size, seed)
    if kind == "append":
        return [*items, item]
    if kind == "insert":
        return [*items[:at], item, *items[at:]]
    if kind == "delete":
        return [*items[:at], *items[at + 1 :]]
    if kind == "replace":
        return [*items[:at], item, *items[at + 1 :]]
    if kind == "move":
        return [*items[at:], *items[:at]]
    if kind == "repeat":
        return [*items[:at], *items[at : at + 3], *items[at:]]
    if kind == "cut":
        return items[:at]
    return [item, noise(700, seed + 100)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sizes a fiftieth, so that a small example meets every case."""
    monkeypatch.setattr(limits, "MATCH_BYTES_MIN", 64)
    monkeypatch.setattr(limits, "MERGE_LEVEL_BYTES", 160)
    monkeypatch.setattr(limits, "SETTLED_BYTES_MIN", 8000)
    monkeypatch.setattr(limits, "DICTIONARY_BYTES_MIN", 64)
    monkeypatch.setattr(limits, "ENCODER_LISTS_MAX", 3)
    monkeypatch.setattr(limits, "ENCODER_SINGLES_MAX", 3)
    cutter = FastCDC(avg_size=256, min_size=64, max_size=1024)
    monkeypatch.setattr(matcher, "_CUTTER", cutter)
    monkeypatch.setattr(matcher, "CRC_BYTES", 512)


SMALL = pytest.mark.usefixtures("small")


@pytest.mark.guarantee(5, 10)
@SMALL
@settings(max_examples=scaled(80, 250), deadline=None)
@given(
    st.lists(
        st.tuples(EDITS, st.sampled_from(OUTCOMES)),
        max_size=25,
    )
)
def test_a_plan_always_reproduces_the_payload(
    steps: list[tuple[tuple[str, int, int, int], str]],
) -> None:
    store, memory, now = Store(), ThreadMemory(), 0.0
    items: list[bytes] = []
    written: list[bytes] = []
    for edit, outcome in steps:
        items = apply_edit(items, edit)
        data = b"".join(items)
        now += 2 * limits.ENCODER_SECONDS_MAX if outcome == "wait" else 1
        plan = memory.plan(b"", data, "", now)
        check(store, memory, plan, data)
        if plan.same_as is None and outcome != "lose":
            name = store.add(plan)
            written.append(name)
            memory.commit(plan, name, now)
            assert memory.find(name, "") == (b"", data)
        if outcome == "drop":
            memory.drop_data()
        if outcome in ("forget", "learn"):
            memory = ThreadMemory()
        if outcome == "learn" and written:
            store.learn(memory, written[edit[1] * (len(written) - 1) // 100], now)
        check_memory(store, memory)


@pytest.mark.guarantee(5)
@SMALL
@settings(max_examples=scaled(50, 150), deadline=None)
@given(st.lists(st.lists(EDITS, min_size=1, max_size=4), min_size=1, max_size=8), st.randoms())
def test_concurrent_plans_may_become_durable_in_any_order(
    rounds: list[list[tuple[str, int, int, int]]], order: random.Random
) -> None:
    store, memory = Store(), ThreadMemory()
    items: list[bytes] = [noise(2000, 50)]
    for edits in rounds:
        lists = [apply_edit(items, edit) for edit in edits]
        plans = [memory.plan(b"", b"".join(each), "", 0.0) for each in lists]
        order.shuffle(plans)
        for plan in plans:
            check(store, memory, plan, plan.data)
            if plan.same_as is None:
                memory.commit(plan, store.add(plan), 0.0)
        check_memory(store, memory)
        items = lists[0]


def adversary(seed: int) -> Iterator[bytes]:
    """Payloads that share pieces of every size with any that went before."""
    chooser = random.Random(seed)
    seen = [noise(4000, seed)]
    for _ in range(60):
        parts = []
        for _ in range(chooser.randint(1, 12)):
            old = chooser.choice(seen[-20:])
            start = chooser.choice([0, 0, chooser.randrange(len(old))])
            parts.append(old[start : start + chooser.choice([200, 1000, 5000, 5000])])
            parts.append(noise(chooser.choice([0, 0, 1, 70, 500]), chooser.randrange(10**6)))
        seen.append(chooser.choice([b"".join(parts), noise(4000, chooser.randrange(10**6))]))
        yield seen[-1]


def make_growing_list(seed: int) -> Iterator[bytes]:
    """A list that grows, and results that it holds a step later."""
    chooser, body = random.Random(seed), noise(400, seed)
    for step in range(60):
        result = noise(chooser.choice([100, 300, 900, 3000]), 1000 * seed + step)
        yield result
        body += noise(30, step) + result
        yield body


@pytest.mark.guarantee(10)
@SMALL
def test_no_series_makes_a_payload_touch_more_packs_than_the_bound() -> None:
    most = 0.0
    for seed in range(scaled(2, 4)):
        store, memory = Store(), ThreadMemory()
        for data in itertools.chain(adversary(seed), make_growing_list(seed)):
            plan = memory.plan(b"", data, "", 0.0)
            check(store, memory, plan, data)
            if plan.same_as is None:
                most = max(most, plan.packs / pack_layout.packs_max(len(data)))
            if plan.same_as is None:
                memory.commit(plan, store.add(plan), 0.0)
    assert most > 0.9  # Or else this showed nothing.


@SMALL
def test_a_rewritten_pack_is_remembered_whole() -> None:
    store, memory = Store(), ThreadMemory()
    first = memory.plan(b"", noise(8000), "", 0.0)
    name = store.add(first)
    memory.commit(first, name, 0.0)
    memory._recent.clear()
    memory._repeats.clear()
    for chunk_id in list(memory._index)[1:]:
        del memory._index[chunk_id]
    again = memory.plan(b"", noise(8000), "", 0.0)
    assert again.moved
    assert store.add(again) == name
    memory.commit(again, name, 0.0)
    assert len(memory._index) > 5
    check_memory(store, memory)
