"""All threads of the namespace in memory, so that they can be sorted: the server's SQL cannot.

They are read in the background, for as long as somebody looks. What was read last is shown meanwhile,
with when that was; so a page is there at once however many threads there are.
"""

import asyncio
import contextlib
import dataclasses
import logging
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, Literal, TypeAlias

from temporalio.client import Client

from everlong.admin.service.rows import PAGE_ROWS, QUERY, ThreadRow, read_rows
from everlong.errors import EverlongError
from everlong.models import ThreadCard, printable

_LOG: Final = logging.getLogger(__name__)

ROWS_MAX: Final = 50_000
"""A row with its card takes about 2 KiB: 100 MiB."""
PAGE_LIMIT_MAX: Final = 200
TEXT_CHARS_MAX: Final = 200
# A reading takes about 0.2 s for each thousand threads. There are pauses of ten times as long, so that
# it never takes more than a tenth of this process and of the server.
_PAUSE_SECONDS_MIN: Final = 2.0
_PAUSE_FACTOR: Final = 10.0
_READ_SECONDS_MAX: Final = 60.0
# Nobody has looked for so long: nothing is read until somebody does.
_IDLE_SECONDS: Final = 60.0
# The first page waits so long for the first rows. With it a page is there within half a second.
_FIRST_SECONDS: Final = 0.25
# A server that starts waits so long for them before it listens.
_START_SECONDS: Final = 2.0
# The first reading begins with so many, so that there is something to show at once.
_FIRST_ROWS: Final = 100
# Cards that were read are known again by their memo.
_KNOWN_MAX: Final = 2 * ROWS_MAX

