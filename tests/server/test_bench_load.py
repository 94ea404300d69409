"""A short run of `make bench-load`. It does not check rates or CPU: other tests use the machine."""

from pathlib import Path

import pytest

from bench.load import measure
from everlong.embedded import TemporalServer


@pytest.mark.full
async def test_concurrent_threads_all_answer_before_and_after_a_kill(
    server: TemporalServer, tmp_path: Path
) -> None:
    load, pair, storm = await measure(server, tmp_path, threads=12, steps=2, turns=1)
    loaded, stormed = (
        {each.what: each.value or 0 for each in report.figures} for report in (load, storm)
    )
    assert loaded["callers that failed"] == 0
    # Each thread has its first task, and one after each of three model calls and two tools.
    assert loaded["everlong: workflow tasks"] >= 6 * 12
    assert {each.what: each.value for each in pair.figures}["callers that failed"] == 0
    assert stormed["not answered"] == 0
    # One that takes the message, and one after the model call.
    assert stormed["workflow tasks"] >= 2 * 12
    assert stormed["slowest workflow task"] > 0
    plain, everlong = (series.rows[0] for series in load.series)
    for _, calls_per_second, cpu_ms, memory, _, failed in (plain, everlong):
        assert float(calls_per_second or 0) > 0
        assert float(cpu_ms or 0) > 0
        assert float(memory or 0) > 30
        assert failed == 0
