"""Updates that reach a thread whether or not it is rolling, and however long a busy worker needs.

An update that meets a roll may fail for its caller though nothing is wrong, or reach both runs. It is
sent again with the same id, which a run takes once; and a thread knows the last messages by their ids.

The server keeps an update that no worker has taken yet, in memory. So it is sent once, and then polled
for, which costs the server less than to be sent again and again.
"""

import asyncio
import contextlib
import dataclasses
import random
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

from pydantic_core import to_json
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage
from temporalio.api.update.v1 import Outcome, UpdateRef, WaitPolicy
from temporalio.api.workflowservice.v1 import PollWorkflowExecutionUpdateRequest
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionStatus,
    WorkflowUpdateHandle,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateStage,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from everlong import limits
from everlong.client.diagnosis import Report, Watch
from everlong.client.errors import (
    check_argument,
    explain_unreadable,
    is_closed,
    translate_errors,
    translate_rpc_error,
)
from everlong.client.follower import get_long_polls, make_decoder, pause_after
from everlong.client.search_attributes import has_attributes, require_labels
from everlong.client.status import WORKER_SECONDS_MAX, open_journal
from everlong.errors import ControlRefused, MessageRefused, NoWorker, ThreadError, ThreadNotFound
from everlong.models import (
    AGENT_WORKFLOW,
    SEND_UPDATE,
    Control,
    ControlNote,
    Kind,
    Message,
    SendMessage,
    ThreadStart,
    TurnEnd,
    make_printable,
)
from everlong.models.labels import ChangeLabels, change_labels
from everlong.models.search_attributes import build_label_attributes, build_start_attributes
from everlong.models.thread_ids import check_id, check_new_id, is_new_id
from everlong.storage.context_store import write_message
from everlong.storage.pack_store import PackStore

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
    with translate_errors(thread_id, refused), explain_unreadable(thread_id):
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
        client,
        thread_id,
        name,
        argument,
        result_type,
        update_id or str(uuid.uuid4()),
        start,
        stage,
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
                with translate_errors(thread_id, refused), explain_unreadable(thread_id):
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
                if not await _has_met_roll(self.client, self.thread_id, error):
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
        polls = get_long_polls(self.client)
        if polls.are_too_many and not await polls.is_free_within(_POLL_SECONDS_MAX):
            return None
        request = build_poll_request(self.client, self.thread_id, self.id)
        request.wait_policy.CopyFrom(WaitPolicy(lifecycle_stage=_STAGES[self.stage]))
        try:
            with polls.count_one():
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


async def send_signal(
    client: Client, thread_id: str, name: str, argument: Control | ControlNote
) -> None:
    """Send a signal. The server stores it; the thread acts on it at its next task."""
    with translate_errors(thread_id, ControlRefused):
        await client.get_workflow_handle(thread_id).signal(name, argument)


