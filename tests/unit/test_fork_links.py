"""Links of forks: what a server lists, and what is shown if a part of it cannot be read."""

import json
import types
from typing import Any, cast

import pytest
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.operatorservice.v1 import ListSearchAttributesResponse
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    ListWorkflowExecutionsRequest,
    ListWorkflowExecutionsResponse,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everlong.client.fork_links import build_fork_memo, load_fork_links
from everlong.client.search_attributes import parse_type_name
from everlong.models import FORK_MEMO, ForkNote, Status, thread_key
from everlong.models.search_attributes import FORK_OF, SEARCH_ATTRIBUTES


class FakeServer:
    """Client of a server with one origin and its forks."""

    namespace = "default"

    def __init__(self, *infos: WorkflowExecutionInfo, has_attribute: bool = True) -> None:
        self.infos = infos
        self.queries: list[str] = []
        self.has_attribute = has_attribute
        self.fails = False
        self.token = b""
        self.workflow_service = types.SimpleNamespace(list_workflow_executions=self._list)
        self.operator_service = types.SimpleNamespace(list_search_attributes=self._attributes)
        self.data_converter = types.SimpleNamespace(payload_codec=None)

    async def _list(self, request: ListWorkflowExecutionsRequest) -> ListWorkflowExecutionsResponse:
        self.queries.append(request.query)
        if self.fails:
            raise RPCError("the server is away", RPCStatusCode.UNAVAILABLE, b"")
        return ListWorkflowExecutionsResponse(executions=self.infos, next_page_token=self.token)

    async def _attributes(self, *_: object, **__: object) -> ListSearchAttributesResponse:
        names = {
            name: parse_type_name(kind)
            for name, kind in SEARCH_ATTRIBUTES.items()
            if name != FORK_OF.name or self.has_attribute
        }
        return ListSearchAttributesResponse(custom_attributes=names)

    def get_workflow_handle(self, thread_id: str) -> types.SimpleNamespace:
        async def describe() -> types.SimpleNamespace:
            for info in self.infos:
                if info.execution.workflow_id == thread_id:
                    described = types.SimpleNamespace(workflow_execution_info=info)
                    return types.SimpleNamespace(raw_description=described)
            raise RPCError("workflow not found", RPCStatusCode.NOT_FOUND, b"")

        return types.SimpleNamespace(describe=describe)


def info(thread_id: str, memo: bytes | None = None) -> WorkflowExecutionInfo:
    found = WorkflowExecutionInfo(status=WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING)
    found.execution.workflow_id, found.execution.run_id = thread_id, f"run-of-{thread_id}"
    found.search_attributes.indexed_fields["EverlongStatus"].data = b'"waiting"'
    if memo is not None:
        found.memo.fields[FORK_MEMO].data = memo
    return found


MEMO = json.dumps(build_fork_memo(ForkNote(thread_id="ops-7", seq=12))[FORK_MEMO]).encode()


async def load(server: FakeServer, thread_id: str) -> Any:
    return await load_fork_links(cast("Client", server), thread_id)


async def test_a_fork_names_its_origin_and_the_origin_its_forks() -> None:
    server = FakeServer(info("fork-1", MEMO), info("fork-2", b"\xff not JSON"))
    links = await load(server, "ops-7")  # The origin itself is gone.
    assert links.origin is None
    assert [(each.thread_id, each.seq, each.status) for each in links.forks] == [
        ("fork-1", 12, Status.WAITING),
        ("fork-2", 0, Status.WAITING),  # A memo that cannot be read hides no fork.
    ]
    assert (links.has_more, links.problem) == (False, "")
    # The digest alone is in the query: an id may hold quotes, and be longer than a column.
    assert thread_key("default", "ops-7") in server.queries[0]
    assert "ops-7" not in server.queries[0]
    origin = (await load(server, "fork-1")).origin
    assert (origin.thread_id, origin.seq) == ("ops-7", 12)
    assert (await load(server, "fork-2")).origin is None


async def test_a_namespace_without_the_attribute_is_not_asked_for_forks() -> None:
    server = FakeServer(info("fork-1", MEMO), has_attribute=False)
    links = await load(server, "fork-1")
    assert links.origin is not None
    assert (links.forks, links.problem, server.queries) == ((), "", [])


async def test_the_origin_is_shown_though_the_server_does_not_list() -> None:
    server = FakeServer(info("fork-1", MEMO))
    server.fails = True
    links = await load(server, "fork-1")
    assert links.origin is not None
    assert "cannot be listed" in links.problem
    server.fails, server.token = False, b"more"
    assert (await load(server, "fork-1")).has_more


@pytest.mark.parametrize("seq", [0, 7])
def test_the_memo_holds_no_name_and_no_reason(seq: int) -> None:
    note = ForkNote(thread_id="ops-7", seq=seq, by="ann", reason="secret")
    assert build_fork_memo(note) == {FORK_MEMO: {"thread_id": "ops-7", "seq": seq}}
