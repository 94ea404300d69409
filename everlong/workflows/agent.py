"""The thread: a durable agent loop that holds refs, never bodies.

Between steps all that matters is in `ThreadState`. A run may end at any of those points, and the
next one begins with the same state.
"""

import asyncio
import contextlib
import dataclasses
from datetime import timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from everlong import limits
from everlong.errors import LimitReached
from everlong.models import (
    AGENT_WORKFLOW,
    APPEND_JOURNAL,
    CALL_MODEL,
    HELD,
    RUN_TOOL,
    SEND_UPDATE,
    STATUS_QUERY,
    STOP_SIGNAL,
    Append,
    Appended,
    Kind,
    Message,
    ModelCall,
    ModelTurn,
    SegmentRef,
    SendMessage,
    ThreadStart,
    ThreadStatus,
    ToolName,
    ToolResult,
    ToolRun,
    printable,
)
from everlong.policy import RunSize, roll_reason
from everlong.workflows import transitions

T = TypeVar("T")

_INTERVAL = timedelta(seconds=limits.RETRY_SECONDS_MAX)
_CALL_RETRY = RetryPolicy(maximum_interval=_INTERVAL, maximum_attempts=limits.CALL_ATTEMPTS_MAX)
# No end: it is our own code, and giving up would lose what it should store.
_STORE_RETRY = RetryPolicy(maximum_interval=_INTERVAL)
_TIMEOUT = timedelta(seconds=limits.ACTIVITY_SECONDS_MAX)
_HEARTBEAT = timedelta(seconds=limits.HEARTBEAT_SECONDS)
_HOLDS_MAX = 10  # 10 s doubled ten times is far over the longest pause.


class _LeftWhileHeld(Exception):
    """A step that cannot go on is left as it is, since the run or the thread is to end."""


