"""Lists of threads from the server's visibility: by id, status and agent, in pages, and counted.

Servers list in one order: open executions first, by their start, the newest first; then closed ones, by
their end. SQL stores refuse ORDER BY, and Elasticsearch refuses it unless its operator allows it. So a
page in any other order is not asked of the server.
"""

import asyncio
import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    CountWorkflowExecutionsRequest,
    ListWorkflowExecutionsRequest,
)
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.exceptions import TemporalError
from temporalio.service import RPCError, RPCStatusCode

from everlong.client.errors import translate_rpc_error
from everlong.client.search_attributes import has_attributes, has_optional
from everlong.errors import ConfigError, EverlongError
from everlong.models import (
    AGENT_WORKFLOW,
    CARD_MEMO,
    Status,
    ThreadCard,
    compute_growth_per_hour,
)
from everlong.models.labels import LABELS_MAX
from everlong.models.search_attributes import (
    AGENT,
    ASKED_AT,
    GROWTH,
    LABELS,
    LAST_RESUME,
    PENDING,
    REASON,
    STATE_BYTES,
    STATUS,
)
from everlong.models.status import ENDED_WHOLE, parse_status, read_end

T = TypeVar("T")

QUERY: Final = f"WorkflowType = '{AGENT_WORKFLOW}' AND ExecutionStatus != 'ContinuedAsNew'"
"""One execution for each thread: the open run, or the last one."""
PAGE_ROWS: Final = 1_000
"""The most that the server gives at once."""
KnownCard: TypeAlias = Callable[[str, bytes], ThreadCard | None]
"""Returns the card of a thread whose memo has this digest, if it was decoded before."""
# Made into rows without a pause: 25 ms.
_SLICE_ROWS: Final = 100
_DIGEST_BYTES: Final = 12
_STATUS_PREFIX: Final = "WORKFLOW_EXECUTION_STATUS_"
_CARD: Final = TypeAdapter(ThreadCard)


def quote_text(text: str) -> str:
    """Return a text as it stands in a query of visibility."""
    text = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{text}'"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ThreadRow:
    """One thread of a list."""

    thread_id: str
    run_id: str
    agent: str
    status: Status
    reason: str
    """Why: what holds it, which call is tried again, the limit that paused or ended it, `person`, or how
    Temporal ended it."""
    started_ms: int
    """When the newest run began."""
    closed_ms: int | None
    stored_bytes: int
    growth_bytes_per_hour: float
    pending: int
    asked_ms: int | None
    """Since when the approval waits that was asked for first."""
    last_resume_ms: float
    task_queue: str = ""
    card: ThreadCard | None = None
    """What the thread published of itself; None before its first step, or if it cannot be decoded."""
    labels: tuple[str, ...] = ()
    active_ms: int = 0
    """Last known activity: the end, or else the newest card or the begin of the run. A thread that waits
    may roll once after some minutes, which counts too."""

    @property
    def is_open(self) -> bool:
        """Whether the thread runs."""
        return self.closed_ms is None

    @property
    def attention(self) -> int:
        """Sort key of lists that show first what needs a person; the smallest comes first."""
        if self.pending and self.is_open:
            # The oldest request first: its deadline is the next.
            return _bound_ms(self.asked_ms or self.started_ms)
        rank = _RANKS.get(self.status, len(NEEDS_PERSON))
        return rank * _MS_MAX + _MS_MAX - 1 - _bound_ms(self.active_ms)


NEEDS_PERSON: Final = (
    Status.APPROVAL,
    Status.HELD,
    Status.PAUSED,
    Status.FAILED,
    Status.RETRYING,
)
"""Statuses that a list shows first, in this order; within a status, the last active first."""
_RANKS: Final = {status: rank for rank, status in enumerate(NEEDS_PERSON)}
# Later than any time, in Unix milliseconds: the year 2286. So six ranks stay far below 2^63.
_MS_MAX: Final = 10**13