def build_poll_request(
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
    """Raise `CancelledError`: the SDK turns a cancellation into a time-out, which would be retried."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _has_met_roll(client: Client, thread_id: str, error: RPCError) -> bool:
    """Whether an update failed only because its run is ending."""
    if error.status == RPCStatusCode.FAILED_PRECONDITION:
        return True
    if not is_closed(error):
        return False
    description = await client.get_workflow_handle(thread_id).describe()
    return description.status == WorkflowExecutionStatus.RUNNING


# Three times what the server takes for a long poll without news.
_OUTCOME_POLL_SECONDS_MAX: Final = timedelta(seconds=60)
_ASK_SECONDS_MAX: Final = timedelta(seconds=10)
# While the connection has too many long polls, a wait takes the place of the next one that ends: within
# 20 s, with twice as many waits as long polls. Until then the update is checked from time to time.
_LOOK_SECONDS_MIN: Final = 10.0
_LOOK_SECONDS_MAX: Final = 60.0
_LOOK_FACTOR: Final = 2.0
# A long poll that ends sooner without an outcome counts as a failure, to avoid a busy loop.
_SHORT_SECONDS: Final = 1.0
# The server may answer again after these. After any other, the update is lost.
_TRANSIENT: Final = frozenset(
    {
        RPCStatusCode.UNAVAILABLE,
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.CANCELLED,
        RPCStatusCode.RESOURCE_EXHAUSTED,
        RPCStatusCode.ABORTED,
        RPCStatusCode.INTERNAL,
        RPCStatusCode.UNKNOWN,
    }
)
# The server's failure of an update whose run closed before the handler had finished.
_RUN_CLOSED: Final = "AcceptedUpdateCompletedWorkflow"
_STAGE_COMPLETED: Final = (
    UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED
)
_AT_ONCE: Final = (
    UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_UNSPECIFIED
)


async def poll_turn_end(
    client: Client,
    handle: WorkflowUpdateHandle[TurnEnd],
    on_problem: Callable[[str], None],
) -> TurnEnd | None:
    """Wait until a `send` update completes; return its result, or None if the server has lost it.

    `on_problem` is called with the reason when the server cannot be asked. Raises `MessageRefused` if
    the thread has refused the message.
    """
    thread_id = handle.workflow_id
    outcome = await _poll_outcome(client, handle, on_problem)
    if outcome is not None and outcome.HasField("success"):
        with explain_unreadable(thread_id):
            found: TurnEnd = await make_decoder(client, thread_id)(
                outcome.success.payloads, TurnEnd, None
            )
        return found
    if outcome is not None and outcome.failure.application_failure_info.type == _RUN_CLOSED:
        return None
    with translate_errors(thread_id), explain_unreadable(thread_id):
        try:
            # The server does not keep an update that was refused. The handle knows it by itself.
            return await handle.result(rpc_timeout=_ASK_SECONDS_MAX)
        except WorkflowUpdateRPCTimeoutOrCancelledError:
            raise_if_cancelled()
            return None
        except RPCError:
            return None


async def _poll_outcome(
    client: Client, handle: WorkflowUpdateHandle[TurnEnd], on_problem: Callable[[str], None]
) -> Outcome | None:
    """Return the outcome of an update; None if the server does not know the update."""
    request = build_poll_request(
        client, handle.workflow_id, handle.id, handle.workflow_run_id or ""
    )
    polls = get_long_polls(client)
    looks = failures = 0
    while True:
        is_long = not polls.are_too_many or await polls.is_free_within(_compute_look_seconds(looks))
        looks = 0 if is_long else looks + 1
        stage = _STAGE_COMPLETED if is_long else _AT_ONCE
        request.wait_policy.CopyFrom(WaitPolicy(lifecycle_stage=stage))
        begun = time.monotonic()
        try:
            # A look at the update takes no place: it is answered at once.
            with polls.count_one() if is_long else contextlib.nullcontext():
                found = await client.workflow_service.poll_workflow_execution_update(
                    request, timeout=_OUTCOME_POLL_SECONDS_MAX
                )
        except RPCError as error:
            if error.status not in _TRANSIENT:
                return None
            # A long poll without an answer is no problem.
            if error.status not in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
                on_problem(str(translate_rpc_error(error, handle.workflow_id)))
        else:
            if found.HasField("outcome"):
                return found.outcome
            if not is_long or time.monotonic() - begun >= _SHORT_SECONDS:
                failures = 0
                continue
        await pause_after(failures)
        failures += 1


def _compute_look_seconds(looks: int) -> float:
    """Return how long to wait for a long poll before the next look: longer each time, in bounds."""
    seconds = min(_LOOK_SECONDS_MIN * _LOOK_FACTOR ** min(looks, 10), _LOOK_SECONDS_MAX)
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311


# Half of what one message may take of the state, so that a few short ones never fill the inbox.
_INLINE_BYTES_MAX: Final = limits.MESSAGE_BYTES_MAX // 2


async def send(
    client: Client,
    thread_id: str,
    text: str,
    *,
    task_queue: str,
    agent: str | None = None,
    packs: PackStore | None = None,
    message_id: str = "",
    by: str = "",
    seconds_max: float | None = None,
    on_wait: Report | None = None,
    labels: Sequence[str] = (),
) -> int:
    """Send a message and return its number. With an agent, the thread is started if need be.

    A thread that this starts gets the `labels`; one that exists keeps its own.

    A text over 8 KiB needs `packs`. What was sent with a `message_id` can be sent again with it, say
    after a time-out: it is one message. `by` is who sends it, for the journal. `on_wait` is called
    with what the thread waits for, if no worker takes the message within seconds. Without `seconds_max`
    it is given up after 20 s if there is no worker, up to 2.5 minutes after the last worker has died
    (the server lists it for a while), and after 5 minutes if workers are busy.
    """
    await check_startable(client, thread_id, agent)
    if labels:
        labels = check_argument(ControlRefused, lambda: ChangeLabels(add=tuple(labels))).add
        await require_labels(client)
    message = await store_message(client, packs, thread_id, text, message_id)
    message = dataclasses.replace(message, by=make_printable(by, limits.CALL_NAME_CHARS_MAX))
    async with Watch(client, thread_id, on_wait) as watch:
        return await deliver(
            client,
            thread_id,
            message,
            task_queue=task_queue,
            agent=agent,
            seconds_max=seconds_max,
            watch=watch,
            labels=change_labels((), labels, ()),
        )


async def store_message(
    client: Client, packs: PackStore | None, thread_id: str, text: str, message_id: str = ""
) -> SendMessage:
    """Return a message to send. A long text is stored first, and the message holds its ref."""
    # An id in any case: the SDK may send an update twice that meets a roll.
    message = check_argument(
        MessageRefused, lambda: SendMessage(id=message_id or uuid.uuid4().hex, text="")
    )
    text = text.encode(errors="replace").decode()  # Lone surrogates cannot be stored.
    if not text.strip():
        raise MessageRefused("the message is empty; send some words")
    size_bytes = len(to_json(text))
    if size_bytes > limits.TEXT_BYTES_MAX:
        raise MessageRefused(
            f"the message has {size_bytes} bytes as JSON; {limits.TEXT_BYTES_MAX} is the most. Put it "
            "where a tool can read it, and send its path or link."
        )
    if size_bytes <= _INLINE_BYTES_MAX:
        return dataclasses.replace(message, text=text)
    if packs is None:
        if size_bytes <= limits.MESSAGE_BYTES_MAX:
            return dataclasses.replace(message, text=text)
        raise MessageRefused(
            f"the message has {size_bytes} bytes as JSON; {limits.MESSAGE_BYTES_MAX} is the most to "
            "send without a store. Give `packs`, the store of the workers, to send a longer one."
        )
    entry, stored_bytes = await write_message(
        open_journal(client, packs, thread_id),
        Kind.MESSAGE,
        Message(role="user", text=text),
        time.time_ns() // 1_000_000,
        limits.SHOWN_BYTES_MAX,
    )
    return dataclasses.replace(
        message, ref=entry.ref, original=entry.original, stored_bytes=stored_bytes
    )


async def deliver(
    client: Client,
    thread_id: str,
    message: SendMessage,
    *,
    task_queue: str,
    agent: str | None,
    seconds_max: float | None = None,
    watch: Watch | None = None,
    update_id: str = "",
    labels: Sequence[str] = (),
) -> int:
    """Queue a message and return its number, once it is durable.

    The update has the message's id, unless `update_id` names another: the server takes two updates with
    one id for the same request, and the thread takes two messages with one id for the same message.
    """
    return await update(
        client,
        thread_id,
        SEND_UPDATE,
        dataclasses.replace(message, agent=agent or ""),
        int,
        update_id=update_id or message.id,
        start=await _make_start(client, thread_id, task_queue, agent, labels),
        seconds_max=seconds_max,
        watch=watch,
    )


async def start_turn_update(
    client: Client,
    thread_id: str,
    message: SendMessage,
    *,
    task_queue: str,
    agent: str | None,
    seconds_max: float | None = None,
    watch: Watch | None = None,
) -> WorkflowUpdateHandle[TurnEnd]:
    """Send a message by an update that completes with its turn; return once the thread has accepted it.

    The update completes earlier if the caller should look at the thread: see `AgentWorkflow.send`.
    """
    return await start_update(
        client,
        thread_id,
        SEND_UPDATE,
        dataclasses.replace(message, agent=agent or "", until_answered=True),
        TurnEnd,
        update_id=message.id,
        start=await _make_start(client, thread_id, task_queue, agent),
        seconds_max=seconds_max,
        watch=watch,
    )


async def check_startable(client: Client, thread_id: str, agent: str | None) -> bool:
    """Whether a message may start the thread; raise if it may not and the thread does not exist.

    A thread that another program has started under any id still takes messages.
    """
    check_id(thread_id)
    if agent is None:
        return False
    if is_new_id(thread_id):
        return True
    try:
        with translate_errors(thread_id):
            await client.get_workflow_handle(thread_id).describe()
    except ThreadNotFound:
        check_new_id(thread_id)
    return False


async def _make_start(
    client: Client,
    thread_id: str,
    task_queue: str,
    agent: str | None,
    labels: Sequence[str] = (),
) -> Start | None:
    """Return what starts a thread, if it is not there; None if it has to be there."""
    if agent is None or not await check_startable(client, thread_id, agent):
        return None
    attributes = (
        build_start_attributes(agent, labels)
        if await has_attributes(client)
        else build_label_attributes(labels)
    )
    return lambda: WithStartWorkflowOperation(
        AGENT_WORKFLOW,
        ThreadStart(agent=agent),
        id=thread_id,
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        # An id is never reused: a second thread under it would share the first one's place in the store.
        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        search_attributes=attributes,
    )
