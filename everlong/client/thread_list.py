"""The list of threads of a namespace: sorted, filtered, searched, in pages.

Servers list in one order only, the newest first. Up to 20,000 threads are all kept in memory, with their
cards, so that a page in any order is there at once. In a larger fleet the list has two sources, and each
page names its own:

- `server`: the newest first, and threads found by id, status and agent. Each page is a query.
- `index`: any other order, the last activity, and sums. An index has a few figures of each thread, up
  to 250,000.

Memory and index are read in the background while lists are viewed. Meanwhile a page shows the last
reading and its time.
"""

import asyncio
import base64
import binascii
import contextlib
import dataclasses
import hashlib
import logging
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias, TypeVar

from temporalio.client import Client

from everlong.client.thread_index import FleetTotals, ThreadIndex
from everlong.client.visibility import (
    PAGE_ROWS,
    QUERY,
    RowsPage,
    ThreadRow,
    Visibility,
    Wanted,
    count_rows,
    parse_age,
    read_rows,
)
from everlong.errors import ConfigError, EverlongError, SetupRefused, ThreadNotFound
from everlong.models import ThreadCard, make_printable

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)

ROWS_MAX: Final = 20_000
"""Threads that are kept with their cards. A row with its card takes about 4 KiB: 80 MiB."""
INDEX_ROWS_MAX: Final = 250_000
"""Threads that an index holds. Each takes 330 bytes at most: 80 MiB. A reading takes 250 requests."""
LABELS_LISTED_MAX: Final = 200
"""Labels that a list offers as filters, the most frequent first."""
PAGE_LIMIT_MAX: Final = 200
TEXT_CHARS_MAX: Final = 200
CURSOR_CHARS_MAX: Final = 2_000
# A reading takes about 0.2 s for each thousand threads. There are pauses of ten times as long, so that
# it never takes more than a tenth of this process and of the server.
_PAUSE_SECONDS_MIN: Final = 2.0
_PAUSE_FACTOR: Final = 10.0
_READ_SECONDS_MAX: Final = 60.0
# A request that takes longer counts as failed.
_PAGE_SECONDS_MAX: Final = 60.0
# At 0.2 s for each thousand, 250,000 threads take 50 s; a slow server has six times as long.
_INDEX_SECONDS_MAX: Final = 300.0
# After so long without a viewer, reading stops until the next request.
_IDLE_SECONDS: Final = 60.0
# The first page waits so long for the first rows. With it a page is there within half a second.
_FIRST_SECONDS: Final = 0.25
# While an index is read for the first time, it is added up after so many pages.
_SHOWN_PAGES: Final = 10
# A server that starts waits so long for them before it listens.
_START_SECONDS: Final = 2.0
# The first reading begins with so many, so that there is something to show at once.
_FIRST_ROWS: Final = 100

Source: TypeAlias = Literal["memory", "server", "index"]
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
    "-tokens",
    "tokens",
    "-cost",
    "cost",
    "-active",
    "active",
    "attention",
    "-attention",
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
    "tokens": lambda row: row.card.tokens if row.card else 0,
    "cost": lambda row: row.card.cost_usd if row.card else 0.0,
    "active": lambda row: row.active_ms,
    "attention": lambda row: row.attention,
}


