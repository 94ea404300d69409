"""The distribution of tests over the test processes."""

from pathlib import Path

from tests.support.scheduler import find_unit, spread

TESTS = Path(__file__).parents[1]


def test_tests_with_a_server_are_units_unless_their_file_shares_a_fixture() -> None:
    one = "tests/server/test_thread.py::test_a_stop_is_not_lost_to_a_roll"
    assert find_unit(one) == one
    shared = "tests/server/test_stack.py"
    assert {find_unit(f"{shared}::{name}") for name in ("first", "second")} == {shared}


def test_browser_tests_need_two_processes_and_files_stay_whole() -> None:
    files = [f"tests/browser/{path.name}" for path in (TESTS / "browser").glob("test_*.py")]
    units = [{find_unit(f"{file}::{name}") for name in ("first", "second")} for file in files]
    assert all(len(unit) == 1 for unit in units)
    assert len(set.union(*units)) == 2


def test_spread_items_keep_their_order_and_their_distance() -> None:
    assert spread("ab", "123456") == ["1", "a", "2", "3", "4", "b", "5", "6"]
    assert spread("", "12") == ["1", "2"]
    assert spread("ab", "") == ["a", "b"]
