"""A thread of many steps: a step takes what it took at first. `make bench-thread` takes 2,000."""

from pathlib import Path

import pytest

from bench.thread_growth import measure_growth
from bench.thread_harness import open_harness
from bench.thread_idle import REPLAYED_MAX, approve_after_idle
from bench.thread_resume import resume
from everlong import Policy
from everlong.embedded import TemporalServer
from tests.support.scale import scaled


@pytest.mark.guarantee(53)
async def test_runs_stay_within_policy_and_steps_do_not_slow_down(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    steps = scaled(60, 180)
    async with open_harness(server.address, tmp_path) as harness:
        await harness.start_worker()
        report = await measure_growth(harness, thread_id, steps, window=steps // 3)
    assert report.failed == []
    judged = {figure.what: figure.value for figure in report.figures if figure.ok}
    assert judged["pages in the journal, each once and in order"] == steps
    assert "history a step, last over early" in judged
    assert "written a step, last over early" in judged


@pytest.mark.guarantee(53)
async def test_a_resumed_step_reads_its_context_and_nothing_else(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    """By then the journal holds 640 KiB of results, and the context is what compaction left of them."""
    async with open_harness(server.address, tmp_path) as harness:
        await harness.start_worker()
        await harness.ask(thread_id, "read 0 to 39")
        resumed = await resume(harness, thread_id, 7)
    assert 0 < resumed.get_bytes <= resumed.needed_bytes
    assert resumed.get_bytes <= resumed.context_bytes
    assert 0 < resumed.replayed <= Policy().run_events_max


@pytest.mark.full
@pytest.mark.guarantee(54)
async def test_an_approval_after_an_idle_time_replays_few_events(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    async with open_harness(server.address, tmp_path) as harness:
        replayed, _ = await approve_after_idle(harness, thread_id, pages=12)
    assert 0 < replayed <= REPLAYED_MAX
