"""The follower of a history: it goes on across runs, resets, restarts of the server, and many waits."""

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryResponse,
)
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import (
    ActivitySerializationContext,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)
from temporalio.service import RPCError, RPCStatusCode

from everlong.client import follower as module
from everlong.client.follower import Follower, ProgressFollower
from everlong.errors import BlobMissing, EverlongError, StoreUnavailable, ThreadNotFound
from everlong.models import (
    AGENT_WORKFLOW,
    APPEND_JOURNAL,
    CALL_MODEL,
    Append,
    AppendResult,
    Control,
)
from tests.unit.test_progress import History, head, reply


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS_MIN", 0.001)
    monkeypatch.setattr(module, "_LOOK_SECONDS_MIN", 0.001)


class Server:
    """Gives scripted answers, and records its requests."""

    namespace = "default"

    def __init__(self, *answers: Any, run_id: str = "run-1") -> None:
        self.answers = deque(answers)
        self.run_id = run_id
        self.events = 1
        self.asked: list[tuple[str, bytes]] = []
        self.described = 0
        self.data_converter = pydantic_data_converter
        self.service_client = self
        self.workflow_service = self

    async def describe_workflow_execution(self, *_: Any, **__: Any) -> Any:
        self.described += 1
        response = DescribeWorkflowExecutionResponse()
        info = response.workflow_execution_info
        info.execution.run_id = self.run_id
        info.history_length = self.events
        info.status = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
        return response

    async def get_workflow_execution_history(self, request: Any, **_: Any) -> Any:
        assert request.wait_new_event
        self.asked.append((request.execution.run_id, request.next_page_token))
        answer = self.answers.popleft()
        if isinstance(answer, RPCStatusCode):
            raise RPCError("no", answer, b"")
        if callable(answer):
            answer = await answer()
        return answer


def page(*events: HistoryEvent, token: bytes = b"more") -> GetWorkflowExecutionHistoryResponse:
    response = GetWorkflowExecutionHistoryResponse(next_page_token=token)
    response.history.events.extend(events)
    return response


def event(event_id: int = 1) -> HistoryEvent:
    return HistoryEvent(event_id=event_id)


def make_roll(run_id: str) -> HistoryEvent:
    last = event(9)
    last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id = run_id
    return last


def make_termination() -> HistoryEvent:
    last = event(9)
    last.workflow_execution_terminated_event_attributes.reason = "reset"
    return last


def follow(server: Server) -> Follower:
    return Follower(server, "ops-7")  # type: ignore[arg-type]


async def test_a_wait_continues_after_the_last_long_poll() -> None:
    server = Server(page(event()), page(), page(event(2)))
    follower = follow(server)
    read = [[each.event_id for each in await follower.next()] for _ in range(3)]
    assert read == [[1], [], [2]]
    assert server.asked == [("run-1", b""), ("run-1", b"more"), ("run-1", b"more")]
    assert server.described == 1


async def test_a_roll_is_followed_without_a_lookup_of_the_next_run() -> None:
    server = Server(page(make_roll("run-2"), token=b""), page(event()))
    follower = follow(server)
    await follower.next()
    await follower.next()
    assert server.asked[-1] == ("run-2", b"")
    assert server.described == 1
    assert not follower.has_ended


@pytest.mark.guarantee(43)
async def test_a_reset_is_followed_into_the_run_that_the_server_names() -> None:
    server = Server(page(make_termination(), token=b""), page(event()))
    follower = follow(server)
    await follower.next()
    server.run_id = "run-2"
    assert [each.event_id for each in await follower.next()] == [1]
    assert server.asked[-1] == ("run-2", b"")


async def test_a_thread_has_ended_if_no_run_follows() -> None:
    follower = follow(Server(page(make_termination(), token=b"")))
    await follower.next()
    assert not follower.has_ended
    assert await follower.next() == ()
    assert follower.has_ended


async def test_an_earlier_end_is_reported_once_no_run_follows() -> None:
    server = Server(page(make_termination(), token=b""))
    progress = ProgressFollower(server, "ops-7")  # type: ignore[arg-type]
    assert await progress.next() is None
    found = await progress.next()
    assert found is not None
    assert found.ended == "terminated"


@pytest.mark.parametrize("status", [RPCStatusCode.UNAVAILABLE, RPCStatusCode.RESOURCE_EXHAUSTED])
async def test_an_unavailable_server_is_polled_again_with_the_same_token(
    status: RPCStatusCode,
) -> None:
    server = Server(page(event()), status, status, page(event(2)))
    follower = follow(server)
    await follower.next()
    assert [len(await follower.next()) for _ in range(2)] == [0, 0]
    assert "no" in follower.problem
    assert len(await follower.next()) == 1
    assert follower.problem == ""
    assert server.asked[1:] == [("run-1", b"more")] * 3


async def test_a_long_poll_that_times_out_is_repeated() -> None:
    follower = follow(Server(page(event()), RPCStatusCode.DEADLINE_EXCEEDED))
    await follower.next()
    assert await follower.next() == ()
    assert follower.problem == ""


@pytest.mark.parametrize("status", [RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT])
async def test_a_refused_token_is_forgotten(status: RPCStatusCode) -> None:
    server = Server(page(event()), status, page(event()))
    follower = follow(server)
    await follower.next()
    server.run_id = "run-5"
    assert await follower.next() == ()
    assert len(await follower.next()) == 1
    assert server.asked[-1] == ("run-5", b"")


