"""A short run of the benchmark, so that it keeps working. It does not check the figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import stored_bytes
from bench.__main__ import make_folders
from bench.report import Report, Series, finish
from bench.server import QUICK, measure_server
from bench.worker import EVERLONG, PLAIN, SDK, VARIANTS
from everlong.embedded import TemporalServer
from everlong.testing import workload

ROOT = Path(__file__).parents[2]


def test_a_step_of_the_workload_is_the_same_everywhere_and_of_the_promised_shape() -> None:
    assistant, tool = workload.step(3)
    assert (assistant, tool) == workload.step(3)
    # A golden value: what was generated once is what every machine generates.
    assert assistant["tool_calls"][0]["id"] == "call_ba2270c3050014d1"
    assert 550 < len(json.dumps(assistant)) < 650
    assert tool["tool_call_id"] == assistant["tool_calls"][0]["id"]
    assert tool["content"] == workload.result(3)
    assert len({workload.step(i)[0]["content"] for i in range(20)}) == 20


@pytest.mark.full
def test_the_codec_is_measured_and_reads_back_what_it_wrote(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    # In a process of its own: memory is traced, which is slow where there is much of it.
    command = [sys.executable, "-m", "bench", "--quick", "--only", "codec", "--json", str(file)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    written = json.loads(file.read_text())
    assert written["machine"]["cores"] >= 1
    [report] = written["reports"]
    values = {figure["what"]: figure["value"] for figure in report["figures"]}
    assert values["payloads that decode to the same bytes"] == 40
    assert values["payloads offloaded"] > 30
    assert values["raw: all payloads"] > 19_000_000
    assert 0 < values["written to the store"] < values["raw: all payloads"]
    assert all(value is not None for value in values.values())
    assert [row[0] for row in report["series"][0]["rows"]] == [20, 40]


@pytest.mark.full
async def test_all_arms_run_and_resume_through_a_server(
    server: TemporalServer, tmp_path: Path
) -> None:
    report = await measure_server(server.address, make_folders(tmp_path), tmp_path, QUICK)
    growth, resume = (rows_by_variant(series) for series in report.series)
    assert list(growth) == list(resume) == list(VARIANTS)
    history = {variant: row["history bytes"] for variant, row in growth.items()}
    # 16 lists of up to 16 results, and the results themselves.
    assert history[PLAIN] > 136 * 20_000
    assert history[EVERLONG] < history[SDK] < history[PLAIN]
    assert growth[PLAIN]["objects"] == 0
    for variant in (SDK, EVERLONG):
        assert growth[variant]["objects"] > 0
        assert 0 < growth[variant]["bytes stored"] <= growth[variant]["bytes written"]
        assert resume[variant]["PUTs"] > 0
    for row in resume.values():
        assert 0 < row["to the end of the next step, ms"] < 60_000


async def test_a_loop_through_a_worker_stores_less_than_it_sends(
    server: TemporalServer, tmp_path: Path
) -> None:
    size = stored_bytes.Size(steps=(4, 8), round_steps=4, seconds_max=60.0, judged=False)
    report = await stored_bytes.measure_stored(server.address, tmp_path, size)
    [series] = report.series
    first, last = (dict(zip(series.columns, row, strict=True)) for row in series.rows)
    assert (first["steps"], last["steps"]) == (4, 8)
    assert 0 < int(str(last["stored bytes"])) < int(str(last["list bytes"]))
    assert int(str(first["history bytes"])) < int(str(last["history bytes"]))
    assert report.notes == []


async def test_an_overlong_loop_is_measured_up_to_its_time_limit(
    server: TemporalServer, tmp_path: Path
) -> None:
    size = stored_bytes.Size(steps=(1000,), round_steps=3, seconds_max=0.1, judged=True)
    report = await stored_bytes.measure_stored(server.address, tmp_path, size)
    [row] = report.series[0].rows
    assert row[0] == 3
    # A step that was not reached is a failure.
    assert [figure.value for figure in report.failed] == [None]
    assert "stopped at step 3" in report.notes[0]


def test_a_broken_bound_is_named_and_fails_the_benchmark(tmp_path: Path) -> None:
    report = Report("a part")
    report.add("kept", 5, "bytes", most=10)
    assert finish({}, [report]) == 0
    report.add("grown", 11, "bytes", most=10)
    report.add("never ended", None, "ms", most=10)
    assert finish({"cores": 2}, [report], tmp_path / "bench.json", tmp_path / "bench.md") == 1
    assert [figure.what for figure in report.failed] == ["grown", "never ended"]
    [written] = json.loads((tmp_path / "bench.json").read_text())["reports"]
    assert "| grown | 11 | bytes | <= 10 | FAIL |" in (tmp_path / "bench.md").read_text()
    assert [figure["ok"] for figure in written["figures"]] == [True, False, False]


def rows_by_variant(series: Series) -> dict[str, dict[str, float]]:
    found = {}
    for variant, *cells in series.rows:
        assert isinstance(variant, str)
        numbers = [cell for cell in cells if isinstance(cell, int | float)]
        found[variant] = dict(zip(series.columns[1:], numbers, strict=True))
    return found
