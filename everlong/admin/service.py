"""What can be asked of threads: plain async functions, which every face of Everlong calls."""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowHistoryEventFilterType,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from everlong.errors import MessageRefused, NotAnswered, ServerUnreachable, ThreadNotFound
from everlong.models import (
    AGENT_WORKFLOW,
    SEND_UPDATE,
    STATUS_QUERY,
    Message,
    SendMessage,
    ThreadStart,
    ThreadStatus,
)
from everlong.storage import BlobStore
from everlong.storage.journal import Journal
from everlong.storage.objects import thread_key, thread_prefix

_POLL_SECONDS: Final = 0.2


@dataclasses.dataclass(frozen=True)
class ThreadSize:
    """What a thread takes up."""

    runs: int
    events: int
    history_bytes: int
    """All runs that the server still keeps."""
    blobs: int
    blob_bytes: int


async def send(
    client: Client, thread_id: str, text: str, *, task_queue: str, agent: str | None
) -> int:
    """Send a message and return its number. With an agent, the thread is started if need be."""
    message = SendMessage(text=text)
    try:
        if agent is None:
            handle = client.get_workflow_handle(thread_id)
            number: int = await handle.execute_update(SEND_UPDATE, message, result_type=int)
            return number
        return await _send_with_start(client, thread_id, message, task_queue, agent)
    except WorkflowUpdateFailedError as error:
        raise MessageRefused(f"thread {thread_id!r} refused the message: {error.cause}") from error
    except RPCError as error:
        raise _translated(error, thread_id) from error


async def _send_with_start(
    client: Client, thread_id: str, message: SendMessage, task_queue: str, agent: str
) -> int:
    start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        AGENT_WORKFLOW,
        ThreadStart(agent=agent),
        id=thread_id,
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )
    number: int = await client.execute_update_with_start_workflow(
        SEND_UPDATE, message, start_workflow_operation=start, result_type=int
    )
    return number


async def status(client: Client, thread_id: str) -> ThreadStatus:
    """Return how far a thread is. It needs a worker that runs, as any query does."""
    try:
        found: ThreadStatus = await client.get_workflow_handle(thread_id).query(
            STATUS_QUERY, result_type=ThreadStatus
        )
    except RPCError as error:
        raise _translated(error, thread_id) from error
    return found


async def size(client: Client, store: BlobStore, thread_id: str) -> ThreadSize:
    """Measure a thread: the histories of all its runs, and its blobs."""
    runs = events = history_bytes = 0
    try:
        newest = await client.get_workflow_handle(thread_id).describe()
        run_id = newest.raw_description.workflow_execution_info.first_run_id
        while run_id:
            handle = client.get_workflow_handle(thread_id, run_id=run_id)
            description = await handle.describe()
            info = description.raw_description.workflow_execution_info
            runs += 1
            events += info.history_length
            history_bytes += info.history_size_bytes
            rolled = description.status == WorkflowExecutionStatus.CONTINUED_AS_NEW
            run_id = await _next_run(handle) if rolled else ""
    except RPCError as error:
        raise _translated(error, thread_id) from error
    prefix = thread_prefix(thread_key(client.namespace, thread_id))
    blobs = [info.size_bytes async for info in store.list(prefix)]
    return ThreadSize(runs, events, history_bytes, len(blobs), sum(blobs))


async def messages(client: Client, store: BlobStore, thread_id: str) -> list[Message]:
    """Return a thread's whole conversation, read from its journal."""
    journal = Journal(store, thread_key(client.namespace, thread_id))
    thread = await status(client, thread_id)
    return await journal.messages(await journal.read(thread.head))


async def wait_for_status(
    client: Client,
    thread_id: str,
    done: Callable[[ThreadStatus], bool],
    *,
    seconds_max: float,
    on_status: Callable[[ThreadStatus], None] = lambda _: None,
) -> ThreadStatus:
    """Poll a thread until its status is as wanted. A query adds nothing to its history."""
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        found = await status(client, thread_id)
        on_status(found)
        if done(found):
            return found
        await asyncio.sleep(_POLL_SECONDS)
    raise NotAnswered(
        f"thread {thread_id!r} is not done after {seconds_max:.0f} s. It goes on by itself; see how "
        f"far it is with: everlong show {thread_id}"
    )


def answer(conversation: Sequence[Message], number: int) -> str:
    """Return the text that ended the turn of message `number`."""
    turn = 0
    text = ""
    for message in conversation:
        turn += message.role == "user"
        if turn == number and message.role == "assistant":
            text = message.text
    return text


async def _next_run(handle: WorkflowHandle[Any, Any]) -> str:
    """Return the id of the run that a finished run continued as."""
    closing = handle.fetch_history_events(
        event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT
    )
    async for event in closing:
        return event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return ""


def _translated(error: RPCError, thread_id: str) -> Exception:
    if error.status == RPCStatusCode.NOT_FOUND:
        return ThreadNotFound(
            f"there is no running thread {thread_id!r} in this namespace. Start it with: everlong send "
            f"{thread_id} 'hello' --agent NAME"
        )
    return ServerUnreachable(f"the Temporal server refused: {error.message}")
