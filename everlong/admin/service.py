"""What can be asked of threads: plain async functions, which every face of Everlong calls."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from everlong.errors import (
    EverlongError,
    MessageRefused,
    NotAnswered,
    NoWorker,
    ServerUnreachable,
    ThreadNotFound,
    TurnFailed,
)
from everlong.models import (
    AGENT_WORKFLOW,
    CALL_MODEL,
    RUN_TOOL,
    SEND_UPDATE,
    STATUS_QUERY,
    STOP_SIGNAL,
    Message,
    SendMessage,
    ThreadStart,
    ThreadStatus,
    printable,
)
from everlong.storage import BlobStore
from everlong.storage.journal import Journal
from everlong.storage.objects import thread_key, thread_prefix
from everlong.storage.packstore import PackStore

_POLL_SECONDS: Final = 0.2
# A worker that runs takes a message or a query within milliseconds; a cold one has to replay first.
WORKER_SECONDS_MAX: Final = 20.0


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
    client: Client,
    thread_id: str,
    text: str,
    *,
    task_queue: str,
    agent: str | None = None,
    seconds_max: float = WORKER_SECONDS_MAX,
) -> int:
    """Send a message and return its number. With an agent, the thread is started if need be."""
    message = SendMessage(text=text)
    timeout = timedelta(seconds=seconds_max)
    with _translated(thread_id):
        if agent is None:
            handle = client.get_workflow_handle(thread_id)
            number: int = await handle.execute_update(
                SEND_UPDATE, message, result_type=int, rpc_timeout=timeout
            )
        else:
            number = await client.execute_update_with_start_workflow(
                SEND_UPDATE,
                message,
                start_workflow_operation=_start(thread_id, task_queue, agent),
                result_type=int,
                rpc_timeout=timeout,
            )
    return number


def _start(thread_id: str, task_queue: str, agent: str) -> WithStartWorkflowOperation[Any, Any]:
    return WithStartWorkflowOperation(
        AGENT_WORKFLOW,
        ThreadStart(agent=agent),
        id=thread_id,
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )


async def stop(client: Client, thread_id: str) -> None:
    """Ask a thread to end at its next safe point."""
    with _translated(thread_id):
        await client.get_workflow_handle(thread_id).signal(STOP_SIGNAL)


async def status(client: Client, thread_id: str) -> ThreadStatus:
    """Return how far a thread is. It needs a worker that runs, as any query does."""
    with _translated(thread_id):
        try:
            found: ThreadStatus = await client.get_workflow_handle(thread_id).query(
                STATUS_QUERY,
                result_type=ThreadStatus,
                rpc_timeout=timedelta(seconds=WORKER_SECONDS_MAX),
            )
        except RPCError as error:
            reason = await _failing_task(client, thread_id, error)
            if not reason:
                raise
            raise NoWorker(f"thread {thread_id!r} is held: its tasks fail. {reason}") from error
        if found.status != "working":
            return found
        waits_for = await _what_an_activity_waits_for(client, thread_id)
    return dataclasses.replace(found, status="held", held_by=waits_for) if waits_for else found


async def _failing_task(client: Client, thread_id: str, error: RPCError) -> str:
    """Return why a thread's workflow tasks fail, if that is why it does not answer."""
    if "Workflow Task in failed state" not in error.message:
        return ""
    newest = await client.workflow_service.get_workflow_execution_history_reverse(
        GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(workflow_id=thread_id),
            maximum_page_size=20,
        )
    )
    for event in newest.history.events:
        if event.HasField("workflow_task_failed_event_attributes"):
            return printable(event.workflow_task_failed_event_attributes.failure.message, 500)
    return ""


async def _what_an_activity_waits_for(client: Client, thread_id: str) -> str:
    """Return what the heartbeats of a pending activity say: the workflow does not hear them."""
    description = await client.get_workflow_handle(thread_id).describe()
    for pending in description.raw_description.pending_activities:
        details = await client.data_converter.decode(pending.heartbeat_details.payloads)
        if details and pending.activity_type.name in (CALL_MODEL, RUN_TOOL):
            return str(details[0])
    return ""


