"""Metrics over all threads, for an exporter.

They are read from visibility alone: no thread is queried, so none resumes. Gauges keep the last
reading until the next one. After a failed reading they report nothing: stale figures would mislead.
"""

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, TypeAlias

from temporalio.client import Client
from temporalio.common import TypedSearchAttributes

from everlong.client.visibility import read_rows
from everlong.models import AGENT_WORKFLOW, make_printable
from everlong.models.search_attributes import ASKED_AT, PENDING
from everlong.telemetry import Meters

_LOG: Final = logging.getLogger(__name__)

STATUSES: Final = ("active", "approval", "paused")
"""Values of `EverlongStatus` for running threads."""
# One page. With more threads, sizes cover those that started last.
THREADS_MAX: Final = 1_000
REFRESH_SECONDS: Final = 15.0
# Figures from a slower server would be too old to show.
_REFRESH_SECONDS_MAX: Final = 10.0
_RUNNING: Final = f"WorkflowType = '{AGENT_WORKFLOW}' AND ExecutionStatus = 'Running'"


@dataclasses.dataclass(frozen=True)
class FleetFigures:
    """Figures over all running threads at one moment."""

    by_status: Mapping[str, int]
    stored_bytes: int
    stored_bytes_max: int
    growth_bytes_per_hour: float
    growth_bytes_per_hour_max: float
    pending: int
    asked_at: datetime | None
    """Time of the oldest pending approval; None without any."""


async def measure(client: Client) -> FleetFigures:
    """Read the figures. The server's visibility lags by some seconds."""
    # One count per status: the server cannot group by custom search attributes.
    counts = await asyncio.gather(
        *(client.count_workflows(f"{_RUNNING} AND EverlongStatus = '{each}'") for each in STATUSES)
    )
    # The same rows as `everlong threads`, so the gauges and the list agree.
    rows = (await read_rows(client, _RUNNING, size=THREADS_MAX)).rows
    stored = [0, *(row.stored_bytes for row in rows)]
    growth = [0.0, *(row.growth_bytes_per_hour for row in rows)]
    pending = 0
    asked: list[datetime] = []
    async for thread in _list_attributes(client, f"{_RUNNING} AND EverlongPendingApprovals > 0"):
        pending += thread.get(PENDING, 0)
        if (asked_at := thread.get(ASKED_AT)) is not None:
            asked.append(asked_at)
    return FleetFigures(
        by_status={each: found.count for each, found in zip(STATUSES, counts, strict=True)},
        stored_bytes=sum(stored),
        stored_bytes_max=max(stored),
        growth_bytes_per_hour=sum(growth),
        growth_bytes_per_hour_max=max(growth),
        pending=pending,
        asked_at=min(asked, default=None),
    )


@contextlib.asynccontextmanager
async def refresh_metrics(
    connect: Callable[[], Awaitable[Client]],
    meters: Meters,
    *,
    refresh_seconds: float = REFRESH_SECONDS,
) -> AsyncIterator[None]:
    """Refresh the gauges while the context is open. Without a server they report nothing."""
    gauges = _Gauges(meters)
    task = asyncio.create_task(_refresh(gauges, connect, refresh_seconds))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


_Observed: TypeAlias = Iterable[tuple[float, Mapping[str, str]]]


class _Gauges:
    """Gauges over the latest figures. An exporter reads them from its own OS thread."""

    def __init__(self, meters: Meters) -> None:
        self.fleet: FleetFigures | None = None
        meters.observe("everlong.threads", self._observe(_by_status))
        meters.observe("everlong.threads.stored", self._observe(_stored))
        meters.observe("everlong.threads.growth", self._observe(_growth))
        meters.observe("everlong.approvals.pending", self._observe(_pending))
        meters.observe("everlong.approvals.age", self._observe(_age))

    def _observe(self, values: Callable[[FleetFigures], _Observed]) -> Callable[[], _Observed]:
        def observed() -> _Observed:
            fleet = self.fleet
            return [] if fleet is None else values(fleet)

        return observed


def _by_status(fleet: FleetFigures) -> _Observed:
    return [(count, {"status": status}) for status, count in fleet.by_status.items()]


def _stored(fleet: FleetFigures) -> _Observed:
    return [(fleet.stored_bytes, {"stat": "sum"}), (fleet.stored_bytes_max, {"stat": "max"})]


def _growth(fleet: FleetFigures) -> _Observed:
    return [
        (fleet.growth_bytes_per_hour, {"stat": "sum"}),
        (fleet.growth_bytes_per_hour_max, {"stat": "max"}),
    ]


def _pending(fleet: FleetFigures) -> _Observed:
    return [(fleet.pending, {})]


def _age(fleet: FleetFigures) -> _Observed:
    asked_at = fleet.asked_at
    return [(0.0 if asked_at is None else max(0.0, time.time() - asked_at.timestamp()), {})]


async def _refresh(
    gauges: _Gauges, connect: Callable[[], Awaitable[Client]], refresh_seconds: float
) -> None:
    client: Client | None = None
    is_failing = False
    while True:  # Until cancelled; each round has a time limit.
        try:
            async with asyncio.timeout(_REFRESH_SECONDS_MAX):
                client = client or await connect()
                gauges.fleet = await measure(client)
            is_failing = False
        except Exception as error:  # noqa: BLE001 - after any error, stale figures would mislead.
            gauges.fleet = None
            if not is_failing:
                is_failing = True
                _LOG.warning(
                    "metrics of all threads are not shown until the Temporal server answers: %s: %s",
                    type(error).__name__,
                    make_printable(str(error), 300),
                )
        await asyncio.sleep(refresh_seconds)


async def _list_attributes(client: Client, query: str) -> AsyncIterator[TypedSearchAttributes]:
    async for found in client.list_workflows(query, limit=THREADS_MAX, page_size=THREADS_MAX):
        yield found.typed_search_attributes
