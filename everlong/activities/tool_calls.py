"""Tool calls: runs one call within bounds of time, size and failure text.

What the model got wrong is returned to it as an error text. What a tool raises fails the activity, and
the workflow's retry policy decides about the next attempt.
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
import traceback
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import partial
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from everlong import limits
from everlong.activities.builtin_tools import BUILTINS, find_builtin
from everlong.activities.heartbeat import Heartbeat
from everlong.agents import Agent, CallInfo, Tool
from everlong.agents.tools import (
    OutcomeUnknown,
    ResultInvalid,
    ResultTooLarge,
    check_result_size,
)
from everlong.errors import ConfigError, ModelRefused, ModelUnavailable
from everlong.models import (
    CONTEXT_TOO_LARGE,
    HELD,
    Context,
    Kind,
    Outcome,
    SegmentRef,
    ToolCall,
    ToolRun,
    compute_idempotency_key,
    make_printable,
)
from everlong.models.names import CALL_NOT_FOUND, CALL_TIMED_OUT, OUTCOME_UNCLEAR
from everlong.policy import Policy
from everlong.storage.agent_grants import AgentGrants
from everlong.storage.context_store import ContextStore

T = TypeVar("T")

_PERMANENT = (ConfigError, ModelRefused)


class ToolThreads:
    """Runs tools and other functions of a team.

    Blocking functions have their own thread pool: one that hangs must not take the store's threads.
    """

    def __init__(self) -> None:
        self._threads = concurrent.futures.ThreadPoolExecutor(
            limits.TOOL_THREADS_MAX, thread_name_prefix="everlong-tool"
        )

    async def call(self, tool: Tool, arguments: dict[str, object]) -> str:
        """Call a tool, and return its result as text."""
        result: object
        if inspect.iscoroutinefunction(tool.function):
            result = tool.function(**arguments)
        else:
            result = await self.run(functools.partial(tool.function, **arguments))
        return tool.format_result(await result if inspect.isawaitable(result) else result)

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function that may block, in a thread: heartbeats and other activities must go on."""
        blocking = functools.partial(_call_blocking, function)
        in_context = functools.partial(contextvars.copy_context().run, blocking)
        return await asyncio.get_running_loop().run_in_executor(self._threads, in_context)


def _call_blocking(function: Callable[[], T]) -> T:
    try:
        return function()
    except (
        StopIteration
    ) as error:  # A future cannot hold it, so the awaiting task would never wake.
        raise RuntimeError("the tool raised StopIteration") from error


@contextlib.asynccontextmanager
async def bound_call(
    what: str, seconds_max: float = limits.CALL_SECONDS_MAX, *, once: bool = False
) -> AsyncIterator[None]:
    """Bound the time of a call to the user's code, and the size of its failure in the history.

    The workflow's retry policy sets the attempts; a user's `ApplicationError` may forbid a retry. With
    `once`, a failure that leaves open whether the call took effect has a type of its own.
    """
    bound = asyncio.timeout(seconds_max)
    try:
        async with bound:
            yield
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - it is not our code
        activity.logger.warning("%s failed\n%s", what, _format_trace())
        unknown = _find_unknown(error, timed_out=bound.expired()) if once else ""
        # Not chained, since the cause may have any size.
        reason = f"{what} failed: {type(error).__name__}: {error}"
        raise _build_failure(reason, error, unknown) from None


def _find_unknown(error: BaseException, *, timed_out: bool) -> str:
    """Return the failure type of a call that may have taken effect; empty for a known outcome."""
    if timed_out:
        return CALL_TIMED_OUT
    return OUTCOME_UNCLEAR if isinstance(error, OutcomeUnknown) else ""


def _format_trace() -> str:
    """Return the current traceback for the log: bounded, and without lone surrogates."""
    trace = traceback.format_exc()[-limits.TRACE_CHARS_MAX :]
    return trace.encode(errors="replace").decode()


def _build_failure(reason: str, error: BaseException, unknown: str = "") -> ApplicationError:
    theirs = error if isinstance(error, ApplicationError) else ApplicationError("")
    delay = theirs.next_retry_delay
    if isinstance(error, ModelUnavailable) and error.retry_after_seconds is not None:
        seconds = min(error.retry_after_seconds, limits.RETRY_AFTER_SECONDS_MAX)
        delay = timedelta(seconds=seconds)
    kind = unknown or theirs.type or type(error).__name__
    if isinstance(error, ModelRefused) and error.context_too_large:
        kind = CONTEXT_TOO_LARGE
    return ApplicationError(
        make_printable(reason, 2 * limits.REASON_CHARS_MAX),
        type=kind if kind != HELD else "ApplicationError",  # `HELD` is reserved for holds.
        non_retryable=theirs.non_retryable or isinstance(error, _PERMANENT),
        next_retry_delay=delay,
    )


