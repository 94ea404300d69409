"""Client of a thread that retries lost answers while workers are killed."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from everlong import ThreadStart
from everlong.models import (
    AGENT_WORKFLOW,
    CONFIGURE_UPDATE,
    DECIDE_UPDATE,
    PENDING_QUERY,
    SEND_UPDATE,
    STATUS_QUERY,
    STOP_SIGNAL,
    Approval,
    Configure,
    Control,
    Decide,
    SendMessage,
    ThreadStatus,
)

T = TypeVar("T")

RPC_TIMEOUT = timedelta(seconds=15)
PATIENCE_SECONDS = 90.0


class Refusal(Exception):
    """The thread refused. After more than one try, an earlier try may have succeeded."""

    def __init__(self, reason: str, tries: int) -> None:
        super().__init__(reason)
        self.tries = tries


class Unreachable(Exception):
    """No worker answered a query in time."""


class RetryingClient:
    """Client of one thread."""

    def __init__(self, client: Client, thread_id: str, task_queue: str) -> None:
        self.thread_id = thread_id
        self._client = client
        self._task_queue = task_queue

    @property
    def _handle(self) -> WorkflowHandle[Any, Any]:
        return self._client.get_workflow_handle(self.thread_id)

    async def send(self, text: str) -> int:
        """Send a message; starts the thread if it does not run."""
        update_id = uuid.uuid4().hex

        async def start_and_send() -> int:
            operation: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
                AGENT_WORKFLOW,
                ThreadStart(agent="soak"),
                id=self.thread_id,
                task_queue=self._task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            )
            try:
                number: int = await self._client.execute_update_with_start_workflow(
                    SEND_UPDATE,
                    SendMessage(text=text),
                    start_workflow_operation=operation,
                    id=update_id,
                    result_type=int,
                    rpc_timeout=RPC_TIMEOUT,
                )
            except BaseException:
                # The SDK stores the error for the caller of the handle, and warns if it is never read.
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(operation.workflow_handle(), 0.1)
                raise
            return number

        number, _ = await _until_answered(start_and_send)
        return number

    async def decide(self, approval: str, approve: bool, by: str) -> int:
        """Decide an approval; return the number of tries."""
        return await self._update(DECIDE_UPDATE, Decide(id=approval, approve=approve, by=by))

    async def configure(self, changes: dict[str, Any]) -> None:
        await self._update(CONFIGURE_UPDATE, Configure(changes=changes, by="soak"))

    async def _update(self, name: str, argument: object) -> int:
        update_id = uuid.uuid4().hex
        _, tries = await _until_answered(
            lambda: self._handle.execute_update(
                name, argument, id=update_id, rpc_timeout=RPC_TIMEOUT
            )
        )
        return tries

    async def signal(self, name: str) -> None:
        await self._handle.signal(name, Control(by="soak"))

    async def status(self) -> ThreadStatus:
        status: ThreadStatus = await self._query(STATUS_QUERY, ThreadStatus)
        return status

    async def pending(self) -> list[Approval]:
        """Return pending approvals; none if no worker answers."""
        try:
            found: list[Approval] = await self._query(PENDING_QUERY, list[Approval])
        except Unreachable:
            return []
        return found

    async def _query(self, name: str, result_type: Any) -> Any:
        try:
            return await self._handle.query(name, result_type=result_type, rpc_timeout=RPC_TIMEOUT)
        except (RPCError, WorkflowQueryFailedError) as error:
            raise Unreachable(str(error)) from error

    async def stop(self) -> ThreadStatus:
        """End the thread; return its last status."""
        handle = self._client.get_workflow_handle(self.thread_id, result_type=ThreadStatus)
        await handle.signal(STOP_SIGNAL)
        status: ThreadStatus = await handle.result()
        return status


async def _until_answered(call: Callable[[], Awaitable[T]]) -> tuple[T, int]:
    """Call until there is an answer or a refusal; return it with the number of tries."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    tries = 0
    while True:
        tries += 1
        try:
            return await call(), tries
        except WorkflowUpdateFailedError as error:
            raise Refusal(str(error.cause), tries) from error
        except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError):
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.1)
