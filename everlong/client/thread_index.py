"""Index of the threads of a large fleet: figures to sort, filter and add up, in SQLite and in memory.

It holds no cards, so a thread takes 170 to 330 bytes, where a `ThreadRow` with its card takes 4 KiB. The
index is what the last reading of visibility saw. A page shows the order of the index, and rows that it
asks the server for.
"""

import dataclasses
import hashlib
import math
import sqlite3
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from everlong.client.visibility import RowsPage, ThreadRow, Wanted
from everlong.models import Status, ThreadCard

AGENTS_MAX: Final = 1_000
"""Agents that a list offers as filters."""
# Labels are held as digests of 6 bytes: 10 of them take 60 bytes, and their texts up to 640. Two labels
# with equal digests are unlikely, and a page checks the labels of the rows that it reads.
_LABEL_BYTES: Final = 6
# 250,000 of them add up to less than 2^63, the largest integer of SQLite.
_INT_MAX: Final = 2**44
_ROW: Final = (
    "thread_id, agent, status, reason, started_ms, closed_ms, stored_bytes, growth, pending, asked_ms, "
    "resume_ms, active_ms"
)
_COLUMNS: Final = (
    f"{_ROW}, steps, lag_bytes, tokens, cost_usd, read_bytes, memo, attention, labels, reading"
)
_SCHEMA: Final = f"CREATE TABLE threads ({_COLUMNS}, PRIMARY KEY (thread_id)) WITHOUT ROWID"
# The newest of several runs with one id counts. A row of an earlier reading is replaced in any case.
_UPSERT: Final = f"""
INSERT INTO threads ({_COLUMNS}) VALUES ({", ".join("?" * len(_COLUMNS.split(", ")))})
ON CONFLICT (thread_id) DO UPDATE SET
{", ".join(f"{name} = excluded.{name}" for name in _COLUMNS.split(", ")[1:])}
WHERE excluded.reading > threads.reading OR excluded.started_ms > threads.started_ms
"""  # noqa: S608 - of constants
_ORDERS: Final[Mapping[str, str]] = {
    "started": "started_ms",
    "id": "thread_id",
    "stored": "stored_bytes",
    "growth": "growth",
    "steps": "steps",
    "resume": "resume_ms",
    "lag": "lag_bytes",
    "pending": "pending",
    "status": "status",
    "agent": "agent",
    "tokens": "tokens",
    "cost": "cost_usd",
    "active": "active_ms",
    "attention": "attention",
}
_SUMS: Final = """
count(*), count(*) FILTER (WHERE closed_ms IS NULL), sum(stored_bytes), total(growth), sum(pending),
min(asked_ms) FILTER (WHERE pending > 0), sum(steps), sum(tokens), total(cost_usd), sum(read_bytes),
sum(stored_bytes) FILTER (WHERE memo IS NOT NULL)
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetTotals:
    """Sums over all threads of an index."""

    threads: int = 0
    open_threads: int = 0
    by_status: dict[str, int] = dataclasses.field(default_factory=dict)
    agents: tuple[str, ...] = ()
    stored_bytes: int = 0
    growth_bytes_per_hour: float = 0.0
    pending: int = 0
    oldest_asked_ms: int | None = None
    steps: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    read_bytes: int = 0
    """What model calls have read, as cards say."""
    carded_bytes: int = 0
    """What the threads with a card have stored."""


class ThreadIndex:
    """Figures of the threads that were read. Any OS thread may use it; one at a time does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._db.create_function("casefold", 1, str.casefold, deterministic=True)
        self._db.execute(_SCHEMA)
        self._reading = 1

    def add(self, page: RowsPage) -> None:
        """Add what one request of the server gave."""
        values = [
            _build_values(row, page.memos.get(row.run_id), self._reading) for row in page.rows
        ]
        with self._lock:
            self._db.execute("BEGIN")
            self._db.executemany(_UPSERT, values)
            self._db.execute("COMMIT")

    def end_reading(self) -> None:
        """Drop the threads that this reading has not seen, and begin the next one.

        A thread that rolls while pages are read is on none of them: its new run is before the first,
        and its old one is gone. So an open thread stays until it was missed twice.
        """
        with self._lock:
            self._db.execute(
                "DELETE FROM threads WHERE reading < ? OR (reading < ? AND closed_ms IS NOT NULL)",
                (self._reading - 1, self._reading),
            )
        self._reading += 1

    def count(self) -> int:
        """Return how many threads it holds."""
        return int(self._select("count(*)")[0][0])

    def size_bytes(self) -> int:
        """Return the memory that the database takes."""
        with self._lock:
            [pages] = self._db.execute("PRAGMA page_count").fetchone()
            [page_bytes] = self._db.execute("PRAGMA page_size").fetchone()
        return int(pages) * int(page_bytes)

    def known_card(self, thread_id: str, digest: bytes) -> ThreadCard | None:
        """Return the figures of a card that was decoded before, unless the thread was growing.

        Growth is counted by the clock, from a trend that the index does not have.
        """
        found = self._select(
            "stored_bytes, steps, lag_bytes, tokens, cost_usd, read_bytes, resume_ms, active_ms",
            "WHERE thread_id = ? AND memo = ? AND growth = 0",
            (thread_id, digest),
        )
        if not found:
            return None
        stored, steps, lag, tokens, cost, read, resume, active_ms = found[0]
        return ThreadCard(
            ms=active_ms,
            steps=steps,
            tokens=tokens,
            cost_usd=cost or 0.0,
            stored_bytes=stored,
            read_bytes=read,
            lag_bytes=lag,
            resume_ms=resume or 0.0,
            trend=((0, 0),),
            rested=True,
        )

    def page(
        self, wanted: Wanted, sort: str, offset: int, limit: int
    ) -> tuple[list[ThreadRow], int]:
        """Return some threads in that order, without cards, and how many fit."""
        where, values = _build_condition(wanted)
        column = _ORDERS[sort.removeprefix("-")]
        order = "DESC" if sort.startswith("-") else "ASC"
        ties = "" if column == "thread_id" else ", thread_id"
        found = self._select(
            _ROW,
            f"{where} ORDER BY {column} {order}{ties} LIMIT ? OFFSET ?",
            (*values, limit, offset),
        )
        total = self._select("count(*)", where, values)[0][0]
        return [_parse_row(each) for each in found], int(total)

    def figures(self) -> FleetTotals:
        """Add up all threads."""
        sums = self._select(_SUMS)[0]
        statuses = self._select("status, count(*)", "GROUP BY status ORDER BY status")
        agents = self._select(
            "DISTINCT agent", "WHERE agent != '' ORDER BY agent LIMIT ?", (AGENTS_MAX,)
        )
        return FleetTotals(
            threads=sums[0],
            open_threads=sums[1],
            by_status=dict(statuses),
            agents=tuple(agent for (agent,) in agents),
            stored_bytes=sums[2] or 0,
            growth_bytes_per_hour=sums[3],
            pending=sums[4] or 0,
            oldest_asked_ms=sums[5],
            steps=sums[6] or 0,
            tokens=sums[7] or 0,
            cost_usd=sums[8],
            read_bytes=sums[9] or 0,
            carded_bytes=sums[10] or 0,
        )

    def top(self, sort: str, count: int) -> tuple[ThreadRow, ...]:
        """Return the threads with the largest figures, and none whose figure is 0."""
        column = _ORDERS[sort]
        found = self._select(
            _ROW, f"WHERE {column} > 0 ORDER BY {column} DESC, thread_id LIMIT ?", (count,)
        )
        return tuple(_parse_row(each) for each in found)

    def with_reasons(self, reasons: Collection[str], count: int) -> tuple[ThreadRow, ...]:
        """Return threads that are paused or have ended for one of these reasons, the newest first."""
        marks = ", ".join("?" * len(reasons))
        found = self._select(
            _ROW,
            f"WHERE reason IN ({marks}) ORDER BY started_ms DESC, thread_id LIMIT ?",
            (*reasons, count),
        )
        return tuple(_parse_row(each) for each in found)

    def resume_quantiles(self, shares: Sequence[float]) -> list[float | None]:
        """Return quantiles of the last resumes of open threads; None where no thread has resumed."""
        where = "WHERE closed_ms IS NULL AND resume_ms > 0"
        count = int(self._select("count(*)", where)[0][0])
        if not count:
            return [None for _ in shares]
        places = [max(0, math.ceil(share * count) - 1) for share in shares]
        place = f"{where} ORDER BY resume_ms LIMIT 1 OFFSET ?"
        return [float(self._select("resume_ms", place, (each,))[0][0]) for each in places]

    def _select(
        self, what: str, rest: str = "", values: Sequence[object] = ()
    ) -> list[tuple[Any, ...]]:
        query = f"SELECT {what} FROM threads {rest}"  # noqa: S608 - of constants; values are bound
        with self._lock:
            return self._db.execute(query, values).fetchall()


