"""Fixtures of the fault tests."""

import pytest

from everlong import limits


@pytest.fixture
def short_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten holds: a held thread reports itself at once, and retries within half a second."""
    monkeypatch.setattr(limits, "HOLD_SECONDS_MAX", 0.2)
    monkeypatch.setattr(limits, "HELD_PAUSE_SECONDS_MIN", 0.3)
    monkeypatch.setattr(limits, "HELD_PAUSE_SECONDS_MAX", 0.5)
