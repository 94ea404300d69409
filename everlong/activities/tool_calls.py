"""Tool calls: runs one call within bounds of time, size and failure text.

What the model got wrong is returned to it as an error text. What a tool raises fails the activity, and
the workflow's retry policy decides about the next attempt.
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import hashlib
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
from everlong.agents.tools import ResultTooLarge, check_result_size
from everlong.errors import ConfigError, ModelRefused, ModelUnavailable
from everlong.models import (
    CONTEXT_TOO_LARGE,
    HELD,
    Kind,
    Outcome,
    SegmentRef,
    ToolCall,
    ToolRun,
    make_printable,
)
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
    what: str, seconds_max: float = limits.CALL_SECONDS_MAX
) -> AsyncIterator[None]:
    """Bound the time of a call to the user's code, and the size of its failure in the history.

    The workflow's retry policy sets the attempts; a user's `ApplicationError` may forbid a retry.
    """
    try:
        async with asyncio.timeout(seconds_max):
            yield
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - it is not our code
        activity.logger.warning("%s failed\n%s", what, _format_trace())
        # Not chained, since the cause may have any size.
        raise _build_failure(f"{what} failed: {type(error).__name__}: {error}", error) from None


def _format_trace() -> str:
    """Return the current traceback for the log: bounded, and without lone surrogates."""
    trace = traceback.format_exc()[-limits.TRACE_CHARS_MAX :]
    return trace.encode(errors="replace").decode()


def _build_failure(reason: str, error: BaseException) -> ApplicationError:
    theirs = error if isinstance(error, ApplicationError) else ApplicationError("")
    delay = theirs.next_retry_delay
    if isinstance(error, ModelUnavailable) and error.retry_after_seconds is not None:
        seconds = min(error.retry_after_seconds, limits.RETRY_AFTER_SECONDS_MAX)
        delay = timedelta(seconds=seconds)
    kind = theirs.type or type(error).__name__
    if isinstance(error, ModelRefused) and error.context_too_large:
        kind = CONTEXT_TOO_LARGE
    return ApplicationError(
        make_printable(reason, 2 * limits.REASON_CHARS_MAX),
        type=kind if kind != HELD else "ApplicationError",  # `HELD` is reserved for holds.
        non_retryable=theirs.non_retryable or isinstance(error, _PERMANENT),
        next_retry_delay=delay,
    )


async def run_call(
    agent: Agent, run: ToolRun, call: ToolCall, beat: Heartbeat, threads: ToolThreads
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
    if await lacks_approval(tool, run, call, threads):
        text = (
            f"error: {tool.name!r} needs a person's approval, which was not requested, since the "
            "worker that took the call did not know this. Nothing was run; call it again."
        )
        return "failed", text, tool.max_result_bytes
    seconds_max = tool.call_options.timeout_seconds or limits.CALL_SECONDS_MAX
    async with bound_call(f"tool {tool.name!r}", seconds_max):
        try:
            text = await threads.call(tool, arguments)
            # The journal stores it as JSON, which may be larger.
            check_result_size(len(to_json(text)))
        except ResultTooLarge as error:
            return "failed", f"error: {error}", tool.max_result_bytes
    return "ok", text, tool.max_result_bytes


# Bound of the error text about invalid arguments: pydantic quotes a part of the input.
_INVALID_CHARS_MAX = 2000


async def lacks_approval(tool: Tool, run: ToolRun, call: ToolCall, threads: ToolThreads) -> bool:
    """Return whether a call needs an approval that was not requested.

    The worker that got the reply decided that: it may not have had the tool, or an older release of the
    tool that needs no approval.
    """
    if run.approved or tool.needs_approval is False:
        return False
    try:
        async with asyncio.timeout(limits.APPROVAL_RULE_SECONDS_MAX):
            return (await threads.run(partial(tool.options, call.arguments))).needs_approval
    except TimeoutError:
        return True


async def find_call(contexts: ContextStore, run: ToolRun) -> tuple[SegmentRef, ToolCall]:
    """Return the call with its arguments, from the newest reply of the journal."""
    head = run.context.head
    if head is None:
        raise _build_missing_call_error(run)
    entry = await contexts.journal.last(head, Kind.REPLY)
    messages = [] if entry is None else await contexts.journal.messages([entry])
    for message in messages:
        for call in message.tool_calls:
            if call.id == run.call_id:
                return head, call
    raise _build_missing_call_error(run)


def build_call_info(
    agent: Agent, head: SegmentRef, call: ToolCall, on_progress: Callable[[str], None] | None = None
) -> CallInfo:
    """Return the ids of a call, for `current_call`."""
    info = activity.info()
    thread_id = info.workflow_id or ""
    # The journal's head identifies the call's whole past, so each branch after a reset has its own key.
    name = f"{info.namespace}\0{thread_id}\0{head.ref.digest}\0{call.id}"
    return CallInfo(
        thread_id=thread_id,
        agent=agent.name,
        call_id=call.id,
        idempotency_key=hashlib.blake2b(name.encode(), digest_size=16).hexdigest(),
        attempt=info.attempt,
        **({} if on_progress is None else {"on_progress": on_progress}),
    )


def describe_invalid_arguments(error: ValidationError) -> str:
    """Return an error text about invalid arguments, for the model."""
    return f"the arguments are invalid. {error}"[:_INVALID_CHARS_MAX]


def _build_missing_call_error(run: ToolRun) -> ApplicationError:
    return ApplicationError(
        f"the newest reply of the journal has no call {run.call_id!r}",
        type="CallNotFound",
        non_retryable=True,
    )