def _bound_ms(time_ms: int) -> int:
    return max(0, min(time_ms, _MS_MAX - 1))


@dataclasses.dataclass(frozen=True)
class RowsPage:
    """What one request of the server gave."""

    rows: Sequence[ThreadRow]
    memos: Mapping[str, bytes]
    """Digest of each run's memo as it is stored: an equal memo need not be decoded again."""
    next_token: bytes


async def read_rows(
    client: Client,
    query: str = QUERY,
    token: bytes = b"",
    known: KnownCard | None = None,
    size: int = PAGE_ROWS,
) -> RowsPage:
    """Read one page of rows. `known` has the cards that were read before."""
    request = ListWorkflowExecutionsRequest(
        namespace=client.namespace, query=query, page_size=size, next_page_token=token
    )
    try:
        found = await client.workflow_service.list_workflow_executions(request)
    except RPCError as error:
        raise translate_rpc_error(error, "") from error
    rows: list[ThreadRow] = []
    memos: dict[str, bytes] = {}
    for start in range(0, len(found.executions), _SLICE_ROWS):
        part = found.executions[start : start + _SLICE_ROWS]
        rows += await _build_rows(client, part, known, memos)
        await asyncio.sleep(0)  # Let other tasks run.
    return RowsPage(rows, memos, found.next_page_token)


async def count_rows(client: Client, query: str = QUERY) -> int:
    """Return how many executions fit a query of visibility."""
    request = CountWorkflowExecutionsRequest(namespace=client.namespace, query=query)
    try:
        return (await client.workflow_service.count_workflow_executions(request)).count
    except RPCError as error:
        raise translate_rpc_error(error, "") from error


async def _build_rows(
    client: Client,
    executions: Sequence[WorkflowExecutionInfo],
    known: KnownCard | None,
    memos: dict[str, bytes],
) -> list[ThreadRow]:
    fresh: dict[str, Payload] = {}
    cards: dict[str, ThreadCard] = {}
    for info in executions:
        payload = info.memo.fields.get(CARD_MEMO)
        if payload is None:
            continue
        run_id = info.execution.run_id
        memos[run_id] = hashlib.blake2b(payload.data, digest_size=_DIGEST_BYTES).digest()
        card = None if known is None else known(info.execution.workflow_id, memos[run_id])
        if card is None:
            fresh[run_id] = payload
        else:
            cards[run_id] = card
    cards |= await decode_cards(client, fresh)
    return [build_row(info, cards.get(info.execution.run_id)) for info in executions]


async def decode_cards(client: Client, payloads: Mapping[str, Payload]) -> dict[str, ThreadCard]:
    """Decode the cards of threads, by any keys."""
    return await decode_memos(client, payloads, _CARD)


async def decode_memos(
    client: Client, payloads: Mapping[str, Payload], form: TypeAdapter[T]
) -> dict[str, T]:
    """Decode memos, all at once. One that cannot be read is as good as none, and spoils no other."""
    if not payloads:
        return {}
    codec = client.data_converter.payload_codec
    wanted = list(payloads.values())
    try:
        decoded = wanted if codec is None else await codec.decode(wanted)
    except (EverlongError, TemporalError, ValueError):
        if len(payloads) == 1:
            return {}
        alone = [await decode_memos(client, {each: payloads[each]}, form) for each in payloads]
        return {key: value for found in alone for key, value in found.items()}
    values = zip(payloads, (_parse_memo(payload.data, form) for payload in decoded), strict=True)
    return {key: value for key, value in values if value is not None}


def _parse_memo(data: bytes, form: TypeAdapter[T]) -> T | None:
    try:
        return form.validate_json(data)
    except ValidationError:
        return None


