"""Fake client whose visibility queries are answered by SQLite, for lists of many threads.

It implements what the list of threads calls: list, count, describe and the names of search attributes.
Every call is counted.
"""

import dataclasses
import json
import re
import sqlite3
import types
from collections import Counter
from collections.abc import Iterable

from pydantic import TypeAdapter
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.operatorservice.v1 import ListSearchAttributesResponse
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    CountWorkflowExecutionsRequest,
    CountWorkflowExecutionsResponse,
    ListWorkflowExecutionsRequest,
    ListWorkflowExecutionsResponse,
)
from temporalio.service import RPCError, RPCStatusCode

from everlong.client.search_attributes import parse_type_name
from everlong.models import AGENT_WORKFLOW, CARD_MEMO, ThreadCard
from everlong.models.search_attributes import SEARCH_ATTRIBUTES

_CARD = TypeAdapter(ThreadCard)
_STARTS_WITH = re.compile(r"(\w+) STARTS_WITH ('(?:[^']|'')*')")
_HAS_LABEL = re.compile(r"EverlongLabels = ('(?:[^']|'')*')")
_COLUMNS = "WorkflowId, RunId, WorkflowType, ExecutionStatus, StartTime, CloseTime, EverlongStatus"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Thread:
    """Execution as a server stores it."""

    thread_id: str
    run_id: str = ""
    execution: str = "Running"
    status: str | None = "waiting"
    agent: str | None = "ops"
    started_ms: int = 1
    closed_ms: int | None = None
    stored_bytes: int = 0
    pending: int = 0
    reason: str = ""
    kind: str = AGENT_WORKFLOW
    labels: tuple[str, ...] = ()
    active_ms: int = 1


class FakeVisibility:
    """Fake of a `Client`, its services and its server."""

    namespace = "default"

    def __init__(self, threads: Iterable[Thread], *, has_attributes: bool = True) -> None:
        self.calls: Counter[str] = Counter()
        self.is_down = False
        self._has_attributes = has_attributes
        self._db = sqlite3.connect(":memory:")
        self._db.create_function("starts_with", 2, str.startswith, deterministic=True)
        self._db.create_function("has_label", 2, _has_label, deterministic=True)
        self._db.execute(
            f"CREATE TABLE executions ({_COLUMNS}, EverlongAgent, EverlongLabels, rest)"
        )
        self.add(threads)
        self.workflow_service = types.SimpleNamespace(
            list_workflow_executions=self._list, count_workflow_executions=self._count
        )
        self.operator_service = types.SimpleNamespace(list_search_attributes=self._attributes)
        self.data_converter = types.SimpleNamespace(payload_codec=None)

    async def connect(self) -> "FakeVisibility":
        return self

    def add(self, threads: Iterable[Thread]) -> None:
        self._db.executemany(
            "INSERT INTO executions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (
                    each.thread_id,
                    each.run_id or f"run-of-{each.thread_id}",
                    each.kind,
                    each.execution,
                    each.started_ms,
                    each.closed_ms,
                    each.status,
                    each.agent,
                    json.dumps(each.labels),
                    json.dumps([each.stored_bytes, each.pending, each.reason, each.active_ms]),
                )
                for each in threads
            ),
        )

    def remove(self, thread_id: str) -> None:
        self._db.execute("DELETE FROM executions WHERE WorkflowId = ?", (thread_id,))

    def get_workflow_handle(self, thread_id: str) -> types.SimpleNamespace:
        async def describe() -> types.SimpleNamespace:
            self._called("describe")
            found = self._db.execute(
                "SELECT * FROM executions WHERE WorkflowId = ? ORDER BY StartTime DESC LIMIT 1",
                (thread_id,),
            ).fetchall()
            if not found:
                raise RPCError("workflow not found", RPCStatusCode.NOT_FOUND, b"")
            info = types.SimpleNamespace(workflow_execution_info=_info(found[0]))
            return types.SimpleNamespace(raw_description=info, workflow_type=found[0][2])

        return types.SimpleNamespace(describe=describe)

    async def _list(self, request: ListWorkflowExecutionsRequest) -> ListWorkflowExecutionsResponse:
        self._called("list")
        token = request.next_page_token
        if token and not token.isdigit():
            raise RPCError("invalid page token", RPCStatusCode.INVALID_ARGUMENT, b"")
        start = int(token or 0)
        found = self._select(
            "*",
            request.query,
            f"ORDER BY CloseTime IS NOT NULL, CloseTime DESC, StartTime DESC, RunId DESC "
            f"LIMIT {request.page_size + 1} OFFSET {start}",
        )
        rows = found[: request.page_size]
        more = str(start + len(rows)).encode() if len(found) > len(rows) else b""
        return ListWorkflowExecutionsResponse(
            executions=[_info(each) for each in rows], next_page_token=more
        )

    async def _count(
        self, request: CountWorkflowExecutionsRequest
    ) -> CountWorkflowExecutionsResponse:
        self._called("count")
        return CountWorkflowExecutionsResponse(count=self._select("count(*)", request.query)[0][0])

    async def _attributes(self, *_: object, **__: object) -> ListSearchAttributesResponse:
        self._called("attributes")
        kinds = SEARCH_ATTRIBUTES if self._has_attributes else {}
        return ListSearchAttributesResponse(
            custom_attributes={name: parse_type_name(kind) for name, kind in kinds.items()}
        )

    def _select(self, what: str, query: str, rest: str = "") -> list[tuple]:  # type: ignore[type-arg]
        if "Everlong" in query and not self._has_attributes:
            raise RPCError("no such search attribute", RPCStatusCode.INVALID_ARGUMENT, b"")
        where = _STARTS_WITH.sub(r"starts_with(\1, \2)", query)
        where = _HAS_LABEL.sub(r"has_label(EverlongLabels, \1)", where)
        return self._db.execute(f"SELECT {what} FROM executions WHERE {where} {rest}").fetchall()

    def _called(self, name: str) -> None:
        self.calls[name] += 1
        if self.is_down:
            raise RPCError("the server is away", RPCStatusCode.UNAVAILABLE, b"")


def _has_label(labels: str, label: str) -> bool:
    return label in json.loads(labels)


def _info(found: tuple) -> WorkflowExecutionInfo:  # type: ignore[type-arg]
    thread_id, run_id, _, execution, started_ms, closed_ms, status, agent, labels, rest = found
    stored_bytes, pending, reason, active_ms = json.loads(rest)
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", execution).upper()
    info = WorkflowExecutionInfo(
        status=WorkflowExecutionStatus.Value(f"WORKFLOW_EXECUTION_STATUS_{name}")
    )
    info.execution.workflow_id, info.execution.run_id = thread_id, run_id
    info.start_time.FromMilliseconds(started_ms)
    if closed_ms is not None:
        info.close_time.FromMilliseconds(closed_ms)
    attributes = {
        "EverlongStatus": status,
        "EverlongAgent": agent,
        "EverlongReason": reason,
        "EverlongPendingApprovals": pending,
        "EverlongLabels": json.loads(labels) or None,
    }
    for key, value in attributes.items():
        if value is not None:
            info.search_attributes.indexed_fields[key].data = json.dumps(value).encode()
    card = ThreadCard(ms=active_ms, steps=7, stored_bytes=stored_bytes, read_bytes=3 * stored_bytes)
    info.memo.fields[CARD_MEMO].data = _CARD.dump_json(card)
    return info
