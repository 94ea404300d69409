"""Fleet: totals of all threads for pages and commands, and as gauges for an exporter.

All figures are read from visibility: no thread is queried, so none resumes.
"""

import asyncio
import contextlib
import dataclasses
import heapq
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

from temporalio.client import Client
from temporalio.common import TypedSearchAttributes

from everlong.client.thread_index import FleetTotals, ThreadIndex
from everlong.client.thread_list import ThreadList
from everlong.client.visibility import ThreadRow, read_rows
from everlong.doctor.checks import check_store
from everlong.doctor.findings import Finding
from everlong.errors import EverlongError
from everlong.models import AGENT_WORKFLOW, SweepReport, make_printable
from everlong.models.search_attributes import ASKED_AT, PENDING, STATUS
from everlong.models.status import OPEN
from everlong.storage.pack_store import PackStore
from everlong.telemetry import Meters

_LOG: Final = logging.getLogger(__name__)

TOP_MAX: Final = 10
LOOPS: Final = frozenset({"same_failure_max", "no_progress_steps_max", "failed_turns_max"})
"""Limits that stop failure loops."""
_LOOPS_MAX: Final = 100
_STORE_SECONDS_MAX: Final = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetView:
    """All threads of a namespace at one moment."""

    threads: int
    """Number of threads in these figures."""
    open_threads: int
    by_status: dict[str, int]
    stored_bytes: int
    """Stored bytes of all known threads, ended ones included."""
    growth_bytes_per_hour: float
    largest: tuple[ThreadRow, ...]
    growing: tuple[ThreadRow, ...]
    """Fastest growing threads."""
    pending: int
    oldest_asked_ms: int | None
    resume_p50_ms: float | None
    """Median over the last resume of each running thread; None without any."""
    resume_p95_ms: float | None
    loops: tuple[ThreadRow, ...]
    """Threads that a limit on repeated failures paused or ended."""
    steps: int
    tokens: int
    cost_usd: float
    naive_bytes: int
    """Bytes that all model calls read: a loop that passes contexts by value would have stored them."""
    saved_bytes: int
    """`naive_bytes` minus the bytes that are stored instead."""
    read_ms: int
    is_complete: bool
    problem: str
    last_sweep: SweepReport | None = None
    """Report of the newest completed sweep."""
    all_threads: int = 0
    """Number of threads in the namespace, as far as known."""


async def load_fleet(thread_list: ThreadList, last_sweep: SweepReport | None = None) -> FleetView:
    """Load the fleet view from the thread list's last reading."""
    await thread_list.look()
    if thread_list.index is not None:
        found = await _load_indexed(thread_list, thread_list.index)
        all_threads = found.threads
        with contextlib.suppress(
            EverlongError
        ):  # `problem` already reports the unreachable server.
            all_threads = await thread_list.count()
    else:
        found = summarise_rows(
            await thread_list.rows(),
            read_ms=thread_list.read_ms,
            is_complete=thread_list.is_complete,
            problem=thread_list.problem,
        )
        all_threads = found.threads
    return dataclasses.replace(found, last_sweep=last_sweep, all_threads=all_threads)


# Views by index, computed once for each reading: every reading makes a new figures object.
_INDEX_VIEWS: Final[WeakKeyDictionary[ThreadIndex, tuple[FleetTotals, FleetView]]] = (
    WeakKeyDictionary()
)


async def _load_indexed(thread_list: ThreadList, index: ThreadIndex) -> FleetView:
    """Return the view of an index, from the cache unless the index was read again."""
    figures = thread_list.figures
    known = _INDEX_VIEWS.get(index)
    if known is None or known[0] is not figures:
        known = (figures, await asyncio.to_thread(_summarise_index, thread_list, index))
        _INDEX_VIEWS[index] = known
    return dataclasses.replace(
        known[1],
        read_ms=thread_list.read_ms,
        is_complete=thread_list.is_complete,
        problem=thread_list.problem,
    )


