"""The worker that had a run last, and whether it is gone without having been shut down.

A worker that is killed leaves no event in the history of a thread at rest. The server sends the next
query or task to another worker: at once if no worker has polled the sticky queue for 10 s, else after
the sticky timeout, and of these only the timeout of a task is an event. But a worker that shuts down
tells the server. The server then drops its sticky queue with the pollers, and lists the worker as shut
down, if it takes heartbeats of workers. Of a worker that was killed, the pollers are listed for 5
minutes more, and the worker as running until its heartbeats are forgotten.

Two moves of a run look like a crash and are none, since its last worker goes on polling: a rollout
with worker versioning, and any task where workers keep no workflows in memory.
"""

import asyncio
import dataclasses
import logging
import time
from datetime import timedelta
from typing import Final, Self

from temporalio.api.enums.v1 import TaskQueueKind, TaskQueueType, WorkerStatus
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, ListWorkersRequest
from temporalio.client import Client
from temporalio.worker import WorkerConfig

logger = logging.getLogger(__name__)

_LOOKUP_TIMEOUT: Final = timedelta(seconds=5)
_LISTED_MAX: Final = 100
# Requests at a time, for different workers. At 10 ms each, that is 800 workers a second.
_REQUESTS_MAX: Final = 8
# In a storm of resumes, the threads of one dead worker share one request.
_KEPT_SECONDS: Final = 10.0
_KEPT_WORKERS_MAX: Final = 64


@dataclasses.dataclass(frozen=True)
class ThisWorker:
    """The settings of the worker that resumes runs, as far as they tell why a run moves to it."""

    version: tuple[str, str] = ("", "")
    """The deployment's name and the build id; empty without worker versioning."""
    has_cache: bool = True
    """Whether the worker keeps workflows in memory. Without a cache, it has no sticky queue either."""

    @classmethod
    def from_config(cls, config: WorkerConfig) -> Self:
        """Return the settings that a worker was made with."""
        deployment = config.get("deployment_config")
        version = ("", "")
        if deployment is not None and deployment.use_worker_versioning:
            version = (deployment.version.deployment_name, deployment.version.build_id)
        return cls(version=version, has_cache=config.get("max_cached_workflows") != 0)


@dataclasses.dataclass
class LastWorker:
    """The worker that completed the last workflow task of a history, as far as it has been read."""

    identity: str = ""
    completed_ns: int = 0
    """When it completed that task."""
    version: tuple[str, str] = ("", "")
    """Its deployment's name and build id; empty without worker versioning."""
    is_closed: bool = False
    """Whether the run has ended. Workers drop such runs, so a later query is always a resume."""
    _queue: TaskQueue | None = None
    _queue_owner: str = ""

    def add_event(self, kind: str, event: HistoryEvent) -> None:
        """Take in the next event; `kind` names its attributes."""
        if kind == "workflow_task_completed_event_attributes":
            completed = event.workflow_task_completed_event_attributes
            version = completed.deployment_version
            self.identity = completed.identity
            self.version = (version.deployment_name, version.build_id)
            self.completed_ns = event.event_time.ToNanoseconds()
        elif kind == "workflow_task_scheduled_event_attributes":
            queue = event.workflow_task_scheduled_event_attributes.task_queue
            if queue.kind == TaskQueueKind.TASK_QUEUE_KIND_STICKY:
                # It belongs to the worker that completed the task before this one.
                self._queue, self._queue_owner = queue, self.identity
        elif kind in _ENDS:
            self.is_closed = True

    @property
    def sticky_queue(self) -> TaskQueue | None:
        """The worker's sticky queue. None if no event names it: it has done one task of the run."""
        return self._queue if self.identity and self._queue_owner == self.identity else None


_ENDS: Final = frozenset(
    f"workflow_execution_{end}_event_attributes"
    for end in ("completed", "failed", "canceled", "terminated", "timed_out", "continued_as_new")
)


@dataclasses.dataclass
class _Answer:
    """The server's answer about one worker. The lock is held while the server is asked."""

    asked_at: float = float("-inf")
    is_lost: bool = False
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)


class WorkerLookup:
    """Asks the server about last workers, for all resumes of a worker. Used in its event loop."""

    def __init__(self, client: Client, this_worker: ThisWorker | None = None) -> None:
        self._client = client
        self._this_worker = this_worker or ThisWorker()
        self._answers: dict[str, _Answer] = {}
        self._requests = asyncio.Semaphore(_REQUESTS_MAX)

    async def is_lost(self, worker: LastWorker) -> bool:
        """Return whether a worker that did not get a run's task has not been shut down either.

        False if the server cannot say, or if the run may have moved here without a crash.
        """
        queue = worker.sticky_queue
        name = worker.identity if queue is None else queue.name
        if not name or not self._this_worker.has_cache:
            return False
        if worker.version != self._this_worker.version:
            return False  # A rollout: the old worker may well be alive.
        answer = self._get_answer(name)
        async with answer.lock:
            if time.monotonic() - answer.asked_at >= _KEPT_SECONDS:
                async with self._requests:
                    asked_at = time.monotonic()
                    answer.is_lost = await self._ask(worker, queue)
                answer.asked_at = asked_at
            return answer.is_lost

    def _get_answer(self, name: str) -> _Answer:
        """Return what is known of a worker. The least recently used answers are dropped."""
        answer = self._answers.pop(name, _Answer())
        self._answers[name] = answer
        while len(self._answers) > _KEPT_WORKERS_MAX:
            del self._answers[next(iter(self._answers))]
        return answer

    async def _ask(self, worker: LastWorker, queue: TaskQueue | None) -> bool:
        try:
            if queue is None:
                return await self._is_listed_as_running(worker)
            return await self._has_pollers(queue)
        except Exception as error:  # noqa: BLE001 - a server may refuse it; the resume goes on
            logger.debug("what became of a run's last worker: %s", type(error).__name__)
            return False

    async def _has_pollers(self, queue: TaskQueue) -> bool:
        described = await self._client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=self._client.namespace,
                task_queue=queue,
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
            ),
            timeout=_LOOKUP_TIMEOUT,
        )
        return len(described.pollers) > 0

    async def _is_listed_as_running(self, worker: LastWorker) -> bool:
        if '"' in worker.identity or "\\" in worker.identity:
            return False  # It cannot be put into a query.
        listed = await self._client.workflow_service.list_workers(
            ListWorkersRequest(
                namespace=self._client.namespace,
                query=f'WorkerIdentity="{worker.identity}"',
                page_size=_LISTED_MAX,
            ),
            timeout=_LOOKUP_TIMEOUT,
        )
        # A process that was started again may have the same identity: the last to start before the
        # task was completed is the one that had the run.
        beats = [each.worker_heartbeat for each in listed.workers_info]
        earlier = [beat for beat in beats if beat.start_time.ToNanoseconds() <= worker.completed_ns]
        if not earlier:
            return False
        last = max(earlier, key=lambda beat: beat.start_time.ToNanoseconds())
        return last.status == WorkerStatus.WORKER_STATUS_RUNNING
