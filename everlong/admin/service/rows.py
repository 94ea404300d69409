"""One thread as the server's visibility lists it: no thread is asked, so none resumes.

Rows are read straight from the protobuf messages. With the SDK's own classes, and a decode of each memo
by itself, ten thousand of them take several times as long.
"""

import asyncio
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

from pydantic import TypeAdapter, ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    CountWorkflowExecutionsRequest,
    ListWorkflowExecutionsRequest,
)
from temporalio.client import Client
from temporalio.exceptions import TemporalError
from temporalio.service import RPCError

from everlong.admin.service.translating import translated_rpc
from everlong.errors import EverlongError
from everlong.models import AGENT_WORKFLOW, CARD_MEMO, ThreadCard, growth_per_hour
from everlong.sweep.history_reader import CLOSED

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
# What a thread says of its own end. Any other word was said while it still ran.
_ENDS: Final = frozenset({"stopped", "archived"})


def quoted(text: str) -> str:
    """Return a text as it stands in a query of visibility."""
    text = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{text}'"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ThreadRow:
    """One thread of a list."""

    thread_id: str
    run_id: str
    agent: str
    status: str
    """`active`, `approval`, `paused`; `running` where search attributes are not set up; `stopped`,
    `archived`, or how Temporal ended it: `terminated`, `failed`, ..."""
    reason: str
    """Why it is paused or has ended: the limit's name, or `person`."""
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

    @property
    def is_open(self) -> bool:
        """Whether the thread runs."""
        return self.closed_ms is None


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
        raise translated_rpc(error, "") from error
    rows: list[ThreadRow] = []
    memos: dict[str, bytes] = {}
    for start in range(0, len(found.executions), _SLICE_ROWS):
        part = found.executions[start : start + _SLICE_ROWS]
        rows += await _rows(client, part, known, memos)
        await asyncio.sleep(0)  # Others are answered meanwhile.
    return RowsPage(rows, memos, found.next_page_token)


async def count_rows(client: Client, query: str = QUERY) -> int:
    """Return how many executions fit a query of visibility."""
    request = CountWorkflowExecutionsRequest(namespace=client.namespace, query=query)
    try:
        return (await client.workflow_service.count_workflow_executions(request)).count
    except RPCError as error:
        raise translated_rpc(error, "") from error


async def _rows(
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
    cards |= await cards_of(client, fresh)
    return [row_of(info, cards.get(info.execution.run_id)) for info in executions]


async def cards_of(client: Client, payloads: Mapping[str, Payload]) -> dict[str, ThreadCard]:
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
        alone = [await cards_of(client, {each: payloads[each]}) for each in payloads]
        return {run_id: card for found in alone for run_id, card in found.items()}
    cards = zip(payloads, (_card(payload.data) for payload in decoded), strict=True)
    return {run_id: card for run_id, card in cards if card is not None}


def _card(data: bytes) -> ThreadCard | None:
    try:
        return _CARD.validate_json(data)
    except ValidationError:
        return None


def row_of(info: WorkflowExecutionInfo, card: ThreadCard | None = None) -> ThreadRow:
    """Return the row of an execution."""
    said = {
        name: _value(payload) for name, payload in info.search_attributes.indexed_fields.items()
    }
    is_open = info.status not in CLOSED
    asked = said.get("EverlongAskedAt")
    return ThreadRow(
        thread_id=info.execution.workflow_id,
        run_id=info.execution.run_id,
        agent=str(said.get("EverlongAgent") or ""),
        status=_status(info, str(said.get("EverlongStatus") or ""), is_open=is_open),
        reason=str(said.get("EverlongReason") or ""),
        started_ms=info.start_time.ToMilliseconds(),
        closed_ms=None if is_open else info.close_time.ToMilliseconds(),
        stored_bytes=card.stored_bytes if card else int(said.get("EverlongStateBytes") or 0),
        growth_bytes_per_hour=_growth(card, said) if is_open else 0.0,
        pending=int(said.get("EverlongPendingApprovals") or 0) if is_open else 0,
        asked_ms=_ms(asked) if asked and is_open else None,
        last_resume_ms=float(said.get("EverlongLastResumeMs") or (card.resume_ms if card else 0.0)),
        task_queue=info.task_queue,
        card=card,
    )


def _growth(card: ThreadCard | None, said: Mapping[str, Any]) -> float:
    """Return a thread's growth now, from the sizes on its card; without a card, as it last said.

    The clock is rounded to the minute, so that rows which are read again in it are equal.
    """
    if card is None or not card.trend:
        return float(said.get("EverlongGrowthBytesPerHour") or 0.0)
    now_ms = int(time.time()) // 60 * 60_000
    return growth_per_hour(card.trend, card.stored_bytes, now_ms, rested=card.rested)


def _status(info: WorkflowExecutionInfo, said: str, *, is_open: bool) -> str:
    if is_open:
        return said or "running"
    name = WorkflowExecutionStatus.Name(info.status).removeprefix(_STATUS_PREFIX).lower()
    if name == "completed":
        return said if said in _ENDS else "stopped"
    return name


def _value(payload: Payload) -> Any:
    try:
        return json.loads(payload.data)
    except ValueError:
        return None


def _ms(text: object) -> int | None:
    try:
        return int(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except ValueError:
        return None
