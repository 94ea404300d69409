"""Progress of a thread, derived from the history events of its newest run.

It needs no worker. The events suffice: the argument of a run is the thread's state when
the run began, and the results of activities, updates and signals are what changed it since. Only the
details of a pause by the policy are not in a history; `Progress.needs_query` says so.
"""

import dataclasses
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent

from everlong import limits
from everlong.models import (
    AGENT_WORKFLOW,
    APPEND_JOURNAL,
    BRIEF,
    CALL_MODEL,
    CALL_STATUS_SIGNAL,
    COLLECT,
    COMPACT,
    DECIDE_UPDATE,
    HELD,
    PAUSE_SIGNAL,
    REPORT_SIGNAL,
    RESOLVE_UPDATE,
    REVOKE_GRANT_UPDATE,
    RUN_TOOL,
    SEND_UPDATE,
    STOP_SIGNAL,
    UNPAUSE_SIGNAL,
    Answer,
    Append,
    AppendResult,
    Brief,
    Call,
    CallOptions,
    CallStatus,
    Collect,
    Compact,
    Control,
    Decide,
    Kind,
    ModelCall,
    ModelTurn,
    Pause,
    PendingApproval,
    Report,
    Resolve,
    RevokeGrant,
    SegmentRef,
    SendMessage,
    Status,
    ThreadStart,
    ThreadState,
    ThreadStatus,
    ToolRun,
    choose_status,
    identify_call,
    make_printable,
    seq_after,
)
from everlong.models.names import CALL_NOT_FOUND
from everlong.models.search_attributes import REASON, STATUS
from everlong.models.status import read_end
from everlong.models.tools import (
    add_edit,
    count_needed,
    get_approval_id,
    get_outcome_id,
    remove_edit,
)


@dataclasses.dataclass(frozen=True)
class Activity:
    """An activity, as named by the event that scheduled it."""

    type: str
    task_queue: str


class NotConverted(ValueError):
    """A payload is not what its reader expects."""


Decode = Callable[[Sequence[Payload], Any, Activity | None], Awaitable[Any]]
"""Returns the first payload of a list as a type; None if the list is empty.

A codec or a converter may work by context. The activity is the one that takes or returns the payloads;
None stands for the workflow itself. Raises `NotConverted` if a payload that the codec can read is of
another type.
"""

