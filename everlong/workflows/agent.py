"""The thread: a durable agent loop that holds refs, never bodies.

Between steps all that matters is in `ThreadState`. A run may end at any of those points, and the
next one begins with the same state.
"""

import asyncio
import contextlib
import dataclasses
from datetime import timedelta
from typing import TypeVar

from pydantic import TypeAdapter
from pydantic_core import to_json
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
    Entry,
    Kind,
    Message,
    ModelCall,
    ModelTurn,
    SegmentRef,
    SendMessage,
    ThreadStart,
    ThreadState,
    ThreadStatus,
    ToolName,
    ToolResult,
    ToolRun,
    printable,
)
from everlong.policy import RunSize, roll_reason

T = TypeVar("T")

_STATE = TypeAdapter(ThreadState)
_MESSAGE = TypeAdapter(Message)
_INTERVAL = timedelta(seconds=limits.RETRY_SECONDS_MAX)
_CALL_RETRY = RetryPolicy(maximum_interval=_INTERVAL, maximum_attempts=limits.CALL_ATTEMPTS_MAX)
# No end: it is our own code, and giving up would lose what it should store.
_STORE_RETRY = RetryPolicy(maximum_interval=_INTERVAL)
_TIMEOUT = timedelta(seconds=limits.ACTIVITY_SECONDS_MAX)
_HEARTBEAT = timedelta(seconds=limits.HEARTBEAT_SECONDS)


