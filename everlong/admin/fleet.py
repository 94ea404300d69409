"""Fleet view: size, growth, status and failure loops of all threads, from visibility alone."""

import asyncio
import contextlib
import dataclasses
import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakKeyDictionary

from everlong.client.thread_index import IndexFigures, ThreadIndex
from everlong.client.threads import Directory
from everlong.client.visibility import ThreadRow
from everlong.doctor.checks import check_store
from everlong.doctor.findings import Finding
from everlong.errors import EverlongError
from everlong.models import SweepReport, make_printable
from everlong.storage.pack_store import PackStore

TOP_MAX: Final = 10
LOOPS: Final = frozenset({"same_failure_max", "no_progress_steps_max", "failed_turns_max"})
"""Limits that stop failure loops: a thread in one of them repeats itself."""
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


async def load_fleet(directory: Directory, last_sweep: SweepReport | None = None) -> FleetView:
    """Load the fleet view from the directory's last reading."""
    await directory.look()
    if directory.index is not None:
        found = await _load_indexed(directory, directory.index)
        all_threads = found.threads
        with contextlib.suppress(
            EverlongError
        ):  # `problem` already reports the unreachable server.
            all_threads = await directory.count()
    else:
        found = summarise_rows(
            await directory.rows(),
            read_ms=directory.read_ms,
            is_complete=directory.is_complete,
            problem=directory.problem,
        )
        all_threads = found.threads
    return dataclasses.replace(found, last_sweep=last_sweep, all_threads=all_threads)


# Views by index, computed once for each reading: every reading makes a new figures object.
_INDEX_VIEWS: Final[WeakKeyDictionary[ThreadIndex, tuple[IndexFigures, FleetView]]] = (
    WeakKeyDictionary()
)


async def _load_indexed(directory: Directory, index: ThreadIndex) -> FleetView:
    """Return the view of an index, from the cache unless the index was read again."""
    figures = directory.figures
    known = _INDEX_VIEWS.get(index)
    if known is None or known[0] is not figures:
        known = (figures, await asyncio.to_thread(_summarise_index, directory, index))
        _INDEX_VIEWS[index] = known
    return dataclasses.replace(
        known[1],
        read_ms=directory.read_ms,
        is_complete=directory.is_complete,
        problem=directory.problem,
    )


def _summarise_index(directory: Directory, index: ThreadIndex) -> FleetView:
    """Compute the view of an index."""
    sums = directory.figures
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
        read_ms=directory.read_ms,
        is_complete=directory.is_complete,
        problem=directory.problem,
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
        by_status=dict(sorted(Counter(row.status for row in rows).items())),
        stored_bytes=sum(row.stored_bytes for row in rows),
        growth_bytes_per_hour=sum(row.growth_bytes_per_hour for row in living),
        largest=_top(rows, lambda row: row.stored_bytes),
        growing=_top(living, lambda row: row.growth_bytes_per_hour),
        pending=sum(row.pending for row in living),
        oldest_asked_ms=min(asked, default=None),
        resume_p50_ms=quantile(resumes, 0.5),
        resume_p95_ms=quantile(resumes, 0.95),
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


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest sorted value that at least `share` of the values do not exceed."""
    if not values:
        return None
    return values[max(0, math.ceil(share * len(values)) - 1)]


def _top(rows: Sequence[ThreadRow], key: Callable[[ThreadRow], float]) -> tuple[ThreadRow, ...]:
    return tuple(heapq.nlargest(TOP_MAX, (row for row in rows if key(row) > 0), key=key))