_NEWEST_FIRST: Final = "-started"
_NEEDS_PERSON_FIRST: Final = "attention"
_ORDER_NAMES: Final = {"attention": "what needs a person", "active": "last activity"}
_SERVER_ORDER: Final = "open threads by their start, newest first, then ended threads by their end"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreadPage:
    """Some threads of all, sorted and filtered."""

    rows: tuple[ThreadRow, ...]
    total: int
    """How many fit the filters."""
    offset: int
    all_threads: int
    """How many there are, whatever the filters say. From a server, an id that was reset or used again
    may count more than once."""
    pending: int
    """How many approvals wait in the `known_threads`."""
    read_ms: int
    """When the list was read; 0 if it never was."""
    is_complete: bool
    """Whether the list is of all threads: not during the first reading, and by an index not beyond
    250,000."""
    problem: str
    """Why what is shown is old, if the last reading failed; empty if it did not."""
    agents: tuple[str, ...]
    """All agents of the `known_threads`, whatever the filters say; 1,000 at most in a large fleet."""
    by_status: dict[str, int]
    """How many of the `known_threads` have each status, whatever the filters say."""
    version: str
    """Changes whenever a row does."""
    source: Source = "memory"
    """Where the list and its order are from: all threads in memory, the server, or an index."""
    order: str = ""
    """What is sorted, and what a text was compared with, in words; empty if that is all threads."""
    known_threads: int = 0
    """How many threads `pending`, `agents` and `by_status` are about."""
    known_ms: int = 0
    """When those were read; 0 if they never were."""
    knows_all: bool = True
    """Whether those were all threads at that time."""
    next_cursor: str = ""
    """Leads to the next page; empty on the last one."""
    labels: tuple[str, ...] = ()
    """Labels of the threads in memory, the most frequent first, 200 at most; none in a large fleet."""
    sort: str = _NEWEST_FIRST
    """How the rows are sorted."""


@dataclasses.dataclass(frozen=True)
class _Facets:
    """What a list offers as filters: what the threads in memory have, whatever the filters say."""

    agents: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    by_status: dict[str, int] = dataclasses.field(default_factory=dict)
    pending: int = 0


def _collect_facets(rows: Sequence[ThreadRow]) -> _Facets:
    labels = Counter(label for row in rows for label in row.labels)
    return _Facets(
        agents=tuple(sorted({row.agent for row in rows if row.agent})),
        labels=tuple(label for label, _ in labels.most_common(LABELS_LISTED_MAX)),
        by_status=dict(sorted(Counter(row.status.value for row in rows).items())),
        pending=sum(row.pending for row in rows),
    )


@dataclasses.dataclass(frozen=True)
class Cursor:
    """A place in a list."""

    offset: int = 0
    token: bytes | None = None
    """Page token of a server's list; None in a list that is counted from its beginning."""

    def text(self) -> str:
        """Return it as a part of an address."""
        token = b"" if self.token is None else b"." + self.token
        return base64.urlsafe_b64encode(str(self.offset).encode() + token).decode().rstrip("=")


