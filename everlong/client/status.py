"""Status of a thread, its pending approvals, and its journal. Nothing here adds to a history."""

import collections
import dataclasses
import re
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from pydantic_core import to_json
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
)
from temporalio.service import RPCError

from everlong import limits
from everlong.client.errors import explain_unreadable, translate_errors
from everlong.errors import EntryNotFound, NoWorker
from everlong.models import (
    AGENT_WORKFLOW,
    GRANTS_QUERY,
    OUTCOMES_QUERY,
    PENDING_QUERY,
    STATUS_QUERY,
    Approval,
    Edit,
    Grant,
    Kind,
    Ref,
    Retry,
    Status,
    ThreadStatus,
    UnknownOutcome,
    call_digest,
    choose_status,
    find_hold_cause,
    make_printable,
    thread_key,
)
from everlong.models.names import UNJOURNALLED_QUERY
from everlong.models.state import Unjournalled
from everlong.models.status import CALLS, ENDED, read_end
from everlong.models.thread_ids import quote_id
from everlong.models.tools import EDITED_ARGUMENTS
from everlong.storage.journal import Journal
from everlong.storage.pack_store import PackStore

T = TypeVar("T")

# A worker that runs takes a message or a query within milliseconds; a cold one has to replay first.
WORKER_SECONDS_MAX: Final = 20.0
_OUR_ACTIVITIES: Final = "everlong."
# Causes of a failure that are shown.
_CAUSES_MAX: Final = 5
# An approval's id: the seq of its reply, the number of the call, the call's digest, and the number of a
# change of its arguments. An outcome's id ends with the number of the attempt.
_PLACE: Final = re.compile(r"([1-9]\d*)-([1-9]\d*)-([0-9a-f]+)(?:-r?[1-9]\d*)?")


async def read_status(client: Client, thread_id: str) -> ThreadStatus:
    """Return a thread's status. It needs a running worker, unless the thread was stopped."""
    found, _ = await observe(client, thread_id)
    return found


async def observe(
    client: Client, thread_id: str
) -> tuple[ThreadStatus, WorkflowExecutionDescription]:
    """Return a thread's status, and the server's description from just before it."""
    with translate_errors(thread_id):
        # First, so that the description is not newer than the status.
        description = await client.get_workflow_handle(thread_id).describe()
    return await read_described_status(client, description), description


async def read_described_status(
    client: Client, description: WorkflowExecutionDescription
) -> ThreadStatus:
    """Return a thread's status now. The description is from just before."""
    found = await read_answer(client, description)
    return await refine_status(client, found, description.raw_description.pending_activities)


async def read_answer(client: Client, description: WorkflowExecutionDescription) -> ThreadStatus:
    """Return a thread's own answer, or its result once it has ended."""
    thread_id = description.id
    completed = description.status == WorkflowExecutionStatus.COMPLETED
    with translate_errors(thread_id), explain_unreadable(thread_id):
        if completed and description.workflow_type == AGENT_WORKFLOW:
            handle = client.get_workflow_handle(thread_id, result_type=ThreadStatus)
            result: ThreadStatus = await handle.result()
            return result
        found = await get_answer(
            client, STATUS_QUERY, description, lambda: _query_status(client, thread_id)
        )
        ended = describe_end(description)
        if ended and not completed:
            status, reason = read_end(ended)
            found = dataclasses.replace(found, status=status, reason=reason)
    return found


async def refine_status(
    client: Client, found: ThreadStatus, activities: Sequence[PendingActivityInfo]
) -> ThreadStatus:
    """Return a status with what a thread does not see: its activities' attempts and heartbeats."""
    if found.status in ENDED:
        return found
    retries = await read_retries(client, activities)
    held_by = await read_held_reason(client, activities)
    candidates = [found.status]
    candidates += [Status.HELD] if held_by else []
    candidates += [Status.RETRYING] if retries else []
    status, reason = choose_status(candidates), found.reason
    if held_by and status == Status.HELD:
        reason = find_hold_cause(held_by)
    elif status == Status.RETRYING and retries:
        reason = retries[0].call
    return dataclasses.replace(
        found,
        status=status,
        reason=reason,
        held_by=held_by or found.held_by,
        retries=retries,
    )


