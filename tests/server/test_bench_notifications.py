"""Delivery to a receiver that fails, hangs and answers twice, by a short run of the benchmark."""

import asyncio
from pathlib import Path

import pytest

from bench import notifications
from bench.notifications import measure
from everlong import limits
from everlong.embedded import TemporalServer


@pytest.mark.guarantee(117)
async def test_each_approval_is_delivered_at_least_once_and_blocks_no_thread(
    server: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "_SINK_SECONDS", 0.5)
    monkeypatch.setattr(limits, "NOTIFIER_RETRY_SECONDS_MIN", 0.25)
    # With this seed, two of the first requests fail, one hangs, and one gets two answers.
    async with asyncio.timeout(120):
        report = await measure(server.address, tmp_path, count=8, seed=275)
    assert report.failed == []
    values = {figure.what: figure.value for figure in report.figures}
    assert values["... that it failed"]
    assert values["... that it let hang"]