Sort: TypeAlias = Literal[
    "-started",
    "started",
    "id",
    "-id",
    "-stored",
    "stored",
    "-growth",
    "growth",
    "-steps",
    "steps",
    "-resume",
    "resume",
    "-lag",
    "lag",
    "-pending",
    "pending",
    "status",
    "-status",
    "agent",
    "-agent",
]
_KEYS: Final[Mapping[str, Callable[[ThreadRow], object]]] = {
    "started": lambda row: row.started_ms,
    "id": lambda row: row.thread_id,
    "stored": lambda row: row.stored_bytes,
    "growth": lambda row: row.growth_bytes_per_hour,
    "steps": lambda row: row.card.steps if row.card else 0,
    "resume": lambda row: row.last_resume_ms,
    "lag": lambda row: row.card.lag_bytes if row.card else 0,
    "pending": lambda row: row.pending,
    "status": lambda row: row.status,
    "agent": lambda row: row.agent,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreadPage:
    """Some threads of all, sorted and filtered."""

    rows: tuple[ThreadRow, ...]
    total: int
    """How many fit the filters."""
    offset: int
    all_threads: int
    """How many there are, whatever the filters say."""
    pending: int
    """How many approvals wait in all of them."""
    read_ms: int
    """When they were read; 0 if they never were."""
    is_complete: bool
    """Whether all threads are known: not during the first reading, nor beyond 50,000."""
    problem: str
    """Why what is shown is old, if the last reading failed; empty if it did not."""
    agents: tuple[str, ...]
    """All agents that there are, whatever the filters say."""
    by_status: dict[str, int]
    """How many threads have each status, whatever the filters say."""
    version: str
    """Changes whenever a row does."""


class Directory:
    """All threads of a namespace, as they were read last."""

    def __init__(self, connect: Callable[[], Awaitable[Client]]) -> None:
        self._connect = connect
        self._rows: dict[str, ThreadRow] = {}
        self._cards: dict[str, tuple[bytes, ThreadCard]] = {}
        self._sorted: dict[str, tuple[ThreadRow, ...]] = {}
        self._read_ms = 0
        self._is_complete = False
        self._problem = ""
        self._boot = uuid.uuid4().hex[:8]
        self._version = 0
        self._asked = time.monotonic()
        self._wanted = asyncio.Event()
        self._first = asyncio.Event()

    @contextlib.asynccontextmanager
    async def kept_fresh(self) -> AsyncIterator[None]:
        """Read the threads again and again meanwhile; begin once the first are there, or soon."""
        task = asyncio.create_task(self._refresh())
        try:
            await self._until_first(_START_SECONDS)
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def page(
        self,
        text: str = "",
        status: str = "",
        agent: str = "",
        sort: Sort = "-started",
        offset: int = 0,
        limit: int = 50,
    ) -> ThreadPage:
        """Return some threads, from what was read last. `text` is part of an id, in any case."""
        await self._look()
        text = text[:TEXT_CHARS_MAX].casefold()
        rows = [
            row
            for row in self._in_order(sort)
            if (not text or text in row.thread_id.casefold())
            and (not status or row.status == status)
            and (not agent or row.agent == agent)
        ]
        offset = max(0, offset)
        limit = max(0, min(limit, PAGE_LIMIT_MAX))
        return ThreadPage(
            rows=tuple(rows[offset : offset + limit]),
            total=len(rows),
            offset=offset,
            all_threads=len(self._rows),
            pending=sum(row.pending for row in self._rows.values()),
            read_ms=self._read_ms,
            is_complete=self._is_complete,
            problem=self._problem,
            agents=tuple(sorted({row.agent for row in self._rows.values() if row.agent})),
            by_status=dict(sorted(Counter(row.status for row in self._rows.values()).items())),
            version=self.version,
        )

    @property
    def version(self) -> str:
        """Changes whenever a row does, and with each start of this process."""
        return f"{self._boot}-{self._version}"

    @property
    def read_ms(self) -> int:
        """When the threads were read; 0 if they never were."""
        return self._read_ms

    @property
    def is_complete(self) -> bool:
        """Whether all threads are known."""
        return self._is_complete

    @property
    def problem(self) -> str:
        """Why what is shown is old."""
        return self._problem

    async def rows(self) -> tuple[ThreadRow, ...]:
        """Return all threads, those that began last first."""
        await self._look()
        return self._in_order("-started")

    def row(self, thread_id: str) -> ThreadRow | None:
        """Return what is known of one thread."""
        return self._rows.get(thread_id)

    async def read(self) -> None:
        """Read all threads now. Rows can be seen as they come while there are none of before."""
        client = await self._connect()
        began = time.monotonic()
        is_first = not self._read_ms
        found: dict[str, ThreadRow] = {}
        cards: dict[str, tuple[bytes, ThreadCard]] = {}
        token = b""
        while len(found) < ROWS_MAX and time.monotonic() - began < _READ_SECONDS_MAX:
            size = _FIRST_ROWS if is_first and not found else PAGE_ROWS
            page = await read_rows(client, QUERY, token, self._cards, size)
            for row in page.rows:
                before = found.get(row.thread_id)
                if before is None or before.started_ms < row.started_ms:
                    found[row.thread_id] = row
                memo = page.memos.get(row.run_id)
                if memo is not None and row.card is not None:
                    cards[row.run_id] = (memo, row.card)
            token = page.next_token
            if not token:
                break
            if is_first:
                self._show(found, is_complete=False)
        self._cards = dict(list(cards.items())[:_KNOWN_MAX])
        # A thread that rolls while the pages are read is on none of them: its new run is before the
        # first, and its old one is no more. So an open one is missed twice before it goes.
        missed = {
            thread_id: dataclasses.replace(row, run_id="")
            for thread_id, row in self._rows.items()
            if thread_id not in found and row.is_open and row.run_id and not is_first
        }
        self._show({**found, **missed}, is_complete=not token)
        self._read_ms = time.time_ns() // 1_000_000
        if self._problem:  # Who was told of it is told that it is over.
            self._version += 1
            self._problem = ""

    def _show(self, rows: dict[str, ThreadRow], *, is_complete: bool) -> None:
        if rows != self._rows or is_complete != self._is_complete:
            self._version += 1
            self._rows = dict(rows)
            self._sorted = {}
        self._is_complete = is_complete
        self._first.set()

    async def _look(self) -> None:
        self._asked = time.monotonic()
        self._wanted.set()
        await self._until_first(_FIRST_SECONDS)

    async def _until_first(self, seconds_max: float) -> None:
        if not self._first.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds_max):
                    await self._first.wait()

    def _in_order(self, sort: str) -> tuple[ThreadRow, ...]:
        if sort not in self._sorted:  # At most one for each order that there is.
            key = _KEYS[sort.removeprefix("-")]
            rows = sorted(self._rows.values(), key=lambda row: row.thread_id)
            rows.sort(key=key, reverse=sort.startswith("-"))  # type: ignore[arg-type]
            self._sorted[sort] = tuple(rows)
        return self._sorted[sort]

    async def _refresh(self) -> None:
        last = 0.0
        while True:  # For as long as the server runs.
            began = time.monotonic()
            try:
                async with asyncio.timeout(2 * _READ_SECONDS_MAX):
                    await self.read()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next reading may succeed.
                self._failed(error)
            took = time.monotonic() - began
            # One reading that was held up, by whatever it was, delays no other.
            await asyncio.sleep(max(_PAUSE_SECONDS_MIN, _PAUSE_FACTOR * min(took, last)))
            last = took
            if time.monotonic() - self._asked > _IDLE_SECONDS:
                self._wanted.clear()
                await self._wanted.wait()

    def _failed(self, error: Exception) -> None:
        told = str(error) if isinstance(error, EverlongError) else type(error).__name__
        problem = f"threads could not be read: {printable(told, 300)}"
        if problem != self._problem:
            _LOG.warning("%s", problem)
            self._version += 1
        self._problem = problem
        self._first.set()
