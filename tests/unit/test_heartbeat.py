"""Heartbeats of one activity: their interval and content."""

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from temporalio.testing import ActivityEnvironment

from everlong import limits
from everlong.activities.heartbeat import Heartbeat, heartbeat
from everlong.errors import BlobMissing, StoreUnavailable

Work = Callable[[Heartbeat], Awaitable[object]]


@dataclasses.dataclass
class Beats:
    """The heartbeats of one run: seconds since its start, and details."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    details: list[str] = dataclasses.field(default_factory=list)


async def record_heartbeats(work: Work, timeout_seconds: float | None = 0.4) -> Beats:
    """Run an activity with that heartbeat timeout; return its heartbeats."""
    environment, beats = ActivityEnvironment(), Beats()
    timeout = None if timeout_seconds is None else timedelta(seconds=timeout_seconds)
    environment.info = dataclasses.replace(environment.info, heartbeat_timeout=timeout)
    started = time.monotonic()

    def note(*details: str) -> None:
        beats.seconds.append(time.monotonic() - started)
        beats.details.append(details[0] if details else "")

    environment.on_heartbeat = note

    async def act() -> None:
        async with heartbeat(lambda _: None) as beat:
            await work(beat)

    await environment.run(act)
    return beats


def make_failing_work(*errors: Exception) -> Callable[[], Awaitable[str]]:
    """Return work on a store that raises these first."""
    left = list(errors)

    async def work() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return work


async def test_an_activity_that_ends_within_half_of_the_timeout_sends_no_heartbeat() -> None:
    beats = await record_heartbeats(lambda beat: beat.retry_or_hold(make_failing_work()))
    assert beats.details == []
    beats = await record_heartbeats(lambda _: asyncio.sleep(0.2), timeout_seconds=None)
    assert beats.details == []


async def test_a_longer_activity_beats_twice_in_each_timeout() -> None:
    beats = await record_heartbeats(lambda _: asyncio.sleep(0.9), timeout_seconds=0.4)
    assert beats.seconds[0] >= 0.2
    assert 2 <= len(beats.details) <= 4
    assert set(beats.details) == {""}


async def test_the_interval_follows_the_timeout_of_the_activity() -> None:
    slow = await record_heartbeats(lambda _: asyncio.sleep(0.5), timeout_seconds=2.0)
    quick = await record_heartbeats(lambda _: asyncio.sleep(0.5), timeout_seconds=0.1)
    assert slow.details == []
    assert len(quick.details) >= 3


async def test_a_hold_is_reported_at_once_and_so_is_its_end() -> None:
    work = make_failing_work(StoreUnavailable("it is away"), StoreUnavailable("it is away"))
    beats = await record_heartbeats(lambda beat: beat.retry_or_hold(work), timeout_seconds=60)
    assert beats.details == ["held by StoreUnavailable: it is away", ""]
    assert beats.seconds[0] < 5


async def test_a_new_hold_reason_is_reported_at_once() -> None:
    work = make_failing_work(StoreUnavailable("it is away"), BlobMissing("no such bytes"))
    beats = await record_heartbeats(lambda beat: beat.retry_until_timeout(work), timeout_seconds=60)
    assert beats.details == [
        "held by StoreUnavailable: it is away",
        "held by BlobMissing: no such bytes",
        "",
    ]


async def test_heartbeats_of_a_held_activity_repeat_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "STORE_RETRY_SECONDS_MAX", 0.1)
    work = make_failing_work(*(StoreUnavailable("it is away") for _ in range(8)))
    beats = await record_heartbeats(lambda beat: beat.retry_or_hold(work), timeout_seconds=0.2)
    assert len(beats.details) >= 4
    assert set(beats.details[:-1]) == {"held by StoreUnavailable: it is away"}
    assert beats.details[-1] == ""
