"""Status of a running call: what an activity signals to its thread.

A workflow does not see its activities' attempts and heartbeats, so the thread cannot publish them. The
activity signals it: once when its third attempt has failed and another follows, once when a hold lasts
that it cannot fail with, and once when a call that was held is held no more. Each is a billed action;
a call without such trouble sends none.
"""

import contextlib
from collections.abc import AsyncIterator
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Final, Literal

from temporalio import activity
from temporalio.exceptions import ApplicationError

from everlong import limits
from everlong.models import (
    AGENT_WORKFLOW,
    CALL_STATUS_SIGNAL,
    CallStatus,
    Status,
    identify_call,
    make_printable,
)

_CALL: Final[ContextVar[str]] = ContextVar("everlong_call", default="")
"""The call of the activity that runs in this task."""
# The heartbeats have stopped by then, so it must be over before they are missed.
_SIGNAL_TIMEOUT: Final = timedelta(seconds=2)


@contextlib.asynccontextmanager
async def track_call(name: str, argument: Any) -> AsyncIterator[None]:
    """Signal the thread if the body, an attempt at a call, fails for the third time."""
    call = _CALL.set(identify_call(name, argument))
    try:
        yield
    except Exception as error:
        if _is_third_of_more(error):
            await signal_status(Status.RETRYING)
        raise
    finally:
        _CALL.reset(call)


def _is_third_of_more(error: Exception) -> bool:
    """Return whether the third attempt has failed, and the server will try again."""
    info = activity.info()
    if info.attempt != limits.RETRYING_ATTEMPT:
        return False
    if isinstance(error, ApplicationError) and error.non_retryable:
        return False
    attempts_max = info.retry_policy.maximum_attempts if info.retry_policy else 0
    return not attempts_max or attempts_max > info.attempt


async def signal_status(
    status: Literal[Status.RETRYING, Status.HELD, Status.WORKING], text: str = ""
) -> None:
    """Signal the thread how this call fares. If that is not possible, only its listed status is old.

    The signal names the run: one that has ended gets none, since its successor has no such call.
    """
    info, call = activity.info(), _CALL.get()
    if not call or info.workflow_id is None or info.workflow_type != AGENT_WORKFLOW:
        return
    signalled = CallStatus(
        call=call, status=status, text=make_printable(text, limits.HELD_REASON_CHARS_MAX)
    )
    try:
        handle = activity.client().get_workflow_handle(
            info.workflow_id, run_id=info.workflow_run_id
        )
        await handle.signal(CALL_STATUS_SIGNAL, signalled, rpc_timeout=_SIGNAL_TIMEOUT)
    except Exception as error:  # noqa: BLE001 - the activity must not fail because of it
        activity.logger.debug("thread not signalled: %s", type(error).__name__)