def _summarise_index(thread_list: ThreadList, index: ThreadIndex) -> FleetView:
    """Compute the view of an index."""
    sums = thread_list.figures
    p50_ms, p95_ms = index.resume_quantiles((0.5, 0.95))
    return FleetView(
        threads=sums.threads,
        open_threads=sums.open_threads,
        by_status=sums.by_status,
        stored_bytes=sums.stored_bytes,
        growth_bytes_per_hour=sums.growth_bytes_per_hour,
        largest=index.top("stored", TOP_MAX),
        growing=index.top("growth", TOP_MAX),
        pending=sums.pending,
        oldest_asked_ms=sums.oldest_asked_ms,
        resume_p50_ms=p50_ms,
        resume_p95_ms=p95_ms,
        loops=index.with_reasons(LOOPS, _LOOPS_MAX),
        steps=sums.steps,
        tokens=sums.tokens,
        cost_usd=sums.cost_usd,
        naive_bytes=sums.read_bytes,
        saved_bytes=max(0, sums.read_bytes - sums.carded_bytes),
        read_ms=thread_list.read_ms,
        is_complete=thread_list.is_complete,
        problem=thread_list.problem,
    )


def summarise_rows(
    rows: Sequence[ThreadRow], *, read_ms: int = 0, is_complete: bool = True, problem: str = ""
) -> FleetView:
    """Compute the view of rows."""
    living = [row for row in rows if row.is_open]
    cards = [row.card for row in rows if row.card is not None]
    resumes = sorted(row.last_resume_ms for row in living if row.last_resume_ms > 0)
    asked = [row.asked_ms for row in living if row.asked_ms is not None and row.pending]
    # Both sums are over the same threads, those with a card, so that they can be compared.
    naive_bytes = sum(card.read_bytes for card in cards)
    kept_bytes = sum(card.stored_bytes for card in cards)
    return FleetView(
        threads=len(rows),
        open_threads=len(living),
        by_status=dict(sorted(Counter(row.status.value for row in rows).items())),
        stored_bytes=sum(row.stored_bytes for row in rows),
        growth_bytes_per_hour=sum(row.growth_bytes_per_hour for row in living),
        largest=_select_top(rows, lambda row: row.stored_bytes),
        growing=_select_top(living, lambda row: row.growth_bytes_per_hour),
        pending=sum(row.pending for row in living),
        oldest_asked_ms=min(asked, default=None),
        resume_p50_ms=find_quantile(resumes, 0.5),
        resume_p95_ms=find_quantile(resumes, 0.95),
        loops=tuple(row for row in rows if row.reason in LOOPS)[:_LOOPS_MAX],
        steps=sum(card.steps for card in cards),
        tokens=sum(card.tokens for card in cards),
        cost_usd=sum(card.cost_usd for card in cards),
        naive_bytes=naive_bytes,
        saved_bytes=max(0, naive_bytes - kept_bytes),
        read_ms=read_ms,
        is_complete=is_complete,
        problem=problem,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreHealth:
    """Result and duration of a store check."""

    status: str
    """`ok`, `warning` or `failed`."""
    text: str
    fix: str
    took_ms: float
    checked_ms: int


async def check_store_health(packs: PackStore) -> StoreHealth:
    """Write, read, list and delete a small object, as `everlong doctor` does."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(_STORE_SECONDS_MAX):
            found = await check_store(packs.store)
    except TimeoutError:
        found = Finding(
            "store", "failed", f"the store did not answer within {_STORE_SECONDS_MAX:.0f} s"
        )
    except EverlongError as error:
        found = Finding("store", "failed", make_printable(str(error), 300))
    return StoreHealth(
        status=found.status,
        text=found.text,
        fix=found.fix,
        took_ms=round(1000 * (time.monotonic() - began), 1),
        checked_ms=time.time_ns() // 1_000_000,
    )


def find_quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest sorted value that at least `share` of the values do not exceed."""
    if not values:
        return None
    return values[max(0, math.ceil(share * len(values)) - 1)]


def _select_top(
    rows: Sequence[ThreadRow], key: Callable[[ThreadRow], float]
) -> tuple[ThreadRow, ...]:
    return tuple(heapq.nlargest(TOP_MAX, (row for row in rows if key(row) > 0), key=key))


# One page. With more threads, the gauges of sizes cover those that started last.
THREADS_MAX: Final = 1_000
REFRESH_SECONDS: Final = 15.0
# Figures from a slower server would be too old to show.
_REFRESH_SECONDS_MAX: Final = 10.0
_RUNNING: Final = f"WorkflowType = '{AGENT_WORKFLOW}' AND ExecutionStatus = 'Running'"


@dataclasses.dataclass(frozen=True)
class FleetFigures:
    """Totals of all running threads at one moment, for the gauges."""

    by_status: Mapping[str, int]
    stored_bytes: int
    stored_bytes_max: int
    growth_bytes_per_hour: float
    growth_bytes_per_hour_max: float
    pending: int
    asked_at: datetime | None
    """Time of the oldest pending approval; None without any."""


async def measure_fleet(client: Client) -> FleetFigures:
    """Read the figures. The server's visibility lags by some seconds."""
    # The same rows as `everlong threads`, so the gauges and the list agree.
    page = await read_rows(client, _RUNNING, size=THREADS_MAX)
    rows = page.rows
    by_status = dict.fromkeys((each.value for each in OPEN), 0)
    if page.next_token:
        # One count per status: the server cannot group by custom search attributes.
        counts = await asyncio.gather(
            *(client.count_workflows(f"{_RUNNING} AND {STATUS.name} = '{each}'") for each in OPEN)
        )
        by_status |= {each.value: found.count for each, found in zip(OPEN, counts, strict=True)}
    else:
        by_status |= Counter(row.status.value for row in rows)
    stored = [0, *(row.stored_bytes for row in rows)]
    growth = [0.0, *(row.growth_bytes_per_hour for row in rows)]
    pending = 0
    asked: list[datetime] = []
    async for thread in _list_attributes(client, f"{_RUNNING} AND {PENDING.name} > 0"):
        pending += thread.get(PENDING, 0)
        if (asked_at := thread.get(ASKED_AT)) is not None:
            asked.append(asked_at)
    return FleetFigures(
        by_status=by_status,
        stored_bytes=sum(stored),
        stored_bytes_max=max(stored),
        growth_bytes_per_hour=sum(growth),
        growth_bytes_per_hour_max=max(growth),
        pending=pending,
        asked_at=min(asked, default=None),
    )


@contextlib.asynccontextmanager
async def refresh_gauges(
    connect: Callable[[], Awaitable[Client]],
    meters: Meters,
    *,
    refresh_seconds: float = REFRESH_SECONDS,
) -> AsyncIterator[None]:
    """Refresh the gauges while the context is open.

    They keep the last reading until the next one. After a failed reading they report nothing: stale
    figures would mislead.
    """
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
        meters.observe("everlong.threads", self._report(_list_statuses))
        meters.observe("everlong.threads.stored", self._report(_list_stored_bytes))
        meters.observe("everlong.threads.growth", self._report(_list_growth))
        meters.observe("everlong.approvals.pending", self._report(_list_pending))
        meters.observe("everlong.approvals.age", self._report(_list_approval_age))

    def _report(self, values: Callable[[FleetFigures], _Observed]) -> Callable[[], _Observed]:
        def report() -> _Observed:
            fleet = self.fleet
            return [] if fleet is None else values(fleet)

        return report


def _list_statuses(fleet: FleetFigures) -> _Observed:
    return [(count, {"status": status}) for status, count in fleet.by_status.items()]


def _list_stored_bytes(fleet: FleetFigures) -> _Observed:
    return [(fleet.stored_bytes, {"stat": "sum"}), (fleet.stored_bytes_max, {"stat": "max"})]


def _list_growth(fleet: FleetFigures) -> _Observed:
    return [
        (fleet.growth_bytes_per_hour, {"stat": "sum"}),
        (fleet.growth_bytes_per_hour_max, {"stat": "max"}),
    ]


def _list_pending(fleet: FleetFigures) -> _Observed:
    return [(fleet.pending, {})]


def _list_approval_age(fleet: FleetFigures) -> _Observed:
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
                gauges.fleet = await measure_fleet(client)
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