@workflow.defn(name=AGENT_WORKFLOW)
class AgentWorkflow:
    """One run of a thread. The workflow id is the thread's id."""

    @workflow.init
    def __init__(self, start: ThreadStart) -> None:
        self._agent = start.agent
        self._policy = start.policy
        self._state = start.state
        self._stopping = False
        self._stopped = False
        self._held: dict[object, str] = {}  # What each activity that is held waits for.

    @workflow.run
    async def run(self, start: ThreadStart) -> ThreadStatus:
        """Take steps until told to stop or cancelled; either way the journal is left whole."""
        try:
            await self._live()
            await self._journal_rest()
        except BaseException as error:
            if is_cancelled_exception(error):
                self._stopping = True
                await self._journal_rest()
                self._stopped = True
            raise
        await workflow.wait_condition(workflow.all_handlers_finished)
        self._stopped = True
        return self.status()

    async def _live(self) -> None:
        """Take steps until told to stop; end the run early when policy says so."""
        while True:
            await workflow.wait_condition(lambda: self._stopping or self._has_work())
            if self._stopping:
                return
            with contextlib.suppress(_LeftWhileHeld):
                await self._step()
            self._check_state()
            if self._should_roll():
                await self._roll()

    @workflow.update(name=SEND_UPDATE)
    def send(self, message: SendMessage) -> int:
        """Queue a message; return its number once it is durable."""
        self._state = transitions.queue(self._state, message.text)
        return self._state.counters.messages

    @send.validator
    def _validate_send(self, message: SendMessage) -> None:
        if self._stopping:
            raise ValueError("this thread is stopping; start a new one")
        if reason := transitions.why_refused(self._state, message.text):
            raise ValueError(reason)

    @workflow.signal(name=STOP_SIGNAL)
    def stop(self) -> None:
        """End the thread at the next safe point."""
        self._stopping = True

    @workflow.query(name=STATUS_QUERY)
    def status(self) -> ThreadStatus:
        """Say how far the thread is."""
        state = self._state
        status = "working" if self._has_work() else "waiting"
        if self._held:
            status = "held"
        if self._stopping:
            status = "stopped" if self._stopped else "stopping"
        return ThreadStatus(
            agent=self._agent,
            status=status,
            counters=state.counters,
            head=state.head,
            waiting_messages=len(state.inbox),
            last_failure=state.last_failure,
            held_by=next(iter(self._held.values()), ""),
        )

    def _has_work(self) -> bool:
        return self._state.in_turn or bool(self._state.inbox)

    async def _step(self) -> None:
        """Make one model call, then run the tools that it asks for."""
        if not self._state.in_turn:
            self._state = transitions.begin_turn(self._state, _now_ms())
        if not self._state.calls and not await self._ask_model():
            return
        await self._run_tools()

    async def _ask_model(self) -> bool:
        """Call the model; return whether it wants tools. Otherwise the turn has ended."""
        if self._state.turn_steps >= self._policy.turn_steps_max:
            await self._fail_turn(f"the turn reached {self._policy.turn_steps_max} model calls")
            return False
        call = ModelCall(agent=self._agent, head=self._state.head, tail=self._state.tail)
        try:
            turn = await self._execute(CALL_MODEL, call, ModelTurn, _CALL_RETRY)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            await self._fail_turn(_reason("the model call failed", error))
            return False
        self._state = transitions.after_model(self._state, turn)
        if not turn.tool_calls:
            self._state = transitions.end_turn(self._state)
        return bool(turn.tool_calls)

    async def _fail_turn(self, reason: str) -> None:
        """End a turn that has no answer. The reason is journalled, and the thread stays usable."""
        message = Message(role="failure", text=reason)
        self._state = transitions.add_to_tail(self._state, Kind.FAILURE, message, _now_ms())
        await self._journal_tail()
        self._state = transitions.end_turn(self._state, failure=reason)

    async def _run_tools(self) -> None:
        """Run the calls side by side; their results go to the tail in call order."""
        calls, head = self._state.calls, self._state.head
        if head is None:
            raise RuntimeError("tool calls come from a journalled reply, and there is no journal")
        first_seq = transitions.next_seq(self._state)
        runs = [
            asyncio.ensure_future(self._run_tool(head, call, first_seq + index))
            for index, call in enumerate(calls)
        ]
        try:
            # All of them to their end, also if one is held and has to be left.
            outcomes = await asyncio.gather(*runs, return_exceptions=True)
        finally:
            # When the thread is cancelled, what has returned by then is still kept.
            results = {
                call: run.result()
                for call, run in zip(calls, runs, strict=True)
                if run.done() and not run.cancelled() and run.exception() is None
            }
            self._state = transitions.after_tools(self._state, results)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _run_tool(self, head: SegmentRef, call: ToolName, seq: int) -> ToolResult:
        run = ToolRun(agent=self._agent, head=head, call=call, seq=seq)
        try:
            return await self._execute(RUN_TOOL, run, ToolResult, _CALL_RETRY)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            # The model hears of it and may try another way.
            text = f"error: {_reason(f'tool {call.tool!r} failed', error)}"
            message = Message(role="tool", text=text, call_id=call.call_id)
            entry = transitions.new_entry(seq, Kind.TOOL_RESULT, message, _now_ms())
            return ToolResult(entry=entry, written_bytes=0)

    async def _journal_rest(self) -> None:
        """Journal what the thread holds when it ends, unread messages included."""
        self._state = transitions.empty_inbox(self._state, _now_ms())
        await self._journal_tail()

    async def _journal_tail(self) -> None:
        """Journal what no model call will, so that nothing is left in memory when a turn ends."""
        if self._state.tail:
            append = Append(head=self._state.head, entries=self._state.tail)
            appended = await self._execute(APPEND_JOURNAL, append, Appended, _STORE_RETRY)
            self._state = transitions.after_append(self._state, appended)

    async def _execute(
        self, name: str, argument: object, result_type: type[T], retry_policy: RetryPolicy
    ) -> T:
        """Run an activity. While it is held before it could begin, wait and try again."""
        token = object()
        try:
            while True:
                self._held.pop(token, None)
                try:
                    result: T = await workflow.execute_activity(
                        name,
                        argument,
                        result_type=result_type,
                        start_to_close_timeout=_TIMEOUT,
                        heartbeat_timeout=_HEARTBEAT,
                        retry_policy=retry_policy,
                    )
                except ActivityError as error:
                    cause = error.cause
                    if not isinstance(cause, ApplicationError) or cause.type != HELD:
                        raise
                    self._held[token] = cause.message
                else:
                    self._state = dataclasses.replace(self._state, holds=0)
                    return result
                # A step can be left; what the journal must still get cannot.
                may_leave = name != APPEND_JOURNAL
                if not (may_leave and self._stopping):
                    await self._pause()
                if may_leave and (self._stopping or self._should_roll()):
                    raise _LeftWhileHeld
        finally:
            self._held.pop(token, None)

    async def _pause(self) -> None:
        """Wait before the next try: longer each time, but not through a wish to stop."""
        holds = self._state.holds
        self._state = dataclasses.replace(self._state, holds=min(holds + 1, _HOLDS_MAX))
        seconds = min(limits.HELD_PAUSE_SECONDS_MIN * 2.0**holds, limits.HELD_PAUSE_SECONDS_MAX)
        was_stopping = self._stopping  # What comes after a stop has to wait like the rest.
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._stopping and not was_stopping, timeout=timedelta(seconds=seconds)
            )

    async def _roll(self) -> None:
        """Continue as new. Safe here: no step is in flight, and the state holds what waits."""
        await workflow.wait_condition(workflow.all_handlers_finished)
        if self._stopping:
            return  # The next run would not know of it.
        counters = dataclasses.replace(self._state.counters, runs=self._state.counters.runs + 1)
        state = dataclasses.replace(self._state, counters=counters)
        workflow.continue_as_new(ThreadStart(agent=self._agent, policy=self._policy, state=state))

    def _should_roll(self) -> bool:
        info = workflow.info()
        size = RunSize(
            events=info.get_current_history_length(),
            history_bytes=info.get_current_history_size(),
            server_suggests=info.is_continue_as_new_suggested(),
        )
        return roll_reason(self._policy, size) is not None

    def _check_state(self) -> None:
        size_bytes = transitions.state_bytes(self._state)
        if size_bytes > limits.STATE_BYTES_MAX:
            raise LimitReached(
                f"operational state has {size_bytes} bytes; {limits.STATE_BYTES_MAX} is the most"
            )


def _now_ms() -> int:
    return int(workflow.now().timestamp() * 1000)


def _reason(what: str, error: ActivityError) -> str:
    """Say what failed and why, shortly: it stays in operational state for a while."""
    cause = error.cause
    # Our activities say themselves what failed; of a time-out, only the server knows.
    reason = cause.message if isinstance(cause, ApplicationError) else f"{what}: {cause or error}"
    return printable(reason, limits.REASON_CHARS_MAX)