def _build_condition(wanted: Wanted) -> tuple[str, tuple[object, ...]]:
    """Return the condition of a page, and its values."""
    found: list[tuple[str, object]] = []
    if wanted.text:
        # `lower` knows ASCII only, and is ten times as fast as a call of Python for each thread.
        fold = "lower" if wanted.text.isascii() else "casefold"
        found.append((f"instr({fold}(thread_id), ?)", wanted.text.casefold()))
    if wanted.status:
        found.append(("status = ?", wanted.status))
    if wanted.agent:
        found.append(("agent = ?", wanted.agent))
    if wanted.label:
        found.append(("instr(labels, ?)", _hash_label(wanted.label)))
    if wanted.active_since_ms is not None:
        found.append(("active_ms >= ?", wanted.active_since_ms))
    if wanted.active_until_ms is not None:
        found.append(("active_ms < ?", wanted.active_until_ms))
    if not found:
        return "", ()
    return f"WHERE {' AND '.join(text for text, _ in found)}", tuple(value for _, value in found)


def _hash_label(label: str) -> bytes:
    return hashlib.blake2b(label.encode(errors="replace"), digest_size=_LABEL_BYTES).digest()


def _build_values(row: ThreadRow, memo: bytes | None, reading: int) -> tuple[object, ...]:
    card = row.card or ThreadCard(ms=0)
    return (
        row.thread_id,
        row.agent,
        row.status.value,
        row.reason,
        row.started_ms,
        row.closed_ms,
        _bound(row.stored_bytes),
        row.growth_bytes_per_hour,
        _bound(row.pending),
        row.asked_ms,
        row.last_resume_ms,
        row.active_ms,
        _bound(card.steps),
        _bound(card.lag_bytes),
        _bound(card.tokens),
        card.cost_usd,
        _bound(card.read_bytes),
        memo if row.card else None,
        row.attention,
        b"".join(map(_hash_label, row.labels)) or None,
        reading,
    )


def _bound(value: int) -> int:
    """Return a figure that SQLite can hold and add up, whatever a memo says."""
    return max(-_INT_MAX, min(value, _INT_MAX))


def _parse_row(found: Sequence[Any]) -> ThreadRow:
    return ThreadRow(
        thread_id=found[0],
        run_id="",
        agent=found[1],
        status=Status(found[2]),
        reason=found[3],
        started_ms=found[4],
        closed_ms=found[5],
        stored_bytes=found[6],
        growth_bytes_per_hour=found[7] or 0.0,
        pending=found[8],
        asked_ms=found[9],
        last_resume_ms=found[10] or 0.0,
        active_ms=found[11],
    )
