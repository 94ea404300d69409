"""Random interleavings of messages, kills of workers, and rolls. `make soak` runs 1,000."""

from pathlib import Path

import pytest

from everlong.embedded import TemporalServer
from tests.support.scale import scaled
from tests.support.thread_soak import Campaign, worker_settings

ROOT = Path(__file__).parents[2]


@pytest.mark.guarantee(39, 45)
async def test_nothing_is_lost_repeated_or_out_of_order_while_workers_die(
    server: TemporalServer, tmp_path: Path, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    lives = scaled(2, 12)
    settings = worker_settings(server.address, tmp_path, thread_id)
    campaign = Campaign(server.address, settings, seed=7, count=lives, deaths_max=5)
    campaign.pause_seconds = (1.0, 2.0)  # Short, so that several kills fit in on a fast machine.
    await campaign.run()
    assert campaign.faults == []
    assert campaign.totals["lives"] == lives
    assert campaign.totals["messages"] >= 45 * lives // 12
    assert campaign.totals["decisions"] >= lives
    assert campaign.totals["runs"] >= 34 * lives // 12
    assert campaign.totals["kills"] >= scaled(1, 3)
