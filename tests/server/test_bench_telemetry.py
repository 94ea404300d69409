"""A short run of `make bench-telemetry`. It checks no times, since other tests run at the same time."""

from pathlib import Path

import pytest

from bench.telemetry import QUICK, resumes
from bench.telemetry_overhead import measure_cost, report_costs
from everlong.embedded import TemporalServer
from everlong.interceptors.resume import PARTS
from everlong.telemetry.spans import RESUME
from tests.support.scale import scaled


@pytest.mark.full
async def test_a_resume_span_begins_with_the_task_and_ends_before_its_end_is_seen(
    server: TemporalServer, tmp_path: Path
) -> None:
    report, slow = await resumes(server.address, tmp_path, QUICK)
    assert report.failed == []
    assert slow.failed == []  # The longest child is the store, and children are as attributes say.
    drawn = [line.split()[0] for line in slow.notes if line.lstrip().startswith(RESUME)]
    assert drawn[-6:] == [RESUME, *(f"{RESUME}.{part}" for part in PARTS)]
    values = {figure.what: figure.value for figure in report.figures}
    assert values["spans that begin as the server's task does"] == QUICK.turns
    assert values["queue_seconds against the events, worst difference"] == 0
    [series] = report.series
    assert len(series.rows) == QUICK.turns
    for row in series.rows:
        cells = dict(zip(series.columns, row, strict=True))
        span, outside = float(cells["span, ms"] or 0), float(cells["outside, ms"] or 0)
        assert 0 < span < outside < span + 1000
        assert cells["blobs"] == QUICK.messages


@pytest.mark.full
async def test_the_telemetry_bench_measures_exported_steps(
    server: TemporalServer, tmp_path: Path
) -> None:
    steps = scaled(4, QUICK.steps)
    cost = await measure_cost(server.address, tmp_path, steps, block=steps // 2, sets=1)
    assert len(cost.on) == len(cost.off) == steps
    assert all(0 < seconds < 30 for seconds in (*cost.on, *cost.off))
    report = report_costs([cost], judged=False)
    assert report.failed == []
    assert "temporal_workflow_task_execution_latency" in cost.metrics
