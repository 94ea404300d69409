"""Faults that take seconds where they would take minutes."""

import pytest

from everlong import limits


@pytest.fixture
def short_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a thread that is held say so at once, and try again soon."""
    monkeypatch.setattr(limits, "HOLD_SECONDS_MAX", 0.2)
    monkeypatch.setattr(limits, "HELD_PAUSE_SECONDS_MIN", 0.3)
    monkeypatch.setattr(limits, "HELD_PAUSE_SECONDS_MAX", 0.5)
