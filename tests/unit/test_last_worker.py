"""The look-up of a run's last worker: it delays no other resume, and mistakes no rollout for a crash."""

import asyncio
from collections.abc import AsyncIterator
from typing import Self, cast

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import TaskQueueKind
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, DescribeTaskQueueResponse
from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion
from temporalio.converter import SerializationContext
from temporalio.worker import WorkerConfig, WorkerDeploymentConfig

from everlong import limits
from everlong.interceptors.last_worker import LastWorker, ThisWorker, WorkerLookup
from everlong.interceptors.prefetch import Prefetcher
from everlong.interceptors.run_history import RunHistory


def make_completed_event(identity: str, build_id: str = "") -> HistoryEvent:
    event = HistoryEvent()
    attributes = event.workflow_task_completed_event_attributes
    attributes.identity = identity
    if build_id:
        attributes.deployment_version.deployment_name = "ops"
        attributes.deployment_version.build_id = build_id
    return event


def make_scheduled_event(queue: str) -> HistoryEvent:
    event = HistoryEvent()
    task_queue = event.workflow_task_scheduled_event_attributes.task_queue
    task_queue.name, task_queue.kind = queue, TaskQueueKind.TASK_QUEUE_KIND_STICKY
    return event


class Server:
    """A client whose runs were last on a worker that still polls. It answers once it may."""

    namespace = "default"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()
        self.workflow_service = self
        self._workflow_id = ""

    def get_workflow_handle(self, workflow_id: str, *, run_id: str) -> "Server":
        handle = Server()
        handle._workflow_id = workflow_id
        return handle

    async def fetch_history_events(self, *, page_size: int) -> AsyncIterator[HistoryEvent]:
        worker, _, _ = self._workflow_id.partition("/")
        for event in (make_completed_event(worker), make_scheduled_event(worker)):
            yield event

    async def describe_task_queue(
        self, request: DescribeTaskQueueRequest, **_: object
    ) -> DescribeTaskQueueResponse:
        self.asked.append(request.task_queue.name)
        if not request.task_queue.name.startswith("quick"):
            await self.may_answer.wait()
        return DescribeTaskQueueResponse(pollers=[PollerInfo()])


class EmptyWarmer:
    """A warmer for histories without refs."""

    def with_context(self, context: SerializationContext) -> Self:
        return self

    def is_wanted(self, payload: Payload) -> bool:
        return False

    async def warm(self, payload: Payload) -> int | None:
        return None


def resume(prefetcher: Prefetcher, worker: str, count: int) -> list[RunHistory]:
    resumes = [RunHistory() for _ in range(count)]
    for i, history in enumerate(resumes):
        prefetcher.start(f"{worker}/{i}", f"{worker}-run-{i}", history)
    return resumes


async def wait_until_read(resumes: list[RunHistory]) -> None:
    async with asyncio.timeout(30):
        while not all(history.has_ended for history in resumes):
            await asyncio.sleep(0.01)


async def count_lost(resumes: list[RunHistory]) -> list[bool]:
    async with asyncio.timeout(30):
        return [await asyncio.wrap_future(each.is_worker_lost) for each in resumes]


async def test_slow_look_ups_do_not_delay_later_resumes() -> None:
    server = Server()
    prefetcher = Prefetcher(cast("Client", server), EmptyWarmer())
    resumes: list[RunHistory] = []
    for _ in range(3):
        resumes += resume(prefetcher, "slow", limits.PREFETCHES_MAX)
        await wait_until_read(resumes)
    assert all(history.is_complete for history in resumes)
    assert not any(history.is_worker_lost.done() for history in resumes)
    server.may_answer.set()
    assert all(await count_lost(resumes))
    assert server.asked == ["slow"]
    await prefetcher.stop()


async def test_a_look_up_does_not_wait_for_another_worker() -> None:
    server = Server()
    prefetcher = Prefetcher(cast("Client", server), EmptyWarmer())
    slow = resume(prefetcher, "slow", 2)
    await wait_until_read(slow)
    assert await count_lost(resume(prefetcher, "quick", 2)) == [True, True]
    assert not any(history.is_worker_lost.done() for history in slow)
    await prefetcher.stop()


async def test_a_stopping_worker_cancels_its_look_ups() -> None:
    server = Server()
    prefetcher = Prefetcher(cast("Client", server), EmptyWarmer())
    resumes = resume(prefetcher, "slow", 3)
    await wait_until_read(resumes)
    async with asyncio.timeout(30):
        await prefetcher.stop()
    assert await count_lost(resumes) == [False] * 3


async def test_look_ups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOOKUPS_MAX", 2)
    server = Server()
    prefetcher = Prefetcher(cast("Client", server), EmptyWarmer())
    resumes = resume(prefetcher, "slow", 3)
    await wait_until_read(resumes)
    assert all(history.is_complete for history in resumes)
    assert [history.is_worker_lost.done() for history in resumes] == [False, False, True]
    server.may_answer.set()
    assert await count_lost(resumes) == [True, True, False]
    await prefetcher.stop()


async def test_a_look_up_that_takes_too_long_finds_no_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LOOKUP_SECONDS_MAX", 0.05)
    prefetcher = Prefetcher(cast("Client", Server()), EmptyWarmer())
    assert await count_lost(resume(prefetcher, "slow", 2)) == [False, False]
    await prefetcher.stop()


def config(build_id: str = "", *, use: bool = True, cached: int = 1000) -> WorkerConfig:
    deployment = WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name="ops", build_id=build_id),
        use_worker_versioning=use,
    )
    return WorkerConfig(
        deployment_config=deployment if build_id else None, max_cached_workflows=cached
    )


@pytest.mark.parametrize(
    ("last_build_id", "this_worker", "is_lost"),
    [
        ("", config(), True),
        ("", config("v1", use=False), True),
        ("v1", config("v1"), True),
        ("v1", config("v2"), False),
        ("", config("v1"), False),
        ("v1", config(), False),
        ("", config(cached=0), False),
    ],
)
async def test_a_run_moved_by_a_rollout_or_a_disabled_cache_lost_no_worker(
    last_build_id: str, this_worker: WorkerConfig, is_lost: bool
) -> None:
    server = Server()
    lookup = WorkerLookup(cast("Client", server), ThisWorker.from_config(this_worker))
    last = LastWorker()
    for event in (
        make_completed_event("a", "v0"),
        make_completed_event("a", last_build_id),
        make_scheduled_event("quick"),
    ):
        last.add_event(event.WhichOneof("attributes") or "", event)
    assert await lookup.is_lost(last) == is_lost
    assert server.asked == (["quick"] if is_lost else [])