def build_row(info: WorkflowExecutionInfo, card: ThreadCard | None = None) -> ThreadRow:
    """Return the row of an execution."""
    published = {
        name: _parse_value(payload)
        for name, payload in info.search_attributes.indexed_fields.items()
    }
    is_open = not info.HasField("close_time")
    status, reason = _get_status(info, published, is_open=is_open)
    asked = published.get(ASKED_AT.name)
    return ThreadRow(
        thread_id=info.execution.workflow_id,
        run_id=info.execution.run_id,
        agent=str(published.get(AGENT.name) or ""),
        status=status,
        reason=reason,
        started_ms=info.start_time.ToMilliseconds(),
        closed_ms=None if is_open else info.close_time.ToMilliseconds(),
        stored_bytes=card.stored_bytes if card else int(published.get(STATE_BYTES.name) or 0),
        growth_bytes_per_hour=_compute_growth(card, published) if is_open else 0.0,
        pending=int(published.get(PENDING.name) or 0) if is_open else 0,
        asked_ms=_parse_ms(asked) if asked and is_open else None,
        last_resume_ms=float(published.get(LAST_RESUME.name) or (card.resume_ms if card else 0.0)),
        task_queue=info.task_queue,
        card=card,
        labels=_parse_labels(published.get(LABELS.name)),
        active_ms=max(info.start_time.ToMilliseconds(), card.ms if card else 0)
        if is_open
        else info.close_time.ToMilliseconds(),
    )


def _compute_growth(card: ThreadCard | None, published: Mapping[str, Any]) -> float:
    """Return a thread's growth now, from the sizes on its card, or as it was last published.

    The clock is rounded to the minute, so that rows which are read again in it are equal.
    """
    if card is None or not card.trend:
        return float(published.get(GROWTH.name) or 0.0)
    now_ms = int(time.time()) // 60 * 60_000
    return compute_growth_per_hour(card.trend, card.stored_bytes, now_ms, rested=card.rested)


def _get_status(
    info: WorkflowExecutionInfo, published: Mapping[str, Any], *, is_open: bool
) -> tuple[Status, str]:
    """Return an execution's status and reason: what it has published, or how Temporal ended it."""
    status = parse_status(str(published.get(STATUS.name) or ""))
    reason = str(published.get(REASON.name) or "")
    if is_open:
        return status, reason
    name = WorkflowExecutionStatus.Name(info.status).removeprefix(_STATUS_PREFIX).lower()
    if name != "completed":
        return read_end(name)
    # Any other status was published while it ran: it ended before it could publish its end.
    return (status, reason) if status in ENDED_WHOLE else (Status.DONE, "")


def _parse_value(payload: Payload) -> Any:
    try:
        return json.loads(payload.data)
    except ValueError:
        return None


def _parse_labels(value: Any) -> tuple[str, ...]:
    """Return labels as they are published: a list, or a single text."""
    found = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    return tuple(str(each) for each in found[:LABELS_MAX])


