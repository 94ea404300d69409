"""Long polls for the outcome of an update: what ends a wait, and which outages it survives."""

import asyncio
import types
from collections import deque
from typing import Any, cast

import pytest
from temporalio.api.workflowservice.v1 import PollWorkflowExecutionUpdateResponse
from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateHandle
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from everlong.client import follower, updates
from everlong.client.updates import poll_turn_end
from everlong.client.wait import _Wait
from everlong.errors import MessageRefused, NotAnswered
from everlong.models import TurnEnd


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_RETRY_SECONDS_MIN", 0.001)
    monkeypatch.setattr(updates, "_LOOK_SECONDS_MIN", 0.001)


class Server:
    """Gives scripted answers to polls, and records the stage that each waits for."""

    namespace = "default"
    identity = "me"
    data_converter = pydantic_data_converter

    def __init__(self, *answers: PollWorkflowExecutionUpdateResponse | RPCStatusCode) -> None:
        self.answers = deque(answers)
        self.stages: list[int] = []
        self.refs: set[tuple[str, str, str]] = set()
        self.service_client = self.workflow_service = self

    async def poll_workflow_execution_update(self, request: Any, **_: Any) -> Any:
        run, ref = request.update_ref.workflow_execution, request.update_ref
        self.refs.add((run.workflow_id, run.run_id, ref.update_id))
        self.stages.append(request.wait_policy.lifecycle_stage)
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.popleft()
        if isinstance(answer, RPCStatusCode):
            raise RPCError("no", answer, b"")
        return answer


class Handle:
    """An update that was sent. Its result is an error of the server, unless another error is given."""

    id, workflow_id, workflow_run_id = "message-1", "ops-7", "run-1"

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error or RPCError("lost", RPCStatusCode.NOT_FOUND, b"")

    async def result(self, **_: Any) -> TurnEnd:
        raise self._error


def make_empty_response() -> PollWorkflowExecutionUpdateResponse:
    return PollWorkflowExecutionUpdateResponse()


def number(value: int) -> PollWorkflowExecutionUpdateResponse:
    found = PollWorkflowExecutionUpdateResponse()
    [payload] = pydantic_data_converter.payload_converter.to_payloads([TurnEnd(number=value)])
    found.outcome.success.payloads.append(payload)
    return found


def make_failed_response(kind: str) -> PollWorkflowExecutionUpdateResponse:
    found = PollWorkflowExecutionUpdateResponse()
    found.outcome.failure.application_failure_info.type = kind
    return found


async def poll(server: Server, handle: Handle | None = None) -> tuple[TurnEnd | None, list[str]]:
    problems: list[str] = []
    update = cast("WorkflowUpdateHandle[TurnEnd]", handle or Handle())
    async with asyncio.timeout(10):
        return await poll_turn_end(cast("Client", server), update, problems.append), problems


@pytest.mark.guarantee(43)
async def test_a_wait_survives_empty_polls_and_a_server_outage() -> None:
    away = RPCStatusCode.UNAVAILABLE
    server = Server(make_empty_response(), away, RPCStatusCode.DEADLINE_EXCEEDED, away, number(7))
    found, problems = await poll(server)
    assert found == TurnEnd(number=7)
    assert len(problems) == 2
    assert server.refs == {("ops-7", "run-1", "message-1")}


@pytest.mark.parametrize("status", [RPCStatusCode.NOT_FOUND, RPCStatusCode.PERMISSION_DENIED])
async def test_an_update_unknown_to_the_server_is_lost(status: RPCStatusCode) -> None:
    assert (await poll(Server(status)))[0] is None


async def test_an_update_whose_run_has_closed_is_lost() -> None:
    assert (await poll(Server(make_failed_response("AcceptedUpdateCompletedWorkflow"))))[0] is None


async def test_a_refusal_is_raised_by_the_handle() -> None:
    refused = WorkflowUpdateFailedError(ApplicationError("12 messages wait already"))
    with pytest.raises(MessageRefused, match="12 messages wait already"):
        await poll(Server(RPCStatusCode.NOT_FOUND), Handle(refused))


async def test_an_update_beyond_the_long_poll_bound_is_checked_without_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower, "LONG_POLLS_MAX", 0)
    server = Server(make_empty_response(), make_empty_response(), number(1))
    assert (await poll(server))[0] == TurnEnd(number=1)
    assert server.stages == [0, 0, 0]


async def test_checks_of_many_waits_do_not_wake_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "LONG_POLLS_MAX", 1)
    monkeypatch.setattr(updates, "_LOOK_SECONDS_MIN", 0.5)
    server = Server()
    polls = follower.get_long_polls(cast("Client", server))
    with polls.count_one():
        server.answers.extend([make_empty_response()] * 100)
        waits = [asyncio.create_task(poll(server)) for _ in range(5)]
        await asyncio.sleep(1.0)
        # One look for each wait, after about half a second.
        assert len(server.stages) == 5
        for each in waits:
            each.cancel()
        await asyncio.wait(waits)
    assert polls.count == 0


async def test_long_polls_are_counted_while_they_run() -> None:
    server = Server()
    polls = follower.get_long_polls(cast("Client", server))
    polling = asyncio.create_task(poll(server))
    while not polls.count:
        await asyncio.sleep(0)
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling
    assert polls.count == 0


async def test_a_timeout_says_what_the_thread_waits_for() -> None:
    watch = types.SimpleNamespace(latest=None, held_by="the store is away")
    wait = _Wait(cast("Client", Server()), "ops-7", 0.1, cast("Any", watch))
    with pytest.raises(NotAnswered, match=r"is not done after 0 s.*held last by: the store"):
        await wait.turn(cast("WorkflowUpdateHandle[TurnEnd]", Handle()))
