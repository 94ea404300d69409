"""Running one tool call, within bounds."""

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
from everlong.storage.history import Reader

# Running code that is not ours, models and tools, within bounds.

T = TypeVar("T")

_PERMANENT = (ConfigError, ModelRefused)


class ToolThreads:
    """Runs tools, and what else is a team's own.

    What blocks has threads of its own: one that hangs must not keep the store from its.
    """

    def __init__(self) -> None:
        self._threads = concurrent.futures.ThreadPoolExecutor(
            limits.TOOL_THREADS_MAX, thread_name_prefix="everlong-tool"
        )

    async def call(self, tool: Tool, arguments: dict[str, object]) -> str:
        """Return what a tool returns, as text."""
        result: object
        if inspect.iscoroutinefunction(tool.function):
            result = tool.function(**arguments)
        else:
            result = await self.run(functools.partial(tool.function, **arguments))
        return tool.format_result(await result if inspect.isawaitable(result) else result)

    async def run(self, function: Callable[[], T]) -> T:
        """Call what may block: it must not stop the heartbeats, nor other activities."""
        blocking = functools.partial(_call_blocking, function)
        in_context = functools.partial(contextvars.copy_context().run, blocking)
        return await asyncio.get_running_loop().run_in_executor(self._threads, in_context)


def _call_blocking(function: Callable[[], T]) -> T:
    try:
        return function()
    except StopIteration as error:  # A future cannot carry it: its awaiter would wait forever.
        raise RuntimeError("the tool raised StopIteration") from error


@contextlib.asynccontextmanager
async def bound_call(
    what: str, seconds_max: float = limits.CALL_SECONDS_MAX
) -> AsyncIterator[None]:
    """Bound a call of the user's code in time, and in what its failure leaves in history.

    How often it is tried is the workflow's retry policy; a user's `ApplicationError` may say no.
    """
    try:
        async with asyncio.timeout(seconds_max):
            yield
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - it is not our code
        activity.logger.warning("%s failed\n%s", what, _format_trace())
        # The cause is not attached: it may be of any size.
        raise _build_failure(f"{what} failed: {type(error).__name__}: {error}", error) from None


def _format_trace() -> str:
    """Return where it failed, as a log takes it: of a bounded length, and without lone surrogates."""
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
        type=kind if kind != HELD else "ApplicationError",  # That word is ours.
        non_retryable=theirs.non_retryable or isinstance(error, _PERMANENT),
        next_retry_delay=delay,
    )


async def run_call(
    agent: Agent, run: ToolRun, call: ToolCall, beat: Heartbeat, threads: ToolThreads
) -> tuple[Outcome, str, int]:
    """Run a tool. What the model got wrong is returned to it; what the tool raises is retried."""
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
            # They read the journal and do nothing else: what is missing there holds the thread.
            async with asyncio.timeout(limits.CALL_SECONDS_MAX):
                text = await beat.retry_or_hold(lambda: threads.call(own, arguments))
        except ValueError as error:  # What a built-in tool says is wrong with its arguments.
            return "refused", f"error: {error}", own.max_result_bytes
        except TimeoutError:
            text = f"error: it took over {limits.CALL_SECONDS_MAX:.0f} s. Ask for less."
            return "failed", text, own.max_result_bytes
        return "ok", text, own.max_result_bytes
    if await lacks_approval(tool, run, call, threads):
        text = (
            f"error: a person has to approve {tool.name!r}, and was not asked, since the worker "
            "that took the call did not know. Nothing was run; call it again."
        )
        return "failed", text, tool.max_result_bytes
    seconds_max = tool.call_options.timeout_seconds or limits.CALL_SECONDS_MAX
    async with bound_call(f"tool {tool.name!r}", seconds_max):
        try:
            text = await threads.call(tool, arguments)
            # As JSON it may be larger: that is what the journal stores.
            check_result_size(len(to_json(text)))
        except ResultTooLarge as error:
            return "failed", f"error: {error}", tool.max_result_bytes
    return "ok", text, tool.max_result_bytes


# What is wrong with a tool's arguments, as told to the model. Pydantic quotes a part of the input.
_COMPLAINT_CHARS_MAX = 2000


async def lacks_approval(tool: Tool, run: ToolRun, call: ToolCall, threads: ToolThreads) -> bool:
    """Tell whether a person has yet to be asked about a call.

    Whether it is so was found out where the reply came in: maybe by a worker that did not have the
    tool, or of a release in which it did not ask.
    """
    if run.approved or tool.needs_approval is False:
        return False
    try:
        async with asyncio.timeout(limits.APPROVAL_RULE_SECONDS_MAX):
            return (await threads.run(partial(tool.options, call.arguments))).needs_approval
    except TimeoutError:
        return True


async def find_call(reader: Reader, run: ToolRun) -> tuple[SegmentRef, ToolCall]:
    """Return the call with its arguments, from the newest reply of the journal."""
    head = run.context.head
    if head is None:
        raise _build_missing_call_error(run)
    entry = await reader.journal.last(head, Kind.REPLY)
    messages = [] if entry is None else await reader.journal.messages([entry])
    for message in messages:
        for call in message.tool_calls:
            if call.id == run.call_id:
                return head, call
    raise _build_missing_call_error(run)


def build_call_info(agent: Agent, head: SegmentRef, call: ToolCall) -> CallInfo:
    """Return what a tool may know of its call."""
    info = activity.info()
    thread_id = info.workflow_id or ""
    # The journal's head names all that led to the call: another branch has another.
    name = f"{info.namespace}\0{thread_id}\0{head.ref.digest}\0{call.id}"
    return CallInfo(
        thread_id=thread_id,
        agent=agent.name,
        call_id=call.id,
        idempotency_key=hashlib.blake2b(name.encode(), digest_size=16).hexdigest(),
        attempt=info.attempt,
    )


def describe_invalid_arguments(error: ValidationError) -> str:
    """Say to a model what is wrong with its arguments."""
    return f"the arguments do not fit. {error}"[:_COMPLAINT_CHARS_MAX]


def _build_missing_call_error(run: ToolRun) -> ApplicationError:
    return ApplicationError(
        f"the newest reply of the journal holds no call {run.call_id!r}",
        type="CallNotFound",
        non_retryable=True,
    )
