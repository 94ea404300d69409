"""The worker that had a run last, and whether it is gone without having been shut down.

A worker that is killed leaves no event in the history of a thread at rest. The server sends the next
query or task to another worker: at once if no worker has polled the sticky queue for 10 s, else after
the sticky timeout, and of these only the timeout of a task is an event. But a worker that shuts down
tells the server. The server then drops its sticky queue with the pollers, and lists the worker as shut
down, if it takes heartbeats of workers. Of a worker that was killed, the pollers are listed for 5
minutes more, and the worker as running until its heartbeats are forgotten.
"""

import asyncio
import dataclasses
import logging
import time
from datetime import timedelta
from typing import Final

from temporalio.api.enums.v1 import TaskQueueKind, TaskQueueType, WorkerStatus
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, ListWorkersRequest
from temporalio.client import Client

logger = logging.getLogger(__name__)

_LOOKUP_TIMEOUT: Final = timedelta(seconds=5)
_LISTED_MAX: Final = 100
# In a storm of resumes, the threads of one dead worker share one request.
_KEPT_SECONDS: Final = 10.0
_KEPT_WORKERS_MAX: Final = 64


@dataclasses.dataclass
class LastWorker:
    """The worker that completed the last workflow task of a history, as far as it has been read."""

    identity: str = ""
    completed_ns: int = 0
    """When it completed that task."""
    is_closed: bool = False
    """Whether the run has ended. Workers drop such runs, so a later query is always a resume."""
    _queue: TaskQueue | None = None
    _queue_owner: str = ""

    def note(self, kind: str, event: HistoryEvent) -> None:
        """Take in the next event; `kind` names its attributes."""
        if kind == "workflow_task_completed_event_attributes":
            self.identity = event.workflow_task_completed_event_attributes.identity
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


class WorkerLookup:
    """Asks the server about last workers, for all resumes of a worker. Used in its event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, tuple[float, bool]] = {}
        self._lock = asyncio.Lock()

    async def is_lost(self, worker: LastWorker) -> bool:
        """Return whether a worker that did not get a run's task has not been shut down either.

        False if the server cannot say: a crash is counted only where there is a sign of one.
        """
        queue = worker.sticky_queue
        name = worker.identity if queue is None else queue.name
        if not name:
            return False
        async with self._lock:
            asked_at, found = self._known.pop(name, (float("-inf"), False))
            if time.monotonic() - asked_at >= _KEPT_SECONDS:
                asked_at, found = time.monotonic(), await self._ask(worker, queue)
            self._known[name] = (asked_at, found)
            while len(self._known) > _KEPT_WORKERS_MAX:
                del self._known[next(iter(self._known))]
            return found

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
