"""Updates that reach a thread whether or not it is rolling, and however long a busy worker needs.

An update that meets a roll may fail for its caller though nothing is wrong, or reach both runs. It is
sent again with the same id, which a run takes once; and a thread knows the last messages by their ids.

The server keeps an update that no worker has taken yet, in memory. So it is sent once, and then polled
for, which costs the server less than to be sent again and again.
"""

import asyncio
import contextlib
import dataclasses
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage
from temporalio.api.update.v1 import UpdateRef, WaitPolicy
from temporalio.api.workflowservice.v1 import PollWorkflowExecutionUpdateRequest
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionStatus,
    WorkflowUpdateHandle,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateStage,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from everlong.admin.service.diagnosis import Watch
from everlong.admin.service.follower import long_polls
from everlong.admin.service.translating import is_closed, readable, translated
from everlong.admin.service.watching import WORKER_SECONDS_MAX
from everlong.errors import MessageRefused, NoWorker, ThreadError

T = TypeVar("T")
Start = Callable[[], WithStartWorkflowOperation[Any, Any]]

# After this long an update that was sent is polled for. The server answers within 20 s without news, and
# the SDK would then send the update again.
_SENT_SECONDS_MAX: Final = 15.0
_POLL_SECONDS_MAX: Final = 60.0
_STAGES: Final = {
    WorkflowUpdateStage.ACCEPTED: (
        UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ACCEPTED
    ),
    WorkflowUpdateStage.COMPLETED: (
        UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED
    ),
}
_PAUSE_SECONDS_MIN: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 1.0
# A worker that resumes a thousand threads at once takes the last of them minutes later.
_BUSY_SECONDS_MAX: Final = 300.0
# Between two checks whether workers that were busy are still there.
_BUSY_CHECK_SECONDS: Final = 60.0


async def update(
    client: Client,
    thread_id: str,
    name: str,
    argument: object,
    result_type: type[T],
    *,
    refused: type[ThreadError] = MessageRefused,
    update_id: str = "",
    start: Start | None = None,
    seconds_max: float | None = None,
    watch: Watch | None = None,
) -> T:
    """Send an update and return its result. With `start`, the thread is started if need be.

    By default it is given up after 20 s if there is no worker, and after 5 minutes if workers are busy.
    A worker that has died counts as busy for 90 s, since the server still lists it, so it can take up to
    2 and a half minutes until the update is given up. A `watch` that runs already says why no worker
    takes it; without one, there is one here.
    """
    handle = await start_update(
        client,
        thread_id,
        name,
        argument,
        result_type,
        refused=refused,
        update_id=update_id,
        start=start,
        seconds_max=seconds_max,
        watch=watch,
        stage=WorkflowUpdateStage.COMPLETED,
    )
    with translated(thread_id, refused), readable(thread_id):
        return await handle.result()  # It is known: the server is not asked again.


async def start_update(
    client: Client,
    thread_id: str,
    name: str,
    argument: object,
    result_type: type[T],
    *,
    refused: type[ThreadError] = MessageRefused,
    update_id: str = "",
    start: Start | None = None,
    seconds_max: float | None = None,
    watch: Watch | None = None,
    stage: WorkflowUpdateStage = WorkflowUpdateStage.ACCEPTED,
) -> WorkflowUpdateHandle[T]:
    """Send an update and return its handle, once the thread has accepted or refused it. See `update`."""
    give_up = time.monotonic() + (_BUSY_SECONDS_MAX if seconds_max is None else seconds_max)
    request = _Update(
        client, thread_id, name, argument, result_type, update_id or str(uuid.uuid4()), start, stage
    )
    check_seconds = WORKER_SECONDS_MAX
    async with contextlib.AsyncExitStack() as stack:
        if watch is None:
            watch = await stack.enter_async_context(Watch(client, thread_id))
        while True:
            left_seconds = max(0.0, give_up - time.monotonic())
            if seconds_max is None:
                left_seconds = min(left_seconds, check_seconds)
            try:
                with translated(thread_id, refused), readable(thread_id):
                    return await request.deliver(left_seconds)
            except NoWorker as error:
                explained = await watch.explain(error)
                if time.monotonic() >= give_up or not watch.finds_workers:
                    raise explained from error
                check_seconds = _BUSY_CHECK_SECONDS


