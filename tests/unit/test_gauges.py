"""Gauges of all threads: fresh, or absent."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from everlong.admin import fleet
from everlong.admin.fleet import FleetFigures
from everlong.errors import ServerUnreachable
from everlong.telemetry import METRICS, Meters

FLEET = FleetFigures(
    by_status={"working": 3, "approval": 2, "paused": 0},
    stored_bytes=700,
    stored_bytes_max=400,
    growth_bytes_per_hour=50.0,
    growth_bytes_per_hour_max=30.0,
    pending=2,
    asked_at=None,
)


class Gauges:
    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.meters = Meters(self.provider.get_meter("everlong"))

    def shown(self) -> dict[tuple[str, str], float]:
        """Values by metric and the value of their only label."""
        found = {}
        data = self._reader.get_metrics_data()
        for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
            for point in metric.data.data_points:
                assert isinstance(point, NumberDataPoint)
                label = "".join(str(value) for value in (point.attributes or {}).values())
                found[metric.name, label] = point.value
        return found

    async def until(self, done: Callable[[dict[tuple[str, str], float]], bool]) -> None:
        for _ in range(500):
            if done(self.shown()):
                return
            await asyncio.sleep(0.01)
        raise AssertionError(self.shown())


async def make_nothing() -> Any:
    return object()


async def test_every_gauge_of_the_admin_server_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_at = datetime.now(UTC) - timedelta(minutes=5)

    async def measure(_: object) -> FleetFigures:
        return dataclasses.replace(FLEET, asked_at=asked_at)

    monkeypatch.setattr(fleet, "measure_fleet", measure)
    gauges = Gauges()
    async with fleet.refresh_gauges(make_nothing, gauges.meters):
        await gauges.until(bool)
        shown = gauges.shown()
    gauges.provider.shutdown()
    assert 300 <= shown.pop(("everlong.approvals.age", "")) < 310
    assert shown == {
        ("everlong.threads", "working"): 3,
        ("everlong.threads", "approval"): 2,
        ("everlong.threads", "paused"): 0,
        ("everlong.threads.stored", "sum"): 700,
        ("everlong.threads.stored", "max"): 400,
        ("everlong.threads.growth", "sum"): 50,
        ("everlong.threads.growth", "max"): 30,
        ("everlong.approvals.pending", ""): 2,
    }
    of_admin = {metric.name for metric in METRICS if metric.source == "admin"}
    assert {name for name, _ in shown} | {"everlong.approvals.age"} == of_admin


async def test_gauges_disappear_with_the_server_and_one_warning_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_up, calls = False, 0

    async def connect() -> Any:
        nonlocal calls
        calls += 1
        if not is_up:
            raise ServerUnreachable("no Temporal server answers")
        return object()

    async def measure(_: object) -> FleetFigures:
        nonlocal calls
        calls += 1
        if not is_up:
            raise RuntimeError("it has gone")
        return FLEET

    monkeypatch.setattr(fleet, "measure_fleet", measure)
    gauges = Gauges()
    with caplog.at_level(logging.WARNING):
        async with fleet.refresh_gauges(connect, gauges.meters, refresh_seconds=0.01):
            await gauges.until(lambda shown: calls > 3 and not shown)
            assert [message.partition(": ")[2] for message in caplog.messages] == [
                "ServerUnreachable: no Temporal server answers"
            ]
            is_up = True
            await gauges.until(lambda shown: shown.get(("everlong.approvals.age", "")) == 0)
            is_up, calls = False, 0
            await gauges.until(lambda shown: calls > 3 and not shown)
    gauges.provider.shutdown()
    assert len(caplog.messages) == 2
    assert caplog.messages[1].endswith("RuntimeError: it has gone")


async def test_a_silent_server_times_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def measure(_: object) -> FleetFigures:
        await asyncio.Event().wait()
        return FLEET

    monkeypatch.setattr(fleet, "measure_fleet", measure)
    monkeypatch.setattr(fleet, "_REFRESH_SECONDS_MAX", 0.01)
    gauges = Gauges()
    with caplog.at_level(logging.WARNING):
        async with fleet.refresh_gauges(make_nothing, gauges.meters, refresh_seconds=0.01):
            await gauges.until(lambda shown: "TimeoutError" in caplog.text and not shown)
    gauges.provider.shutdown()