def _parse_ms(text: object) -> int | None:
    try:
        return int(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except ValueError:
        return None


# Pages refresh themselves every two seconds. All viewers of one list share an answer of that age.
_PAGE_SECONDS: Final = 2.0
# To count, a SQL store reads an index over all executions that fit.
_COUNT_SECONDS: Final = 15.0
# 64 pages of up to 200 rows, 4 KiB each: 50 MiB if all of them are in use, and 2 s after that fewer.
_ANSWERS_MAX: Final = 64
_NOTHING: Final = RowsPage((), {}, b"")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Which threads a list is asked for; empty fields fit all of them."""

    text: str = ""
    """Part of an id, in any case; in a query of the server, its beginning."""
    status: str = ""
    """A `Status`; threads have no other."""
    agent: str = ""
    label: str = ""
    """A whole label, as in `urgent` or `team=payments`."""
    active_since_ms: int | None = None
    active_until_ms: int | None = None
    """Bounds of the last activity. The server has no attribute of it: only rows and the index know."""

    @property
    def has_age(self) -> bool:
        """Whether the last activity is bounded, so that no query of the server can find the threads."""
        return self.active_since_ms is not None or self.active_until_ms is not None

    def fits(self, row: ThreadRow) -> bool:
        """Whether a thread is one of them."""
        return (
            (not self.text or self.text.casefold() in row.thread_id.casefold())
            and (not self.status or row.status == self.status)
            and (not self.agent or row.agent == self.agent)
            and (not self.label or self.label in row.labels)
            and (self.active_since_ms is None or row.active_ms >= self.active_since_ms)
            and (self.active_until_ms is None or row.active_ms < self.active_until_ms)
        )


_AGE: Final = re.compile(r"(idle-)?([0-9]{1,4})([mhd])")
_UNIT_MS: Final = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}
AGE_CHARS_MAX: Final = 10


def parse_age(text: str, now_ms: int) -> tuple[int | None, int | None]:
    """Return the bounds of the last activity: `7d` is within 7 days, `idle-7d` is not for 7 days.

    They are rounded to the minute, so that a page that is loaded again in it is equal. Raises
    `ConfigError` for any other text; an empty one has no bounds.
    """
    if not text:
        return None, None
    found = _AGE.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"{text[:AGE_CHARS_MAX]!r} is no age. Write 7d for threads that were active within 7 days, "
            "or idle-7d for threads that were not; m, h and d are minutes, hours and days."
        )
    idle, count, unit = found.groups()
    bound_ms = now_ms // 60_000 * 60_000 - int(count) * _UNIT_MS[unit]
    return (None, bound_ms) if idle else (bound_ms, None)


def build_query(wanted: Wanted, *, attributes: bool, labels: bool = True) -> str | None:
    """Return the query that lists these threads; None if no thread can fit.

    A thread with the id `wanted.text` itself is not among them: it is looked up by its id. Without
    search `attributes` a namespace knows neither agents nor what open threads are doing, and without
    `labels` no thread has any. SQL stores refuse a query with a NUL in it, which an id may have.
    """
    if "\0" in f"{wanted.text}{wanted.status}{wanted.agent}{wanted.label}":
        return None
    parts: list[str] = [QUERY]
    if wanted.status:
        status = _build_status_query(wanted.status, attributes=attributes)
        if status is None:
            return None
        parts.append(status)
    if wanted.agent:
        if not attributes:
            return None
        parts.append(f"{AGENT.name} = {quote_text(wanted.agent)}")
    if wanted.label:
        if not labels:
            return None
        parts.append(f"{LABELS.name} = {quote_text(wanted.label)}")
    if wanted.text:
        text = quote_text(wanted.text)
        parts.append(f"WorkflowId STARTS_WITH {text} AND WorkflowId != {text}")
    return " AND ".join(parts)


def _build_status_query(status: str, *, attributes: bool) -> str | None:
    """Return the condition for a status, as `build_row` reads it."""
    if status == Status.TERMINATED:
        return "ExecutionStatus IN ('Failed', 'Terminated', 'TimedOut')"
    if status == Status.UNKNOWN:
        unsaid = f" AND {STATUS.name} IS NULL" if attributes else ""
        return f"ExecutionStatus = 'Running'{unsaid}"
    if status == Status.DONE:
        unless = (
            f" AND ({STATUS.name} != 'archived' OR {STATUS.name} IS NULL)" if attributes else ""
        )
        return f"(ExecutionStatus = 'Canceled' OR (ExecutionStatus = 'Completed'{unless}))"
    if not attributes:
        return None
    execution = "Completed" if status == Status.ARCHIVED else "Running"
    return f"ExecutionStatus = '{execution}' AND {STATUS.name} = {quote_text(status)}"


class Visibility:
    """What a server lists, for all who look at lists: an answer is shared while it is new."""

    def __init__(self, connect: Callable[[], Awaitable[Client]]) -> None:
        self._connect = connect
        self._pages = _Answers(_PAGE_SECONDS)
        self._counts = _Answers(_COUNT_SECONDS)

    async def rows(self, wanted: Wanted, token: bytes, limit: int) -> RowsPage:
        """Return a page of threads: one row for each id, of its newest run."""
        query = await self._query(wanted)
        if query is None:
            return _NOTHING
        return await self._pages.get(
            ("rows", query, token, limit), lambda: self._read(query, token, limit)
        )

    async def count(self, wanted: Wanted) -> int:
        """Return how many threads fit. An id that was reset or used again may count more than once."""
        query = await self._query(wanted)
        if query is None:
            return 0

        async def count() -> int:
            return await count_rows(await self._connect(), query)

        return await self._counts.get(query, count)

    async def thread(self, wanted: Wanted) -> ThreadRow | None:
        """Return the thread whose id is the text that is wanted, if the other filters fit it."""
        row = await self._pages.get(("id", wanted.text), lambda: self._describe(wanted.text))
        return row if row is not None and wanted.fits(row) else None

    async def by_ids(self, thread_ids: Sequence[str]) -> dict[str, ThreadRow]:
        """Return the threads with these ids, by id, as they are now."""
        if not thread_ids:
            return {}
        return await self._pages.get(
            ("ids", *thread_ids), lambda: self._read_ids(sorted(thread_ids))
        )

    async def _query(self, wanted: Wanted) -> str | None:
        attributes = bool(wanted.status or wanted.agent) and await has_attributes(
            await self._connect()
        )
        labels = bool(wanted.label) and await has_optional(await self._connect(), LABELS.name)
        return build_query(wanted, attributes=attributes, labels=labels)

    async def _read(self, query: str, token: bytes, limit: int) -> RowsPage:
        client = await self._connect()
        page = await read_rows(client, query, token, size=limit)
        rows = _keep_newest(page.rows)
        # An id may have been reset or used again: a closed run is not the thread if it has a newer one.
        closed = sorted(thread_id for thread_id, row in rows.items() if not row.is_open)
        newest = await self._read_ids(closed)
        kept = [
            row
            for row in rows.values()
            if newest.get(row.thread_id, row).started_ms <= row.started_ms
        ]
        return RowsPage(kept, {}, page.next_token)

    async def _read_ids(self, thread_ids: Sequence[str]) -> dict[str, ThreadRow]:
        listed = ", ".join(quote_text(each) for each in thread_ids if "\0" not in each)
        if not listed:
            return {}
        page = await read_rows(await self._connect(), f"{QUERY} AND WorkflowId IN ({listed})")
        return _keep_newest(page.rows)

    async def _describe(self, thread_id: str) -> ThreadRow | None:
        client = await self._connect()
        try:
            found = await client.get_workflow_handle(thread_id).describe()
        except RPCError as error:
            if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                return None
            raise translate_rpc_error(error, thread_id) from error
        return (
            await _build_described_row(client, found)
            if found.workflow_type == AGENT_WORKFLOW
            else None
        )


async def _build_described_row(client: Client, found: WorkflowExecutionDescription) -> ThreadRow:
    info = found.raw_description.workflow_execution_info
    payload = info.memo.fields.get(CARD_MEMO)
    cards = {} if payload is None else await decode_cards(client, {"": payload})
    return build_row(info, cards.get(""))


def _keep_newest(rows: Sequence[ThreadRow]) -> dict[str, ThreadRow]:
    found: dict[str, ThreadRow] = {}
    for row in rows:
        before = found.get(row.thread_id)
        if before is None or before.started_ms < row.started_ms:
            found[row.thread_id] = row
    return found


class _Answers:
    """Answers of the server, each kept for some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._kept: dict[Hashable, tuple[float, object]] = {}

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        now = time.monotonic()
        self._kept = {
            each: kept for each, kept in self._kept.items() if now - kept[0] < self._seconds
        }
        if key in self._kept:
            return self._kept[key][1]  # type: ignore[return-value] # what `ask` of this key gave
        answer = await ask()
        while len(self._kept) >= _ANSWERS_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = (time.monotonic(), answer)
        return answer
