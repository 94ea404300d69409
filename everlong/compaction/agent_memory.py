"""Memory of an agent: the facts that it remembers, and the eviction of facts beyond its caps.

Eviction always has the same order: expired, least important, oldest, by key.
"""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Final

from pydantic import TypeAdapter

from everlong.compaction.snapshot import Item, Snapshot
from everlong.compaction.text import utf8_bytes
from everlong.models import Fact, Kind, MemoryChange
from everlong.policy import Policy

_CHANGE: Final = TypeAdapter(MemoryChange)


def measure_fact(fact: Fact) -> int:
    """Return the size of a fact's line in a context."""
    return utf8_bytes(fact.key) + utf8_bytes(fact.text) + len("- : \n")


def is_expired(fact: Fact, now_ms: int) -> bool:
    """Return whether a fact has expired."""
    return fact.expires_ms is not None and fact.expires_ms <= now_ms


def list_facts(
    base: Snapshot | None, items: Iterable[Item], policy: Policy, now_ms: int
) -> tuple[Fact, ...]:
    """Return the facts at a time, oldest first: the snapshot's, with the changes of later entries."""
    facts = {fact.key: fact for fact in base.facts} if base else {}
    after = base.upto_seq if base else 0
    for item in items:
        known = item.entry.seq <= after or item.entry.data is None
        if item.entry.kind == Kind.MEMORY and not known:
            _apply(facts, _CHANGE.validate_python(item.entry.data))
    held, _ = _apply_caps(facts.values(), policy, now_ms)
    return tuple(sorted(held, key=lambda fact: (fact.time_ms, fact.key)))


def remember(facts: Sequence[Fact], fact: Fact, policy: Policy, now_ms: int) -> MemoryChange:
    """Return the change that adds a fact, with the keys of the facts that it evicts.

    A fact without an expiry gets the policy's TTL. A fact with the same key is replaced.
    """
    if fact.expires_ms is None and policy.fact_ttl_seconds is not None:
        until_ms = fact.time_ms + int(policy.fact_ttl_seconds * 1000)
        fact = dataclasses.replace(fact, expires_ms=until_ms)
    if not policy.memory_facts_max:
        raise ValueError("this thread remembers no facts: its policy has memory_facts_max=0")
    size_bytes = measure_fact(fact)
    if size_bytes > policy.memory_bytes_max:
        raise ValueError(
            f"the fact takes {size_bytes} bytes, and all facts together may take "
            f"{policy.memory_bytes_max}; remember less, such as where to find the rest"
        )
    if is_expired(fact, now_ms):
        raise ValueError("the fact would have expired already; give it a later expiry, or none")
    others = [each for each in facts if each.key != fact.key]
    # The new fact itself is never evicted, whatever its importance.
    _, evicted = _apply_caps(others, policy, now_ms, facts_taken=1, bytes_taken=size_bytes)
    return MemoryChange(remembered=fact, evicted=tuple(each.key for each in evicted))


def forget(facts: Sequence[Fact], key: str) -> MemoryChange:
    """Return the change that removes a fact."""
    if key not in {fact.key for fact in facts}:
        known = json.dumps(sorted(fact.key for fact in facts)[:20], ensure_ascii=False)
        raise ValueError(f"there is no fact of that key; the keys are {known}")
    return MemoryChange(forgotten=key)


def dump_change(change: MemoryChange) -> dict[str, object]:
    """Return a change as the data of a `memory` entry."""
    data: dict[str, object] = _CHANGE.dump_python(change, mode="json", exclude_defaults=True)
    return data


def _apply(facts: dict[str, Fact], change: MemoryChange) -> None:
    for key in (*change.evicted, change.forgotten):
        facts.pop(key, None)
    if change.remembered is not None:
        facts[change.remembered.key] = change.remembered


def _apply_caps(
    facts: Iterable[Fact],
    policy: Policy,
    now_ms: int,
    *,
    facts_taken: int = 0,
    bytes_taken: int = 0,
) -> tuple[list[Fact], list[Fact]]:
    """Return the facts that stay, and the evicted ones in the order of eviction."""
    order = sorted(
        facts,
        key=lambda each: (not is_expired(each, now_ms), each.importance, each.time_ms, each.key),
    )
    size_bytes = bytes_taken + sum(map(measure_fact, order))
    gone = 0
    for fact in order:
        full = len(order) - gone + facts_taken > policy.memory_facts_max
        if not full and size_bytes <= policy.memory_bytes_max and not is_expired(fact, now_ms):
            break
        size_bytes -= measure_fact(fact)
        gone += 1
    return order[gone:], order[:gone]
