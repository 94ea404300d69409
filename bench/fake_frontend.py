"""A fake Temporal frontend that only lists: any number of threads, without a database server.

It speaks gRPC, so `everlong serve` and its SDK do the same work as with a real server. SQLite answers
visibility queries, and rows hold the serialized responses. Every request is counted.
"""

import concurrent.futures
import contextlib
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import grpc  # type: ignore[import-untyped] # It has no types.
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesResponse
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    CountWorkflowExecutionsRequest,
    CountWorkflowExecutionsResponse,
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    GetSystemInfoResponse,
    ListWorkflowExecutionsRequest,
    ListWorkflowExecutionsResponse,
)

from everlong.models.search_attributes import SEARCH_ATTRIBUTES

_WORKFLOWS: Final = "/temporal.api.workflowservice.v1.WorkflowService/"
_OPERATOR: Final = "/temporal.api.operatorservice.v1.OperatorService/"
_STARTS_WITH: Final = re.compile(r"(\w+) STARTS_WITH ('(?:[^']|'')*')")
_ORDER: Final = "CloseTime IS NOT NULL, CloseTime DESC, StartTime DESC, RunId DESC"
_SCHEMA: Final = """
CREATE TABLE executions (
    WorkflowId, RunId, WorkflowType, ExecutionStatus, StartTime, CloseTime, EverlongStatus,
    EverlongAgent, info
);
CREATE INDEX by_id ON executions (WorkflowId, StartTime);
CREATE INDEX by_type ON executions (WorkflowType, ExecutionStatus);
"""
_MARKS: Final = ", ".join("?" * 9)

Row = tuple[str, str, str, str, int, int | None, str, str, bytes]
"""Id, run, type, status, start and end in milliseconds, our status and agent, a serialized info."""


class FakeFrontend:
    """Executions, and the handlers of the requests that a list makes."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.calls: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        self._db.executescript(_SCHEMA)
        for first in ("", "ExecutionStatus, ", "EverlongStatus, ", "EverlongAgent, "):
            name = first.rstrip(", ") or "Everything"
            self._db.execute(f"CREATE INDEX by_{name} ON executions ({first}{_ORDER})")
        self._db.executemany(f"INSERT INTO executions VALUES ({_MARKS})", rows)  # noqa: S608 - marks
        self._db.execute("ANALYZE")

    @contextlib.contextmanager
    def serve(self, host: str) -> Iterator[str]:
        """Listen on a free port while the body runs; yield the address."""
        answers: dict[str, Callable[[bytes], bytes]] = {
            f"{_WORKFLOWS}GetSystemInfo": lambda _: GetSystemInfoResponse().SerializeToString(),
            f"{_WORKFLOWS}ListWorkflowExecutions": self._list,
            f"{_WORKFLOWS}CountWorkflowExecutions": self._count,
            f"{_WORKFLOWS}DescribeWorkflowExecution": self._describe,
            f"{_OPERATOR}ListSearchAttributes": self._attributes,
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._counted(name, answer))
            for name, answer in answers.items()
        }
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
            server.add_generic_rpc_handlers((_Handlers(handlers),))
            port = server.add_insecure_port(f"{host}:0")
            server.start()
            try:
                yield f"{host}:{port}"
            finally:
                server.stop(grace=None).wait()

    def _counted(
        self, name: str, answer: Callable[[bytes], bytes]
    ) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        operation = name.rpartition("/")[2]

        def counted(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.calls[operation] += 1
            try:
                with self._lock:
                    return answer(request)
            except LookupError as error:
                context.abort(grpc.StatusCode.NOT_FOUND, str(error))
                raise

        return counted

    def _list(self, data: bytes) -> bytes:
        request = ListWorkflowExecutionsRequest.FromString(data)
        start, size = int(request.next_page_token or 0), request.page_size or 1000
        found = self._select(
            "info", request.query, f"ORDER BY {_ORDER} LIMIT {size + 1} OFFSET {start}"
        )
        infos = [info for (info,) in found[:size]]
        more = str(start + size).encode() if len(found) > size else b""
        # Serialized repeated fields can be concatenated: each row is a response with one execution.
        return (
            b"".join(infos)
            + ListWorkflowExecutionsResponse(next_page_token=more).SerializeToString()
        )

    def _count(self, data: bytes) -> bytes:
        query = CountWorkflowExecutionsRequest.FromString(data).query
        [[count]] = self._select("count(*)", query)
        return CountWorkflowExecutionsResponse(count=count).SerializeToString()

    def _describe(self, data: bytes) -> bytes:
        wanted = DescribeWorkflowExecutionRequest.FromString(data).execution.workflow_id
        found = self._db.execute(
            "SELECT info FROM executions WHERE WorkflowId = ? ORDER BY StartTime DESC", (wanted,)
        ).fetchone()
        if found is None:
            raise LookupError(f"workflow not found for ID: {wanted}")
        [info] = ListWorkflowExecutionsResponse.FromString(found[0]).executions
        return DescribeWorkflowExecutionResponse(workflow_execution_info=info).SerializeToString()

    def _attributes(self, _: bytes) -> bytes:
        kinds = {
            name: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind.upper()}")
            for name, kind in SEARCH_ATTRIBUTES.items()
        }
        return ListSearchAttributesResponse(custom_attributes=kinds).SerializeToString()

    def _select(self, what: str, query: str, rest: str = "") -> list[tuple]:  # type: ignore[type-arg]
        where = _STARTS_WITH.sub(r"\1 >= \2 AND \1 < \2 || char(1114111)", query)
        query = f"SELECT {what} FROM executions WHERE {where} {rest}"  # noqa: S608 - asked by us
        return self._db.execute(query).fetchall()


def serialize_row(info: WorkflowExecutionInfo) -> bytes:
    """Return an execution as it appears in the response to a list."""
    return ListWorkflowExecutionsResponse(executions=[info]).SerializeToString()


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc] # It has no types.
    def __init__(self, handlers: dict[str, grpc.RpcMethodHandler]) -> None:
        self._handlers = handlers

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        return self._handlers.get(handler_call_details.method)