async def test_an_unknown_thread_is_an_error() -> None:
    server = Server()

    async def unknown(*_: Any, **__: Any) -> Any:
        raise RPCError("workflow not found", RPCStatusCode.NOT_FOUND, b"")

    server.describe_workflow_execution = unknown  # type: ignore[method-assign]
    with pytest.raises(ThreadNotFound):
        await follow(server).next()


@pytest.mark.guarantee(43)
async def test_waits_beyond_a_bound_hold_no_long_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG_POLLS_MAX", 1)
    server = Server()
    news = asyncio.Event()

    def waiting(event_id: int) -> Callable[[], Any]:
        async def answer() -> Any:
            await news.wait()
            return page(event(event_id))

        return answer

    server.answers.extend([page(event()), page(event()), waiting(2), page(event(2))])
    first, second = follow(server), follow(server)
    await first.next()
    await second.next()
    holding = asyncio.create_task(first.next())
    await asyncio.sleep(0)
    # Nothing is new: the second wait looks at the description, and asks for no history.
    assert await second.next() == ()
    assert len(server.asked) == 3
    server.events = 2
    assert [each.event_id for each in await second.next()] == [2]
    news.set()
    assert [each.event_id for each in await holding] == [2]


async def test_waits_get_free_long_polls_in_order_of_arrival(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LONG_POLLS_MAX", 1)
    polls = module.LongPolls()
    order: list[int] = []

    async def wait(number: int, seconds: float = 60.0) -> bool:
        is_free = await polls.is_free_within(seconds)
        order.append(number)
        return is_free

    async with asyncio.timeout(10):
        with polls.count_one():
            assert not await wait(0, 0.01)
            waits = [asyncio.create_task(wait(number)) for number in (1, 2, 3)]
            await asyncio.sleep(0)
            waits[0].cancel()
        assert await waits[1]
        with polls.count_one():
            pass
        assert await waits[2]
    assert order == [0, 2, 3]
    assert not polls._waiting


async def test_a_cancelled_wait_releases_its_long_poll() -> None:
    server = Server()

    async def forever() -> Any:
        await asyncio.Event().wait()

    server.answers.extend([page(event()), forever])
    follower = follow(server)
    await follower.next()
    waiting = asyncio.create_task(follower.next())
    await asyncio.sleep(0)
    assert follower._polls.count == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    assert follower._polls.count == 0


class Store(PayloadCodec):
    """A codec whose store fails for the given decodes, counted from one."""

    def __init__(self, fails_at: Sequence[int], error: EverlongError) -> None:
        self.fails_at = fails_at
        self.error = error
        self.decodes = 0

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        self.decodes += 1
        if self.decodes in self.fails_at:
            raise self.error
        return list(payloads)


@pytest.mark.guarantee(43)
@pytest.mark.parametrize("fails_at", [(1,), (3,), (1, 2, 3), (3, 4)])
async def test_a_wait_survives_a_store_outage(fails_at: Sequence[int]) -> None:
    events = History().send(1).model(reply(2)).events
    server = Server(*[page(*events) for _ in range(5)])
    server.data_converter = dataclasses.replace(
        pydantic_data_converter, payload_codec=Store(fails_at, StoreUnavailable("no route"))
    )
    progress = ProgressFollower(server, "ops-7")  # type: ignore[arg-type]
    for _ in fails_at:
        assert await progress.next() is None
        assert "no route" in progress.follower.problem
    found = await progress.next()
    assert found is not None
    assert (found.answered, found.messages, found.steps) == (1, 1, 1)
    assert progress.follower.problem == ""
    # Each try reads the whole run: the page token was past events that the failure lost.
    assert server.asked == [("run-1", b"")] * (len(fails_at) + 1)


async def test_lost_bytes_end_a_wait() -> None:
    server = Server(page(*History().events))
    server.data_converter = dataclasses.replace(
        pydantic_data_converter, payload_codec=Store((1,), BlobMissing("pack 'x' is missing"))
    )
    with pytest.raises(BlobMissing, match="everlong doctor"):
        await ProgressFollower(server, "ops-7").next()  # type: ignore[arg-type]


class Contexts(PayloadCodec, WithSerializationContext):
    """A codec that notes the context of each decode."""

    def __init__(self) -> None:
        self.context: SerializationContext | None = None
        self.seen: list[SerializationContext | None] = []

    def with_context(self, context: SerializationContext) -> "Contexts":
        codec = Contexts()
        codec.context, codec.seen = context, self.seen
        return codec

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        self.seen.append(self.context)
        return list(payloads)


async def test_payloads_are_decoded_in_the_workers_context() -> None:
    history = History().signal("pause", Control()).signal("unpause").send(1).model(reply(2))
    history.decide("2-1-abcd", approve=True)
    appending = history.scheduled(APPEND_JOURNAL, Append(head=None, entries=()))
    history.completed(appending, AppendResult(head=head(3), written_bytes=1))
    codec = Contexts()
    server = Server(page(*history.events))
    server.data_converter = dataclasses.replace(pydantic_data_converter, payload_codec=codec)
    await ProgressFollower(server, "ops-7").next()  # type: ignore[arg-type]
    own = WorkflowSerializationContext(namespace="default", workflow_id="ops-7")

    def activity(name: str) -> ActivitySerializationContext:
        return ActivitySerializationContext(
            namespace="default",
            workflow_id="ops-7",
            workflow_type=AGENT_WORKFLOW,
            activity_type=name,
            activity_id=None,
            activity_task_queue="agents",
            is_local=False,
        )

    append = activity(APPEND_JOURNAL)
    assert codec.seen == [own, own, own, own, activity(CALL_MODEL), own, append, append]
