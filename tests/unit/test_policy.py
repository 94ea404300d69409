import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from everlong import Policy, limits
from everlong.policy import RollReason, RunSize, roll_reason

sizes = st.builds(
    RunSize,
    events=st.integers(min_value=0, max_value=60_000),
    history_bytes=st.integers(min_value=0, max_value=60_000_000),
    server_suggests=st.booleans(),
)


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (RunSize(399, limits.MIB - 1, False), None),
        (RunSize(400, 0, False), RollReason.EVENTS),
        (RunSize(0, limits.MIB, False), RollReason.HISTORY_BYTES),
        (RunSize(0, 0, True), RollReason.SERVER),
    ],
)
def test_a_run_ends_at_the_first_bound_that_it_reaches(
    size: RunSize, reason: RollReason | None
) -> None:
    assert roll_reason(Policy(), size) == reason


@given(sizes, sizes)
def test_a_larger_run_never_has_less_reason_to_end(one: RunSize, other: RunSize) -> None:
    larger = RunSize(
        max(one.events, other.events),
        max(one.history_bytes, other.history_bytes),
        one.server_suggests or other.server_suggests,
    )
    if roll_reason(Policy(), one) is not None:
        assert roll_reason(Policy(), larger) is not None


@pytest.mark.parametrize(
    "field", [{"run_events_max": 10}, {"run_history_bytes_max": 50_000_000}, {"turn_steps_max": 0}]
)
def test_bounds_that_would_harm_are_refused(field: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        Policy(**field)
