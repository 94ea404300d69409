"""Failure loops: how the policy distinguishes them from progress."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from everlong.models import failure_digest, short_digest
from everlong.policy import ObservedCall, Streaks, count_step, count_turn

OUTCOMES = {"x": "ok", "y": "failed", "z": "failed", "r": "refused"}
observed = st.builds(
    lambda call, result: ObservedCall(call, result, OUTCOMES[result]),
    st.sampled_from("abc"),
    st.sampled_from(sorted(OUTCOMES)),
)
steps = st.lists(st.lists(observed, min_size=1, max_size=4), max_size=30)


def observe_steps(*taken: list[ObservedCall]) -> Streaks:
    streaks = Streaks()
    for step in taken:
        streaks = count_step(streaks, step)
    return streaks


def ok(call: str, result: str = "x") -> list[ObservedCall]:
    return [ObservedCall(call, result, "ok")]


def make_failure(call: str, result: str = "x") -> list[ObservedCall]:
    return [ObservedCall(call, result, "failed")]


@pytest.mark.guarantee(69)
def test_the_same_failure_is_counted_until_the_call_succeeds() -> None:
    assert observe_steps(*[make_failure("a")] * 4).same_failure == 4
    assert (
        observe_steps(make_failure("a"), make_failure("a"), ok("a"), make_failure("a")).same_failure
        == 1
    )


@pytest.mark.guarantee(69)
def test_another_call_in_between_does_not_hide_a_failure_loop() -> None:
    assert (
        observe_steps(
            make_failure("a"), ok("b"), make_failure("a"), ok("b", "y"), make_failure("a")
        ).same_failure
        == 3
    )
    assert (
        observe_steps(
            make_failure("a"), make_failure("b"), make_failure("a"), make_failure("b")
        ).same_failure
        == 2
    )


def test_a_call_that_fails_in_another_way_is_another_failure() -> None:
    assert (
        observe_steps(
            make_failure("a", "x"), make_failure("a", "y"), make_failure("a", "x")
        ).same_failure
        == 1
    )


def test_a_step_counts_a_failure_once_however_often_it_calls() -> None:
    """The policy's limit is in steps: one reply with five equal calls is no loop yet."""
    assert (
        observe_steps([*make_failure("a"), *make_failure("a"), *make_failure("a")]).same_failure
        == 1
    )


def test_a_step_is_refused_if_no_call_ran() -> None:
    refused = [ObservedCall("a", "x", "refused")]
    assert observe_steps(refused, refused).refused_steps == 2
    assert observe_steps(refused, [*refused, *ok("b")]).refused_steps == 0
    assert observe_steps(refused, make_failure("b")).refused_steps == 0


@pytest.mark.guarantee(69)
@pytest.mark.parametrize("cycle", [1, 2, 3, 8])
def test_a_cycle_of_steps_is_no_progress(cycle: int) -> None:
    calls = [ok(f"call {i}") for i in range(cycle)]
    assert observe_steps(*(calls * 4)).no_progress_steps == 3 * cycle


@pytest.mark.guarantee(69)
def test_polling_with_a_new_result_is_progress() -> None:
    assert observe_steps(*(ok("poll", f"at {i}") for i in range(50))).no_progress_steps == 0
    waits = [*[ok("poll", "not yet")] * 10, ok("poll", "done")]
    assert observe_steps(*waits).no_progress_steps == 0
    assert observe_steps(*waits[:-1]).no_progress_steps == 9


def test_results_in_another_order_are_another_step() -> None:
    step = [*ok("a"), *ok("b")]
    assert observe_steps(step, step).no_progress_steps == 1
    assert (
        observe_steps([*ok("a"), *ok("b", "y")], [*ok("b", "y"), *ok("a", "z")]).no_progress_steps
        == 0
    )


def test_an_answer_is_progress_and_a_failed_turn_is_not() -> None:
    looping = observe_steps(*[make_failure("a")] * 4)
    assert count_turn(looping, failed=False) == Streaks()
    once = count_turn(looping, failed=True)
    assert (once.failed_turns, once.same_failure) == (1, 4)
    assert count_turn(once, failed=True).failed_turns == 2
    assert count_turn(count_turn(once, failed=False), failed=True).failed_turns == 1


@pytest.mark.guarantee(69)
def test_calls_that_fail_together_in_every_step_are_all_remembered() -> None:
    failing = [ObservedCall(f"c{number}", "boom", "failed") for number in range(19)]
    taken = [[*failing, ObservedCall(f"tick{step}", str(step), "ok")] for step in range(6)]
    assert observe_steps(*taken).same_failure == 6


@given(steps)
def test_streaks_stay_small_and_never_overcount(taken: list[list[ObservedCall]]) -> None:
    streaks = observe_steps(*taken)
    assert len(TypeAdapter(Streaks).dump_json(streaks)) < 2048
    assert streaks.no_progress_steps < max(1, len(taken))
    assert streaks.refused_steps <= len(taken)
    assert streaks.same_failure <= len(taken)
    if taken and all(each.outcome == "ok" for each in taken[-1]):
        assert streaks.refused_steps == 0


@given(steps)
def test_the_same_steps_give_the_same_streaks_after_a_roll(taken: list[list[ObservedCall]]) -> None:
    codec = TypeAdapter(Streaks)
    streaks = Streaks()
    for step in taken:
        streaks = codec.validate_json(codec.dump_json(count_step(streaks, step)))
    assert streaks == observe_steps(*taken)


def test_failures_that_differ_in_numbers_only_are_the_same() -> None:
    one = "OSError: no route to 10.0.0.7:55012 (0x7f3a99) after 3.2 s"
    other = "OSError: no route to 10.0.0.8:55999 (0xdeadbeef) after 11.9 s"
    assert failure_digest(one) == failure_digest(other) != failure_digest("OSError: disk full")
    assert short_digest(one) != short_digest(other)
    assert short_digest("\ud800") == short_digest("\ud800")