@dataclasses.dataclass
class _Update(Generic[T]):
    """An update, and whether the server may have it already."""

    client: Client
    thread_id: str
    name: str
    argument: object
    result_type: type[T]
    id: str
    start: Start | None
    stage: WorkflowUpdateStage
    is_sent: bool = False

    async def deliver(self, seconds_max: float) -> WorkflowUpdateHandle[T]:
        """Send the update, or poll for it; return its handle once it has reached its stage."""
        deadline = time.monotonic() + seconds_max
        pause_seconds = _PAUSE_SECONDS_MIN
        while True:
            left_seconds = max(0.1, deadline - time.monotonic())
            try:
                # The SDK sends an update again that has timed out, with as much time once more. A
                # cancellation by this timeout reaches us as the error that it makes of a time-out.
                async with asyncio.timeout(left_seconds):
                    handle = await (self._poll() if self.is_sent else self._send(left_seconds))
                if handle is not None:
                    return handle
            except WorkflowUpdateRPCTimeoutOrCancelledError:
                raise_if_cancelled()
                self.is_sent = True
                # The server's own bound on a request may be shorter than ours.
                if time.monotonic() + pause_seconds > deadline:
                    raise
            except TimeoutError as error:
                raise WorkflowUpdateRPCTimeoutOrCancelledError from error
            except RPCError as error:
                if time.monotonic() + pause_seconds > deadline:
                    raise
                if not await _met_a_roll(self.client, self.thread_id, error):
                    raise
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)

    async def _send(self, seconds_max: float) -> WorkflowUpdateHandle[T]:
        options: dict[str, Any] = {
            "id": self.id,
            "wait_for_stage": self.stage,
            "result_type": self.result_type,
            "rpc_timeout": timedelta(seconds=min(seconds_max, _SENT_SECONDS_MAX)),
        }
        if self.start is None:
            handle = self.client.get_workflow_handle(self.thread_id)
            return await handle.start_update(self.name, self.argument, **options)
        operation = self.start()
        try:
            return await self.client.start_update_with_start_workflow(
                self.name, self.argument, start_workflow_operation=operation, **options
            )
        except (RPCError, WorkflowAlreadyStartedError, WorkflowUpdateRPCTimeoutOrCancelledError):
            # The operation may hold the error too, and asyncio logs one that was not retrieved.
            with contextlib.suppress(RPCError, WorkflowAlreadyStartedError, asyncio.CancelledError):
                await operation.workflow_handle()
            raise

    async def _poll(self) -> WorkflowUpdateHandle[T] | None:
        """Make one long poll; return None if the update has not reached its stage yet.

        If the server does not know the update, as after a restart, it is sent again next.
        """
        polls = long_polls(self.client)
        if polls.are_too_many and not await polls.is_free_within(_POLL_SECONDS_MAX):
            return None
        request = poll_request(self.client, self.thread_id, self.id)
        request.wait_policy.CopyFrom(WaitPolicy(lifecycle_stage=_STAGES[self.stage]))
        try:
            with polls.counted():
                found = await self.client.workflow_service.poll_workflow_execution_update(
                    request, timeout=timedelta(seconds=_POLL_SECONDS_MAX)
                )
        except RPCError as error:
            if error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
                return None
            self.is_sent = False
            if error.status == RPCStatusCode.NOT_FOUND:
                return None
            raise
        if found.stage < _STAGES[self.stage]:
            return None
        return WorkflowUpdateHandle(
            self.client,
            self.id,
            self.thread_id,
            workflow_run_id=found.update_ref.workflow_execution.run_id,
            result_type=self.result_type,
            known_outcome=found.outcome if found.HasField("outcome") else None,
        )


def poll_request(
    client: Client, thread_id: str, update_id: str, run_id: str = ""
) -> PollWorkflowExecutionUpdateRequest:
    """Return a request that asks for an update of one run, or of the newest."""
    return PollWorkflowExecutionUpdateRequest(
        namespace=client.namespace,
        update_ref=UpdateRef(
            workflow_execution=WorkflowExecution(workflow_id=thread_id, run_id=run_id),
            update_id=update_id,
        ),
        identity=client.identity,
    )


def raise_if_cancelled() -> None:
    """Be cancelled after all: the SDK makes a time-out of it, after which one might try again."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _met_a_roll(client: Client, thread_id: str, error: RPCError) -> bool:
    """Tell whether an update failed only because the run that it was for is ending."""
    if error.status == RPCStatusCode.FAILED_PRECONDITION:
        return True
    if not is_closed(error):
        return False
    description = await client.get_workflow_handle(thread_id).describe()
    return description.status == WorkflowExecutionStatus.RUNNING