def parse_cursor(text: str) -> Cursor:
    """Read a cursor; raise `ConfigError` if it is none."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        offset, dot, token = data.partition(b".")
        if len(offset) > 7 or not offset.isdigit():
            raise ValueError("it has no offset")
        return Cursor(int(offset), token if dot else None)
    except (ValueError, binascii.Error) as error:
        raise ConfigError(
            "the cursor is none of this list's. Begin with the first page, without a cursor."
        ) from error


class Threads:
    """The threads of a namespace, as the server lists them. It queries no thread, so none resumes.

    `everlong.threads(client)` returns one.
    """

    def __init__(self, client: Client) -> None:
        async def connect() -> Client:
            return client

        self._visibility = Visibility(connect)

    async def list(
        self, *, prefix: str = "", status: str = "", agent: str = "", label: str = ""
    ) -> AsyncIterator[ThreadRow]:
        """Yield threads: open ones by their start, newest first, then ended ones by their end.

        `prefix` is the beginning of an id. A filter by status, agent or label needs `everlong setup`.
        """
        wanted, token = Wanted(prefix, status, agent, label), b""
        if prefix and (exact := await self._visibility.thread(wanted)) is not None:
            yield exact
        while True:
            page = await self._visibility.rows(wanted, token, PAGE_LIMIT_MAX)
            for row in page.rows:
                yield row
            token = page.next_token
            if not token:
                return

    async def find(self, thread_id: str) -> ThreadRow | None:
        """Return the thread with this id; None if the server has none."""
        return await self._visibility.thread(Wanted(thread_id))

    async def count(
        self, *, prefix: str = "", status: str = "", agent: str = "", label: str = ""
    ) -> int:
        """Return how many threads `list` would yield. An id that was used again may count twice."""
        wanted = Wanted(prefix, status, agent, label)
        exact = await self._visibility.thread(wanted) if prefix else None
        return await self._visibility.count(wanted) + (exact is not None)


class ThreadList:
    """The threads of a namespace: as they were read last, or as the server lists them."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Client]],
        *,
        rows_max: int = ROWS_MAX,
        index_rows_max: int = INDEX_ROWS_MAX,
    ) -> None:
        self._connect = connect
        self._rows_max = rows_max
        self._index_rows_max = index_rows_max
        self._visibility = Visibility(connect)
        self._rows: dict[str, ThreadRow] = {}
        self._cards: dict[str, tuple[bytes, ThreadCard]] = {}
        self._sorted: dict[str, tuple[ThreadRow, ...]] = {}
        self._facets: _Facets | None = None
        """Of the rows; None until a page needs it."""
        self._index: ThreadIndex | None = None
        """None while all threads are in memory."""
        self._figures = FleetTotals()
        self._read_ms = 0
        self._is_complete = False
        self._problem = ""
        self._boot = uuid.uuid4().hex[:8]
        self._version = 0
        self._asked = time.monotonic()
        self._wanted = asyncio.Event()
        self._first = asyncio.Event()

    @contextlib.asynccontextmanager
    async def keep_fresh(self) -> AsyncIterator[None]:
        """Read the threads repeatedly inside the block, which begins once rows are there, or soon."""
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
        sort: Sort | Literal[""] = "-started",
        offset: int = 0,
        limit: int = 50,
        cursor: str = "",
        label: str = "",
        age: str = "",
    ) -> ThreadPage:
        """Return some threads. `text` is part of an id, in any case; a `cursor` goes before `offset`.

        `label` is a whole label, and `age` bounds the last activity: see `parse_age`. An empty `sort`
        shows first what needs a person, and in a large fleet the newest.

        In a large fleet the newest first are asked of the server, and `text` is the beginning of an id
        there; if no id begins with it, in any other order, and with an `age`, the index is looked
        through.
        """
        place = parse_cursor(cursor) if cursor else Cursor(max(0, offset))
        limit = max(0, min(limit, PAGE_LIMIT_MAX))
        since_ms, until_ms = parse_age(age, time.time_ns() // 1_000_000)
        wanted = Wanted(text[:TEXT_CHARS_MAX], status, agent, label, since_ms, until_ms)
        await self.look()
        sort = sort or self.default_sort
        if self._index is None:
            return self._memory_page(wanted, sort, place.offset, limit)
        is_listed = sort == _NEWEST_FIRST and not wanted.has_age
        if is_listed and limit and (place.token is not None or not place.offset):
            try:
                found = await self._server_page(wanted, place, limit)
            except EverlongError as error:
                if place.token is not None:
                    raise _make_cursor_error(error) from error
                return await self._index_page(wanted, sort, 0, limit, _describe_problem(error))
            if found.total or not wanted.text:
                return found
        return await self._index_page(wanted, sort, place.offset, limit)

    @property
    def default_sort(self) -> Sort:
        """What needs a person first; in a large fleet the newest first, which the server can list."""
        return _NEEDS_PERSON_FIRST if self._index is None else _NEWEST_FIRST

    async def by_ids(self, thread_ids: Sequence[str]) -> dict[str, ThreadRow]:
        """Return the threads with these ids, by id, as the server lists them now."""
        return await self._visibility.by_ids(thread_ids)

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

    @property
    def index(self) -> ThreadIndex | None:
        """The index of a large fleet; None while all threads are in memory."""
        return self._index

    @property
    def figures(self) -> FleetTotals:
        """Sums over the index, as it was read last."""
        return self._figures

    async def look(self) -> None:
        """Keep reading for a while; until the first rows are there, wait a moment for them."""
        self._asked = time.monotonic()
        self._wanted.set()
        await self._until_first(_FIRST_SECONDS)

    async def rows(self) -> tuple[ThreadRow, ...]:
        """Return all threads that are in memory, those that began last first; none of a large fleet."""
        await self.look()
        return self._in_order("-started")

    async def pending(self) -> int:
        """Return how many approvals wait in the threads that are known."""
        await self.look()
        if self._index is not None:
            return self._figures.pending
        return self._find_facets().pending

    async def count(self) -> int:
        """Return how many threads there are: of a large fleet, as the server counts them."""
        if self._index is None:
            return len(self._rows)
        return await self._visibility.count(Wanted())

    def row(self, thread_id: str) -> ThreadRow | None:
        """Return what is known of one thread; None in a large fleet."""
        return self._rows.get(thread_id)

    async def read(self, *, index: bool = True) -> None:
        """Read all threads now. Rows can be seen as they come while there are none of before.

        With `index=False` a large fleet is counted and no index is made: pages of the server need none.
        """
        client = await self._connect()
        may_fit = self._index is None or await _await_answer(count_rows(client)) <= self._rows_max
        if may_fit and await self._read_rows(client):
            self._index, self._figures = None, FleetTotals()
            return
        if self._index is None:
            self._become_large()
        if index:
            await self._read_index(client)

    async def _read_rows(self, client: Client) -> bool:
        """Read all threads into memory. Return whether they fit."""
        began = time.monotonic()
        is_first = not self._read_ms
        found: dict[str, ThreadRow] = {}
        cards: dict[str, tuple[bytes, ThreadCard]] = {}
        token = b""
        while time.monotonic() - began < _READ_SECONDS_MAX:
            size = _FIRST_ROWS if is_first and not token else PAGE_ROWS
            page = await _await_answer(read_rows(client, QUERY, token, self._known_card, size))
            _collect_rows(page, found, cards)
            counts = bool(page.next_token) and size < PAGE_ROWS
            if await self._is_too_many(client, len(found), counts=counts):
                return False
            token = page.next_token
            if not token:
                break
            if is_first:
                self._show(found, is_complete=False)
        self._cards = cards
        missed = {} if is_first else self._find_missed(found)
        self._show({**found, **missed}, is_complete=not token)
        self._end_reading()
        return True

    async def _is_too_many(self, client: Client, found: int, *, counts: bool) -> bool:
        """Whether there are more threads than fit. The server `counts` before many are read."""
        if counts and found <= self._rows_max:
            found = await _await_answer(count_rows(client))
        return found > self._rows_max

    def _find_missed(self, found: Mapping[str, ThreadRow]) -> dict[str, ThreadRow]:
        """Return open threads that were there before, and are missed for the first time.

        A thread that rolls while the pages are read is on none of them: its new run is before the first,
        and its old one is no more. So an open one is missed twice before it goes.
        """
        return {
            thread_id: dataclasses.replace(row, run_id="")
            for thread_id, row in self._rows.items()
            if thread_id not in found and row.is_open and row.run_id
        }

    async def _read_index(self, client: Client) -> None:
        """Read all threads into the index. Until the first reading has ended it can be seen to grow."""
        index = self._index
        if index is None:
            return
        began = time.monotonic()
        is_first = not self._figures.threads
        token = b""
        for number in range(max(1, self._index_rows_max // PAGE_ROWS)):
            page = await _await_answer(read_rows(client, QUERY, token, index.known_card))
            await asyncio.to_thread(index.add, page)
            token = page.next_token
            if not token or time.monotonic() - began > _INDEX_SECONDS_MAX:
                break
            if is_first and number % _SHOWN_PAGES == 0:
                self._figures = await asyncio.to_thread(index.figures)
        await asyncio.to_thread(index.end_reading)
        self._figures = await asyncio.to_thread(index.figures)
        self._is_complete = not token
        self._version += 1
        self._end_reading()

    def _become_large(self) -> None:
        """Let go of what is in memory: there are too many threads."""
        self._index, self._figures = ThreadIndex(), FleetTotals()
        self._cards = {}
        self._read_ms = 0
        self._show({}, is_complete=False)
        _LOG.info(
            "there are more than %d threads: lists are asked of the server, and sorted by an index",
            self._rows_max,
        )

    def _end_reading(self) -> None:
        self._read_ms = time.time_ns() // 1_000_000
        if self._problem:  # The log has the problem, so it also gets its end.
            self._version += 1
            self._problem = ""

    def _known_card(self, thread_id: str, digest: bytes) -> ThreadCard | None:
        before = self._cards.get(thread_id)
        return before[1] if before is not None and before[0] == digest else None

    def _memory_page(self, wanted: Wanted, sort: str, offset: int, limit: int) -> ThreadPage:
        rows: Sequence[ThreadRow] = self._in_order(sort)
        if wanted != Wanted():
            rows = [row for row in rows if wanted.fits(row)]
        end = offset + limit
        facets = self._find_facets()
        # Time alone moves a bound of the last activity.
        bounds = f"-{wanted.active_since_ms or wanted.active_until_ms}" if wanted.has_age else ""
        return ThreadPage(
            rows=tuple(rows[offset:end]),
            total=len(rows),
            offset=offset,
            all_threads=len(self._rows),
            pending=facets.pending,
            read_ms=self._read_ms,
            is_complete=self._is_complete,
            problem=self._problem,
            agents=facets.agents,
            by_status=facets.by_status,
            version=f"{self.version}{bounds}",
            known_threads=len(self._rows),
            known_ms=self._read_ms,
            knows_all=self._is_complete,
            next_cursor=Cursor(end).text() if end < len(rows) else "",
            labels=facets.labels,
            sort=sort,
        )

    def _find_facets(self) -> _Facets:
        if self._facets is None:
            self._facets = _collect_facets(tuple(self._rows.values()))
        return self._facets

    async def _server_page(self, wanted: Wanted, place: Cursor, limit: int) -> ThreadPage:
        """Return a page as the server lists it now; the thread with exactly the id stands first."""
        is_first = place.token is None
        exact = await self._visibility.thread(wanted) if wanted.text else None
        shown = [exact] if exact is not None and is_first else []
        counting = asyncio.create_task(self._visibility.count(wanted))
        token, room = place.token or b"", limit - len(shown)
        try:
            if room:
                found = await self._visibility.rows(wanted, token, room)
                shown, token = [*shown, *found.rows], found.next_token
            total = await counting + (exact is not None)
        finally:
            counting.cancel()
        is_last = not token if room else len(shown) >= total
        after = Cursor(place.offset + len(shown), token)
        matched = f"ids that begin with {wanted.text!r}; " if wanted.text else ""
        return await self._large_page(
            shown,
            place.offset,
            max(total, after.offset),
            read_ms=time.time_ns() // 1_000_000,
            is_complete=True,
            source="server",
            order=f"{matched}{_SERVER_ORDER}",
            next_cursor="" if is_last else after.text(),
        )

    async def _index_page(
        self, wanted: Wanted, sort: str, offset: int, limit: int, problem: str = ""
    ) -> ThreadPage:
        """Return a page in the order of the index, with rows as they are now."""
        index = self._index
        if index is None:
            return self._memory_page(wanted, sort, offset, limit)
        indexed, total = await asyncio.to_thread(index.page, wanted, sort, offset, limit)
        rows = indexed
        try:
            now = await self._visibility.by_ids([row.thread_id for row in indexed])
            rows = [now.get(row.thread_id, row) for row in indexed]
        except EverlongError as error:
            problem = problem or _describe_problem(error)
        end = offset + limit
        return await self._large_page(
            # A row of the index alone lacks the labels, and has been found by them.
            [row for row in rows if not row.run_id or wanted.fits(row)],
            offset,
            total,
            read_ms=self._read_ms,
            is_complete=self._is_complete,
            source="index",
            order=self._index_order(sort),
            next_cursor=Cursor(end).text() if end < total else "",
            problem=problem,
            sort=sort,
        )

    def _index_order(self, sort: str) -> str:
        name = _ORDER_NAMES.get(sort.removeprefix("-"), sort.removeprefix("-"))
        which = "all" if self._is_complete else "the newest"
        return f"{which} {self._figures.threads:,} threads by {name}, from an index"

    async def _large_page(
        self,
        rows: Sequence[ThreadRow],
        offset: int,
        total: int,
        *,
        read_ms: int,
        is_complete: bool,
        source: Source,
        order: str,
        next_cursor: str,
        problem: str = "",
        sort: str = _NEWEST_FIRST,
    ) -> ThreadPage:
        """Return a page of a large fleet, with what the index adds up."""
        figures = self._figures
        all_threads = max(figures.threads, total)
        with contextlib.suppress(EverlongError):  # What is known has been counted.
            all_threads = await self.count()
        shown = (rows, total, all_threads, figures, problem, order, next_cursor)
        digest = hashlib.blake2b(repr(shown).encode("utf-8", "replace"), digest_size=9)
        return ThreadPage(
            rows=tuple(rows),
            total=total,
            offset=offset,
            all_threads=all_threads,
            pending=figures.pending,
            read_ms=read_ms,
            is_complete=is_complete,
            problem=problem or self._problem,
            agents=figures.agents,
            by_status=figures.by_status,
            version=f"{self.version}-{digest.hexdigest()}",
            source=source,
            order=order,
            known_threads=figures.threads,
            known_ms=self._read_ms,
            knows_all=self._is_complete,
            next_cursor=next_cursor,
            sort=sort,
        )

    def _show(self, rows: dict[str, ThreadRow], *, is_complete: bool) -> None:
        if rows != self._rows or is_complete != self._is_complete:
            self._version += 1
            self._rows = dict(rows)
            self._sorted = {}
            self._facets = None
        self._is_complete = is_complete
        self._first.set()

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
                await self.read()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next reading may succeed.
                self._record_failure(error)
            took = time.monotonic() - began
            # One reading that was held up, by whatever it was, delays no other. The first one of a small
            # fleet may have waited for the connection; of a large one it is as long as any.
            shorter = took if self._index is not None and not last else min(took, last)
            await asyncio.sleep(max(_PAUSE_SECONDS_MIN, _PAUSE_FACTOR * shorter))
            last = took
            if time.monotonic() - self._asked > _IDLE_SECONDS:
                self._wanted.clear()
                await self._wanted.wait()

    def _record_failure(self, error: Exception) -> None:
        problem = _describe_problem(error)
        if problem != self._problem:
            _LOG.warning("%s", problem)
            self._version += 1
        self._problem = problem
        self._first.set()


async def _await_answer(asked: Awaitable[T]) -> T:
    """Return an answer of the server; raise TimeoutError if it takes too long."""
    async with asyncio.timeout(_PAGE_SECONDS_MAX):
        return await asked


def _collect_rows(
    page: RowsPage, found: dict[str, ThreadRow], cards: dict[str, tuple[bytes, ThreadCard]]
) -> None:
    """Add the rows of a page, and their cards with the digests of their memos. The newest run counts."""
    for row in page.rows:
        before = found.get(row.thread_id)
        if before is not None and before.started_ms >= row.started_ms:
            continue
        found[row.thread_id] = row
        memo = page.memos.get(row.run_id)
        if memo is not None and row.card is not None:
            cards[row.thread_id] = (memo, row.card)


def _make_cursor_error(error: EverlongError) -> EverlongError:
    """Return the error for a page after the first: the server refuses a cursor that is not its own."""
    if isinstance(error, ThreadNotFound | SetupRefused):
        return ConfigError(f"{error} The cursor may be of another list: begin with the first page.")
    return error


def _describe_problem(error: Exception) -> str:
    reason = str(error) if isinstance(error, EverlongError) else type(error).__name__
    return f"threads could not be read: {make_printable(reason, 300)}"


def threads(client: Client) -> Threads:
    """Return the threads of the client's namespace, to list, count and find."""
    return Threads(client)
