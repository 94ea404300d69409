"""Updates that reach a thread whether or not it is rolling.

An update that meets a roll may fail for its caller though nothing is wrong, or reach both runs. It is
sent again with the same id, which a run takes once; and a thread knows the last messages by their ids.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

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
from everlong.admin.service.translating import is_closed, readable, translated
from everlong.admin.service.watching import WORKER_SECONDS_MAX
from everlong.errors import MessageRefused, NoWorker, ThreadError

T = TypeVar("T")
Start = Callable[[], WithStartWorkflowOperation[Any, Any]]

_PAUSE_SECONDS_MIN: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 1.0
# A worker that resumes a thousand threads at once takes the last of them minutes later.
_BUSY_SECONDS_MAX: Final = 300.0


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
    A worker that has died counts as busy for 90 s, since the server still lists it, so it can take about
    2 minutes until the update is given up. A `watch` that runs already says why no worker takes it;
    without one, there is one here.
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
    update_id = update_id or str(uuid.uuid4())
    give_up = time.monotonic() + (_BUSY_SECONDS_MAX if seconds_max is None else seconds_max)
    async with contextlib.AsyncExitStack() as stack:
        if watch is None:
            watch = await stack.enter_async_context(Watch(client, thread_id))
        while True:
            left_seconds = max(0.0, give_up - time.monotonic())
            if seconds_max is None:
                left_seconds = min(left_seconds, WORKER_SECONDS_MAX)
            try:
                return await _update(
                    client,
                    thread_id,
                    name,
                    argument,
                    result_type,
                    refused,
                    update_id,
                    start,
                    left_seconds,
                    stage,
                )
            except NoWorker as error:
                explained = await watch.explain(error)
                if time.monotonic() >= give_up or not watch.finds_workers:
                    raise explained from error


async def _update(
    client: Client,
    thread_id: str,
    name: str,
    argument: object,
    result_type: type[T],
    refused: type[ThreadError],
    update_id: str,
    start: Start | None,
    seconds_max: float,
    stage: WorkflowUpdateStage,
) -> WorkflowUpdateHandle[T]:
    deadline = time.monotonic() + seconds_max
    pause_seconds = _PAUSE_SECONDS_MIN
    with translated(thread_id, refused), readable(thread_id):
        while True:
            left_seconds = max(0.1, deadline - time.monotonic())
            options: dict[str, Any] = {
                "id": update_id,
                "wait_for_stage": stage,
                "result_type": result_type,
                "rpc_timeout": timedelta(seconds=left_seconds),
            }
            try:
                # The SDK sends an update again that has timed out, with as much time once more. A
                # cancellation by this timeout reaches us as the error that it makes of a time-out.
                async with asyncio.timeout(left_seconds):
                    handle: WorkflowUpdateHandle[T] = await _sent(
                        client, thread_id, name, argument, start, options
                    )
            except WorkflowUpdateRPCTimeoutOrCancelledError:
                raise_if_cancelled()
                # The server's own bound on a request may be shorter than ours.
                if time.monotonic() + pause_seconds > deadline:
                    raise
            except TimeoutError as error:
                raise WorkflowUpdateRPCTimeoutOrCancelledError from error
            except RPCError as error:
                if time.monotonic() + pause_seconds > deadline:
                    raise
                if not await _met_a_roll(client, thread_id, error):
                    raise
            else:
                return handle
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)


async def _sent(
    client: Client,
    thread_id: str,
    name: str,
    argument: object,
    start: Start | None,
    options: dict[str, Any],
) -> Any:
    if start is None:
        handle = client.get_workflow_handle(thread_id)
        return await handle.start_update(name, argument, **options)
    operation = start()
    try:
        return await client.start_update_with_start_workflow(
            name, argument, start_workflow_operation=operation, **options
        )
    except (RPCError, WorkflowAlreadyStartedError, WorkflowUpdateRPCTimeoutOrCancelledError):
        # The operation may hold the error too, and asyncio logs one that nobody has looked at.
        with contextlib.suppress(RPCError, WorkflowAlreadyStartedError, asyncio.CancelledError):
            await operation.workflow_handle()
        raise


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
