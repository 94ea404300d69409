"""A short soak: threads write while sweeps run all the time, and sweepers are killed."""

import pytest

from everlong import limits
from tests.support.scale import scaled
from tests.support.sweep_soak import lower_limits, run


@pytest.mark.guarantee(106)
async def test_sweeps_under_load_lose_nothing_and_free_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in lower_limits().items():
        monkeypatch.setattr(limits, name, value)
    outcome = await run(5, scaled(4, 30), lambda _: None)
    assert outcome.faults == []
    assert outcome.messages > 0
    assert outcome.kills.total() > 0
    assert outcome.quarantined > 0
    assert outcome.payloads > 0
    assert outcome.bytes_before > 0
    assert outcome.bytes_left == 0
