"""Running code that is not ours, models and tools, within bounds."""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
import traceback
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from everlong import limits
from everlong.agents import Tool
from everlong.errors import ConfigError, ModelRefused, ModelUnavailable
from everlong.models import CONTEXT_TOO_LARGE, HELD, printable

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
        return tool.text_of(await result if inspect.isawaitable(result) else result)

    async def run(self, function: Callable[[], T]) -> T:
        """Call what may block: it must not stop the heartbeats, nor other activities."""
        blocking = functools.partial(_called, function)
        in_context = functools.partial(contextvars.copy_context().run, blocking)
        return await asyncio.get_running_loop().run_in_executor(self._threads, in_context)


def _called(function: Callable[[], T]) -> T:
    try:
        return function()
    except (
        StopIteration
    ) as error:  # A future cannot carry it: whoever awaits that would never hear.
        raise RuntimeError("the tool raised StopIteration") from error


@contextlib.asynccontextmanager
async def bounded(what: str, seconds_max: float = limits.CALL_SECONDS_MAX) -> AsyncIterator[None]:
    """Bound a call of the user's code in time, and in what its failure leaves in history.

    How often it is tried is the workflow's retry policy; a user's `ApplicationError` may say no.
    """
    try:
        async with asyncio.timeout(seconds_max):
            yield
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - it is not our code
        activity.logger.warning("%s failed\n%s", what, _trace())
        # The cause is not attached: it may be of any size.
        raise _failure(f"{what} failed: {type(error).__name__}: {error}", error) from None


def _trace() -> str:
    """Return where it failed, as a log takes it: of a bounded length, and without lone surrogates."""
    trace = traceback.format_exc()[-limits.TRACE_CHARS_MAX :]
    return trace.encode(errors="replace").decode()


def _failure(reason: str, error: BaseException) -> ApplicationError:
    theirs = error if isinstance(error, ApplicationError) else ApplicationError("")
    delay = theirs.next_retry_delay
    if isinstance(error, ModelUnavailable) and error.retry_after_seconds is not None:
        seconds = min(error.retry_after_seconds, limits.RETRY_AFTER_SECONDS_MAX)
        delay = timedelta(seconds=seconds)
    kind = theirs.type or type(error).__name__
    if isinstance(error, ModelRefused) and error.context_too_large:
        kind = CONTEXT_TOO_LARGE
    return ApplicationError(
        printable(reason, 2 * limits.REASON_CHARS_MAX),
        type=kind if kind != HELD else "ApplicationError",  # That word is ours.
        non_retryable=theirs.non_retryable or isinstance(error, _PERMANENT),
        next_retry_delay=delay,
    )
