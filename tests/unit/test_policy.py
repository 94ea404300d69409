"""Policy: its valid values, and when a run ends by it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from everlong import Policy, limits
from everlong.policy import RollReason, RunSize, estimate_resume_seconds, find_roll_reason

sizes = st.builds(
    RunSize,
    events=st.integers(min_value=0, max_value=60_000),
    history_bytes=st.integers(min_value=0, max_value=60_000_000),
    server_suggests=st.booleans(),
    offloaded_bytes=st.integers(min_value=0, max_value=10**9),
    blobs=st.integers(min_value=0, max_value=10_000),
)
ends = st.sampled_from(["pause", "stop", "archive"])
changes = st.fixed_dictionaries(
    {},
    optional={
        "run_events_max": st.integers(50, 40_000),
        "run_blobs_max": st.integers(1, 10**6),
        "idle_seconds": st.floats(0.001, 10**8),
        "heartbeat_seconds": st.floats(1, 600),
        "compact_to_bytes": st.integers(2 * limits.KIB, 255 * limits.KIB),
        "summary": st.booleans(),
        "tool_result_ttl_seconds": st.none() | st.floats(0.001, 10**8),
        "memory_facts_max": st.integers(0, 1000),
        "steps_max": st.none() | st.integers(1, 10**9),
        "cost_usd_max": st.none() | st.floats(0.001, 10**8),
        "on_limit": ends,
        "actions": st.dictionaries(st.sampled_from(["steps_max", "cost_usd_max"]), ends),
    },
)


@pytest.mark.guarantee(52)
@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (RunSize(399, limits.MIB - 1, False), None),
        (RunSize(400, 0, False), RollReason.EVENTS),
        (RunSize(0, limits.MIB, False), RollReason.HISTORY_BYTES),
        (RunSize(0, 0, False, offloaded_bytes=32 * limits.MIB), RollReason.OFFLOADED_BYTES),
        (RunSize(0, 0, False, blobs=256), RollReason.BLOBS),
        (RunSize(0, 0, True), RollReason.SERVER),
    ],
)
def test_a_run_ends_at_the_first_bound_that_it_reaches(
    size: RunSize, reason: RollReason | None
) -> None:
    assert find_roll_reason(Policy(), size) == reason


@pytest.mark.guarantee(52)
def test_a_run_ends_when_its_resume_would_take_too_long() -> None:
    policy = Policy(resume_seconds_max=0.5)
    size = RunSize(300, 100_000, False, offloaded_bytes=10 * limits.MIB, blobs=50)
    assert estimate_resume_seconds(size) > 0.5
    assert find_roll_reason(policy, size) == RollReason.RESUME_SECONDS
    assert find_roll_reason(policy, RunSize(300, 100_000, False)) is None


@given(sizes, sizes)
def test_a_larger_run_never_has_less_reason_to_end(one: RunSize, other: RunSize) -> None:
    larger = RunSize(
        *(
            max(getattr(one, field.name), getattr(other, field.name))
            for field in dataclasses.fields(RunSize)
        )
    )
    assert estimate_resume_seconds(larger) >= estimate_resume_seconds(one)
    if find_roll_reason(Policy(), one) is not None:
        assert find_roll_reason(Policy(), larger) is not None


def find_least(field: str) -> Any:
    """Return the least value of a field that a policy takes, of some that are tried."""
    for value in (0.001, 0.1, 0.15, 0.2, 0.25, 0.5, 1, 50, 1024, 16 * limits.KIB):
        try:
            Policy().with_changes({field: value})
        except ValidationError:
            continue
        return value
    raise AssertionError(f"no value of {field} is taken")


@pytest.mark.parametrize(
    "field",
    [
        "run_events_max",
        "run_history_bytes_max",
        "run_offloaded_bytes_max",
        "run_blobs_max",
        "resume_seconds_max",
    ],
)
def test_no_policy_ends_a_new_run(field: str) -> None:
    """It would continue as new for ever, without doing anything."""
    just_begun = RunSize(events=20, history_bytes=12 * limits.KIB, server_suggests=False)
    assert find_roll_reason(Policy().with_changes({field: find_least(field)}), just_begun) is None


@pytest.mark.parametrize(
    "field",
    [
        {"run_events_max": 10},
        {"run_history_bytes_max": 50_000_000},
        {"turn_steps_max": 0},
        {"steps_max": 0},
        {"cost_usd_max": -1.0},
        {"same_failure_max": 1},
        {"no_progress_steps_max": 1},
        {"on_limit": "explode"},
        {"idle_seconds": 0},
        {"idle_seconds": float("nan")},
        {"heartbeat_seconds": 0.9},
        {"heartbeat_seconds": 601},
        {"heartbeat_seconds": float("nan")},
        {"context_bytes_max": 100},
        {"memory_bytes_max": limits.MIB},
    ],
    ids=str,
)
def test_harmful_bounds_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Policy(**field)


@pytest.mark.parametrize("seconds", [float("inf"), 1e15])
@pytest.mark.parametrize(
    "field",
    [
        "idle_seconds",
        "heartbeat_seconds",
        "resume_seconds_max",
        "tool_result_ttl_seconds",
        "fact_ttl_seconds",
    ],
)
def test_times_fit_a_timer(field: str, seconds: float) -> None:
    """One that does not fit a timedelta would fail every task of a thread."""
    with pytest.raises(ValidationError):
        Policy().with_changes({field: seconds})


def test_compaction_must_shrink_the_context() -> None:
    with pytest.raises(ValidationError, match="compact_to_bytes"):
        Policy(compact_at_bytes=8 * limits.KIB, compact_to_bytes=8 * limits.KIB)
    with pytest.raises(ValueError, match="compact_to_bytes"):
        Policy().with_changes({"compact_to_bytes": 256 * limits.KIB})


def test_actions_name_limits() -> None:
    for unknown in ("cost_max", "run_events_max", "turn_steps_max", ""):
        with pytest.raises(ValidationError, match="actions"):
            Policy(actions={unknown: "stop"})
    policy = Policy(on_limit="stop", actions={"cost_usd_max": "archive"})
    assert policy.action("cost_usd_max") == "archive"
    assert policy.action("steps_max") == "stop"


@given(changes)
def test_the_policy_is_rebuilt_from_its_differences_to_the_defaults(
    wanted: Mapping[str, Any],
) -> None:
    policy = Policy().with_changes(wanted)
    assert all(getattr(policy, name) == value for name, value in wanted.items())
    differences = policy.differences()
    assert set(differences) <= set(wanted)
    assert Policy().with_changes(differences) == policy
    assert TypeAdapter(Policy).validate_json(TypeAdapter(Policy).dump_json(policy)) == policy


@given(changes, changes)
def test_later_changes_win_and_the_others_stay(
    first: Mapping[str, Any], then: Mapping[str, Any]
) -> None:
    assert Policy().with_changes(first).with_changes(then) == Policy().with_changes(
        {**first, **then}
    )


def test_default_policies_have_no_differences() -> None:
    assert Policy().differences() == {}
    assert Policy().with_changes({}) == Policy()


def test_invalid_changes_are_named() -> None:
    with pytest.raises(ValueError, match="the policy has no steps, turns"):
        Policy().with_changes({"turns": 1, "steps": 2})
    with pytest.raises(ValueError, match="steps_max"):
        Policy().with_changes({"steps_max": "many"})
    with pytest.raises(ValueError, match="context_bytes_max"):
        Policy().with_changes({"context_bytes_max": None})
