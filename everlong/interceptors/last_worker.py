"""Last worker of a run: asks the server whether it went away without a shutdown.

A killed worker leaves no event in the history of an idle thread. The server sends the next query or task
to another worker: at once if no worker has polled the sticky queue for 10 s, else after the sticky
timeout. Only the timeout of a task is an event. But a worker that shuts down reports that to the
server, which then drops its sticky queue with the pollers and, if worker heartbeats are enabled, lists
the worker as shut down. After a kill, the pollers stay listed for 5 minutes, and the worker is listed as
running until its heartbeats expire.

Two moves of a run look like a crash but are not, since the last worker goes on polling: a rollout with
worker versioning, and any task of workers without a workflow cache.
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
# Concurrent requests, each for another worker. At 10 ms each, that is 800 workers a second.
_REQUESTS_MAX: Final = 8
# When a worker has died, the resumes of all its threads share one request.
_KEPT_SECONDS: Final = 10.0
_KEPT_WORKERS_MAX: Final = 64


@dataclasses.dataclass(frozen=True)
class ThisWorker:
    """Settings of the resuming worker that may explain why a run moved to it."""

    version: tuple[str, str] = ("", "")
    """Deployment name and build id; empty without worker versioning."""
    has_cache: bool = True
    """Whether the worker caches workflows. Without a cache it has no sticky queue."""

    @classmethod
    def from_config(cls, config: WorkerConfig) -> Self:
        """Return the settings of a worker's configuration."""
        deployment = config.get("deployment_config")
        version = ("", "")
        if deployment is not None and deployment.use_worker_versioning:
            version = (deployment.version.deployment_name, deployment.version.build_id)
        return cls(version=version, has_cache=config.get("max_cached_workflows") != 0)


@dataclasses.dataclass
class LastWorker:
    """The worker that completed the last workflow task in the history read so far."""

    identity: str = ""
    completed_ns: int = 0
    """Time at which the worker completed that task, in Unix nanoseconds."""
    version: tuple[str, str] = ("", "")
    """Deployment name and build id of the worker; empty without worker versioning."""
    is_closed: bool = False
    """Whether the run has ended. Workers evict such runs, so a later query is always a resume."""
    _queue: TaskQueue | None = None
    _queue_owner: str = ""

    def add_event(self, kind: str, event: HistoryEvent) -> None:
        """Update from the next event; `kind` is the field name of its attributes."""
        if kind == "workflow_task_completed_event_attributes":
            completed = event.workflow_task_completed_event_attributes
            version = completed.deployment_version
            self.identity = completed.identity
            self.version = (version.deployment_name, version.build_id)
            self.completed_ns = event.event_time.ToNanoseconds()
        elif kind == "workflow_task_scheduled_event_attributes":
            queue = event.workflow_task_scheduled_event_attributes.task_queue
            if queue.kind == TaskQueueKind.TASK_QUEUE_KIND_STICKY:
                # The queue belongs to the worker that completed the previous task.
                self._queue, self._queue_owner = queue, self.identity
        elif kind in _ENDS:
            self.is_closed = True

    @property
    def sticky_queue(self) -> TaskQueue | None:
        """The worker's sticky queue; None if no event names it, since it has done only one task."""
        return self._queue if self.identity and self._queue_owner == self.identity else None


_ENDS: Final = frozenset(
    f"workflow_execution_{end}_event_attributes"
    for end in ("completed", "failed", "canceled", "terminated", "timed_out", "continued_as_new")
)


@dataclasses.dataclass
class _Answer:
    """The server's answer about one worker. The lock is held during the request."""

    asked_at: float = float("-inf")
    is_lost: bool = False
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)


class WorkerLookup:
    """Look-ups of last workers, for all resumes of this worker. Used in its event loop."""

    def __init__(self, client: Client, this_worker: ThisWorker | None = None) -> None:
        self._client = client
        self._this_worker = this_worker or ThisWorker()
        self._answers: dict[str, _Answer] = {}
        self._requests = asyncio.Semaphore(_REQUESTS_MAX)

    async def is_lost(self, worker: LastWorker) -> bool:
        """Return whether the last worker of a run went away without a shutdown.

        False if the server does not know, or if the run may have moved here without a crash.
        """
        queue = worker.sticky_queue
        name = worker.identity if queue is None else queue.name
        if not name or not self._this_worker.has_cache:
            return False
        if worker.version != self._this_worker.version:
            return False  # A rollout: the old worker may be alive.
        answer = self._get_answer(name)
        async with answer.lock:
            if time.monotonic() - answer.asked_at >= _KEPT_SECONDS:
                async with self._requests:
                    asked_at = time.monotonic()
                    answer.is_lost = await self._request(worker, queue)
                answer.asked_at = asked_at
            return answer.is_lost

    def _get_answer(self, name: str) -> _Answer:
        """Return the cached answer about a worker. The least recently used answers are dropped."""
        answer = self._answers.pop(name, _Answer())
        self._answers[name] = answer
        while len(self._answers) > _KEPT_WORKERS_MAX:
            del self._answers[next(iter(self._answers))]
        return answer

    async def _request(self, worker: LastWorker, queue: TaskQueue | None) -> bool:
        try:
            if queue is None:
                return await self._is_listed_as_running(worker)
            return await self._has_pollers(queue)
        except Exception as error:  # noqa: BLE001 - a server may reject the request; the resume goes on
            logger.debug("the look-up of a run's last worker failed: %s", type(error).__name__)
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
            return False  # The identity cannot be quoted in a query.
        listed = await self._client.workflow_service.list_workers(
            ListWorkersRequest(
                namespace=self._client.namespace,
                query=f'WorkerIdentity="{worker.identity}"',
                page_size=_LISTED_MAX,
            ),
            timeout=_LOOKUP_TIMEOUT,
        )
        # A restarted process may have the same identity. The run was on the last process that started
        # before the task was completed.
        beats = [each.worker_heartbeat for each in listed.workers_info]
        earlier = [beat for beat in beats if beat.start_time.ToNanoseconds() <= worker.completed_ns]
        if not earlier:
            return False
        last = max(earlier, key=lambda beat: beat.start_time.ToNanoseconds())
        return last.status == WorkerStatus.WORKER_STATUS_RUNNING
