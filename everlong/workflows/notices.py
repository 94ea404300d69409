"""Notices of a thread: which events it reports, and how the notifier gets them.

An event is part of the thread's state from the step on in which it happens, so it is exactly as durable
as that step. One signal hands all waiting events to the notifier. A signal that a roll cuts off is sent
again by the next run, with the same keys. The thread never waits for it, except at its end.

No sink, no notice: the result of a model call says which events sinks want.
"""

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, FailureError, is_cancelled_exception

from everlong import limits
from everlong.models import Call, ThreadState, make_printable
from everlong.models.json_payloads import to_raw
from everlong.models.names import NOTIFY_SIGNAL, START_NOTIFIER
from everlong.models.notices import (
    Event,
    Notice,
    Notification,
    Notifications,
    build_key,
    build_notifier_id,
    is_wanted,
    wants_contents,
)
from everlong.models.state import replace_values
from everlong.policy import LimitHit, Policy, Usage

if TYPE_CHECKING:
    from everlong.workflows.thread import Thread

# Limits that grow with the thread, so that their use can be reported in advance.
_BUDGETS: Final = ("steps", "tokens", "cost_usd", "thread_bytes")
_LOOPS: Final = frozenset({"failed_turns_max", "same_failure_max", "no_progress_steps_max"})
_START: Final = RetryPolicy(maximum_attempts=10)
_START_SECONDS: Final = timedelta(seconds=30)


def add_notice(
    state: ThreadState,
    event: Event,
    about: str,
    time_ms: int,
    *,
    by: str = "",
    text: str = "",
    tool: str = "",
) -> ThreadState:
    """Return the state with a notice, if a sink wants the event."""
    if not is_wanted(state.notify, event):
        return state
    notice = Notice(
        event=event,
        about=about,
        ms=time_ms,
        by=make_printable(by, limits.NOTICE_NAME_CHARS_MAX),
        text=text,
        tool=tool,
    )
    return replace_values(state, notices=(*state.notices, notice)[-limits.NOTICES_MAX :])


def add_limit_notice(state: ThreadState, hit: LimitHit, time_ms: int) -> ThreadState:
    """Return the state with the notice of a limit that the thread has reached."""
    event = Event.FAILURE_LOOP if hit.limit in _LOOPS else Event.LIMIT
    return add_notice(state, event, hit.limit, time_ms, text=hit.reason)


def add_budget_notices(
    state: ThreadState, policy: Policy, usage: Usage, time_ms: int
) -> ThreadState:
    """Return the state with a notice of each limit that is four fifths used, once for each bound."""
    if not is_wanted(state.notify, Event.BUDGET):
        return state
    for name in _BUDGETS:
        limit = f"{name}_max"
        bound, used = getattr(policy, limit), getattr(usage, name)
        if bound is None or used < limits.BUDGET_SHARE * bound:
            continue
        mark = f"{limit}={bound:g}"
        if mark not in state.warned:
            others = (each for each in state.warned if not each.startswith(f"{limit}="))
            state = replace_values(state, warned=(*others, mark))
            text = f"{limit}: {used:g} of {bound:g}"
            state = add_notice(state, Event.BUDGET, limit, time_ms, text=text)
    return state


class NoticeOutbox:
    """Hands the notices of a thread to the notifier, in the background."""

    def __init__(self, thread: "Thread") -> None:
        self._thread = thread
        self._task: asyncio.Task[None] | None = None

    def send(self) -> None:
        """Begin to hand over what waits, if that is not being done already."""
        if self._thread.state.notices and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._send_all())

    async def finish(self) -> None:
        """Wait until the notifier has everything, before the thread ends."""
        self.send()
        if self._task is not None:
            await self._task

    async def _send_all(self) -> None:
        thread = self._thread
        while notices := thread.state.notices:
            items = tuple(self._build(notice) for notice in notices)
            await self._send(Notifications(items=items))
            # More may have been added meanwhile, and the oldest dropped.
            sent = set(map(id, notices))
            left = tuple(each for each in thread.state.notices if id(each) not in sent)
            thread.state = replace_values(thread.state, notices=left)

    async def _send(self, notifications: Notifications) -> None:
        """Signal the notifier. If there is none, an activity starts it with the signal."""
        raw = to_raw(notifications, workflow.payload_converter())
        notifier_id = build_notifier_id(workflow.info().task_queue)
        try:
            await workflow.get_external_workflow_handle(notifier_id).signal(NOTIFY_SIGNAL, raw)
        except FailureError as error:
            if is_cancelled_exception(error):
                raise
        else:
            return
        try:
            await workflow.execute_activity(
                START_NOTIFIER, raw, start_to_close_timeout=_START_SECONDS, retry_policy=_START
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.error("notifications were lost: %s", error.cause or error)

    def _build(self, notice: Notice) -> Notification:
        state, info = self._thread.state, workflow.info()
        call = next((each for each in state.calls if _is_about(notice, each)), None)
        waits = None if call is None else call.waits or call.unknown
        pending = None if call is None else _list_approvers(call)
        contents = wants_contents(state.notify) and call is not None
        return Notification(
            key=build_key(info.first_execution_run_id, notice),
            event=notice.event,
            thread_id=info.workflow_id,
            # Cut, as the tool below: a name that is too long must not fail the workflow task.
            agent=make_printable(self._thread.agent, limits.CALL_NAME_CHARS_MAX),
            about=notice.about,
            ms=notice.ms,
            tool=make_printable(
                notice.tool or (call.tool if call is not None else ""), limits.CALL_NAME_CHARS_MAX
            ),
            text=notice.text,
            by=notice.by,
            deadline_ms=None if waits is None else waits.deadline_ms,
            approvers=pending or (),
            run_id=(call and call.waits and call.waits.asked_run) or info.run_id,
            arguments=call.preview if contents and call is not None else "",
        )


def _is_about(notice: Notice, call: Call) -> bool:
    """Whether a notice is about a call: ids of its approvals and outcomes begin with its own."""
    return notice.about == call.id or notice.about.startswith(f"{call.id}-")


def _list_approvers(call: Call) -> tuple[str, ...]:
    """Return the names of those who may decide; empty for all users."""
    waits = call.waits or call.unknown
    if waits is None:
        return ()
    return call.options.escalate_to if waits.escalated else call.options.approvers