async def size(client: Client, store: BlobStore, thread_id: str) -> ThreadSize:
    """Measure a thread: the histories of the runs that the server keeps, and its blobs."""
    runs = events = history_bytes = 0
    run_id: str | None = None  # The newest run.
    while run_id != "":
        try:
            description = await client.get_workflow_handle(thread_id, run_id=run_id).describe()
            run_id = await _previous_run(client, thread_id, description.run_id)
        except RPCError as error:
            if runs and error.status == RPCStatusCode.NOT_FOUND:
                break  # Its retention is over.
            raise _translated_rpc(error, thread_id) from error
        info = description.raw_description.workflow_execution_info
        runs += 1
        events += info.history_length
        history_bytes += info.history_size_bytes
    prefix = thread_prefix(thread_key(client.namespace, thread_id))
    blobs = [info.size_bytes async for info in store.list(prefix)]
    return ThreadSize(runs, events, history_bytes, len(blobs), sum(blobs))


async def messages(client: Client, packs: PackStore, thread_id: str) -> list[Message]:
    """Return a thread's whole conversation, read from its journal."""
    journal = Journal(packs, thread_key(client.namespace, thread_id))
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
    """Poll a thread until its status is as wanted. A query adds nothing to its history.

    Workers and the server may come and go meanwhile.
    """
    deadline = time.monotonic() + seconds_max
    last_known = ""
    while time.monotonic() < deadline:
        try:
            found = await status(client, thread_id)
            on_status(found)
            if done(found):
                return found
            if found.held_by:  # Between two tries it may say nothing.
                last_known = f". It was held last by: {found.held_by}"
            await _check_alive(client, thread_id)
        except NoWorker as error:
            last_known = f". {error}"
            await _check_alive(client, thread_id)
        except ServerUnreachable as error:
            last_known = f". {error}"
        await asyncio.sleep(_POLL_SECONDS)
    raise NotAnswered(
        f"thread {thread_id!r} is not done after {seconds_max:.0f} s. It goes on by itself; see how "
        f"far it is with: everlong show {thread_id}{last_known}"
    )


async def _check_alive(client: Client, thread_id: str) -> None:
    with _translated(thread_id):
        description = await client.get_workflow_handle(thread_id).describe()
    if description.status != WorkflowExecutionStatus.RUNNING:
        ended = description.status.name.lower() if description.status else "unknown"
        raise NotAnswered(f"thread {thread_id!r} has ended before that: {ended}. Start a new one.")


def answer(conversation: Sequence[Message], number: int) -> str:
    """Return the text that ended the turn of message `number`; raise `TurnFailed` if none did."""
    turn = 0
    last = Message(role="failure", text="the message has no turn yet")
    for message in conversation:
        turn += message.role == "user"
        if turn == number:
            last = message
    if last.role == "failure":
        raise TurnFailed(last.text)
    if last.role != "assistant" or last.tool_calls:
        raise TurnFailed("the turn was broken off before the model answered")
    return last.text


async def _previous_run(client: Client, thread_id: str, run_id: str) -> str:
    """Return the id of the run that a run continues, or an empty string."""
    handle = client.get_workflow_handle(thread_id, run_id=run_id)
    async for event in handle.fetch_history_events(page_size=1):
        return event.workflow_execution_started_event_attributes.continued_execution_run_id
    return ""


@contextlib.contextmanager
def _translated(thread_id: str) -> Iterator[None]:
    """Turn the SDK's errors about a thread into ours."""
    try:
        yield
    except WorkflowUpdateFailedError as error:
        raise MessageRefused(f"thread {thread_id!r} refused the message: {error.cause}") from error
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        raise NoWorker(
            f"no worker has taken the message for thread {thread_id!r}. Start one on its task queue. "
            "The message may still arrive, so look before you send it again: "
            f"everlong show {thread_id}"
        ) from error
    except WorkflowQueryFailedError as error:
        raise NoWorker(
            f"thread {thread_id!r} cannot answer: {error}. Its worker's log tells more."
        ) from error
    except RPCError as error:
        raise _translated_rpc(error, thread_id) from error


def _translated_rpc(error: RPCError, thread_id: str) -> EverlongError:
    if error.status == RPCStatusCode.NOT_FOUND and error.message.startswith("Namespace"):
        return ServerUnreachable(f"{error.message} Set TEMPORAL_NAMESPACE.")
    if error.status == RPCStatusCode.NOT_FOUND:
        return ThreadNotFound(
            f"there is no running thread {thread_id!r} in this namespace. Start it with: "
            f"everlong send {thread_id} 'hello' --agent NAME"
        )
    if error.status in (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED):
        return NoWorker(f"no worker answers for thread {thread_id!r}. Start one on its task queue.")
    return ServerUnreachable(f"the Temporal server refused: {error.message}")
