"""Fake thread list for the list pages: rows without workflows."""

import random
import time
from collections.abc import Sequence

from temporalio.client import Client

from everlong.client.thread_list import ThreadList
from everlong.client.visibility import ThreadRow
from everlong.models import Status, ThreadCard
from everlong.models.status import ENDED

AGENTS = ("ops", "researcher", "support", "billing")
STATUSES = (*Status.__members__.values(), Status.WAITING, Status.WAITING, Status.WORKING)
HOUR_MS = 3_600_000


def row(number: int, now_ms: int) -> ThreadRow:
    """Return a plausible row, the same for the same number."""
    chance = random.Random(number)
    status = chance.choice(STATUSES)
    is_open = status not in ENDED
    stored = int(10 ** chance.uniform(4, 9.2))
    steps = stored // 9000 + 1
    trend, size = [], stored * 0.4
    for sample in range(24):
        size = min(stored, size + stored * 0.6 / 24 * chance.uniform(0, 2))
        trend.append((now_ms - (24 - sample) * HOUR_MS, int(size)))
    card = ThreadCard(
        ms=now_ms,
        steps=steps,
        operational_bytes=int(chance.uniform(900, 9000)),
        context_bytes=int(chance.uniform(2_000, 300_000)),
        stored_bytes=stored,
        read_bytes=stored * 90,
        lag_bytes=chance.choice((0, 0, 0, 40_000)),
        tokens=steps * 9_000,
        cost_usd=steps * 0.02,
        resume_ms=chance.uniform(40, 900),
        trend=tuple(trend),
    )
    return ThreadRow(
        thread_id=f"{AGENTS[number % 4]}-{number:05}",
        run_id=f"run-{number}",
        agent=AGENTS[number % 4],
        status=status,
        reason="same_failure_max" if status == Status.PAUSED and number % 3 == 0 else "",
        started_ms=now_ms - number * 60_000,
        closed_ms=None if is_open else now_ms - number * 1000,
        stored_bytes=stored,
        growth_bytes_per_hour=stored * chance.uniform(0, 0.02) if is_open else 0.0,
        pending=1 if status == Status.APPROVAL else 0,
        asked_ms=now_ms - number * 30_000 if status == Status.APPROVAL else None,
        last_resume_ms=card.resume_ms,
        card=card,
        labels=("team=payments", "urgent")[: number % 3],
        active_ms=now_ms - number * 45_000,
    )


def rows(count: int) -> list[ThreadRow]:
    now_ms = time.time_ns() // 1_000_000
    return [row(number, now_ms) for number in range(count)]


class FakeThreadList(ThreadList):
    """ThreadList that lists the rows it was given."""

    def __init__(self, listed: Sequence[ThreadRow]) -> None:
        async def connect() -> Client:
            raise AssertionError("nothing is read from a server")

        super().__init__(connect)
        self.listed = list(listed)

    async def read(self, *, index: bool = True) -> None:
        self._show({each.thread_id: each for each in self.listed}, is_complete=True)
        self._read_ms = time.time_ns() // 1_000_000
