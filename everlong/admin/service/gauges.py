"""The limits of a thread as gauges: how much is used, what happens then, and how many days are left."""

import dataclasses
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

from everlong import limits
from everlong.models import ThreadCard, ThreadStatus

Unit: TypeAlias = Literal["bytes", "tokens", "usd", "steps", "turns", "events"]
_DAY_MS: Final = 24 * 3600 * 1000
# Over less than this, a rate says little.
_WINDOW_MS_MIN: Final = 10 * 60 * 1000
# Limits of what only grows. The others come and go, so that no day can be named.
_GROWING: Final = frozenset({"steps_max", "tokens_max", "cost_usd_max", "thread_bytes_max"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gauge:
    """How much of one limit is used."""

    name: str
    """The policy's field, as in `steps_max`; `operational_state` is a bound that is not policy."""
    value: float
    bound: float | None
    """None if the limit was lifted."""
    unit: Unit
    action: str
    """What happens at the bound: `pause`, `stop`, `archive`, `compact`, `roll` or `fail`."""
    share: float
    """Of the bound, 0 to 1; 0 without a bound."""
    days_left: float | None = None
    """At the rate so far; None if it does not grow, or nothing can be said yet."""


def gauges(
    status: ThreadStatus,
    run_events: int,
    *,
    began_ms: int | None,
    now_ms: int,
    card: ThreadCard | None = None,
) -> tuple[Gauge, ...]:
    """Return the gauges of a thread. `began_ms` is when it began to count."""
    per_day = _Rates(status, began_ms, now_ms, card)
    return (
        *(dataclasses.replace(each, days_left=per_day.days_left(each)) for each in _gauges(status)),
        _gauge("operational_state", status.state_bytes, limits.STATE_BYTES_MAX, "bytes", "fail"),
        _gauge(
            "compact_at_bytes",
            status.context_bytes,
            status.policy.compact_at_bytes,
            "bytes",
            "compact",
        ),
        _gauge("run_events_max", run_events, status.policy.run_events_max, "events", "roll"),
    )


def _gauges(status: ThreadStatus) -> Iterator[Gauge]:
    counters, streaks, policy = status.counters, status.streaks, status.policy
    values: tuple[tuple[str, float, Unit], ...] = (
        ("steps_max", counters.steps, "steps"),
        ("tokens_max", counters.tokens, "tokens"),
        ("cost_usd_max", counters.cost_usd, "usd"),
        ("thread_bytes_max", counters.written_bytes, "bytes"),
        ("context_bytes_max", status.context_bytes, "bytes"),
        ("failed_turns_max", streaks.failed_turns, "turns"),
        ("same_failure_max", streaks.same_failure, "steps"),
        ("no_progress_steps_max", streaks.no_progress_steps, "steps"),
    )
    for name, value, unit in values:
        yield _gauge(name, value, getattr(policy, name), unit, policy.action(name))


def _gauge(name: str, value: float, bound: float | None, unit: Unit, action: str) -> Gauge:
    share = 0.0 if not bound else min(1.0, value / bound)
    return Gauge(name=name, value=value, bound=bound, unit=unit, action=action, share=share)


class _Rates:
    """How fast a thread uses up its limits: since it began, or of bytes since its trend does."""

    def __init__(
        self, status: ThreadStatus, began_ms: int | None, now_ms: int, card: ThreadCard | None
    ) -> None:
        self._age_ms = 0 if began_ms is None else now_ms - began_ms
        self._is_open = status.status not in ("stopped", "archived", "paused")
        self._bytes_per_ms = _slope(card, status.counters.written_bytes, now_ms)

    def days_left(self, gauge: Gauge) -> float | None:
        """Return in how many days a limit is reached, if it goes on like this."""
        if gauge.name not in _GROWING or gauge.bound is None or not self._is_open:
            return None
        rate = gauge.value / self._age_ms if self._age_ms >= _WINDOW_MS_MIN else 0.0
        if gauge.name == "thread_bytes_max" and self._bytes_per_ms is not None:
            rate = self._bytes_per_ms
        if rate <= 0:
            return None
        return round(max(0.0, gauge.bound - gauge.value) / rate / _DAY_MS, 1)


def _slope(card: ThreadCard | None, stored_bytes: int, now_ms: int) -> float | None:
    """Return bytes per millisecond since the oldest sample of the trend."""
    if card is None or not card.trend:
        return None
    ms, size_bytes = card.trend[0]
    if now_ms - ms < _WINDOW_MS_MIN:
        return None
    return max(0, stored_bytes - size_bytes) / (now_ms - ms)