class _StoppedWhileHeld(Exception):
    """A step that cannot go on is left as it is, since the thread is to stop."""


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
            try:
                await self._step()
            except _StoppedWhileHeld:
                return
            self._check_state()
            if roll_reason(self._policy, _run_size()) is not None:
                await self._roll()

    @workflow.update(name=SEND_UPDATE)
    def send(self, message: SendMessage) -> int:
        """Queue a message; return its number once it is durable."""
        counters = self._state.counters
        number = counters.messages + 1
        self._set(
            inbox=(*self._state.inbox, message.text),
            counters=dataclasses.replace(counters, messages=number),
        )
        return number

    @send.validator
    def _validate_send(self, message: SendMessage) -> None:
        size_bytes = _json_bytes(message.text)
        waiting_bytes = sum(map(_json_bytes, self._state.inbox))
        if self._stopping:
            raise ValueError("this thread is stopping; start a new one")
        if not message.text.strip():
            raise ValueError("the message is empty")
        if size_bytes > limits.MESSAGE_BYTES_MAX:
            raise ValueError(
                f"the message has {size_bytes} bytes; {limits.MESSAGE_BYTES_MAX} is the most. Send a "
                "path or a link that a tool can read."
            )
        if waiting_bytes + size_bytes > limits.INBOX_BYTES_MAX:
            raise ValueError(
                f"{len(self._state.inbox)} messages wait already; send again once some are answered"
            )

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
            self._begin_turn()
        if self._state.turn_steps >= self._policy.turn_steps_max:
            await self._fail_turn(f"the turn reached {self._policy.turn_steps_max} model calls")
            return
        try:
            turn = await self._call_model()
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            await self._fail_turn(_reason("the model call failed", error))
            return
        state = self._state
        self._set(
            head=turn.head,
            tail=(),
            turn_steps=state.turn_steps + 1,
            counters=dataclasses.replace(
                state.counters,
                steps=state.counters.steps + 1,
                written_bytes=state.counters.written_bytes + turn.written_bytes,
                context_bytes=state.counters.context_bytes + turn.context_bytes,
            ),
        )
        if turn.tool_calls:
            await self._run_tools(turn)
        else:
            self._end_turn()

    def _begin_turn(self) -> None:
        text, *inbox = self._state.inbox
        message = Message(role="user", text=text)
        self._set(inbox=tuple(inbox), in_turn=True, turn_steps=0, last_failure="")
        self._add_to_tail(Kind.MESSAGE, message)

    def _end_turn(self, failure: str = "") -> None:
        counters = self._state.counters
        self._set(
            in_turn=False,
            last_failure=failure,
            counters=dataclasses.replace(counters, answered=counters.answered + 1),
        )

    async def _fail_turn(self, reason: str) -> None:
        """End a turn that has no answer. The reason is journalled, and the thread stays usable."""
        self._add_to_tail(Kind.FAILURE, Message(role="failure", text=reason))
        await self._journal_tail()
        self._end_turn(failure=reason)

    async def _call_model(self) -> ModelTurn:
        call = ModelCall(agent=self._agent, head=self._state.head, tail=self._state.tail)
        return await self._execute(CALL_MODEL, call, ModelTurn, _CALL_RETRY)

    async def _execute(
        self, name: str, argument: object, result_type: type[T], retry_policy: RetryPolicy
    ) -> T:
        """Run an activity. While it is held before it could begin, wait and try again."""
        pause_seconds = limits.HELD_PAUSE_SECONDS_MIN
        token = object()
        try:
            while True:
                try:
                    result: T = await workflow.execute_activity(
                        name,
                        argument,
                        result_type=result_type,
                        start_to_close_timeout=_TIMEOUT,
                        heartbeat_timeout=_HEARTBEAT,
                        retry_policy=retry_policy,
                    )
                    return result
                except ActivityError as error:
                    cause = error.cause
                    if not isinstance(cause, ApplicationError) or cause.type != HELD:
                        raise
                    self._held[token] = cause.message
                await self._pause(pause_seconds)
                if self._stopping and name != APPEND_JOURNAL:
                    raise _StoppedWhileHeld
                pause_seconds = min(2 * pause_seconds, limits.HELD_PAUSE_SECONDS_MAX)
        finally:
            self._held.pop(token, None)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not through a wish to stop."""
        with contextlib.suppress(TimeoutError):
            already = self._stopping
            await workflow.wait_condition(
                lambda: self._stopping and not already, timeout=timedelta(seconds=seconds)
            )

    async def _journal_rest(self) -> None:
        """Journal what the thread holds when it ends, unread messages included."""
        for text in self._state.inbox:
            self._add_to_tail(Kind.MESSAGE, Message(role="user", text=text))
        self._set(inbox=())
        await self._journal_tail()

    async def _journal_tail(self) -> None:
        """Journal what no model call will, so that nothing is left in memory when a turn ends."""
        if not self._state.tail:
            return
        append = Append(head=self._state.head, entries=self._state.tail)
        appended = await self._execute(APPEND_JOURNAL, append, Appended, _STORE_RETRY)
        counters = self._state.counters
        self._set(
            head=appended.head,
            tail=(),
            counters=dataclasses.replace(
                counters, written_bytes=counters.written_bytes + appended.written_bytes
            ),
        )

    async def _run_tools(self, turn: ModelTurn) -> None:
        """Run a reply's tools side by side; their results go to the tail in call order."""
        first_seq = self._next_seq()
        runs = [
            asyncio.ensure_future(self._run_tool(turn.head, call, first_seq + index))
            for index, call in enumerate(turn.tool_calls)
        ]
        try:
            # All of them to their end, also if one is given up because the thread is to stop.
            outcomes = await asyncio.gather(*runs, return_exceptions=True)
        finally:
            # When the thread is cancelled, what has returned by then is still kept.
            self._keep([run.result() for run in runs if run.done() and not _failed(run)])
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _keep(self, results: list[ToolResult]) -> None:
        first_seq = self._next_seq()
        counters = self._state.counters
        self._set(
            tail=tuple(
                dataclasses.replace(result.entry, seq=first_seq + index)
                for index, result in enumerate(results)
            ),
            counters=dataclasses.replace(
                counters,
                tool_calls=counters.tool_calls + len(results),
                written_bytes=counters.written_bytes + sum(each.written_bytes for each in results),
            ),
        )

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
            return ToolResult(entry=_entry(seq, Kind.TOOL_RESULT, message), written_bytes=0)

    async def _roll(self) -> None:
        """Continue as new. Safe here: no step is in flight, and the state holds what waits."""
        await workflow.wait_condition(workflow.all_handlers_finished)
        if self._stopping:
            return  # The next run would not know of it.
        counters = self._state.counters
        self._set(counters=dataclasses.replace(counters, runs=counters.runs + 1))
        workflow.continue_as_new(
            ThreadStart(agent=self._agent, policy=self._policy, state=self._state)
        )

    def _check_state(self) -> None:
        size_bytes = len(_STATE.dump_json(self._state))
        if size_bytes > limits.STATE_BYTES_MAX:
            raise LimitReached(
                f"operational state has {size_bytes} bytes; {limits.STATE_BYTES_MAX} is the most"
            )

    def _add_to_tail(self, kind: Kind, message: Message) -> None:
        self._set(tail=(*self._state.tail, _entry(self._next_seq(), kind, message)))

    def _next_seq(self) -> int:
        if self._state.tail:
            return self._state.tail[-1].seq + 1
        head = self._state.head
        return 1 if head is None else head.first_seq + head.count

    def _set(self, **changes: object) -> None:
        self._state = dataclasses.replace(self._state, **changes)  # type: ignore[arg-type] # checked by pydantic


def _run_size() -> RunSize:
    info = workflow.info()
    return RunSize(
        events=info.get_current_history_length(),
        history_bytes=info.get_current_history_size(),
        server_suggests=info.is_continue_as_new_suggested(),
    )


def _entry(seq: int, kind: Kind, message: Message) -> Entry:
    return Entry(
        seq=seq,
        kind=kind,
        time_ms=int(workflow.now().timestamp() * 1000),
        size_bytes=len(_MESSAGE.dump_json(message)),
        message=message,
    )


def _failed(run: asyncio.Future[ToolResult]) -> bool:
    return run.cancelled() or run.exception() is not None


def _reason(what: str, error: ActivityError) -> str:
    """Say what failed and why, shortly: it stays in operational state for a while."""
    cause = error.cause
    # Our activities say themselves what failed; of a time-out, only the server knows.
    reason = cause.message if isinstance(cause, ApplicationError) else f"{what}: {cause or error}"
    return printable(reason, limits.REASON_CHARS_MAX)


def _json_bytes(text: str) -> int:
    """Size of a text in the state's JSON, with the comma that follows it."""
    return len(to_json(text)) + 1