async def read_retries(
    client: Client, activities: Iterable[PendingActivityInfo]
) -> tuple[Retry, ...]:
    """Return the calls of a thread that have failed and are tried again."""
    found = []
    for each in activities:
        if (call := CALLS.get(each.activity_type.name)) and each.attempt > 1:
            waits = each.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
            next_ms = each.next_attempt_schedule_time.ToMilliseconds() if waits else 0
            found.append(
                Retry(
                    call=call,
                    attempt=each.attempt,
                    attempts_max=each.maximum_attempts,
                    error=await _describe_failure(client, each.last_failure),
                    next_ms=next_ms or None,
                )
            )
    return tuple(found)


async def _describe_failure(client: Client, failure: Failure) -> str:
    """Return the messages of a failure. A team's converter may have encoded them."""
    texts: list[str] = []
    try:
        error: BaseException | None = await client.data_converter.decode_failure(failure)
        while error is not None and len(texts) < _CAUSES_MAX:
            texts.append(str(getattr(error, "message", error)))
            error = error.__cause__
    except Exception:  # noqa: BLE001 - a codec may fail in any way; the rest of the status is known
        texts = [failure.message]
    return make_printable(": ".join(filter(None, texts)), limits.REASON_CHARS_MAX)


def describe_end(description: WorkflowExecutionDescription) -> str:
    """Return how a workflow ended, such as `terminated`; empty while it runs."""
    if description.status in (None, WorkflowExecutionStatus.RUNNING):
        return ""
    return description.status.name.lower()


async def read_held_reason(client: Client, activities: Iterable[PendingActivityInfo]) -> str:
    """Return the reason in the heartbeats of a pending activity: the workflow does not receive them."""
    for pending_one in activities:
        # Others may have details that this client cannot read, and need not.
        if not pending_one.activity_type.name.startswith(_OUR_ACTIVITIES):
            continue
        details = await client.data_converter.decode(pending_one.heartbeat_details.payloads)
        if details:
            return str(details[0])
    return ""


async def list_pending(client: Client, thread_id: str) -> list[Approval]:
    """Return the tool calls that wait for an approval; none if the thread has ended."""
    return await _list(client, thread_id, PENDING_QUERY, list[Approval])


async def list_outcomes(client: Client, thread_id: str) -> list[UnknownOutcome]:
    """Return the tool calls whose outcome is unknown; none if the thread has ended."""
    return await _list(client, thread_id, OUTCOMES_QUERY, list[UnknownOutcome])


async def list_thread_grants(client: Client, thread_id: str) -> list[Grant]:
    """Return the grants in a thread's state; none if the thread has ended."""
    return await _list(client, thread_id, GRANTS_QUERY, list[Grant])


async def _list(client: Client, thread_id: str, query: str, result_type: type[list[T]]) -> list[T]:
    """Return what a query lists; nothing if the thread has ended."""
    handle = client.get_workflow_handle(thread_id)

    async def ask() -> list[T]:
        found: list[T] = await handle.query(
            query, result_type=result_type, rpc_timeout=timedelta(seconds=WORKER_SECONDS_MAX)
        )
        return found

    with translate_errors(thread_id):
        description = await handle.describe()
        if describe_end(description):
            return []
        return await get_answer(client, query, description, ask)


async def read_unjournalled(client: Client, thread_id: str) -> Unjournalled | None:
    """Return what a thread holds that its journal does not have yet; None if it has ended."""
    handle = client.get_workflow_handle(thread_id)

    async def ask() -> Unjournalled:
        found: Unjournalled = await handle.query(
            UNJOURNALLED_QUERY,
            result_type=Unjournalled,
            rpc_timeout=timedelta(seconds=WORKER_SECONDS_MAX),
        )
        return found

    with translate_errors(thread_id):
        description = await handle.describe()
        if describe_end(description):
            return None
        return await get_answer(client, UNJOURNALLED_QUERY, description, ask)


