"""A wait for an answer costs nothing while it waits, whatever happens to the worker."""

from pathlib import Path

import pytest

from tests.support.slow_turn_agents import ANSWER, wait_through

ROOT = Path(__file__).parents[2]


@pytest.mark.guarantee(43)
async def test_a_wait_across_a_tool_an_approval_a_roll_and_a_kill_makes_no_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TEST_SLOW_SECONDS", "2")
    waited = await wait_through(tmp_path, approval_seconds=1)
    assert waited.answers == [ANSWER, ANSWER]
    assert waited.runs[0] >= 2
    assert waited.runs[1] == 1, "without a roll, the update is waited for until the end"
    assert waited.returncode == -9
    assert waited.requests["QueryWorkflow"] == 0
    # After a roll, one for each batch of events at most, and one each 20 s.
    assert 0 < waited.requests["PollWorkflowExecutionHistory"] < 80
    assert 2 <= waited.requests["PollWorkflowExecutionUpdate"] <= 4 + 2 * waited.seconds / 15
