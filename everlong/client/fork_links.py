"""Links between a fork and the thread that it began from.

The fork carries both, set when it starts, so they cost no action: a memo with the id and the entry of
its origin, and a search attribute with the origin's key, by which the forks of a thread are listed. The
origin does not change, and may have ended.
"""

import contextlib
import dataclasses
from typing import Any, Final

from pydantic import TypeAdapter
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import ListWorkflowExecutionsRequest
from temporalio.client import Client
from temporalio.service import RPCError

from everlong.client.errors import translate_errors, translate_rpc_error
from everlong.client.search_attributes import MISSING_SECONDS, has_optional
from everlong.client.visibility import QUERY, build_row, decode_memos
from everlong.errors import EverlongError, ThreadNotFound
from everlong.models import FORK_MEMO, ForkNote, Status, thread_key
from everlong.models.search_attributes import FORK_OF

FORKS_MAX: Final = 50
"""Forks of one thread that are listed, the newest first: one request."""
_ORIGIN: Final = TypeAdapter(ForkNote)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fork:
    """A fork of a thread."""

    thread_id: str
    seq: int
    """Last entry that it shares with its origin; 0 if it shares none, or if that cannot be read."""
    status: Status
    started_ms: int
    """Begin of its newest run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForkLinks:
    """Where a thread began, and its forks."""

    origin: ForkNote | None = None
    """None if the thread is no fork."""
    forks: tuple[Fork, ...] = ()
    has_more: bool = False
    """Whether there are more than 50 forks."""
    problem: str = ""
    """Why forks are not listed; empty if they are."""


def build_fork_memo(origin: ForkNote) -> dict[str, Any]:
    """Return the memo of a fork. The journal has the author and the reason too."""
    return {FORK_MEMO: {"thread_id": origin.thread_id, "seq": origin.seq}}


async def load_fork_links(client: Client, thread_id: str) -> ForkLinks:
    """Return where a thread began, and its forks. Needs no worker, and works without the attribute.

    The server's visibility lags by a second or so behind a start.
    """
    origin, problem = None, ""
    with contextlib.suppress(ThreadNotFound):  # Deleted by the server. Its forks may live on.
        origin = await _load_origin(client, thread_id)
    try:
        forks, has_more = await _list_forks(client, thread_id)
    except EverlongError as error:
        forks, has_more, problem = (), False, f"Its forks cannot be listed: {error}"
    return ForkLinks(origin=origin, forks=forks, has_more=has_more, problem=problem)


async def _load_origin(client: Client, thread_id: str) -> ForkNote | None:
    with translate_errors(thread_id):
        found = await client.get_workflow_handle(thread_id).describe()
    payload = found.raw_description.workflow_execution_info.memo.fields.get(FORK_MEMO)
    if payload is None:
        return None
    return (await decode_memos(client, {"": payload}, _ORIGIN)).get("")


async def _list_forks(client: Client, thread_id: str) -> tuple[tuple[Fork, ...], bool]:
    # Pages ask each half minute. Where attributes cannot be listed, an answer takes up to 11 requests.
    if not await has_optional(client, FORK_OF.name, MISSING_SECONDS):
        return (), False  # No fork has ever written it.
    request = ListWorkflowExecutionsRequest(
        namespace=client.namespace,
        query=f"{QUERY} AND {FORK_OF.name} = '{thread_key(client.namespace, thread_id)}'",
        page_size=FORKS_MAX,
    )
    try:
        found = await client.workflow_service.list_workflow_executions(request)
    except RPCError as error:
        raise translate_rpc_error(error, thread_id) from error
    memos = {
        info.execution.run_id: info.memo.fields[FORK_MEMO]
        for info in found.executions
        if FORK_MEMO in info.memo.fields
    }
    origins = await decode_memos(client, memos, _ORIGIN)
    forks = [_build_fork(info, origins.get(info.execution.run_id)) for info in found.executions]
    return tuple(forks), bool(found.next_page_token)


def _build_fork(info: WorkflowExecutionInfo, origin: ForkNote | None) -> Fork:
    row = build_row(info)
    return Fork(
        thread_id=row.thread_id,
        seq=origin.seq if origin else 0,
        status=row.status,
        started_ms=row.started_ms,
    )
