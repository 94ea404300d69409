"""Outcome of an update that a thread has accepted: long polls until the thread completes the update.

The server answers a long poll within 20 s and keeps an accepted update across restarts, so a wait can
take days. A long poll asks no worker and is no billed action.
"""

import contextlib
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage
from temporalio.api.update.v1 import Outcome, WaitPolicy
from temporalio.client import (
    Client,
    WorkflowUpdateHandle,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.service import RPCError, RPCStatusCode

from everlong.admin.service.follower import decoder, long_polls, pause_after
from everlong.admin.service.translating import readable, translated, translated_rpc
from everlong.admin.service.updating import poll_request, raise_if_cancelled
from everlong.models import TurnEnd

# Three times what the server takes for a long poll without news.
_POLL_SECONDS_MAX: Final = timedelta(seconds=60)
_ASK_SECONDS_MAX: Final = timedelta(seconds=10)
# While the connection has too many long polls, a wait takes the place of the next one that ends: within
# 20 s, with twice as many waits as long polls. Meanwhile the update is looked at now and then.
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
_COMPLETED: Final = (
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
    outcome = await _poll(client, handle, on_problem)
    if outcome is not None and outcome.HasField("success"):
        with readable(thread_id):
            found: TurnEnd = await decoder(client, thread_id)(
                outcome.success.payloads, TurnEnd, None
            )
        return found
    if outcome is not None and outcome.failure.application_failure_info.type == _RUN_CLOSED:
        return None
    with translated(thread_id), readable(thread_id):
        try:
            # The server does not keep an update that was refused. The handle knows it by itself.
            return await handle.result(rpc_timeout=_ASK_SECONDS_MAX)
        except WorkflowUpdateRPCTimeoutOrCancelledError:
            raise_if_cancelled()
            return None
        except RPCError:
            return None


async def _poll(
    client: Client, handle: WorkflowUpdateHandle[TurnEnd], on_problem: Callable[[str], None]
) -> Outcome | None:
    """Return the outcome of an update; None if the server does not know the update."""
    request = poll_request(client, handle.workflow_id, handle.id, handle.workflow_run_id or "")
    polls = long_polls(client)
    looks = failures = 0
    while True:
        is_long = not polls.are_too_many or await polls.is_free_within(_look_seconds(looks))
        looks = 0 if is_long else looks + 1
        stage = _COMPLETED if is_long else _AT_ONCE
        request.wait_policy.CopyFrom(WaitPolicy(lifecycle_stage=stage))
        begun = time.monotonic()
        try:
            # A look at the update takes no place: it is answered at once.
            with polls.counted() if is_long else contextlib.nullcontext():
                found = await client.workflow_service.poll_workflow_execution_update(
                    request, timeout=_POLL_SECONDS_MAX
                )
        except RPCError as error:
            if error.status not in _TRANSIENT:
                return None
            # A long poll without an answer is no problem.
            if error.status not in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
                on_problem(str(translated_rpc(error, handle.workflow_id)))
        else:
            if found.HasField("outcome"):
                return found.outcome
            if not is_long or time.monotonic() - begun >= _SHORT_SECONDS:
                failures = 0
                continue
        await pause_after(failures)
        failures += 1


def _look_seconds(looks: int) -> float:
    """Return how long to wait for a long poll before the next look: longer each time, in bounds."""
    seconds = min(_LOOK_SECONDS_MIN * _LOOK_FACTOR ** min(looks, 10), _LOOK_SECONDS_MAX)
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311