async def run_call(
    agent: Agent,
    run: ToolRun,
    call: ToolCall,
    beat: Heartbeat,
    threads: ToolThreads,
    gate: "ApprovalGate",
) -> tuple[Outcome, str, int]:
    """Run a tool; return the outcome, the text for the model, and how much of it the model is shown."""
    own = find_builtin(call.tool)
    tool = own or agent.find_tool(call.tool)
    if tool is None:
        names = [each.name for each in (*agent.callable_tools, *BUILTINS)]
        text = f"error: there is no tool {call.tool!r}. The tools are {names}."
        return "refused", text, limits.SHOWN_BYTES_MAX
    try:
        arguments = tool.parse(call.arguments)
    except ValidationError as error:
        return "refused", f"error: {describe_invalid_arguments(error)}", tool.max_result_bytes
    if own is not None:
        try:
            # Built-in tools only read the journal, so a missing object holds the thread.
            async with asyncio.timeout(limits.CALL_SECONDS_MAX):
                text = await beat.retry_or_hold(lambda: threads.call(own, arguments))
        except ValueError as error:  # The built-in tool rejects its arguments.
            return "refused", f"error: {error}", own.max_result_bytes
        except TimeoutError:
            text = f"error: it took over {limits.CALL_SECONDS_MAX:.0f} s. Ask for less."
            return "failed", text, own.max_result_bytes
        return "ok", text, own.max_result_bytes
    if reason := await gate.explain_refusal(tool, run, call):
        text = f"error: {reason} Nothing was run; call it again."
        return "failed", text, tool.max_result_bytes
    seconds_max = tool.call_options.timeout_seconds or limits.CALL_SECONDS_MAX
    try:
        async with bound_call(f"tool {tool.name!r}", seconds_max, once=bool(run.outcome_id)):
            outcome, text = await _call_tool(tool, arguments, threads, once=bool(run.outcome_id))
    except ApplicationError as error:
        # What the tool raised is known. Any failure of the activity means that the outcome is not.
        if not run.outcome_id or error.type in (CALL_TIMED_OUT, OUTCOME_UNCLEAR):
            raise
        reason = make_printable(error.message, limits.REASON_CHARS_MAX)
        return "failed", f"error: {reason}", tool.max_result_bytes
    return outcome, text, tool.max_result_bytes


async def _call_tool(
    tool: Tool, arguments: dict[str, object], threads: ToolThreads, *, once: bool
) -> tuple[Outcome, str]:
    """Call a tool, and check that the journal can store its result."""
    try:
        text = await threads.call(tool, arguments)
        # The journal stores it as JSON, which may be larger.
        check_result_size(len(to_json(text)))
    except (ResultTooLarge, ResultInvalid) as error:
        if once:
            # The tool has ended, so it took effect. A model that reads of a failure may repeat it.
            activity.logger.warning("the result of tool %r is lost: %s", tool.name, error)
            return "failed", _RESULT_LOST
        if isinstance(error, ResultInvalid):
            raise
        return "failed", f"error: {error}"
    return "ok", text


_RESULT_LOST = (
    "error: the call has run and took effect; only its result is lost, which was too large or not JSON. "
    "Do not call it again to get the result."
)
# Bound of the error text about invalid arguments: pydantic quotes a part of the input.
_INVALID_CHARS_MAX = 2000


class ApprovalGate:
    """The last check before a tool runs: that a person has approved the call, if one has to.

    The worker that got the reply decided that. It may not have had the tool, or an older release of the
    tool that needs no approval. And a grant may have been revoked since.
    """

    def __init__(
        self, policy: Policy, grants: AgentGrants, beat: Heartbeat, threads: ToolThreads
    ) -> None:
        self._policy = policy
        self._grants = grants
        self._beat = beat
        self._threads = threads

    async def explain_refusal(self, tool: Tool, run: ToolRun, call: ToolCall) -> str:
        """Return why a call may not run, for the model; empty if it may."""
        # A call that has begun may go on: a second attempt completes the first.
        if run.grant and activity.info().attempt == 1:
            agent = run.context.agent
            if not await self._beat.retry_or_hold(lambda: self._grants.has(agent, run.grant)):
                return describe_ended_grant(tool.name)
        if run.approved or not await self._needs_approval(tool, call):
            return ""
        return (
            f"{tool.name!r} needs a person's approval, which was not requested, since the worker that "
            "took the call did not know this."
        )

    async def _needs_approval(self, tool: Tool, call: ToolCall) -> bool:
        if self._policy.count_approvals(tool.name):
            return True
        if tool.needs_approval is False:
            return False
        try:
            async with asyncio.timeout(limits.APPROVAL_RULE_SECONDS_MAX):
                return (
                    await self._threads.run(partial(tool.options, call.arguments))
                ).needs_approval
        except TimeoutError:
            return True


def describe_ended_grant(tool: str) -> str:
    """Return why a call is refused whose grant has ended, for the model."""
    return f"{tool!r} needs a person's approval: the grant for it was revoked, or has expired."


async def find_call(
    contexts: ContextStore, context: Context, call_id: str
) -> tuple[SegmentRef, ToolCall]:
    """Return a call with its arguments, from the newest reply of the journal."""
    head = context.head
    if head is None:
        raise _build_missing_call_error(call_id)
    entry = await contexts.journal.last(head, Kind.REPLY)
    messages = [] if entry is None else await contexts.journal.messages([entry])
    for message in messages:
        for call in message.tool_calls:
            if call.id == call_id:
                return head, call
    raise _build_missing_call_error(call_id)


def build_call_info(
    agent: Agent, head: SegmentRef, run: ToolRun, on_progress: Callable[[str], None] | None = None
) -> CallInfo:
    """Return the ids of a call, for `current_call`."""
    info = activity.info()
    thread_id = info.workflow_id or ""
    key = run.idempotency_key or compute_idempotency_key(
        info.namespace, thread_id, head.ref.digest, run.call_id
    )
    return CallInfo(
        thread_id=thread_id,
        agent=agent.name,
        call_id=run.call_id,
        idempotency_key=key,
        attempt=info.attempt,
        **({} if on_progress is None else {"on_progress": on_progress}),
    )


def describe_invalid_arguments(error: ValidationError) -> str:
    """Return an error text about invalid arguments, for the model."""
    return f"the arguments are invalid. {error}"[:_INVALID_CHARS_MAX]


def _build_missing_call_error(call_id: str) -> ApplicationError:
    return ApplicationError(
        f"the newest reply of the journal has no call {call_id!r}",
        type=CALL_NOT_FOUND,
        non_retryable=True,
    )
