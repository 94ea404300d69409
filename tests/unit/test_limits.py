"""Limits of a thread on steps, cost and failures."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong import Policy, limits
from everlong.models import Counters, ThreadState
from everlong.policy import LimitHit, RepeatedFailure, Streaks, Usage, find_limit_hit
from everlong.workflows import transitions

BOUNDS: dict[str, float] = {
    "steps": 7,
    "tokens": 1000,
    "cost_usd": 2.5,
    "thread_bytes": limits.MIB,
    "step_bytes": limits.KIB,
    "context_bytes": 4 * limits.KIB,
    "failed_turns": 3,
    "same_failure": 3,
    "no_progress_steps": 3,
}
POLICY = Policy(**{f"{name}_max": bound for name, bound in BOUNDS.items()})  # type: ignore[arg-type]
usages = st.builds(
    Usage, **{name: st.integers(0, int(2 * bound)) for name, bound in BOUNDS.items()}
)


def make_usage(name: str, value: float) -> Usage:
    values: dict[str, Any] = {name: value}
    return Usage(**values)


def test_every_kind_of_usage_has_a_limit() -> None:
    assert [field.name for field in dataclasses.fields(Usage)] == list(BOUNDS)


@pytest.mark.parametrize("name", BOUNDS)
def test_a_limit_is_reached_at_its_bound_and_not_before(name: str) -> None:
    bound = BOUNDS[name]
    step = 0.01 if name == "cost_usd" else 1
    assert find_limit_hit(POLICY, make_usage(name, bound - step)) is None
    hit = LimitHit(limit=f"{name}_max", value=bound, bound=bound, action="pause")
    assert find_limit_hit(POLICY, make_usage(name, bound)) == hit
    stops = POLICY.with_changes({"actions": {f"{name}_max": "stop"}})
    assert find_limit_hit(stops, make_usage(name, bound)) == dataclasses.replace(hit, action="stop")
    archives = POLICY.with_changes({"on_limit": "archive"})
    assert find_limit_hit(archives, make_usage(name, bound)) == dataclasses.replace(
        hit, action="archive"
    )


@pytest.mark.parametrize("name", ["steps", "tokens", "cost_usd", "thread_bytes", "step_bytes"])
def test_a_limit_can_be_switched_off(name: str) -> None:
    policy = POLICY.with_changes({f"{name}_max": None})
    assert find_limit_hit(policy, make_usage(name, 10**18)) is None


@pytest.mark.guarantee(68)
@given(usages)
def test_a_limit_is_reported_exactly_when_one_is_reached(usage: Usage) -> None:
    reached = {f"{name}_max" for name, bound in BOUNDS.items() if getattr(usage, name) >= bound}
    hit = find_limit_hit(POLICY, usage)
    assert (hit is None) == (not reached)
    if hit is not None:
        assert hit.limit in reached
        assert hit.value == getattr(usage, hit.limit.removesuffix("_max")) >= hit.bound


def test_a_reason_is_short_and_names_the_limit() -> None:
    hit = LimitHit(limit="cost_usd_max", value=2.5000001, bound=2.5, action="stop")
    assert hit.reason == "cost_usd_max: 2.5 of 2.5"


def test_usage_is_read_from_the_threads_state() -> None:
    failures = (
        RepeatedFailure(call="a", failure="x", count=4),
        RepeatedFailure(call="b", failure="y", count=2),
    )
    state = ThreadState(
        counters=Counters(steps=1, tokens=2, cost_usd=3.0, written_bytes=4, context_bytes=99),
        step_bytes=5,
        context_bytes=6,
        streaks=Streaks(failed_turns=7, failures=failures, no_progress_steps=8),
    )
    assert transitions.build_usage(state) == Usage(
        steps=1,
        tokens=2,
        cost_usd=3.0,
        thread_bytes=4,
        step_bytes=5,
        context_bytes=6,
        failed_turns=7,
        same_failure=4,
        no_progress_steps=8,
    )


@pytest.mark.parametrize(
    "name", ["failed_turns", "same_failure", "no_progress_steps", "step_bytes"]
)
def test_an_unpause_resets_reviewed_usage(name: str) -> None:
    state = ThreadState(
        step_bytes=10**6,
        streaks=Streaks(
            failed_turns=9,
            failures=(RepeatedFailure(call="a", failure="x", count=9),),
            no_progress_steps=9,
            recent=("r",),
        ),
    )
    hit = find_limit_hit(POLICY, transitions.build_usage(state))
    assert hit is not None
    assert transitions.forgive(state, None) == state
    assert find_limit_hit(POLICY, transitions.build_usage(transitions.forgive(state, hit))) is None


def test_an_unpause_does_not_reset_costs() -> None:
    state = ThreadState(counters=Counters(cost_usd=3.0))
    hit = find_limit_hit(POLICY, transitions.build_usage(state))
    assert find_limit_hit(POLICY, transitions.build_usage(transitions.forgive(state, hit))) == hit
