"""A short run of `make bench-sticky`. It checks no times, since other tests run at the same time."""

from pathlib import Path

import pytest

from bench.sticky import QUICK, measure
from everlong.embedded import TemporalServer


@pytest.mark.full
async def test_threads_of_a_killed_worker_wait_for_the_sticky_timeout(
    server: TemporalServer, tmp_path: Path
) -> None:
    timeouts, slots = await measure(server.address, tmp_path, QUICK)
    [series] = timeouts.series
    short, long = (dict(zip(series.columns, row, strict=True)) for row in series.rows)
    killed = "killed: to the model call, s"
    assert float(short[killed] or 0) >= 0.5
    assert float(long[killed] or 0) >= 3
    for row in (short, long):
        # Each thread has its first task, one after each of two model calls, and one after the tool.
        assert int(row["tasks"] or 0) >= 4 * QUICK.threads
        assert int(row["task time-outs"] or 0) == 0
        assert float(row["worker CPU, s"] or 0) > 0
    assert [cells[0] for cells in slots.series[0].rows] == [5]
