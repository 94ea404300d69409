"""Overview of one thread: state, sizes by class, limits as gauges, pending approvals.

The cost does not grow with the journal: the thread itself counts the bytes that it stores, and only
`client.lookup.measure_size` lists objects.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

from temporalio.client import Client

from everlong import limits
from everlong.archive import manifest as manifests
from everlong.client.lookup import ANSWER_SECONDS_MAX, ThreadLookup, look_up
from everlong.client.status import list_pending
from everlong.client.visibility import ThreadRow
from everlong.errors import EverlongError
from everlong.models import Approval, Status, ThreadCard, ThreadStatus, thread_key
from everlong.models.status import ENDED
from everlong.storage.pack_store import PackStore

Unit: TypeAlias = Literal["bytes", "tokens", "usd", "steps", "turns", "events"]
_DAY_MS: Final = 24 * 3600 * 1000
# A rate over a shorter time is too noisy to extrapolate.
_WINDOW_MS_MIN: Final = 10 * 60 * 1000
# Limits on totals that only grow. The other values also fall, so no date can be predicted for them.
_GROWING: Final = frozenset({"steps_max", "tokens_max", "cost_usd_max", "thread_bytes_max"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gauge:
    """Use of one limit."""

    name: str
    """Policy field, such as `steps_max`; or `operational_state`, a fixed bound outside the policy."""
    value: float
    bound: float | None
    """None if the policy sets no limit."""
    unit: Unit
    action: str
    """Action at the bound: `pause`, `stop`, `archive`, `compact`, `roll` or `fail`."""
    share: float
    """Used share of the bound, 0 to 1; 0 without a bound."""
    days_left: float | None = None
    """Days until the bound at the present rate; None without growth or with too short a history."""


def measure_limits(
    status: ThreadStatus,
    run_events: int,
    *,
    began_ms: int | None,
    now_ms: int,
    card: ThreadCard | None = None,
) -> tuple[Gauge, ...]:
    """Return the gauges of a thread. `began_ms` is the time of its first entry."""
    per_day = _Rates(status, began_ms, now_ms, card)
    return (
        *(
            dataclasses.replace(each, days_left=per_day.days_left(each))
            for each in _build_policy_gauges(status)
        ),
        _build_gauge(
            "operational_state", status.state_bytes, limits.STATE_BYTES_MAX, "bytes", "fail"
        ),
        _build_gauge(
            "compact_at_bytes",
            status.context_bytes,
            status.policy.compact_at_bytes,
            "bytes",
            "compact",
        ),
        _build_gauge("run_events_max", run_events, status.policy.run_events_max, "events", "roll"),
    )


def _build_policy_gauges(status: ThreadStatus) -> Iterator[Gauge]:
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
        yield _build_gauge(name, value, getattr(policy, name), unit, policy.action(name))


def _build_gauge(name: str, value: float, bound: float | None, unit: Unit, action: str) -> Gauge:
    share = 0.0 if not bound else min(1.0, value / bound)
    return Gauge(name=name, value=value, bound=bound, unit=unit, action=action, share=share)


class _Rates:
    """Rates at which a thread uses its limits: since its first entry or, for bytes, over its trend."""

    def __init__(
        self, status: ThreadStatus, began_ms: int | None, now_ms: int, card: ThreadCard | None
    ) -> None:
        self._age_ms = 0 if began_ms is None else now_ms - began_ms
        self._is_open = status.status not in {*ENDED, Status.PAUSED}
        self._bytes_per_ms = _compute_byte_rate(card, status.counters.written_bytes, now_ms)

    def days_left(self, gauge: Gauge) -> float | None:
        """Return the days until a limit is reached at the present rate."""
        if gauge.name not in _GROWING or gauge.bound is None or not self._is_open:
            return None
        rate = gauge.value / self._age_ms if self._age_ms >= _WINDOW_MS_MIN else 0.0
        if gauge.name == "thread_bytes_max" and self._bytes_per_ms is not None:
            rate = self._bytes_per_ms
        if rate <= 0:
            return None
        return round(max(0.0, gauge.bound - gauge.value) / rate / _DAY_MS, 1)


def _compute_byte_rate(card: ThreadCard | None, stored_bytes: int, now_ms: int) -> float | None:
    """Return bytes per millisecond since the oldest sample of the trend."""
    if card is None or not card.trend:
        return None
    ms, size_bytes = card.trend[0]
    if now_ms - ms < _WINDOW_MS_MIN:
        return None
    return max(0, stored_bytes - size_bytes) / (now_ms - ms)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateSizes:
    """Bytes of a thread, by class."""

    operational_bytes: int
    """Operational state, carried from run to run."""
    context_bytes: int
    """Context of the last model call."""
    stored_bytes: int
    """Bytes that the thread's own steps wrote to the store."""
    history_bytes: int
    """History of the newest run."""
    history_events: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreadOverview:
    """One thread at one moment, as its page shows it."""

    thread_id: str
    row: ThreadRow
    status: ThreadStatus | None
    """None if no worker answers for the thread."""
    sizes: StateSizes
    gauges: tuple[Gauge, ...]
    """Empty without a status, and for a thread that only its archive knows."""
    approvals: tuple[Approval, ...]
    last_seq: int
    """Seq of the newest journal entry; without a status, as the history names it."""
    began_ms: int | None
    """Time of the first entry; for a fork, time of the fork."""
    unavailable: str
    """Reason for a missing status; empty if there is a status."""
    archive: str = ""
    """Newest readable archive of an ended thread; empty if there is none."""
    unreadable_archives: tuple[str, ...] = ()
    """Newer archives that cannot be read, each with the reason."""
    is_gone: bool = False
    """Whether the server has no history of the thread, so that all fields come from its archive."""
    parent_id: str = ""
    """Thread that a sub-agent's thread answers to; empty for other threads."""