async def load_arguments(
    client: Client, packs: PackStore, thread_id: str, approval: Approval | UnknownOutcome
) -> str:
    """Return the whole arguments of a call that waits for a person, from the reply that asks for it.

    Arguments that a person has changed are those of the change. Raises `EntryNotFound` if the journal
    holds another call there, because a reset has undone this one.
    """
    if approval.edit is not None:
        return await _load_edit(client, packs, thread_id, approval.edit)
    thread = open_journal(client, packs, thread_id)
    if place := _PLACE.fullmatch(approval.id):
        seq, number, digest = int(place[1]), int(place[2]), place[3]
        entries = await thread.read((await read_status(client, thread_id)).head, seq, seq)
        replies = [entry for entry in entries if entry.kind == Kind.REPLY]
        for message in await thread.messages(replies, whole=True):
            for call in message.tool_calls[number - 1 : number]:
                if call_digest(call.tool, call.arguments).startswith(digest):
                    return call.arguments
    raise EntryNotFound(
        f"the journal of thread {thread_id!r} does not hold the call of approval {approval.id!r}. See "
        f"what waits now with: everlong approvals {quote_id(thread_id)}"
    )


async def _load_edit(client: Client, packs: PackStore, thread_id: str, edit: Edit) -> str:
    ref = Ref(
        thread=thread_key(client.namespace, thread_id),
        digest=edit.digest,
        size_bytes=edit.size_bytes,
        kind=Kind.ARGUMENTS,
    )
    edited = EDITED_ARGUMENTS.validate_json(await packs.read_body(ref))
    return to_json(edited.arguments).decode()


def open_journal(client: Client, packs: PackStore, thread_id: str) -> Journal:
    """Return the journal of a thread of the client's namespace."""
    return Journal(packs, thread_key(client.namespace, thread_id))


async def _query_status(client: Client, thread_id: str) -> ThreadStatus:
    try:
        found: ThreadStatus = await client.get_workflow_handle(thread_id).query(
            STATUS_QUERY,
            result_type=ThreadStatus,
            rpc_timeout=timedelta(seconds=WORKER_SECONDS_MAX),
        )
    except RPCError as error:
        reason = await _find_failing_task(client, thread_id, error)
        if not reason:
            raise
        held = NoWorker(f"thread {thread_id!r} is held: its tasks fail. {reason}")
        held.held_by = reason
        raise held from error
    return found


async def _find_failing_task(client: Client, thread_id: str, error: RPCError) -> str:
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
            return make_printable(event.workflow_task_failed_event_attributes.failure.message, 500)
    return ""


ANSWERS_MAX: Final = 1024
"""Answers kept for each client. A status has about 4 KB, so all of them take 4 MB."""

_caches: "weakref.WeakKeyDictionary[Client, QueryCache]" = weakref.WeakKeyDictionary()


class QueryCache:
    """The last answers that one client got."""

    def __init__(self, answers_max: int = ANSWERS_MAX) -> None:
        self._answers_max = answers_max
        self._answers: collections.OrderedDict[tuple[str, str], tuple[tuple[str, int], Any]] = (
            collections.OrderedDict()
        )

    async def get(
        self,
        query: str,
        description: WorkflowExecutionDescription,
        ask: Callable[[], Awaitable[T]],
    ) -> T:
        """Return the answer to a query, asking for it if the thread has new events since the last.

        The description has to be older than the answer that `ask` gets.
        """
        key = (query, description.id)
        at = (description.run_id, description.history_length)
        found = self._answers.get(key)
        if found is not None and found[0] == at:
            self._answers.move_to_end(key)
            answer: T = found[1]
            return answer
        answer = await ask()
        self._answers[key] = (at, answer)
        self._answers.move_to_end(key)
        if len(self._answers) > self._answers_max:
            self._answers.popitem(last=False)
        return answer


def keep_answers(client: Client) -> None:
    """Cache the answers that a client gets from now on. For clients that poll threads."""
    _caches.setdefault(client, QueryCache())


async def get_answer(
    client: Client,
    query: str,
    description: WorkflowExecutionDescription,
    ask: Callable[[], Awaitable[T]],
) -> T:
    """Return the answer to a query: from the cache of a client that keeps one."""
    cache = _caches.get(client)
    if cache is None:
        return await ask()
    return await cache.get(query, description, ask)