_TOOLS: Final = frozenset({RUN_TOOL, COLLECT})
# Arguments of the activities.
_ARGUMENTS: Final[dict[str, Any]] = {
    CALL_MODEL: ModelCall,
    RUN_TOOL: ToolRun,
    BRIEF: Brief,
    COLLECT: Collect,
    APPEND_JOURNAL: Append,
    COMPACT: Compact,
}
# Those that run side by side, one for each call of a reply.
_CALLS: Final = frozenset({RUN_TOOL, BRIEF, COLLECT})
# A thread that is paused does not try these again.
_STEPS: Final = frozenset({CALL_MODEL, *_CALLS})
# The argument types of the workflow's signal handlers.
_SIGNALS: Final[dict[str, Any]] = {
    PAUSE_SIGNAL: Control | None,
    UNPAUSE_SIGNAL: Control | None,
    STOP_SIGNAL: Control | None,
    REPORT_SIGNAL: Report,
    CALL_STATUS_SIGNAL: CallStatus,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreadProgress:
    """Progress of a thread, by its history. A wait reports it."""

    status: Status
    """As in `ThreadStatus`."""
    runs: int
    steps: int
    tool_calls: int
    messages: int
    answered: int
    """Messages whose turn has ended, once the thread itself has taken note of it.

    The reply is in the history some milliseconds earlier. A program that stops its worker then would cut
    off the task in which the thread takes note.
    """
    pending: int
    """Approvals that wait for a person."""
    head: SegmentRef | None
    """The journal's newest segment."""
    answers: tuple[Answer, ...]
    """The turns that ended last."""
    pause: Pause | None = None
    held_by: str = ""
    """Text of a hold; empty if the thread is not held."""
    ended: str = ""
    """How it ended: `completed`, `terminated`, ...; empty while it runs."""
    is_busy: bool = False
    """Whether a workflow task or an activity is open."""
    needs_query: bool = False
    """Whether the thread looks paused by its policy: only a query gives the details."""


def make_progress(
    status: ThreadStatus, *, ended: str = "", is_busy: bool = False
) -> ThreadProgress:
    """Return the progress that a status shows."""
    counters = status.counters
    return ThreadProgress(
        status=status.status,
        runs=counters.runs,
        steps=counters.steps,
        tool_calls=counters.tool_calls,
        messages=counters.messages,
        answered=counters.answered,
        pending=status.pending,
        head=status.head,
        answers=status.answers,
        pause=status.pause,
        held_by=status.held_by,
        ended=ended,
        is_busy=is_busy,
    )


@dataclasses.dataclass
class _Wait:
    """A tool call that waits for a person's decision."""

    options: CallOptions
    deadline_ms: int | None = None
    escalated: bool = False
    is_asked: bool = True
    """False until the workflow task that asks has completed: the deadline counts from its time."""
    votes: set[str] = dataclasses.field(default_factory=set)
    """Names of those who have approved so far."""
    edits: int = 0
    """How often the arguments were changed."""


@dataclasses.dataclass(frozen=True)
class _Open:
    """An activity that was scheduled and has not closed."""

    activity: Activity
    payloads: Sequence[Payload] = ()
    """Its argument."""


@dataclasses.dataclass(frozen=True)
class _Trouble:
    """A call that is held or tried again, by what `identify_call` returns for it."""

    type: str
    call: str
    status: Status
    text: str = ""
    """Text of a hold."""


@dataclasses.dataclass
class _Update:
    name: str
    payloads: Sequence[Payload]


_UNKNOWN: Final = _Open(Activity("", ""))


class Tracker:
    """Follows a thread by its events, which are added in order. A run begins with its first event.

    Memory is bounded by what is open at a time: activities, updates, and calls of one reply.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self.is_agent = True
        """False if the workflow is not `everlong.Agent`: its events mean something else then."""
        self._begin(ThreadState())

    async def add(self, events: Iterable[HistoryEvent]) -> None:
        """Take in events."""
        for event in events:
            name = event.WhichOneof("attributes") or ""
            handler = _HANDLERS.get(name)
            if handler is not None and (self.is_agent or name == _STARTED):
                await handler(self, event, getattr(event, name))

    def progress(self) -> ThreadProgress:
        """Return how far the thread is after the events so far."""
        if self._final is not None:
            return make_progress(self._final, ended=self._ended)
        is_busy = bool(self._open) or self._task_is_open
        looks_paused = not is_busy and self._is_stuck()
        return ThreadProgress(
            status=(
                read_end(self._ended)[0] if self._ended else self._get_status(is_busy, looks_paused)
            ),
            runs=self._runs,
            steps=self._steps,
            tool_calls=self._tool_calls,
            messages=self._messages,
            answered=self._answered if self._ended else self._seen_answered,
            pending=len(self._waits),
            head=self._head,
            answers=self._answers,
            pause=self._pause,
            held_by=self._find_held_reason(),
            ended=self._ended,
            is_busy=is_busy,
            needs_query=not self._ended and (looks_paused or self._pause_is_brief),
        )

    def _begin(self, state: ThreadState) -> None:
        """Begin a run with the state that the last one left."""
        counters = state.counters
        self._runs, self._steps = counters.runs, counters.steps
        self._tool_calls, self._messages = counters.tool_calls, counters.messages
        self._answered, self._answers = counters.answered, state.answers
        self._seen_answered = counters.answered
        self._head, self._pause, self._stopping = state.head, state.pause, state.stopping
        self._pause_is_brief = False
        self._failed_seq = None if state.failed_turn is None else state.failed_turn.seq
        self._in_turn, self._inbox = state.in_turn, len(state.inbox)
        self._received = tuple(each.id for each in state.received)
        self._waits: dict[str, _Wait] = dict(map(_build_wait, filter(_is_waiting, state.calls)))
        self._once = {call.call_id: call.options for call in state.calls if call.options.once}
        """Options of the calls whose effect must not happen twice."""
        self._revoked: set[str] = set()
        """Grants that were revoked in this run."""
        self._children = {
            call.child_id for call in state.calls if call.child_id and not call.report
        }
        self._tools = sum(not call.options.agent and not call.result for call in state.calls)
        self._troubles: list[_Trouble] = []
        self._has_failed = bool(state.last_failure)
        """Whether the last turn ended without an answer."""
        self._ended = ""
        self._final: ThreadStatus | None = None
        self._open: dict[int, _Open] = {}  # By the events that scheduled them.
        self._updates: dict[int, _Update] = {}
        self._admitted: dict[str, _Update] = {}
        self._task_is_open = False
        self._task_ms = 0

    def _is_stuck(self) -> bool:
        """Whether the thread has work and does nothing: then its policy has paused it."""
        if self._pause is not None or self._stopping:
            return False
        waiting = sum(not each.options.agent for each in self._waits.values())
        held = sum(each.type == RUN_TOOL for each in self._troubles)
        if self._tools > waiting + held:
            return True
        has_work = self._in_turn or self._inbox > 0
        return has_work and not (self._troubles or self._waits or self._children)

    def _find_held_reason(self) -> str:
        """Return the text of the first hold. A thread that is paused leaves its steps."""
        texts = (
            each.text
            for each in self._troubles
            if each.status == Status.HELD and (self._pause is None or each.type not in _STEPS)
        )
        return next(texts, "")

    def _get_status(self, is_busy: bool, looks_paused: bool) -> Status:
        found = [Status.FAILED if self._has_failed else Status.WAITING]
        if is_busy or self._in_turn or self._inbox or self._stopping:
            found.append(Status.WORKING)
        if self._find_held_reason():
            found.append(Status.HELD)
        if any(each.status == Status.RETRYING for each in self._troubles):
            found.append(Status.RETRYING)
        if (self._pause is not None or looks_paused) and not self._stopping:
            found.append(Status.PAUSED)
        if self._waits and not self._stopping:
            found.append(Status.APPROVAL)
        return choose_status(found)

    # Runs and workflow tasks.

    async def _on_started(self, _: HistoryEvent, attributes: Any) -> None:
        self.is_agent = attributes.workflow_type.name == AGENT_WORKFLOW
        if self.is_agent:
            start: ThreadStart = await self._decode(attributes.input.payloads, ThreadStart, None)
            self._begin(start.state)
            self._task_is_open = True  # The first task of a run always comes.

    async def _on_continued(self, *_: Any) -> None:
        self._task_is_open = True  # The first one of the next run.

    async def _on_task_scheduled(self, *_: Any) -> None:
        self._task_is_open = True

    async def _on_task_started(self, event: HistoryEvent, _: Any) -> None:
        self._task_ms = event.event_time.ToMilliseconds()

    async def _on_task_completed(self, *_: Any) -> None:
        # One that failed or timed out is tried again, so it stays open.
        self._task_is_open = False
        self._seen_answered = self._answered
        self._expire(self._task_ms)
        if self._pause is not None:  # The thread has left the steps that were held.
            self._troubles = [each for each in self._troubles if each.type not in _STEPS]

    async def _on_completed(self, _: HistoryEvent, attributes: Any) -> None:
        self._ended = "completed"
        self._final = await self._decode(attributes.result.payloads, ThreadStatus, None)

    async def _on_failed(self, *_: Any) -> None:
        self._ended = "failed"

    async def _on_timed_out(self, *_: Any) -> None:
        self._ended = "timed_out"

    async def _on_canceled(self, *_: Any) -> None:
        self._ended = "canceled"

    async def _on_terminated(self, *_: Any) -> None:
        self._ended = "terminated"

    # Activities.

    async def _on_activity_scheduled(self, event: HistoryEvent, attributes: Any) -> None:
        name = attributes.activity_type.name
        activity = Activity(name, attributes.task_queue.name)
        payloads = list(attributes.input.payloads) if name in _ARGUMENTS else ()
        self._open[event.event_id] = _Open(activity, payloads)
        await self._forget_others(self._open[event.event_id])
        if name == CALL_MODEL:
            self._inbox -= not self._in_turn
            self._in_turn, self._has_failed = True, False
            self._waits, self._children, self._tools = {}, set(), 0
        elif name == APPEND_JOURNAL:
            append: Append = await self._decode(attributes.input.payloads, Append, activity)
            self._find_failure(append)

    async def _on_activity_completed(self, _: HistoryEvent, attributes: Any) -> None:
        closed = self._open.pop(attributes.scheduled_event_id, _UNKNOWN)
        activity, payloads = closed.activity, attributes.result.payloads
        await self._forget(closed)
        self._count_call(activity.type)
        if activity.type == CALL_MODEL:
            turn: ModelTurn = await self._decode(payloads, ModelTurn, activity)
            self._take_reply(turn)
        elif activity.type == APPEND_JOURNAL:
            appended: AppendResult = await self._decode(payloads, AppendResult, activity)
            self._advance(appended.head)

    async def _on_activity_failed(self, _: HistoryEvent, attributes: Any) -> None:
        closed = self._open.pop(attributes.scheduled_event_id, _UNKNOWN)
        failure: Failure = attributes.failure
        await self._forget(closed)
        if failure.application_failure_info.type == HELD:
            text = make_printable(failure.message, limits.HELD_REASON_CHARS_MAX)
            call = await self._identify(closed)
            self._troubles.append(_Trouble(closed.activity.type, call, Status.HELD, text))
            return
        if await self._ask_outcome(closed, failure):
            return
        self._count_call(closed.activity.type)
        self._tool_calls += closed.activity.type == BRIEF

    async def _ask_outcome(self, closed: _Open, failure: Failure) -> bool:
        """Note that a call waits for a person's word what became of it; false for other calls."""
        if (
            closed.activity.type != RUN_TOOL
            or failure.application_failure_info.type == CALL_NOT_FOUND
        ):
            return False
        run: ToolRun = await self._decode(closed.payloads, ToolRun, closed.activity)
        if run.outcome_id and (options := self._once.get(run.call_id)) is not None:
            self._waits[run.outcome_id] = _Wait(options, is_asked=False)
            return True
        return False

    async def _on_activity_canceled(self, _: HistoryEvent, attributes: Any) -> None:
        await self._forget(self._open.pop(attributes.scheduled_event_id, _UNKNOWN))

    def _count_call(self, activity_type: str) -> None:
        """Count a call that has a result now."""
        self._tool_calls += activity_type in _TOOLS
        self._tools -= activity_type == RUN_TOOL

    async def _forget(self, closed: _Open) -> None:
        """Drop the trouble of a call that has ended."""
        if self._troubles:
            call = await self._identify(closed)
            self._troubles = [each for each in self._troubles if each.call != call]

    async def _forget_others(self, begun: _Open) -> None:
        """Drop the troubles of calls that the thread has left: only a reply's run side by side."""
        if self._troubles:
            call, is_call = await self._identify(begun), begun.activity.type in _CALLS
            self._troubles = [
                each
                for each in self._troubles
                if each.call == call or (is_call and each.type in _CALLS)
            ]

    async def _identify(self, opened: _Open) -> str:
        activity = opened.activity
        kind = _ARGUMENTS.get(activity.type)
        argument = kind and await self._decode(opened.payloads, kind, activity)
        return identify_call(activity.type, argument) if argument else ""

    def _find_failure(self, append: Append) -> None:
        """Note the end of a turn without an answer. It counts once the journal has the reason."""
        for entry in append.entries:
            if entry.kind == Kind.FAILURE and self._failed_seq is None:
                self._failed_seq, self._has_failed = entry.seq, True
                self._inbox -= not self._in_turn
                self._in_turn, self._tools = False, 0

    def _take_reply(self, turn: ModelTurn) -> None:
        self._steps += 1
        self._advance(turn.head)
        seq = seq_after(turn.head) - 1
        if not turn.tool_calls:
            self._end_turn(seq)
            self._in_turn = False
        self._tools = sum(not each.options.agent for each in turn.tool_calls)
        self._once = {each.call_id: each.options for each in turn.tool_calls if each.options.once}
        for number, wanted in enumerate(turn.tool_calls, 1):
            is_granted = wanted.grant and wanted.grant not in self._revoked
            if wanted.options.needs_approval and not is_granted:
                wait = _Wait(wanted.options, is_asked=False)
                self._waits[f"{seq}-{number}-{wanted.digest[:4]}"] = wait

    def _advance(self, head: SegmentRef) -> None:
        self._head = head
        if self._failed_seq is not None and self._failed_seq < seq_after(head):
            self._end_turn(self._failed_seq)
            self._failed_seq = None

    def _end_turn(self, seq: int) -> None:
        self._answered += 1
        answers = (*self._answers, Answer(number=self._answered, seq=seq))
        self._answers = answers[-limits.ANSWERS_MAX :]

    def _expire(self, time_ms: int) -> None:
        """Drop approvals whose deadline is over, as the thread does."""
        for call_id, wait in list(self._waits.items()):
            if not wait.is_asked:
                wait.is_asked = True
                wait.deadline_ms = _compute_deadline_ms(time_ms, wait.options.deadline_seconds)
            if wait.deadline_ms is None or wait.deadline_ms > time_ms:
                continue
            if wait.options.on_deadline == "escalate" and not wait.escalated:
                wait.escalated, wait.votes = True, set()
                wait.deadline_ms = _compute_deadline_ms(time_ms, wait.options.deadline_seconds)
            else:
                self._deny(self._waits.pop(call_id))

    def _deny(self, wait: _Wait) -> None:
        self._tool_calls += 1
        self._tools -= not wait.options.agent

    # Sub-agents.

    async def _on_child_initiated(self, _: HistoryEvent, attributes: Any) -> None:
        self._children.add(attributes.workflow_id)

    async def _on_signal_undelivered(self, _: HistoryEvent, attributes: Any) -> None:
        # The thread takes a sub-agent that is gone for one that has reported.
        self._children.discard(attributes.workflow_execution.workflow_id)

    # Updates and signals.

    async def _on_update_admitted(self, _: HistoryEvent, attributes: Any) -> None:
        request = attributes.request
        self._admitted[request.meta.update_id] = _Update(
            request.input.name, list(request.input.args.payloads)
        )

    async def _on_update_accepted(self, event: HistoryEvent, attributes: Any) -> None:
        request = attributes.accepted_request
        update = _Update(request.input.name, list(request.input.args.payloads))
        admitted = self._admitted.pop(attributes.protocol_instance_id, None)
        if not update.name and admitted is not None:
            update = admitted
        self._updates[event.event_id] = update
        if update.name == SEND_UPDATE:
            message: SendMessage = await self._decode(update.payloads, SendMessage, None)
            self._receive(message)
            if message.until_answered:
                del self._updates[event.event_id]  # It has been counted.

    def _receive(self, message: SendMessage) -> None:
        """Count a message that its update waits with: the number comes with the answer only."""
        if message.until_answered and not (message.id and message.id in self._received):
            self._messages += 1
            self._inbox += 1
        if message.id:
            self._received = (*self._received, message.id)[-limits.RECEIVED_MAX :]

    async def _on_update_completed(self, _: HistoryEvent, attributes: Any) -> None:
        update = self._updates.pop(attributes.accepted_event_id, None)
        if update is None or not attributes.outcome.HasField("success"):
            return
        if update.name == SEND_UPDATE:
            number: int = await self._decode(attributes.outcome.success.payloads, int, None)
            self._inbox += max(0, number - self._messages)
            self._messages = max(self._messages, number)
        elif update.name == DECIDE_UPDATE:
            self._take_decision(await self._decode(update.payloads, Decide, None))
        elif update.name == RESOLVE_UPDATE:
            resolve: Resolve = await self._decode(update.payloads, Resolve, None)
            wait = self._waits.pop(resolve.id, None)
            if wait is not None and resolve.outcome != "retry":
                self._deny(wait)
        elif update.name == REVOKE_GRANT_UPDATE:
            revoke: RevokeGrant = await self._decode(update.payloads, RevokeGrant, None)
            self._revoked.add(revoke.id)
            # A held call that it allowed waits for a person now. Which call that is, the thread knows:
            # without its hold the thread seems to be stuck, so it is asked.
            self._troubles = [
                each
                for each in self._troubles
                if each.status != Status.HELD or each.type not in _CALLS
            ]

    def _take_decision(self, decide: Decide) -> None:
        """Take in a decision, as the thread does. A call may need more approvals than this one."""
        wait = self._waits.pop(decide.id, None)
        if wait is None:
            return
        if not decide.approve:
            self._deny(wait)
            return
        if decide.arguments is not None:
            wait.votes, wait.edits = set(), wait.edits + 1
        wait.votes.add(decide.by)
        options = wait.options
        approvers = options.escalate_to if wait.escalated else options.approvers
        if len(wait.votes) < count_needed(options.approvals_needed, approvers):
            self._waits[add_edit(remove_edit(decide.id), wait.edits)] = wait

    async def _on_signaled(self, _: HistoryEvent, attributes: Any) -> None:
        kind = _SIGNALS.get(attributes.signal_name)
        if kind is None:
            return
        try:
            argument = await self._decode(attributes.input.payloads, kind, None)
        except NotConverted:
            return  # Any program may send a signal. The worker drops one that it cannot convert.
        if argument is not None and not isinstance(argument, kind):
            return  # Plain bytes become no other type. The handler on the worker fails with them.
        if isinstance(argument, CallStatus):
            await self._take_call_status(argument)
        else:
            self._take_signal(attributes.signal_name, argument)

    def _take_signal(self, name: str, argument: Any) -> None:
        if name == PAUSE_SIGNAL and self._pause is None:
            control: Control = argument or Control()
            self._pause = Pause(
                by=make_printable(control.by, limits.CALL_NAME_CHARS_MAX),
                reason=make_printable(control.reason, limits.REASON_CHARS_MAX),
            )
        elif name == UNPAUSE_SIGNAL:
            self._pause, self._pause_is_brief = None, False
        elif name == STOP_SIGNAL:
            self._stopping = True
        elif name == REPORT_SIGNAL and argument is not None:
            report: Report = argument
            self._children.discard(report.child_id)

    async def _take_call_status(self, signalled: CallStatus) -> None:
        """Take in the signal of a running activity, as the thread does."""
        for opened in self._open.values():
            if await self._identify(opened) == signalled.call:
                call, status, text = signalled.call, signalled.status, signalled.text
                self._troubles = [each for each in self._troubles if each.call != call]
                if status != Status.WORKING:
                    self._troubles.append(_Trouble(opened.activity.type, call, status, text))
                return

    async def _on_attributes(self, _: HistoryEvent, attributes: Any) -> None:
        """Take in a pause by the policy, which the search attributes name."""
        fields = attributes.search_attributes.indexed_fields
        word = _parse_text(fields.get(STATUS.name))
        if word == Status.PAUSED and self._pause is None:
            self._pause = Pause(by="policy", reason=_parse_text(fields.get(REASON.name)))
            self._pause_is_brief = True
        elif word and word != Status.PAUSED and self._pause_is_brief:
            self._pause, self._pause_is_brief = None, False


_STARTED: Final = "workflow_execution_started_event_attributes"
_HANDLERS: Final[dict[str, Callable[[Tracker, HistoryEvent, Any], Awaitable[None]]]] = {
    _STARTED: Tracker._on_started,
    "workflow_execution_continued_as_new_event_attributes": Tracker._on_continued,
    "workflow_task_scheduled_event_attributes": Tracker._on_task_scheduled,
    "workflow_task_started_event_attributes": Tracker._on_task_started,
    "workflow_task_completed_event_attributes": Tracker._on_task_completed,
    "workflow_execution_completed_event_attributes": Tracker._on_completed,
    "workflow_execution_failed_event_attributes": Tracker._on_failed,
    "workflow_execution_timed_out_event_attributes": Tracker._on_timed_out,
    "workflow_execution_canceled_event_attributes": Tracker._on_canceled,
    "workflow_execution_terminated_event_attributes": Tracker._on_terminated,
    "activity_task_scheduled_event_attributes": Tracker._on_activity_scheduled,
    "activity_task_completed_event_attributes": Tracker._on_activity_completed,
    "activity_task_failed_event_attributes": Tracker._on_activity_failed,
    "activity_task_timed_out_event_attributes": Tracker._on_activity_failed,
    "activity_task_canceled_event_attributes": Tracker._on_activity_canceled,
    "start_child_workflow_execution_initiated_event_attributes": Tracker._on_child_initiated,
    "signal_external_workflow_execution_failed_event_attributes": Tracker._on_signal_undelivered,
    "workflow_execution_update_admitted_event_attributes": Tracker._on_update_admitted,
    "workflow_execution_update_accepted_event_attributes": Tracker._on_update_accepted,
    "workflow_execution_update_completed_event_attributes": Tracker._on_update_completed,
    "workflow_execution_signaled_event_attributes": Tracker._on_signaled,
    "upsert_workflow_search_attributes_event_attributes": Tracker._on_attributes,
}


def _is_waiting(call: Call) -> bool:
    return call.waits is not None or call.unknown is not None


def _build_wait(call: Call) -> tuple[str, _Wait]:
    """Return a call that waits for a person, with its id, at the start of a run."""
    if call.unknown is not None:
        unknown = call.unknown
        return get_outcome_id(call), _Wait(call.options, unknown.deadline_ms, unknown.escalated)
    waits = call.waits or PendingApproval(asked_ms=0)
    return get_approval_id(call), _Wait(
        call.options,
        waits.deadline_ms,
        waits.escalated,
        votes={each.by for each in waits.votes},
        edits=0 if call.edit is None else call.edit.number,
    )


def _compute_deadline_ms(time_ms: int, seconds: float | None) -> int | None:
    return None if seconds is None else time_ms + int(seconds * 1000)


def _parse_text(payload: Payload | None) -> str:
    """Return a search attribute, which the server stores as plain JSON."""
    if payload is None or not payload.data:
        return ""
    value = json.loads(payload.data)
    return value if isinstance(value, str) else ""
