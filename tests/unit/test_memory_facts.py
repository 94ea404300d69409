"""Remembered facts: verbatim until they expire, evicted in one order."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlong import compaction
from everlong.compaction import Item, Snapshot, forget, list_facts, remember
from everlong.models import Entry, Fact, Kind, MemoryChange
from everlong.policy import Policy

DAY_MS = 24 * 3600 * 1000
POLICY = Policy(memory_facts_max=3, memory_bytes_max=200)


def fact(key: str, *, at: int = 0, importance: int = 3, expires: int | None = None) -> Fact:
    return Fact(key=key, text=f"about {key}", time_ms=at, importance=importance, expires_ms=expires)


def entry(seq: int, change: MemoryChange) -> Item:
    data = compaction.dump_change(change)
    return Item(Entry(seq=seq, kind=Kind.MEMORY, time_ms=seq, size_bytes=1, data=data))


def keys(facts: tuple[Fact, ...]) -> list[str]:
    return [each.key for each in facts]


def test_facts_are_folded_in_order_over_those_of_the_snapshot() -> None:
    base = Snapshot(upto_seq=5, time_ms=0, budget_bytes=2048, facts=(fact("a"), fact("b")))
    items = [
        entry(6, MemoryChange(remembered=fact("c", at=1))),
        entry(7, MemoryChange(forgotten="a")),
        entry(8, MemoryChange(remembered=dataclasses.replace(fact("b", at=2), text="new"))),
    ]
    found = list_facts(base, items, POLICY, 10)
    assert keys(found) == ["c", "b"]
    assert found[1].text == "new"


def test_an_entry_that_the_snapshot_has_is_not_applied_again() -> None:
    base = Snapshot(upto_seq=5, time_ms=0, budget_bytes=2048, facts=())
    assert list_facts(base, [entry(5, MemoryChange(remembered=fact("gone")))], POLICY, 10) == ()


def test_recorded_evictions_hold_whatever_the_policy_is_now() -> None:
    items = [
        entry(1, MemoryChange(remembered=fact("a"))),
        entry(2, MemoryChange(remembered=fact("b"), evicted=("a",))),
    ]
    assert keys(list_facts(None, items, Policy(), 10)) == ["b"]


def test_facts_are_removed_at_their_expiry() -> None:
    items = [entry(1, MemoryChange(remembered=fact("a", expires=100)))]
    assert keys(list_facts(None, items, POLICY, 99)) == ["a"]
    assert list_facts(None, items, POLICY, 100) == ()


@pytest.mark.guarantee(61)
def test_eviction_goes_by_expiry_then_importance_then_age_then_key() -> None:
    held = (
        fact("expired", at=9, importance=5, expires=50),
        fact("slight", at=8, importance=1),
        fact("old", at=1),
        fact("new", at=7),
        fact("new too", at=7),
    )
    for cap, gone in (
        (5, ["expired"]),
        (4, ["expired", "slight"]),
        (3, ["expired", "slight", "old"]),
        (2, ["expired", "slight", "old", "new"]),
    ):
        policy = Policy(memory_facts_max=cap, memory_bytes_max=10_000)
        change = remember(held, fact("more", at=60, importance=1), policy, 60)
        assert list(change.evicted) == gone


def test_bytes_are_capped_too() -> None:
    policy = Policy(memory_facts_max=100, memory_bytes_max=45)
    held = (fact("a", at=1), fact("b", at=2), fact("c", at=3))
    assert remember(held, fact("d", at=4), policy, 5).evicted == ("a",)


def test_a_fact_with_the_same_key_is_replaced_without_an_eviction() -> None:
    held = (fact("a"), fact("b"), fact("c"))
    change = remember(held, fact("b", at=9), POLICY, 9)
    assert change.evicted == ()
    after = list_facts(
        Snapshot(upto_seq=1, time_ms=0, budget_bytes=2048, facts=held),
        [entry(2, change)],
        POLICY,
        9,
    )
    assert keys(after) == ["a", "c", "b"]


def test_a_fact_without_an_expiry_gets_the_policys() -> None:
    change = remember((), fact("a", at=5), Policy(fact_ttl_seconds=10), 5)
    assert change.remembered is not None
    assert change.remembered.expires_ms == 10_005
    own = remember((), fact("a", at=5, expires=77), Policy(fact_ttl_seconds=10), 5)
    assert own.remembered is not None
    assert own.remembered.expires_ms == 77
    never = remember((), fact("a", at=5), Policy(fact_ttl_seconds=None), 5)
    assert never.remembered is not None
    assert never.remembered.expires_ms is None


def test_an_invalid_fact_is_refused_with_a_remedy() -> None:
    large = Fact(key="k", text="x" * 300, time_ms=0)
    with pytest.raises(ValueError, match="remember less"):
        remember((), large, POLICY, 0)
    with pytest.raises(ValueError, match="memory_facts_max"):
        remember((), fact("a"), Policy(memory_facts_max=0), 0)
    with pytest.raises(ValueError, match="later expiry"):
        remember((), fact("a", expires=5), POLICY, 5)
    with pytest.raises(ValueError, match=r'the keys are \["a", "b"\]'):
        forget((fact("b"), fact("a")), "c")


some_facts = st.builds(
    Fact,
    key=st.sampled_from([f"k{n}" for n in range(12)]),
    text=st.text(max_size=30),
    time_ms=st.integers(0, 100),
    expires_ms=st.none() | st.integers(0, 200),
    importance=st.integers(1, 5),
)


@settings(max_examples=50)
@given(st.lists(some_facts, max_size=30), st.integers(0, 8), st.integers(20, 300))
def test_remembering_one_by_one_keeps_the_caps_and_the_newest_fact(
    facts: list[Fact], facts_max: int, bytes_max: int
) -> None:
    policy = Policy(memory_facts_max=facts_max, memory_bytes_max=bytes_max)
    items: list[Item] = []
    for now_ms, each in enumerate(facts):
        held = list_facts(None, items, policy, now_ms)
        try:
            change = remember(held, each, policy, now_ms)
        except ValueError:
            continue
        items.append(entry(len(items) + 1, change))
        after = list_facts(None, items, policy, now_ms)
        assert len(after) <= facts_max
        assert sum(len(f.key.encode()) + len(f.text.encode()) for f in after) <= bytes_max
        assert change.remembered in after


@pytest.mark.guarantee(61)
@settings(max_examples=30)
@given(st.lists(some_facts, max_size=12, unique_by=lambda each: each.key))
def test_facts_do_not_depend_on_the_position_of_the_snapshot(facts: list[Fact]) -> None:
    items = [entry(n + 1, MemoryChange(remembered=each)) for n, each in enumerate(facts)]
    policy = Policy(memory_facts_max=1000, memory_bytes_max=64 * 1024)
    for cut in range(len(items) + 1):
        base = compaction.compact(None, items[:cut], policy, 50, keep_from_seq=10_000)
        assert list_facts(base, items[cut:], policy, 50) == list_facts(None, items, policy, 50)
