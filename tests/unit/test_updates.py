"""Updates that a busy worker accepts late: they are sent once and then polled."""

import asyncio
from collections import deque
from typing import Any, cast

import pytest
from temporalio.api.workflowservice.v1 import PollWorkflowExecutionUpdateResponse
from temporalio.client import (
    Client,
    WorkflowUpdateHandle,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateStage,
)
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode

from everlong.client import updates
from everlong.client.updates import start_update, update
from everlong.errors import MessageRefused, NoWorker

NOT_FOUND = RPCStatusCode.NOT_FOUND


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "_PAUSE_SECONDS_MIN", 0.001)


class Server:
    """Accepts an update only if `takes` is set, and gives scripted answers to polls."""

    namespace, identity = "default", "me"
    data_converter = DataConverter.default

    def __init__(self, *answers: PollWorkflowExecutionUpdateResponse | RPCStatusCode) -> None:
        self.answers = deque(answers)
        self.sent: list[dict[str, Any]] = []
        self.polled: list[tuple[str, str, int]] = []
        self.takes = False
        self.service_client = self.workflow_service = self

    def get_workflow_handle(self, thread_id: str) -> "Server":
        assert thread_id == "ops-7"
        return self

    async def start_update(self, name: str, argument: object, **options: Any) -> Any:
        self.sent.append({"name": name, "argument": argument, **options})
        if self.takes:
            return "handle"
        raise WorkflowUpdateRPCTimeoutOrCancelledError

    async def poll_workflow_execution_update(self, request: Any, **_: Any) -> Any:
        ref = request.update_ref
        stage = request.wait_policy.lifecycle_stage
        self.polled.append((ref.workflow_execution.workflow_id, ref.update_id, stage))
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.popleft()
        if isinstance(answer, RPCStatusCode):
            raise RPCError("no", answer, b"")
        return answer


class IdleWatch:
    """A watch that finds no worker."""

    finds_workers = False

    async def explain(self, error: NoWorker) -> NoWorker:
        return error


def make_response(stage: int, result: int | None = None, refusal: str = "") -> Any:
    found = PollWorkflowExecutionUpdateResponse(stage=cast("Any", stage))
    found.update_ref.workflow_execution.run_id = "run-1"
    if result is not None:
        [payload] = DataConverter.default.payload_converter.to_payloads([result])
        found.outcome.success.payloads.append(payload)
    if refusal:
        found.outcome.failure.message = refusal
        found.outcome.failure.application_failure_info.type = "ValueError"
    return found


async def send_and_wait(server: Server, **options: Any) -> WorkflowUpdateHandle[int]:
    async with asyncio.timeout(10):
        return await start_update(
            cast("Client", server),
            "ops-7",
            "send",
            "hello",
            int,
            update_id="m-1",
            watch=cast("Any", IdleWatch()),
            **options,
        )


async def test_an_update_that_no_worker_accepts_at_first_is_sent_once_and_polled() -> None:
    server = Server(make_response(1), RPCStatusCode.DEADLINE_EXCEEDED, make_response(2))
    handle = await send_and_wait(server)
    assert (handle.id, handle.workflow_id, handle.workflow_run_id) == ("m-1", "ops-7", "run-1")
    assert len(server.sent) == 1
    assert server.polled == [("ops-7", "m-1", 2)] * 3


async def test_a_forgotten_update_is_sent_again_with_its_id() -> None:
    server = Server(NOT_FOUND, NOT_FOUND, make_response(2))
    await send_and_wait(server)
    assert [each["id"] for each in server.sent] == ["m-1"] * 3


async def test_a_result_comes_with_the_poll() -> None:
    server = Server(make_response(3, result=7))
    async with asyncio.timeout(10):
        watch = cast("Any", IdleWatch())
        found = await update(cast("Client", server), "ops-7", "send", "hello", int, watch=watch)
    assert found == 7
    assert server.polled[0][2] == 3
    assert server.sent[0]["wait_for_stage"] == WorkflowUpdateStage.COMPLETED


async def test_a_refusal_from_a_poll_is_raised() -> None:
    server = Server(make_response(3, refusal="12 messages wait already"))
    with pytest.raises(MessageRefused, match="12 messages wait already"):
        await update(
            cast("Client", server), "ops-7", "send", "hello", int, watch=cast("Any", IdleWatch())
        )


async def test_a_timeout_ends_the_polls() -> None:
    with pytest.raises(NoWorker):
        await send_and_wait(Server(), seconds_max=0.2)


async def test_a_caller_cancelled_during_a_poll_stays_cancelled() -> None:
    server = Server()
    waiting = asyncio.create_task(send_and_wait(server))
    while not server.polled:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