async def load_overview(
    client: Client,
    packs: PackStore,
    thread_id: str,
    *,
    seconds_max: float = ANSWER_SECONDS_MAX,
) -> ThreadOverview:
    """Load the overview of a thread; without a worker, from visibility and the store alone."""
    found = await look_up(client, packs, thread_id, seconds_max)
    status = found.status
    began_ms, problem = await _load_start(found)
    waiting: tuple[Approval, ...] = ()
    is_gone = found.archive is not None
    if status is not None and status.pending and not is_gone:
        with contextlib.suppress(EverlongError):  # The next refresh shows them.
            waiting = tuple(await list_pending(client, thread_id))
    shown: tuple[Gauge, ...] = ()
    if status is not None and not is_gone:
        shown = measure_limits(
            status,
            found.run_events,
            began_ms=began_ms,
            now_ms=time.time_ns() // 1_000_000,
            card=found.row.card,
        )
    archive, unreadable = await _find_archive(client, packs, found)
    return ThreadOverview(
        thread_id=thread_id,
        row=found.row,
        status=status,
        sizes=_build_sizes(found),
        gauges=shown,
        approvals=waiting,
        last_seq=found.last_seq,
        began_ms=began_ms,
        unavailable=found.unavailable or problem,
        archive=archive,
        unreadable_archives=unreadable,
        is_gone=is_gone,
        parent_id=found.parent_id,
    )


async def _find_archive(
    client: Client, packs: PackStore, found: ThreadLookup
) -> tuple[str, tuple[str, ...]]:
    """Return the newest readable archive, and newer archives that cannot be read.

    Skipped for a running thread: a page refreshes every few seconds, and this lists the store.
    """
    if found.archive is not None:
        return found.archive.archive_id, found.passed_over
    if found.row.is_open:
        return "", ()
    try:
        newest = await manifests.find_newest(packs, thread_key(client.namespace, found.thread_id))
    except EverlongError:  # The page works without it.
        return "", ()
    archive_id = "" if newest.manifest is None else newest.manifest.archive_id
    return archive_id, tuple(map(str, newest.passed_over))


async def _load_start(found: ThreadLookup) -> tuple[int | None, str]:
    """Return the time of the thread's own first entry, or why it cannot be read."""
    if found.head is None:
        return None, ""
    if found.row.card is not None and found.row.card.since_ms is not None:
        return found.row.card.since_ms, ""
    try:
        entries = await found.journal.read(found.head, 1, 1)
    except EverlongError as error:
        return None, f"the journal cannot be read: {error}"
    return (entries[0].time_ms if entries else None), ""


def _build_sizes(found: ThreadLookup) -> StateSizes:
    status, card = found.status, found.row.card
    if status is not None:
        operational, context = status.state_bytes, status.context_bytes
        stored = status.counters.written_bytes
    else:
        operational = card.operational_bytes if card else 0
        context = card.context_bytes if card else 0
        stored = found.row.stored_bytes
    return StateSizes(
        operational_bytes=operational,
        context_bytes=context,
        stored_bytes=stored,
        history_bytes=found.run_history_bytes,
        history_events=found.run_events,
    )
